"""Second half of the chosen experts where a block has no room for all of a slot's rows.

As `expert_down`, bit for bit, with rows of some k tiles of each warp's slot in shared memory at a
time: they are asked for, waited for and multiplied before the next.
"""

from functools import cache
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.expert_columns import make_load_alone
from ninfer.kernels.cuda.expert_down_parts import (
    THREADS,
    WARPS,
    column_bytes,
    load_rest,
    make_add_up,
    make_bring_column,
    put_products,
    row_tiles_of_block,
)
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


@cache
def make_down_by_pieces(format: TensorFormat, k_tiles: int, each: int, piece: int) -> Kernel:
    """Grid (tokens, `expert_down.down_groups`), block (256,); ``piece`` k tiles at a time."""
    piece_bytes, own_column = piece * PAIR_FORMATS[format].tile_bytes, column_bytes(k_tiles)
    columns_at = WARPS * piece_bytes
    products_at = columns_at + WARPS * own_column
    ask, bring_column = _make_ask_piece(format, k_tiles, piece), make_bring_column(k_tiles)
    multiply = _make_multiply_piece(format, k_tiles, piece)
    add_up = make_add_up(WARPS * each)

    def down(
        codes: int,
        active: int,
        experts: int,
        weights: int,
        shared: int,
        shared_gate: int,
        residual: int,
        hidden: int,
        width: int,
        chosen: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        first = int32(cuda.blockIdx.x) * chosen
        block = ptx.shared_address(memory)
        rows = block + uint32(warp * int32(piece_bytes))
        column = block + uint32(columns_at) + uint32(warp * int32(own_column))
        row_tiles = int32(hidden >> int32(4))
        own_tile, stop = row_tiles_of_block(row_tiles)
        total = cuda.local.array(4, float32)
        while own_tile < stop:
            rest = load_rest(shared, shared_gate, residual, hidden, own_tile)
            for i in range(each):
                slot = warp + int32(WARPS * i)
                weight = float32(0.0)
                for j in range(4):
                    total[j] = float32(0.0)
                if slot < chosen:
                    expert = ptx.load_i32(experts + uint64(first + slot) * uint64(4))
                    tile = (expert * row_tiles + own_tile) * int32(k_tiles)
                    weight = ptx.load_f32(weights + uint64(first + slot) * uint64(4))
                    ask(rows, codes, tile, int32(0), lane)
                    bring_column(active, first + slot, width, column, lane)
                    k = int32(0)
                    while k < int32(k_tiles):
                        ptx.wait_copies_0()
                        cuda.syncwarp()
                        multiply(rows, column, k, lane, total)
                        cuda.syncwarp()
                        k += int32(piece)
                        ask(rows, codes, tile, k, lane)
                to = block + uint32(products_at + 4 * TILE_ROWS * WARPS * i)
                put_products(to, warp, lane, weight, total)
            cuda.syncthreads()
            add_up(block + uint32(products_at), residual, hidden, own_tile, rest)
            cuda.syncthreads()
            own_tile = int32(own_tile + int32(1))

    return Kernel(
        f"expert_down_{format.name.lower()}_{k_tiles}_{each}_by_{piece}",
        down,
        (Param.ADDRESS,) * 7 + (Param.I32,) * 3,
        threads=THREADS,
        max_registers=255,
        dynamic_shared_bytes=products_at + WARPS * each * TILE_ROWS * 4,
        min_blocks=1,
    )


def _make_ask_piece(format: TensorFormat, k_tiles: int, piece: int) -> Any:
    """Ask for the k tiles of one piece of a slot's rows, as many as there are."""
    tile_bytes, copy = PAIR_FORMATS[format].tile_bytes, tile_functions(format).copy

    @device_function
    def ask(rows: Address, codes: Address, tile: Index, k: Index, lane: Index) -> None:
        for i in range(piece):
            if k + int32(i) < int32(k_tiles):
                copy(rows + uint32(i * tile_bytes), codes, codes, codes, tile + k + int32(i), lane)
        ptx.close_copies()

    return ask


def _make_multiply_piece(format: TensorFormat, k_tiles: int, piece: int) -> Any:
    """Products of one piece of a slot, from k tile ``first`` on."""
    tile_bytes, num_sums = PAIR_FORMATS[format].tile_bytes, 2 * unit_groups(format, 4)
    load, products = make_load_alone(format, 4), make_multiply(format, 1, 1, 4)
    make_own_masks = make_masks(format, keeps=True)

    @device_function
    def multiply(rows: Address, column: Address, first: Index, lane: Index, total: Array) -> None:
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for i in range(piece):
            k = uint32(first) + uint32(i)
            if k < uint32(k_tiles):
                sums = column + uint32(k_tiles * 256) + k * uint32(8)
                load(column + k * uint32(256), sums, 0, lane, 0, x, s)
                products(rows + uint32(i * tile_bytes), lane, 0, x, s, total, masks)

    return multiply
