"""The end of a product of gate and up rows: SwiGLU of what was staged, written as an image.

    y[t, i] = silu(bf16(gate[i] . x[t])) * bf16(up[i] . x[t])

A warp's upper eight rows are gate rows and its lower eight the up rows of the same features, one
chunk of `fragments`. They are taken in the order of a chunk's pairs (`make_lane`), so that a
transposition between lanes leaves pair p of column c in lane ``4 c + p``. The four warps of a group
have the four chunks of a slab; 128 columns at a time, rounded, they turn them over in 128 bytes of
shared memory for each: gates of chunk w of column c at ``128 c + 16 (w xor c mod 8)``, ups likewise
as chunk w + 4. A lane then gates one piece of `column_image`, eight features, after the other: a
loop, as the same code for every sum of a warp would be read from far away for each tile.

Results are those of `pointwise`, bit for bit, which a test on a card shows for every gate.
"""

import math
from typing import Any

from numba import cuda, float32, int32, uint32

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.column_image import piece_address
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16

Address = Any
Array = Any
Index = Any


def make_lane(*, is_gated: bool) -> Any:
    """Make the function that says whose words of a record a lane takes: its own, but for gates.

    Row r of a gated product is pair r / 2, half r mod 2 of a chunk.
    """

    @device_function
    def take_lane(lane: Index) -> Index:
        if is_gated:
            row = lane >> int32(2)
            row = (row >> int32(1)) | ((row & int32(1)) << int32(2))
            return (row << int32(2)) | (lane & int32(3))
        return lane

    return take_lane


@device_function
def gated_value(gate: Any, up: Any) -> Any:
    """``gate / (1 + exp(-gate)) * up`` of bf16 values.

    The quotient is a division's but for the call that a division has for rare operands: a quarter
    of both keeps the reciprocal a normal number, and where the rest is nothing, or not a number
    because an operand is infinite, the first quotient is right.
    """
    divisor = float32(0.25) * (float32(1.0) + math.exp(-gate))
    quarter = float32(0.25) * gate
    inverse = ptx.reciprocal(divisor)
    quotient = quarter * inverse
    rest = ptx.fused_multiply_add(-divisor, quotient, quarter)
    if abs(rest) > float32(0.0):
        quotient = ptx.fused_multiply_add(rest, inverse, quotient)
    return quotient * up


@device_function
def _gated_pair(gates: Any, ups: Any) -> Any:
    """Two gated values, of two bf16 each."""
    return ptx.bf16x2_of_f32(
        gated_value(lower_bf16(gates), lower_bf16(ups)),
        gated_value(upper_bf16(gates), upper_bf16(ups)),
    )


def _make_part(part: int) -> Any:
    """Make the function that gates 128 columns."""
    offset = part * 64

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        warp: Index,
        column: Index,
        block: Index,
        num_columns: Index,
        k_blocks: Index,
    ) -> None:
        group, thread = uint32(warp) >> uint32(2), uint32(cuda.threadIdx.x) & uint32(127)
        line, pair = thread >> uint32(2), thread & uint32(3)
        turn = line & uint32(7)
        staging += pair * uint32(4)
        chunk = uint32(warp) & uint32(3)
        upper = staging + turn * uint32(128) + ((chunk ^ turn) << uint32(4))
        lower = upper ^ uint32(64)
        for j in range(16):
            i = offset + 4 * j
            gates = ptx.transpose_matrix(ptx.bf16x2_of_f32(total[i], total[i + 1]))
            ptx.put_shared_u32(upper + uint32(1024 * j), gates)
            ups = ptx.transpose_matrix(ptx.bf16x2_of_f32(total[i + 2], total[i + 3]))
            ptx.put_shared_u32(lower + uint32(1024 * j), ups)
        warpgroup.meet(uint32(1) + group, uint32(128))
        first = column + int32(part * 128)
        steps = min((num_columns - first + int32(31)) >> int32(5), int32(4))
        piece = uint32(block) * uint32(8) + group * uint32(4) + pair
        at = staging + line * uint32(128) + (turn << uint32(4))
        which = first + int32(line)
        for _ in range(steps):
            a = _gated_pair(ptx.shared_u32(at), ptx.shared_u32(at ^ uint32(64)))
            b = _gated_pair(ptx.shared_u32(at ^ uint32(16)), ptx.shared_u32(at ^ uint32(80)))
            c = _gated_pair(ptx.shared_u32(at ^ uint32(32)), ptx.shared_u32(at ^ uint32(96)))
            d = _gated_pair(ptx.shared_u32(at ^ uint32(48)), ptx.shared_u32(at ^ uint32(112)))
            if which < num_columns:
                ptx.store_u32x4(piece_address(out, k_blocks, which, piece), a, b, c, d)
            at += uint32(4096)
            which += int32(32)
        warpgroup.meet(uint32(1) + group, uint32(128))

    return write


def make_gated_ending(column_blocks: int, group_bytes: int) -> Any:
    """Make the function that gates a warp's part of a tile and writes it.

    Its arguments are those of `make_ending`: ``out`` is an image whose columns have ``out_width``
    blocks of 64 features, and the tile's rows are those of block ``first_row / 128``.
    """
    first, second = _make_part(0), _make_part(1)

    @device_function
    def write(
        staging: Address,
        out: Address,
        total: Array,
        warp: Index,
        column: Index,
        first_row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        at = staging + (uint32(warp) >> uint32(2)) * uint32(group_bytes)
        block = uint32(first_row) >> uint32(7)
        first(at, out, total, warp, column, block, num_columns, out_width)
        if column_blocks > 1:
            second(at, out, total, warp, column, block, num_columns, out_width)

    return write
