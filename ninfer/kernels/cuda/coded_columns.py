"""Columns of products of coded weights on their way into shared memory, and the order of tiles.

Blocks of 64 features go through a ring of stages; a barrier says that a stage has arrived, another
that all warps are done with it. One lane asks for stages, `LAG` behind the one that is being
multiplied, so that it hardly ever waits for a warp; what it asks for runs ahead into the next tile.
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.coded_shape import Coded
from ninfer.kernels.cuda.column_image import BLOCK_BYTES, BLOCK_FEATURES

LAG: Final = 2
"""Stages between the one being multiplied and the one whose place is filled."""

Address = Any
Array = Any
Index = Any


def make_place(shape: Coded) -> Any:
    """Tile numbers to column tile and tile of 128 rows: bands of columns, row by row."""
    band = shape.band

    @device_function
    def place(tile: Index, column_tiles: Index, row_blocks: Index) -> Any:
        tiles = uint32(row_blocks) * uint32(band)
        first = ptx.divide_u32(tile, tiles)
        inside = uint32(tile) - first * tiles
        first *= uint32(band)
        width = ptx.smaller_u32(uint32(column_tiles) - first, uint32(band))
        row = ptx.divide_u32(inside, width)
        return int32(first + inside - row * width), int32(row)

    return place


def _make_seek(shape: Coded) -> Any:
    """Where the columns of a tile begin: addresses of its parts of one or two blocks."""
    tile_columns, place, column_bytes = shape.tile_columns, make_place(shape), BLOCK_FEATURES * 2

    @device_function
    def seek(
        columns: Address,
        tile: Index,
        column_tiles: Index,
        row_blocks: Index,
        last: Index,
        pitch: Any,
        ahead: Array,
    ) -> None:
        column, _ = place(tile, column_tiles, row_blocks)
        first = column * int32(tile_columns)
        block = first >> int32(7)
        ahead[0] = columns + uint64(block) * pitch
        if tile_columns < 128:
            ahead[0] += uint64(first & int32(127)) * uint64(column_bytes)
        # The second block may have no columns: it is multiplied in vain.
        ahead[1] = columns + uint64(min(block + int32(1), last)) * pitch

    return seek


def _make_ask(shape: Coded) -> Any:
    """Copies of one stage; their sources move on."""
    stage_bytes, full_at, column_blocks = shape.stage_bytes, shape.full_at, shape.column_blocks
    copy_bytes = shape.copy_bytes

    @device_function
    def ask(ring: Address, slot: Index, ahead: Array) -> None:
        full = ring + uint32(full_at) + slot * uint32(8)
        to = ring + slot * uint32(stage_bytes)
        warpgroup.expect_bytes(full, uint32(stage_bytes))
        warpgroup.copy_bulk(to, ahead[0], uint32(copy_bytes), full)
        ahead[0] += uint64(BLOCK_BYTES)
        if column_blocks == 2:
            warpgroup.copy_bulk(to + uint32(BLOCK_BYTES), ahead[1], uint32(BLOCK_BYTES), full)
            ahead[1] += uint64(BLOCK_BYTES)

    return ask


def make_refill(shape: Coded) -> Any:
    """One lane: ask for the stage `LAG` blocks behind, of this tile or the one after it."""
    stages, empty_at = shape.stages, shape.empty_at
    seek, ask = _make_seek(shape), _make_ask(shape)

    @device_function
    def refill(
        ring: Address,
        slot: Index,
        columns: Address,
        column_tiles: Index,
        row_blocks: Index,
        last: Index,
        pitch: Any,
        k_blocks: Index,
        ahead: Array,
        place: Array,
    ) -> None:
        # ``place``: tile that is asked for, its blocks that are still to come, parity.
        if cuda.threadIdx.x == 0 and place[0] < column_tiles * row_blocks:
            target = slot + uint32(stages - LAG)
            if target >= uint32(stages):
                target -= uint32(stages)
            warpgroup.wait_phase(ring + uint32(empty_at) + target * uint32(8), uint32(place[2]))
            ask(ring, target, ahead)
            if target == uint32(stages - 1):
                place[2] ^= int32(1)
            place[1] -= int32(1)
            if place[1] == 0:
                place[0] += int32(cuda.gridDim.x)
                place[1] = k_blocks
                if place[0] < column_tiles * row_blocks:
                    seek(columns, place[0], column_tiles, row_blocks, last, pitch, ahead)
        cuda.syncwarp()

    return refill


def make_start(shape: Coded) -> Any:
    """One lane: the first stages, and where the next ones are."""
    filled = shape.stages - LAG
    seek, ask = _make_seek(shape), _make_ask(shape)

    @device_function
    def start(
        ring: Address,
        columns: Address,
        column_tiles: Index,
        row_blocks: Index,
        last: Index,
        k_blocks: Index,
        ahead: Array,
        place: Array,
    ) -> None:
        pitch = uint64(k_blocks) * uint64(BLOCK_BYTES)
        place[0], place[1], place[2] = int32(cuda.blockIdx.x), k_blocks, int32(1)
        ahead[0], ahead[1] = columns, columns
        if cuda.threadIdx.x == 0:
            seek(columns, place[0], column_tiles, row_blocks, last, pitch, ahead)
            for stage in range(filled):
                if place[0] < column_tiles * row_blocks:
                    ask(ring, uint32(stage), ahead)
                    place[1] -= int32(1)
                    if place[1] == 0:
                        place[0] += int32(cuda.gridDim.x)
                        place[1] = k_blocks
                        if place[0] < column_tiles * row_blocks:
                            seek(columns, place[0], column_tiles, row_blocks, last, pitch, ahead)
        cuda.syncwarp()

    return start
