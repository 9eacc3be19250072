"""The end of an item of `expert_wide`: sums through shared memory to rows of results.

    gate    SwiGLU of a lane's gate and up rows; 32 features of each place, as in `expert_rows`
    down    64 features of each choice, in order

Lanes hold eight rows of two columns. The four warps of a group turn their 64 rows over in shared
memory, some columns at a time, so that memory is written sixteen bytes a lane.
"""

import math
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.expert_wide_shape import COLUMNS, GROUPS, STAGING_BYTES

_GATE_STRIDE: Final = 80
"""Bytes of a column of the staging of gate and up: padded against lanes that share a bank."""

_GATE_COLUMNS: Final = 64
_DOWN_COLUMNS: Final = 32
"""Columns that are turned over together."""

Address = Any
Array = Any
Index = Any
Place = Any
"""Output, order, first place and number of the columns, block of rows, rows in all."""


@device_function
def _gated(gate: Any, up: Any) -> Any:
    """``silu(gate) * up`` without a division, whose slow path would be a call."""
    return gate * ptx.reciprocal(float32(1.0) + math.exp(-gate)) * up


@device_function
def _put_bf16(at: Address, value: Any) -> None:
    ptx.put_shared_u16(at, ptx.bf16x2_of_f32(value, float32(0.0)))


@device_function
def _meet(warp: Index) -> None:
    """Wait for the other warps of the group."""
    warpgroup.meet(uint32(1) + (uint32(warp) >> uint32(2)), uint32(128))


def make_write(is_gate: bool) -> Any:
    """Function that writes the sums of a group's 64 rows."""
    make_part = _make_gate_part if is_gate else _make_down_part
    columns = _GATE_COLUMNS if is_gate else _DOWN_COLUMNS
    parts = tuple(make_part(part) for part in range(COLUMNS // columns))
    first, second, third, fourth = (*parts, *parts)[:4]
    is_four = len(parts) == 4

    @device_function
    def write(staging: Address, to: Place, warp: Index, total: Array) -> None:
        group, count = warp >> int32(2), to[3]
        at = staging + uint32(group) * uint32(STAGING_BYTES)
        piece = to[4] * int32(GROUPS) + group  # of 64 rows
        first(at, to, piece, warp, total)
        if count > int32(columns):
            second(at, to, piece, warp, total)
        if is_four and count > int32(2 * columns):
            third(at, to, piece, warp, total)
        if is_four and count > int32(3 * columns):
            fourth(at, to, piece, warp, total)

    return write


def _make_gate_part(part: int) -> Any:
    """64 columns: feature 8 q + r of 32, in the order of `expert_rows`."""
    offset = part * (_GATE_COLUMNS // 2)

    @device_function
    def write(staging: Address, place: Place, piece: Index, warp: Index, total: Array) -> None:
        out, _, start, count, _, num_rows = place
        thread = uint32(cuda.threadIdx.x) & uint32(127)
        r, t = (thread >> uint32(2)) & uint32(7), thread & uint32(3)
        inside = (r & uint32(3)) * uint32(16) + (r >> uint32(2)) * uint32(2)
        inside += (thread >> uint32(5)) * uint32(4)
        at = staging + inside + t * uint32(2 * _GATE_STRIDE)
        for j in range(_GATE_COLUMNS // 8):
            i = offset + 4 * j
            here = at + uint32(8 * _GATE_STRIDE * j)
            _put_bf16(here, _gated(total[i], total[i + 2]))
            _put_bf16(here + uint32(_GATE_STRIDE), _gated(total[i + 1], total[i + 3]))
        _meet(warp)
        chunk = thread & uint32(3)
        for step in range(_GATE_COLUMNS // 32):
            line = uint32(32 * step) + (thread >> uint32(2))
            at = staging + line * uint32(_GATE_STRIDE) + (chunk << uint32(4))
            a, b, c, d = ptx.shared_u32x4(at)
            column = int32(part * _GATE_COLUMNS) + int32(line)
            if column < count:
                to = out + uint64(start + column) * uint64(num_rows)  # half as many bf16
                to += uint64(piece) * uint64(64) + uint64(chunk) * uint64(16)
                ptx.store_u32x4(to, a, b, c, d)
        _meet(warp)

    return write


def _make_down_part(part: int) -> Any:
    """32 columns: rounded pairs are stored transposed, then whole lines of eight pieces."""
    offset, lines = part * (_DOWN_COLUMNS // 2), _DOWN_COLUMNS // 16

    @device_function
    def write(staging: Address, place: Place, piece: Index, warp: Index, total: Array) -> None:
        out, order, start, count, _, num_rows = place
        thread = uint32(cuda.threadIdx.x) & uint32(127)
        first = int32(part * _DOWN_COLUMNS) + int32(thread >> uint32(3))
        rows = cuda.local.array(lines, int32)
        for step in range(lines):
            choice = start + min(first + int32(16 * step), count - int32(1))
            rows[step] = ptx.load_i32(order + uint64(choice) * uint64(4))
        # A lane names the line of one column of one of four squares: upper and lower, of two.
        lane = thread & uint32(31)
        line = ((lane >> uint32(4)) << uint32(3)) + (lane & uint32(7))
        turned = ((thread >> uint32(5)) << uint32(1)) | ((lane >> uint32(3)) & uint32(1))
        at = staging + line * uint32(128) + ((turned ^ (lane & uint32(7))) << uint32(4))
        for j in range(_DOWN_COLUMNS // 16):
            i = offset + 8 * j
            warpgroup.store_matrices_transposed(
                at + uint32(2048 * j),
                ptx.bf16x2_of_f32(total[i], total[i + 1]),
                ptx.bf16x2_of_f32(total[i + 2], total[i + 3]),
                ptx.bf16x2_of_f32(total[i + 4], total[i + 5]),
                ptx.bf16x2_of_f32(total[i + 6], total[i + 7]),
            )
        _meet(warp)
        chunk = thread & uint32(7)
        inside = uint64(piece) * uint64(128) + uint64(chunk) * uint64(16)
        for step in range(lines):
            line = uint32(16 * step) + (thread >> uint32(3))
            at = staging + line * uint32(128) + ((chunk ^ (line & uint32(7))) << uint32(4))
            a, b, c, d = ptx.shared_u32x4(at)
            if first + int32(16 * step) < count:
                to = out + uint64(rows[step]) * uint64(num_rows) * uint64(2)
                ptx.store_u32x4(to + inside, a, b, c, d)
        _meet(warp)

    return write
