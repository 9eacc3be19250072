"""Products of few columns on CUDA: bandwidth-bound, weights pass through shared memory once.

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

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.group_products import make_multiply, make_put_sums, unit_groups
from ninfer.kernels.cuda.launch import WARP, blocks_for
from ninfer.kernels.cuda.product_output import store_product, warp_index
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

PARTS: Final = 8
"""Parts of a sum over K, one for each warp; a constant of the arithmetic."""

THREADS: Final = PARTS * WARP

WAITS: Final = {  # by stages of a ring: all but the newest copies
    2: ptx.wait_copies_0,
    3: ptx.wait_copies_1,
    4: ptx.wait_copies_2,
    5: ptx.wait_copies_3,
}

Address = Any
Array = Any
Index = Any


@dataclass(frozen=True, slots=True)
class Skinny:
    """Shape of a block, none of which changes a bit of a product.

    Attributes:
        format: of the weight.
        row_tiles: tiles of 16 rows.
        column_tiles: tiles of 8 columns.
        stages: tiles of a warp's ring, 2 to 5.
        min_blocks: blocks that must fit on a multiprocessor.
    """

    format: TensorFormat
    row_tiles: int
    column_tiles: int
    stages: int
    min_blocks: int

    @property
    def most_slabs(self) -> int:
        """Slabs of columns that a lane holds: what registers leave room for."""
        return 4 if self.column_tiles == 1 and self.min_blocks < 3 else 2

    @property
    def shared_bytes(self) -> int:
        """Rings of all warps."""
        return PARTS * self.stages * self.row_tiles * PAIR_FORMATS[self.format].tile_bytes

    def grid(self, row_tiles: int, num_columns: int) -> tuple[int, int, int]:
        """Blocks for so many row tiles and columns; those of one row block are neighbours."""
        return (
            blocks_for(num_columns, 8 * self.column_tiles),
            blocks_for(row_tiles, self.row_tiles),
            1,
        )


@cache
def make_skinny(shape: Skinny) -> Kernel:
    """One block for each (column block, row block); block (256,)."""
    row_tiles, column_tiles, stages = shape.row_tiles, shape.column_tiles, shape.stages
    stage_bytes = row_tiles * PAIR_FORMATS[shape.format].tile_bytes
    warp_bytes = stages * stage_bytes
    num_sums = 4 * row_tiles * column_tiles
    ask = _make_ask(shape.format, row_tiles)
    walk = _make_walk(shape, ask)
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


def _make_walk(shape: Skinny, ask: Any) -> Any:
    """A warp's way through its part; few columns are asked for one unit ahead."""
    format, column_tiles, stages = shape.format, shape.column_tiles, shape.stages
    unit_slabs = min(PAIR_FORMATS[format].unit_slabs, shape.most_slabs)
    units = 4 // unit_slabs
    stage_bytes = shape.row_tiles * PAIR_FORMATS[format].tile_bytes
    warp_bytes = stages * stage_bytes
    num_words = 4 * column_tiles * unit_slabs
    num_group_sums = 2 * column_tiles * unit_groups(format, unit_slabs)
    locate = _make_locate(column_tiles)
    load = _make_load_columns(format, column_tiles, unit_slabs)
    take = _make_take(num_words, num_group_sums)
    multiply = make_multiply(format, shape.row_tiles, column_tiles, unit_slabs)
    wait_copies = WAITS[stages]
    is_ahead = column_tiles == 1  # more columns need the registers for themselves

    @device_function
    def walk(
        ring: Address,
        codes: Address,
        high: Address,
        scales: Address,
        tile: Array,
        base: Address,
        sums: Address,
        k_tiles: Index,
        part: Index,
        count: Index,
        num_columns: Index,
        lane: Index,
        total: Array,
    ) -> None:
        at = cuda.local.array(column_tiles, uint32)
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_group_sums, float32)
        next_x = cuda.local.array(num_words, uint32)
        next_s = cuda.local.array(num_group_sums, float32)
        locate(at, k_tiles, num_columns, lane)
        k = part
        if count > 0 and is_ahead:
            load(at, base, sums, k, 0, lane, x, s)
        slot = uint32(0)
        free = uint32((stages - 1) * stage_bytes)
        for i in range(count):
            for unit in range(units):
                if not is_ahead:
                    cuda.syncwarp()  # keeps loads of the next unit, and their registers, behind it
                    load(at, base, sums, k, unit, lane, x, s)
                elif unit + 1 < units:
                    load(at, base, sums, k, unit + 1, lane, next_x, next_s)
                else:
                    ahead = min(k + int32(PARTS), k_tiles - 1)
                    load(at, base, sums, ahead, 0, lane, next_x, next_s)
                if unit == 0:
                    wait_copies()
                    cuda.syncwarp()
                    ask(ring + free, codes, high, scales, tile, i + (stages - 1), count, lane)
                multiply(ring + slot, lane, unit, x, s, total)
                if is_ahead:
                    take(next_x, next_s, x, s)
            k += int32(PARTS)
            slot = advance(slot, stage_bytes, warp_bytes)
            free = advance(free, stage_bytes, warp_bytes)

    return walk


