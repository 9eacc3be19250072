"""Products of 9 to 128 columns on CUDA, where `wide_linear` makes none: weights pass through once.

    out[t, n] = sum over k of f32(scale[n, k / group]) * code[n, k] * x[t, k]

One block multiplies ``16 row_tiles`` rows with ``8 column_tiles`` columns. Eight warps share K:
warp p takes the k tiles p, p + 8, p + 16.., so that warps read neighbouring tiles and that there
are eight parts of a sum whatever the block's shape, added in order 0..7. Inside a part tiles follow
one another, group by group (`group_products`). So the order depends on K alone, and neither the
number of columns, nor other columns, nor the view a row is computed through changes a bit.

Each warp feeds a ring of its own in shared memory by asynchronous copies; nothing is waited for
that another warp brings. The first tiles are asked for before the predecessor has ended: weights
are constants, and whoever writes a matrix synchronises before a product reads it. Columns come from
the first-level cache, where warps of one multiprocessor find one another's; lanes of columns that
do not exist read the last one.

Traffic: the matrix once; the columns once for each block.
"""

from functools import cache
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.group_products import make_put_sums
from ninfer.kernels.cuda.product_output import store_product, warp_index
from ninfer.kernels.cuda.skinny_shape import PARTS, THREADS, Skinny
from ninfer.kernels.cuda.skinny_walks import make_walk
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


@cache
def make_skinny(shape: Skinny) -> Kernel:
    """One block for each (column block, row block); block (256,)."""
    row_tiles, column_tiles, stages = shape.row_tiles, shape.column_tiles, shape.stages
    stage_bytes = shape.stage_bytes
    warp_bytes = stages * stage_bytes
    num_sums = 4 * row_tiles * column_tiles
    ask = _make_ask(shape.format, row_tiles)
    walk = make_walk(shape, ask)
    put_sums = make_put_sums(row_tiles, column_tiles, _part_stride(row_tiles))
    write_parts = _make_write_parts(row_tiles, column_tiles, warp_bytes)

    def skinny(
        codes: int,
        high: int,
        scales: int,
        base: int,
        sums: int,
        out: int,
        k_tiles: int,
        parent_tiles: int,
        first_row: int,
        num_rows: int,
        num_columns: int,
        out_width: int,
        first_column: int,
        mode: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ptx.release_successor()
        part = int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        blocks = ptx.shared_address(shared)
        ring = blocks + uint32(part) * uint32(warp_bytes)
        count = (k_tiles - part + int32(PARTS - 1)) // int32(PARTS)
        row_tile = (first_row >> 4) + int32(cuda.blockIdx.y) * row_tiles
        tile = cuda.local.array(row_tiles, int32)
        for m in range(row_tiles):
            tile[m] = min(row_tile + m, parent_tiles - 1) * k_tiles + part
        for stage in range(stages - 1):
            to = ring + uint32(stage * stage_bytes)
            ask(to, codes, high, scales, tile, stage, count, lane)
            ptx.close_copies()
        ptx.wait_for_predecessor()
        total = cuda.local.array(num_sums, float32)
        for i in range(num_sums):
            total[i] = float32(0.0)
        walk(
            ring, codes, high, scales, tile, base, sums, k_tiles, part,
            count, num_columns, lane, total,
        )  # fmt: skip
        ptx.wait_copies_0()
        cuda.syncwarp()
        put_sums(ring, lane, total)
        cuda.syncthreads()
        row = row_tile * TILE_ROWS - first_row
        write_parts(blocks, out, row, num_rows, num_columns, out_width, first_column, mode)

    name = f"linear_{shape.format.name.lower()}_{row_tiles * TILE_ROWS}x{column_tiles * 8}"
    return Kernel(
        f"{name}_{stages}_{shape.min_blocks}",
        skinny,
        (Param.ADDRESS,) * 6 + (Param.I32,) * 8,
        threads=THREADS,
        max_registers=min(255, 65536 // (THREADS * shape.min_blocks)),
        dynamic_shared_bytes=shape.shared_bytes,
        min_blocks=shape.min_blocks,
    )


def _make_ask(format: TensorFormat, row_tiles: int) -> Any:
    """Ask for the i-th tiles of a part where it has them."""
    copy, tile_bytes = tile_functions(format).copy, PAIR_FORMATS[format].tile_bytes

    @device_function
    def ask(
        to: Address,
        codes: Address,
        high: Address,
        scales: Address,
        tile: Array,
        i: Index,
        count: Index,
        lane: Index,
    ) -> None:
        if i < count:
            for m in range(row_tiles):
                place = tile[m] + i * int32(PARTS)
                copy(to + uint32(m * tile_bytes), codes, high, scales, place, lane)

    return ask


def _make_write_parts(row_tiles: int, column_tiles: int, warp_bytes: int) -> Any:
    """The block's sums: parts added in order, each thread its own elements."""
    stride = _part_stride(row_tiles)
    block_rows = row_tiles * TILE_ROWS
    num_elements = block_rows * column_tiles * 8
    steps = -(-num_elements // THREADS)

    @device_function
    def write_parts(
        parts: Address,
        out: Address,
        first_row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        for step in range(steps):
            index = int32(cuda.threadIdx.x) + int32(step * THREADS)
            element = index & int32(num_elements - 1)
            row = element & int32(block_rows - 1)
            column = element // int32(block_rows)
            at = parts + uint32(column * stride + row) * uint32(4)
            value = ptx.shared_f32(at)
            for part in range(1, PARTS):
                value += ptx.shared_f32(at + uint32(part * warp_bytes))
            row = row + first_row
            column = column + int32(cuda.blockIdx.x) * int32(column_tiles * 8)
            is_inside = (
                uint32(index < num_elements)
                & uint32(row >= 0)
                & uint32(row < num_rows)
                & uint32(column < num_columns)
            )
            place = uint64(column) * uint64(out_width) + uint64(first_column + row)
            store_product(out, place, is_inside, mode, value)

    return write_parts


def _part_stride(row_tiles: int) -> int:
    """Words from column to column of a part: lanes of a store never share a bank."""
    return row_tiles * TILE_ROWS + 4
