"""How a block of `expert_gate` goes on where shared memory holds one k tile of each warp's rows.

Rows of a k tile are asked for, waited for and multiplied, before those of the next. The eight warps
of a block do so on their own, which keeps eight requests under way. Sums and their order are those
of whole stages, so that no bit changes; rows of an expert that more than four tokens chose come
once for each four, mostly from the second-level cache.
"""

from typing import Any

from numba import cuda, float32, int32, uint32

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.expert_columns import COLUMNS, STORED_BYTES, UNIT_SLABS, make_load
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


def make_walk_by_tiles(
    columns_at: int,
    parts_at: int,
    part_bytes: int,
    choice_of: Any,
    ask_columns: Any,
    multiply: Any,
    put_part: Any,
    finish: Any,
) -> Any:
    """Tiles ``tile .. stop - 1``, none of which is asked for.

    Args:
        columns_at: where a warp has its columns.
        parts_at: where it has the first of two parts.
        part_bytes: of a part.
        choice_of: `expert_columns.Choose.choice`.
        ask_columns: asks for a warp's part of the columns.
        multiply: `make_multiply_by_tiles`.
        put_part: stores a warp's sums.
        finish: adds parts and writes features.
    """

    @device_function
    def walk(
        block: Address,
        ring: Address,
        codes: Address,
        base: Address,
        sums: Address,
        order: Address,
        out: Address,
        upper: Index,
        tile: Index,
        stop: Index,
        up: Index,
        found: Index,
        count: Index,
        chosen: Index,
        out_width: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        columns, parts = ring + uint32(columns_at), uint32(parts_at)
        total = cuda.local.array(8, float32)
        while tile < stop:
            done = int32(0)
            while done < count:
                choice = choice_of(found, order, done, count, lane)
                ask_columns(columns, base, sums, choice, chosen, warp, lane)
                multiply(ring, columns, codes, upper + tile, up, warp, lane, total)
                put_part(ring + parts, lane, total)
                done += int32(COLUMNS)
                cuda.syncthreads()  # parts are written here and there by turns: once is enough
                finish(block + parts, out, choice, out_width, tile, lane, warp)
                parts ^= uint32(parts_at ^ (parts_at + part_bytes))
            tile += int32(1)

    return walk


def make_multiply_by_tiles(format: TensorFormat, k_tiles: int, warps: int) -> Any:
    """Products of a warp's k tiles with the columns that were asked for before."""
    each, ask_pair, load = -(-k_tiles // warps), make_ask_pair(format, k_tiles), make_load(format)
    num_words, num_sums = 4 * UNIT_SLABS, 2 * unit_groups(format, UNIT_SLABS)
    products = make_multiply(format, 2, 1, UNIT_SLABS)
    make_own_masks = make_masks(format, keeps=True)

    @device_function
    def multiply(
        rows: Address,
        columns: Address,
        codes: Address,
        row_tile: Index,
        up: Index,
        warp: Index,
        lane: Index,
        total: Array,
    ) -> None:
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for i in range(8):
            total[i] = float32(0.0)
        for i in range(each):
            if warp + int32(warps * i) < int32(k_tiles):
                place = row_tile * int32(k_tiles) + warp + int32(warps * i)
                ask_pair(rows, codes, place, up, lane)
                ptx.close_copies()
                ptx.wait_copies_0()
                for unit in range(4 // UNIT_SLABS):
                    cuda.syncwarp()  # keeps loads of the next unit, and their registers, behind it
                    load(columns + uint32(i * STORED_BYTES), lane, unit, x, s)
                    products(rows, lane, unit, x, s, total, masks)
                cuda.syncwarp()

    return multiply


def make_ask_pair(format: TensorFormat, k_tiles: int) -> Any:
    """Function that asks for sixteen gate rows of a k tile, and the up rows of the same features.

    It takes (to, codes, stored tile of the gate rows, row tiles to the up rows, lane).
    """
    tile_bytes, copy = PAIR_FORMATS[format].tile_bytes, tile_functions(format).copy

    @device_function
    def ask_pair(to: Address, codes: Address, place: Index, up: Index, lane: Index) -> None:
        copy(to, codes, codes, codes, place, lane)
        place += up * int32(k_tiles)
        copy(to + uint32(tile_bytes), codes, codes, codes, place, lane)

    return ask_pair
