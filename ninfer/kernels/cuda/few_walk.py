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
from ninfer.kernels.cuda.few_shape import MOST_COLUMNS, FewShape
from ninfer.kernels.cuda.group_products import make_put_sums
from ninfer.kernels.cuda.product_output import load_before, store_after, warp_index
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


def make_run(shape: FewShape, warp_bytes: int, stride: int) -> Any:
    """A block's way through K: (shared, codes, block, tiles, base, sums, k_tiles, num_columns).

    Waits for the predecessor by itself and leaves the sums of part p at ``p warp_bytes``,
    [column][row] with ``stride`` words to a column; the caller synchronises.
    """
    format, row_tiles, stages = shape.format, shape.row_tiles, shape.stages
    stage_bytes, tile_bytes = shape.stage_bytes, PAIR_FORMATS[format].tile_bytes
    num_sums = 4 * row_tiles
    ask = make_ask(format, row_tiles)
    make_walk = make_ringed_walk if shape.ringed_columns > 0 else make_direct_walk
    walk = make_walk(shape, ask)
    rings_columns = shape.ringed_columns > 0
    put_sums = make_put_sums(row_tiles, 1, stride)

    @device_function
    def run(
        shared: Address,
        codes: Address,
        block: Index,
        tiles: Index,
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

    return run


def make_ask(format: TensorFormat, row_tiles: int) -> Any:
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


def make_write(row_tiles: int, warp_bytes: int) -> Any:
    """The end of a block: (shared, out, first, own_rows, rows, width, num_columns, mode).

    Parts are added in order, each thread its own element. What a product is added to is asked for
    before the block's last warp has come, because nothing else hides the wait.
    """
    stride = part_stride(row_tiles)
    block_rows = row_tiles * TILE_ROWS
    num_elements = block_rows * MOST_COLUMNS

    @device_function
    def write(
        shared: Address,
        out: Address,
        first: Index,
        own_rows: Index,
        rows: Index,
        width: Index,
        num_columns: Index,
        mode: Index,
    ) -> None:
        element = int32(cuda.threadIdx.x) & int32(num_elements - 1)
        own = element & int32(block_rows - 1)
        column = element // int32(block_rows)
        row = int32(own + first)
        is_inside = (
            uint32(int32(cuda.threadIdx.x) < int32(num_elements))
            & uint32(own < own_rows)
            & uint32(row >= int32(0))
            & uint32(row < rows)
            & uint32(column < num_columns)
        )
        place = uint64(column) * uint64(width) + uint64(row)
        before = load_before(out, place, is_inside, mode)
        cuda.syncthreads()
        at = shared + uint32(column * stride + own) * uint32(4)
        value = ptx.shared_f32(at)
        for part in range(1, PARTS):
            value += ptx.shared_f32(at + uint32(part * warp_bytes))
        store_after(out, place, is_inside, mode, value, before)

    return write


def part_stride(row_tiles: int) -> int:
    """Words from column to column of a part: lanes of a store never share a bank."""
    return row_tiles * TILE_ROWS + 4