def _make_ask(format: TensorFormat, row_tiles: int) -> Any:
    """Ask for the i-th tiles of a part where it has them, and close the group of copies."""
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
        ptx.close_copies()

    return ask


def _make_take(num_words: int, num_group_sums: int) -> Any:
    """Make the columns that were asked for the present ones."""

    @device_function
    def take(next_x: Array, next_s: Array, x: Array, s: Array) -> None:
        for i in range(num_words):
            x[i] = next_x[i]
        for i in range(num_group_sums):
            s[i] = next_s[i]

    return take


@device_function
def advance(slot: Index, step: int, end: int) -> Index:
    """Next place of a ring."""
    moved = slot + uint32(step)
    if moved == uint32(end):
        moved = uint32(0)
    return moved


def _make_locate(column_tiles: int) -> Any:
    """Offset of the lane's chunk in each column tile; at most 128 columns."""

    @device_function
    def locate(at: Array, k_tiles: Index, num_columns: Index, lane: Index) -> None:
        column = uint32(lane) >> uint32(2)
        quad = uint32(lane) & uint32(3)
        last = uint32(num_columns - 1)
        first = uint32(cuda.blockIdx.x) * uint32(column_tiles)
        for j in range(column_tiles):
            block = ptx.smaller_u32(first + uint32(j), last >> uint32(3))
            inside = ptx.smaller_u32(block * uint32(8) + column, last) & uint32(7)
            place = inside * uint32(64) + quad * uint32(16)
            at[j] = block * uint32(k_tiles) * uint32(2048) + place

    return locate


def _make_load_columns(format: TensorFormat, column_tiles: int, unit_slabs: int) -> Any:
    """Ask for the chunks of a unit, and for the sums of its groups."""
    has_sums, groups = PAIR_FORMATS[format].offset > 0, unit_groups(format, unit_slabs)

    @device_function
    def load(
        at: Array,
        base: Address,
        sums: Address,
        k: Index,
        unit: int,
        lane: Index,
        x: Array,
        s: Array,
    ) -> None:
        for j in range(column_tiles):
            chunk = base + uint64(at[j] + uint32(k) * uint32(2048))
            for w in range(unit_slabs):
                i = (j * unit_slabs + w) * 4
                place = chunk + uint64((unit * unit_slabs + w) * 512)
                x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.load_u32x4(place)
            if has_sums:
                tile = (at[j] >> uint32(11)) + uint32(k)
                quad = (uint32(lane) & uint32(3)) * uint32(8)
                pair = sums + uint64(tile * uint32(64) + quad)
                for g in range(groups):
                    i = (j * groups + g) * 2
                    s[i], s[i + 1] = ptx.load_f32x2(pair + uint64((unit * groups + g) * 32))

    return load


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
