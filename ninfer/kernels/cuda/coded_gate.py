"""The end of a product of gate and up rows: SwiGLU of what was staged, written as an image.

    y[t, i] = silu(bf16(gate[i] . x[t])) * bf16(up[i] . x[t])

A warp's upper eight rows are gate rows and its lower eight the up rows of the same features, one
chunk of `fragments`; the four warps of a group have the four chunks of a slab. 64 or 128 columns at
a time, rounded, they turn them over in 128 bytes of shared memory for each: gates of chunk w of
column c at ``128 c + 16 (w xor turn)``, ups likewise as chunk w + 4, where ``turn`` are the bits 0,
2, 1 of c, so that neither side meets a bank twice. A lane then gates one chunk after the other, and
four lanes turn a slab's chunks into its pieces (`column_image`). That is a loop, as the same code
for every sum of a warp would be read from far away for each tile.

Results are those of `pointwise`, bit for bit, which a test on a card shows for every gate.
"""

import math
from typing import Any

from numba import cuda, float32, int32, uint32

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.column_image import piece_address, turn_square
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16

Address = Any
Array = Any
Index = Any


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
def _gated_pairs(gates: Any, ups: Any, later_gates: Any, later_ups: Any) -> Any:
    """Values of two words of gates and ups, as two pairs of a chunk."""
    lower = ptx.bf16x2_of_f32(
        gated_value(lower_bf16(gates), lower_bf16(ups)),
        gated_value(lower_bf16(later_gates), lower_bf16(later_ups)),
    )
    upper = ptx.bf16x2_of_f32(
        gated_value(upper_bf16(gates), upper_bf16(ups)),
        gated_value(upper_bf16(later_gates), upper_bf16(later_ups)),
    )
    return lower, upper


def _make_part(part: int, columns: int) -> Any:
    """Make the function that gates 64 or 128 columns."""
    offset, num_eights, num_steps = part * columns // 2, columns // 8, columns // 32

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
        line, part_of_slab = thread >> uint32(2), thread & uint32(3)
        turn = ((line & uint32(1)) << uint32(2)) | ((line >> uint32(1)) & uint32(3))
        chunk = uint32(warp) & uint32(3)
        upper = staging + (line & uint32(7)) * uint32(128) + part_of_slab * uint32(4)
        upper += (chunk ^ turn) << uint32(4)
        lower = upper ^ uint32(64)
        for j in range(num_eights):
            i = offset + 4 * j
            gates = ptx.transpose_matrix(ptx.bf16x2_of_f32(total[i], total[i + 1]))
            ptx.put_shared_u32(upper + uint32(1024 * j), gates)
            ups = ptx.transpose_matrix(ptx.bf16x2_of_f32(total[i + 2], total[i + 3]))
            ptx.put_shared_u32(lower + uint32(1024 * j), ups)
        warpgroup.meet(uint32(1) + group, uint32(128))
        first = column + int32(part * columns)
        steps = min((num_columns - first + int32(31)) >> int32(5), int32(num_steps))
        piece = uint32(block) * uint32(8) + group * uint32(4) + part_of_slab
        at = staging + line * uint32(128) + ((part_of_slab ^ turn) << uint32(4))
        which = first + int32(line)
        for _ in range(steps):
            g0, g1, g2, g3 = ptx.shared_u32x4(at)
            u0, u1, u2, u3 = ptx.shared_u32x4(at ^ uint32(64))
            a, b = _gated_pairs(g0, u0, g2, u2)
            c, d = _gated_pairs(g1, u1, g3, u3)
            a, b, c, d = turn_square(int32(part_of_slab), a, b, c, d)
            if which < num_columns:
                ptx.store_u32x4(piece_address(out, k_blocks, which, piece), a, b, c, d)
            at += uint32(4096)
            which += int32(32)
        warpgroup.meet(uint32(1) + group, uint32(128))

    return write


def make_gated_ending(tile_columns: int, group_bytes: int) -> Any:
    """Make the function that gates a warp's part of a tile and writes it.

    Its arguments are those of `make_ending`: ``out`` is an image whose columns have ``out_width``
    blocks of 64 features, and the tile's rows are those of block ``first_row / 128``.
    """
    part_columns = min(tile_columns, 128)
    first, second = _make_part(0, part_columns), _make_part(1, part_columns)

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
        if tile_columns > 128:
            second(at, out, total, warp, column, block, num_columns, out_width)

    return write
