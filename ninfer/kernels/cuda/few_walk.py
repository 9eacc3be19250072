"""One block's product of up to eight columns with one or two row tiles of one weight.

    out[t, n] = sum over k of f32(scale[n, k / group]) * code[n, k] * x[t, k]

The order of the sum is that of `skinny_product`: warp p takes the k tiles p, p + 8, p + 16..; parts
are added in order. Each warp feeds a ring of its own. The loop is as thin as it can be made: all
cursors are 32 bits or walk by constants, masks stay in registers, and copies that have nothing left
to bring are switched off by a predicate instead of a branch. Few columns lie in the ring beside the
weights they meet; more would cost as much traffic as the weights, and are loaded one k tile ahead
from the first-level cache, where other blocks of the multiprocessor find them.
"""

from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.few_columns import make_direct_walk, make_ringed_walk
from ninfer.kernels.cuda.few_shape import FewShape
from ninfer.kernels.cuda.group_products import make_put_sums
from ninfer.kernels.cuda.product_output import store_product, warp_index
from ninfer.kernels.cuda.skinny_shape import PARTS, THREADS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


def make_run(shape: FewShape) -> Any:
    """The whole of a block: (shared, codes, out, block, tiles, rows, width, skip, mode, columns..).

    The function waits for its predecessor by itself. ``skip`` are rows of the first tile that are
    not asked for, ``rows`` the rows after these; ``tiles`` their row tiles.
    """
    format, row_tiles, stages = shape.format, shape.row_tiles, shape.stages
    stage_bytes, warp_bytes = shape.stage_bytes, shape.warp_bytes
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    num_sums = 4 * row_tiles
    ask = _make_ask(format, row_tiles)
    make_walk = make_ringed_walk if shape.rings_columns else make_direct_walk
    walk = make_walk(shape, ask)
    rings_columns = shape.rings_columns
    put_sums = make_put_sums(row_tiles, 1, _part_stride(row_tiles))
    write_parts = _make_write_parts(row_tiles, warp_bytes)

    @device_function
    def run(
        shared: Address,
        codes: Address,
        out: Address,
        block: Index,
        tiles: Index,
        rows: Index,
        width: Index,
        skip: Index,
        mode: Index,
        base: Address,
        sums: Address,
        k_tiles: Index,
        num_columns: Index,
    ) -> None:
        part = uint32(warp_index())
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        ring = uint32(shared + uint32(part * uint32(warp_bytes)))
        count = int32(uint32(uint32(k_tiles) + uint32(PARTS - 1) - part) // uint32(PARTS))
        source = cuda.local.array(row_tiles, uint64)
        for m in range(row_tiles):
            tile = uint32(uint32(block) * uint32(row_tiles) + uint32(m))
            tile = ptx.smaller_u32(tile, uint32(tiles - 1))
            tile = uint32(tile * uint32(k_tiles) + part)
            source[m] = codes + uint64(tile) * uint64(tile_bytes) + uint64(lane * uint32(16))
        left = count
        for stage in range(stages - 1):
            to = uint32(ring + lane * uint32(16) + uint32(stage * stage_bytes))
            ask(to, source, lane, uint32(left > int32(0)))
            left = int32(left - int32(1))
            if not rings_columns:
                ptx.close_copies()
        ptx.wait_for_predecessor()
        total = cuda.local.array(num_sums, float32)
        for i in range(num_sums):
            total[i] = float32(0.0)
        walk(ring, source, base, sums, part, count, num_columns, lane, total)
        ptx.wait_copies_0()
        ptx.sync_warp()
        put_sums(ring, lane, total)
        cuda.syncthreads()
        first = int32(block) * int32(row_tiles * TILE_ROWS) - int32(skip)
        write_parts(shared, out, first, rows, num_columns, width, mode)

    return run


def _make_ask(format: TensorFormat, row_tiles: int) -> Any:
    """Ask for the next k tile of every row tile, where there is one, and move on."""
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    steps, rest = tile_bytes // 512, tile_bytes % 512 // 16

    @device_function
    def ask(to: Address, source: Array, lane: Index, is_inside: Index) -> None:
        for m in range(row_tiles):
            for step in range(steps):
                at = to + uint32(m * tile_bytes + step * 512)
                ptx.copy_weights_16_if(at, source[m] + uint64(step * 512), is_inside)
            if rest > 0:
                at = to + uint32(m * tile_bytes + steps * 512)
                is_rest = is_inside & uint32(lane < uint32(rest))
                ptx.copy_weights_16_if(at, source[m] + uint64(steps * 512), is_rest)
            source[m] = source[m] + uint64(PARTS * tile_bytes)

    return ask


def _make_write_parts(row_tiles: int, warp_bytes: int) -> Any:
    """The block's sums: parts added in order, each thread its own elements."""
    stride = _part_stride(row_tiles)
    block_rows = row_tiles * TILE_ROWS
    num_elements = block_rows * 8
    steps = -(-num_elements // THREADS)

    @device_function
    def write_parts(
        parts: Address,
        out: Address,
        first: Index,
        rows: Index,
        num_columns: Index,
        width: Index,
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
            row = row + first
            is_inside = (
                uint32(index < num_elements)
                & uint32(row >= 0)
                & uint32(row < rows)
                & uint32(column < num_columns)
            )
            place = uint64(column) * uint64(width) + uint64(row)
            store_product(out, place, is_inside, mode, value)

    return write_parts


def _part_stride(row_tiles: int) -> int:
    """Words from column to column of a part: lanes of a store never share a bank."""
    return row_tiles * TILE_ROWS + 4
