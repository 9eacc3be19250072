"""Products of the chosen experts on CUDA: each chosen expert's rows are read once a column group.

    out[choice, n] = W_e[n] . x[column of the choice]        choice = token * k + slot, e its expert

An expert is a row range of one stored parent. A column group are columns that go with one expert:
in decode the tokens, of eight, that chose it, found by each warp from the choices themselves, so
that the grid is fixed; in prefill 32 entries of a list sorted by expert (`expert_plan`). Columns
are gathered in their fragment order, one 16-byte load a lane. Columns of a product never mix, so a
choice's result depends neither on the group nor on its place in it.

Tiles of 16 x 128 pass through a ring of the warp's own, as in `skinny_product`; in decode several
warps share K, whose parts are added in order; their number depends on K alone. Traffic: the chosen
experts' rows, and 4 bytes a choice and row of results.
"""

from functools import cache
from typing import Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.expert_chain import make_add_tile, make_load_columns, slabs_at_once
from ninfer.kernels.cuda.expert_columns import WARPS, make_find_columns, make_locate, make_write
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

BLOCK_COLUMNS: Final = 32
"""Columns of a prefill group."""

_STAGES: Final = 3


def decode_parts(k_tiles: int) -> int:
    """Warps that share K in decode."""
    return 8 if k_tiles >= 8 else 4 if k_tiles >= 4 else 1


def row_tiles_of(rows: int) -> int:
    """Tiles that any expert of so many rows may touch."""
    return -(-rows // TILE_ROWS) + (rows % TILE_ROWS != 0)


@cache
def make_expert_product(  # noqa: PLR0915 - one loop, whose state is a lane's registers
    format: TensorFormat, parts: int, is_grouped: bool
) -> Kernel:
    """Grid (blocks of row tiles, groups, token groups), block (256,).

    In decode ``groups`` are the choices of eight tokens, and the block of the first one of an
    expert works for all; in prefill they are the entries of the plan.

    Args:
        format: of the weights.
        parts: warps that share K, 1, 4 or 8.
        is_grouped: columns come from a plan.
    """
    column_tiles = BLOCK_COLUMNS // 8 if is_grouped else 1
    columns = 8 * column_tiles
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    copy = tile_functions(format).copy
    load_columns, add_tile = make_load_columns(column_tiles), make_add_tile(format, column_tiles)
    num_words = 4 * column_tiles * slabs_at_once(column_tiles)
    find_columns = make_find_columns(columns, is_grouped)
    locate = make_locate(column_tiles)
    write = make_write(parts, columns)
    block_tiles = WARPS // parts
    warp_bytes = _STAGES * tile_bytes
    num_totals, num_sums = 4 * column_tiles, 2 * column_tiles
    part_floats = TILE_ROWS * columns

    def expert_product(  # noqa: PLR0915 - as above
        codes: int,
        high: int,
        scales: int,
        base: int,
        sums: int,
        experts: int,
        plan: int,
        order: int,
        out: int,
        k_tiles: int,
        parent_tiles: int,
        num_rows: int,
        num_tokens: int,
        chosen: int,
        sharing: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        choices = cuda.shared.array(columns, int32)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        shared = ptx.shared_address(memory)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        expert = find_columns(experts, plan, order, num_tokens, chosen, choices)
        cuda.syncthreads()
        if expert >= 0:
            part = warp % int32(parts)
            k_first = part * int32(k_tiles) // int32(parts)
            count = (part + int32(1)) * int32(k_tiles) // int32(parts) - k_first
            first_row = expert * int32(num_rows)
            block_tile = (first_row >> 4) + int32(cuda.blockIdx.x) * int32(block_tiles)
            row_tile = block_tile + warp // int32(parts)
            tile = min(row_tile, int32(parent_tiles) - int32(1)) * int32(k_tiles) + k_first
            ring = shared + uint32(warp) * uint32(warp_bytes)
            for stage in range(_STAGES - 1):
                if stage < count:
                    to = ring + uint32(stage * tile_bytes)
                    copy(to, codes, high, scales, tile + stage, lane)
                ptx.close_copies()
            x_at = cuda.local.array(column_tiles, uint64)
            sum_at = cuda.local.array(num_sums, uint64)
            locate(choices, sharing, base, sums, k_tiles, k_first, lane, x_at, sum_at)
            total = cuda.local.array(num_totals, float32)
            for i in range(num_totals):
                total[i] = float32(0.0)
            slot, free = uint32(0), uint32((_STAGES - 1) * tile_bytes)
            x = cuda.local.array(num_words, uint32)
            for k in range(count):
                load_columns(x_at, 0, x)
                ptx.wait_copies_1()
                cuda.syncwarp()
                if k + (_STAGES - 1) < count:
                    copy(ring + free, codes, high, scales, tile + k + (_STAGES - 1), lane)
                ptx.close_copies()
                add_tile(ring + slot, lane, x_at, x, sum_at, total)
                for j in range(column_tiles):
                    x_at[j] += uint64(2048)
                    sum_at[2 * j] += uint64(64)
                    sum_at[2 * j + 1] += uint64(64)
                slot = uint32(slot + uint32(tile_bytes))
                free = uint32(free + uint32(tile_bytes))
                if slot == uint32(warp_bytes):
                    slot = uint32(0)
                if free == uint32(warp_bytes):
                    free = uint32(0)
            ptx.wait_copies_0()
            cuda.syncthreads()
            at = shared + uint32(warp * part_floats + (lane >> 2)) * uint32(4)
            at += (uint32(lane) & uint32(3)) * uint32(2 * TILE_ROWS * 4)
            for j in range(column_tiles):
                here = at + uint32(j * 8 * TILE_ROWS * 4)
                ptx.put_shared_f32(here, total[4 * j])
                ptx.put_shared_f32(here + uint32(TILE_ROWS * 4), total[4 * j + 1])
                ptx.put_shared_f32(here + uint32(32), total[4 * j + 2])
                ptx.put_shared_f32(here + uint32(TILE_ROWS * 4 + 32), total[4 * j + 3])
            cuda.syncthreads()
            write(shared, choices, out, first_row, num_rows, block_tile * int32(TILE_ROWS))

    params = (Param.ADDRESS,) * 9 + (Param.I32,) * 6
    kind = f"{parts}_{'grouped' if is_grouped else 'gathered'}"
    return Kernel(
        f"expert_product_{format.name.lower()}_{kind}",
        expert_product,
        params,
        threads=WARPS * WARP,
        max_registers=255 if is_grouped else 128,
        dynamic_shared_bytes=max(WARPS * warp_bytes, WARPS * part_floats * 4),
        min_blocks=0 if is_grouped else 2,
    )
