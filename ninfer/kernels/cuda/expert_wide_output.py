"""The end of an item of `expert_wide`: sums through shared memory to rows of results.

    gate    SwiGLU of a lane's gate and up rows; 32 features of each place, as pieces
    down    64 features of each place

Lanes hold eight rows of two columns. The four warps of a group turn their 64 rows over in shared
memory, some columns at a time, so that memory is written sixteen bytes a lane.
"""

import math
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.expert_wide_shape import COLUMNS, GROUPS, ExpertWide

_LOG2_E: Final = math.log2(math.e)
_GATE_STRIDE: Final = 80
"""Bytes of a column of the staging of gate and up: padded against lanes that share a bank."""

_GATE_COLUMNS: Final = 32
_DOWN_COLUMNS: Final = 16
"""Columns that are turned over together."""

Address = Any
Array = Any
Index = Any
Place = Any
"""Output, first place and number of the columns, block of rows, rows in all."""


@device_function
def _gated(gate: Any, up: Any) -> Any:
    """``silu(gate) * up`` without a division, whose slow path would be a call."""
    power = ptx.power_of_two(gate * float32(-_LOG2_E))
    return gate * ptx.reciprocal(float32(1.0) + power) * up


@device_function
def _put_bf16(at: Address, value: Any) -> None:
    ptx.put_shared_u16(at, ptx.bf16x2_of_f32(value, float32(0.0)))


@device_function
def _meet(warp: Index) -> None:
    """Wait for the other warps of the group."""
    warpgroup.meet(uint32(1) + (uint32(warp) >> uint32(2)), uint32(128))


def make_write(shape: ExpertWide) -> Any:
    """Function that writes the sums of a group's 64 rows."""
    columns = _GATE_COLUMNS if shape.is_gate else _DOWN_COLUMNS
    staging_bytes, write_parts = shape.staging_bytes, _make_parts(shape, columns, 0)

    @device_function
    def write(staging: Address, to: Place, warp: Index, total: Array) -> None:
        group = warp >> int32(2)
        at = staging + uint32(group) * uint32(staging_bytes)
        piece = to[3] * int32(GROUPS) + group  # of 64 rows
        write_parts(at, to, piece, warp, total)

    return write


def _make_parts(shape: ExpertWide, columns: int, part: int) -> Any:
    """Columns from those of a part on, as far as there are some."""
    own = (_make_gate_part if shape.is_gate else _make_down_part)(part)
    behind = (part + 1) * columns
    if behind >= COLUMNS:
        return own
    rest = _make_parts(shape, columns, part + 1)

    @device_function
    def write_parts(at: Address, to: Place, piece: Index, warp: Index, total: Array) -> None:
        own(at, to, piece, warp, total)
        if to[2] > int32(behind):
            rest(at, to, piece, warp, total)

    return write_parts


def _make_gate_part(part: int) -> Any:
    """32 columns: feature 8 q + r of 32, in the order of pieces (`column_image`)."""
    offset = part * (_GATE_COLUMNS // 2)

    @device_function
    def write(staging: Address, place: Place, piece: Index, warp: Index, total: Array) -> None:
        out, start, count, _, num_rows = place
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
    """16 columns: rounded pairs are stored transposed, then whole lines of eight pieces."""
    offset, lines = part * (_DOWN_COLUMNS // 2), _DOWN_COLUMNS // 16

    @device_function
    def write(staging: Address, place: Place, piece: Index, warp: Index, total: Array) -> None:
        out, start, count, _, num_rows = place
        thread = uint32(cuda.threadIdx.x) & uint32(127)
        first = int32(part * _DOWN_COLUMNS) + int32(thread >> uint32(3))
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
                row = uint64(start + first + int32(16 * step))
                to = out + row * uint64(num_rows) * uint64(2)
                ptx.store_u32x4(to + inside, a, b, c, d)
        _meet(warp)

    return write
