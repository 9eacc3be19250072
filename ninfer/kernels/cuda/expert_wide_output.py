"""The end of a block of `expert_wide`: sums through shared memory to rows of results.

    gate    SwiGLU of a lane's gate and up rows; 64 features of each place, as in `expert_rows`
    down    128 features of each choice, in order

Lanes hold eight rows of two columns; shared memory turns that over, so that memory is written
sixteen bytes a lane and whole lines a row.
"""

import math
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function

_PAD: Final = 16  # bytes of a row of the staging, against lanes that share a bank

STAGING_BYTES: Final = {True: 128 + _PAD, False: 256 + _PAD}
"""Bytes of one column, by whether it is gate and up."""

_THREADS: Final = 256

Address = Any
Array = Any
Index = Any


@device_function
def _gated(gate: Any, up: Any) -> Any:
    """``silu(gate) * up`` without a division, whose slow path would be a call."""
    return gate * ptx.reciprocal(float32(1.0) + math.exp(-gate)) * up


@device_function
def _put_bf16(at: Address, value: Any) -> None:
    ptx.put_shared_u16(at, ptx.bf16x2_of_f32(value, float32(0.0)))


def make_write(columns: int, is_gate: bool) -> Any:
    """Function that writes a block's sums; called by all threads, which have ended their reads."""
    stride = STAGING_BYTES[is_gate]
    row_chunks = (stride - _PAD) // 16
    row_bits = row_chunks.bit_length() - 1
    column_steps = columns // 8
    steps = columns * row_chunks // _THREADS

    @device_function
    def stage_gate(to: Address, warp: Index, lane: Index, total: Array) -> None:
        # Feature 16 (warp / 2) + 8 (warp mod 2) + r, in the order of `expert_rows`.
        place = lane >> int32(2)
        chunk = warp & int32(3)
        inside = (warp >> int32(2)) * int32(64) + (place & int32(3)) * int32(16)
        inside += chunk * int32(4) + (place >> int32(2)) * int32(2)
        at = to + uint32(inside) + (uint32(lane) & uint32(3)) * uint32(2 * stride)
        for j in range(column_steps):
            here = at + uint32(8 * j * stride)
            _put_bf16(here, _gated(total[4 * j], total[4 * j + 2]))
            _put_bf16(here + uint32(stride), _gated(total[4 * j + 1], total[4 * j + 3]))

    @device_function
    def stage_down(to: Address, warp: Index, lane: Index, total: Array) -> None:
        row = warp * int32(16) + (lane >> int32(2))
        at = to + uint32(row) * uint32(2) + (uint32(lane) & uint32(3)) * uint32(2 * stride)
        for j in range(column_steps):
            here = at + uint32(8 * j * stride)
            _put_bf16(here, total[4 * j])
            _put_bf16(here + uint32(stride), total[4 * j + 1])
            _put_bf16(here + uint32(16), total[4 * j + 2])
            _put_bf16(here + uint32(stride + 16), total[4 * j + 3])

    put = stage_gate if is_gate else stage_down

    @device_function
    def write(
        staging: Address,
        out: Address,
        order: Address,
        start: Index,
        count: Index,
        num_rows: Index,
        warp: Index,
        lane: Index,
        total: Array,
    ) -> None:
        put(staging, warp, lane, total)
        cuda.syncthreads()
        for step in range(steps):
            index = int32(cuda.threadIdx.x) + int32(_THREADS * step)
            column, chunk = index >> int32(row_bits), index & int32(row_chunks - 1)
            if column < count:
                at = staging + uint32(column) * uint32(stride) + uint32(chunk) * uint32(16)
                a, b, c, d = ptx.shared_u32x4(at)
                inside = int32(cuda.blockIdx.x) * int32(row_chunks) + chunk
                row = start + column
                width = num_rows
                if is_gate:
                    width = num_rows >> int32(1)
                else:
                    row = ptx.load_i32(order + uint64(row) * uint64(4))
                to = out + uint64(row) * uint64(width) * uint64(2)
                ptx.store_u32x4(to + uint64(inside) * uint64(16), a, b, c, d)

    return write
