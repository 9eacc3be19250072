"""Products of many columns on CUDA (prefill): weights stay quantised up to the registers.

One block of eight warps multiplies 128 rows with 128 columns, warp by warp a part of both; K is
walked once, tile by tile, through a ring in shared memory that all warps fill and read. The
arithmetic is that of `group_products` over all of K, without parts: exact codes on the tensor
cores, scales in f32. It depends on (format, K) only. Blocks are numbered so that those which run
together share columns and weights in the second-level cache.

Bound by the tensor cores: a tile of weights is decoded once for all columns of a warp.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.fragments import TILE_COLUMNS
from ninfer.kernels.cuda.group_products import (
    make_load_stored,
    make_multiply,
    make_put_sums,
    unit_groups,
)
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED, WARP, blocks_for
from ninfer.kernels.cuda.product_output import store_product, warp_index
from ninfer.kernels.cuda.skinny_shape import WAITS, advance
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

WARPS: Final = 8
BLOCK_TILES: Final = 8  # row tiles of a block
BLOCK_COLUMN_TILES: Final = 16
NEIGHBOURS: Final = 8  # column blocks that are numbered together

_CHUNK_BYTES: Final = 2048  # columns of one tile and k tile
_SUM_BYTES: Final = 64

Address = Any
Array = Any
Index = Any


@dataclass(frozen=True, slots=True)
class TileShape:
    """How a block's 8 x 16 tiles are shared out.

    Attributes:
        format: of the weight.
        row_tiles: row tiles of a warp, 4 or 2; its column tiles are 16 / row_tiles.
        unit_slabs: slabs of columns that a lane holds.
        stages: k tiles of the ring.
    """

    format: TensorFormat
    row_tiles: int
    unit_slabs: int
    stages: int

    @property
    def column_tiles(self) -> int:
        """Column tiles of a warp."""
        return 16 // self.row_tiles

    @property
    def stage_bytes(self) -> int:
        """Weights, chunks and sums of one k tile."""
        weights = BLOCK_TILES * PAIR_FORMATS[self.format].tile_bytes
        return weights + BLOCK_COLUMN_TILES * (_CHUNK_BYTES + _SUM_BYTES)

    @property
    def ring_bytes(self) -> int:
        """All stages."""
        return self.stages * self.stage_bytes


def tile_shape(
    format: TensorFormat, block_shared_bytes: int = MULTIPROCESSOR_SHARED
) -> TileShape | None:
    """The shape of a format's kernel: the longest ring, of up to four stages, that a block holds.

    None where not even two stages fit.
    """
    unit_slabs = 1 if format is TensorFormat.BF16 else 2
    most = 3 if format in (TensorFormat.BF16, TensorFormat.W8) else 4
    shapes = (TileShape(format, 4, unit_slabs, stages) for stages in range(most, 1, -1))
    return next((one for one in shapes if one.ring_bytes <= block_shared_bytes), None)


def tile_grid(row_tiles: int, num_columns: int) -> tuple[int, int, int]:
    """Blocks for so many row tiles and columns."""
    columns = blocks_for(num_columns, BLOCK_COLUMN_TILES * TILE_COLUMNS)
    return (columns * blocks_for(row_tiles, BLOCK_TILES), 1, 1)


@cache
def make_tile_product(shape: TileShape) -> Kernel:
    """One block for each 128 x 128 products; block (256,)."""
    row_tiles, column_tiles = shape.row_tiles, shape.column_tiles
    num_sums = 4 * row_tiles * column_tiles
    column_warps = BLOCK_COLUMN_TILES // column_tiles
    stride = row_tiles * TILE_ROWS + 4
    part_bytes = column_tiles * TILE_COLUMNS * stride * 4
    walk = _make_walk(shape)
    put_sums = make_put_sums(row_tiles, column_tiles, stride)
    write = _make_write(row_tiles, column_tiles, stride)

    def tile_product(
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
        ptx.wait_for_predecessor()
        warp = int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        ring = ptx.shared_address(shared)
        last = (num_columns - 1) // 8
        column_tile, row_tile = block_place(last // 16 + 1, int32(cuda.gridDim.x))
        first_tile = first_row // 16 + row_tile
        tile = min(first_tile + warp, parent_tiles - 1) * k_tiles
        left = min(column_tile + warp, last) * k_tiles
        right = min(column_tile + warp + 8, last) * k_tiles
        total = cuda.local.array(num_sums, float32)
        for i in range(num_sums):
            total[i] = float32(0.0)
        walk(ring, codes, high, scales, base, sums, tile, left, right, k_tiles, warp, lane, total)
        ptx.wait_copies_0()
        cuda.syncthreads()
        part = ring + uint32(warp) * uint32(part_bytes)
        put_sums(part, lane, total)
        cuda.syncwarp()
        row = (first_tile + warp // column_warps * row_tiles) * 16 - first_row
        column = (column_tile + warp % column_warps * column_tiles) * 8
        write(part, out, row, column, num_rows, num_columns, out_width, first_column, mode)

    name = f"prefill_{shape.format.name.lower()}_{row_tiles * 16}x{column_tiles * 8}"
    return Kernel(
        f"{name}_{shape.unit_slabs}_{shape.stages}",
        tile_product,
        (Param.ADDRESS,) * 6 + (Param.I32,) * 8,
        threads=WARPS * WARP,
        max_registers=255,
        dynamic_shared_bytes=max(shape.stages * shape.stage_bytes, WARPS * part_bytes),
        min_blocks=1,
    )


def _make_walk(shape: TileShape) -> Any:
    """All of K: one k tile after another out of the ring, the same for all warps."""
    format, row_tiles, column_tiles = shape.format, shape.row_tiles, shape.column_tiles
    tile_bytes, unit_slabs = PAIR_FORMATS[format].tile_bytes, shape.unit_slabs
    stages, stage_bytes = shape.stages, shape.stage_bytes
    ring_bytes, weight_bytes = stages * stage_bytes, BLOCK_TILES * tile_bytes
    column_warps = BLOCK_COLUMN_TILES // column_tiles
    units = 4 // unit_slabs
    num_words = 4 * column_tiles * unit_slabs
    num_group_sums = 2 * column_tiles * unit_groups(format, unit_slabs)
    ask = _make_ask(format)
    chunks_bytes = BLOCK_COLUMN_TILES * _CHUNK_BYTES
    load = make_load_stored(format, column_tiles, unit_slabs, chunks_bytes)
    multiply = make_multiply(format, row_tiles, column_tiles, unit_slabs)
    make_own_masks = make_masks(format)
    wait_copies = WAITS[stages]

    @device_function
    def walk(
        ring: Address,
        codes: Address,
        high: Address,
        scales: Address,
        base: Address,
        sums: Address,
        tile: Index,
        left: Index,
        right: Index,
        k_tiles: Index,
        warp: Index,
        lane: Index,
        total: Array,
    ) -> None:
        for stage in range(stages - 1):
            to = ring + uint32(stage * stage_bytes)
            if stage < k_tiles:
                ask(to, codes, high, scales, base, sums, tile, left, right, stage, warp, lane)
            ptx.close_copies()
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_group_sums, float32)
        masks = make_own_masks()
        weights_at = uint32(warp // column_warps) * uint32(row_tiles * tile_bytes)
        columns_at = uint32(warp % column_warps * column_tiles)
        slot = uint32(0)
        free = uint32((stages - 1) * stage_bytes)
        for k in range(k_tiles):
            wait_copies()
            cuda.syncthreads()
            ahead = k + (stages - 1)
            to = ring + free
            if ahead < k_tiles:
                ask(to, codes, high, scales, base, sums, tile, left, right, ahead, warp, lane)
            ptx.close_copies()
            for unit in range(units):
                cuda.syncwarp()  # keeps loads of the next unit, and their registers, behind it
                load(ring + slot + uint32(weight_bytes), columns_at, lane, unit, x, s)
                multiply(ring + slot + weights_at, lane, unit, x, s, total, masks)
            slot = advance(slot, stage_bytes, ring_bytes)
            free = advance(free, stage_bytes, ring_bytes)

    return walk


@device_function
def block_place(column_blocks: Index, blocks: Index) -> Any:
    """First column tile and row tile of a block: bands of neighbouring columns, row by row."""
    index = int32(cuda.blockIdx.x)
    row_blocks = blocks // column_blocks
    band = index // (row_blocks * int32(NEIGHBOURS))
    inside = index - band * row_blocks * int32(NEIGHBOURS)
    width = min(column_blocks - band * int32(NEIGHBOURS), int32(NEIGHBOURS))
    row = inside // width
    column = band * int32(NEIGHBOURS) + inside - row * width
    return column * int32(BLOCK_COLUMN_TILES), row * int32(BLOCK_TILES)


def _make_ask(format: TensorFormat) -> Any:
    """A warp's share of one k tile: one weight tile, two column tiles."""
    copy, has_sums = tile_functions(format).copy, PAIR_FORMATS[format].offset > 0
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    chunks_at = BLOCK_TILES * tile_bytes
    sums_at = chunks_at + BLOCK_COLUMN_TILES * _CHUNK_BYTES

    @device_function
    def ask_columns(
        to: Address, base: Address, sums: Address, tile: Index, place: Index, lane: Index
    ) -> None:
        offset = uint64(lane) * uint64(16)
        source = base + uint64(tile) * uint64(_CHUNK_BYTES) + offset
        at = to + uint32(chunks_at) + uint32(place) * uint32(_CHUNK_BYTES)
        at += uint32(lane) * uint32(16)
        for step in range(4):
            ptx.copy_async_16(at + uint32(step * 512), source + uint64(step * 512), uint32(16))
        if has_sums:
            at = to + uint32(sums_at) + uint32(place) * uint32(_SUM_BYTES)
            at += uint32(lane) * uint32(16)
            source = sums + uint64(tile) * uint64(_SUM_BYTES) + offset
            ptx.copy_async_16_if(at, source, uint32(lane < 4))

    @device_function
    def ask(
        to: Address,
        codes: Address,
        high: Address,
        scales: Address,
        base: Address,
        sums: Address,
        tile: Index,
        left: Index,
        right: Index,
        k: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        at = to + uint32(warp) * uint32(tile_bytes)
        copy(at, codes, high, scales, tile + k, lane)
        ask_columns(to, base, sums, left + k, warp, lane)
        ask_columns(to, base, sums, right + k, warp + int32(8), lane)

    return ask


def _make_write(row_tiles: int, column_tiles: int, stride: int) -> Any:
    """A warp's products: neighbouring lanes write neighbouring rows."""
    rows = row_tiles * TILE_ROWS
    steps = rows * column_tiles * TILE_COLUMNS // WARP

    @device_function
    def write(
        part: Address,
        out: Address,
        first_row: Index,
        first: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        lane = int32(cuda.threadIdx.x) & int32(31)
        for step in range(steps):
            index = int32(step * WARP) + lane
            row = index & int32(rows - 1)
            column = index // int32(rows)
            value = ptx.shared_f32(part + uint32(column * stride + row) * uint32(4))
            row = row + first_row
            column = column + first
            is_inside = uint32(row >= 0) & uint32(row < num_rows) & uint32(column < num_columns)
            place = uint64(column) * uint64(out_width) + uint64(first_column + row)
            store_product(out, place, is_inside, mode, value)

    return write
