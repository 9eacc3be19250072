"""Stages of `expert_wide` on their way into shared memory: 128 features of columns and weights.

All threads ask for columns, rows of memory that lie wherever tokens lie, by pieces of 16 bytes;
a lane of each warp asks for the warp's weights. What is asked for runs ahead of what is multiplied,
into the item behind it, so that of each item something is known before it is needed: its entry when
the one before it begins to be asked for, its rows one stage later.

Items are row blocks of entries. A block of the grid takes runs of so many items of one entry; where
K fills the ring just once, columns stay in their stages over a run and only weights are new.
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.expert_plan import ENTRY_BYTES
from ninfer.kernels.cuda.expert_wide_shape import COLUMNS, THREADS, WARPS, ExpertWide

ROWS_OF_THREAD: Final = COLUMNS * 8 // THREADS
"""Columns of which a thread asks for two pieces a stage."""

_THREAD_COLUMNS: Final = THREADS // 8

# What a kernel is called with: addresses, and extents.
WEIGHTS, X, PLAN, ORDER = range(4)
K_TILES, NUM_ROWS, CHOSEN, ROW_BLOCKS, ITEMS, RUN = range(6)

# Words of what a thread knows of the item that is asked for, and of the one behind it.
PLACE_WORDS: Final = 8
_ITEM, _LEFT, _PARITY, _TARGET, _COUNT, _NEXT_EXPERT, _NEXT_START, _NEXT_COUNT = range(PLACE_WORDS)

Address = Any
Array = Any
Index = Any
Numbers = Any
"""A tuple as above."""


@device_function
def load_entry(plan: Address, item: Index, extents: Numbers) -> Any:
    """Expert, start and count of an item's entry; no columns behind the last item."""
    last = extents[ITEMS] - int32(1)
    entry = ptx.divide_u32(uint32(min(item, last)), uint32(extents[ROW_BLOCKS]))
    at = plan + uint64(entry) * uint64(ENTRY_BYTES)
    expert = ptx.load_i32(at)
    start = ptx.load_i32(at + uint64(4))
    count = ptx.load_i32(at + uint64(8))
    return expert, start, count if item <= last else int32(0)


@device_function
def row_block(item: Index, extents: Numbers) -> Index:
    """Which 256 rows an item is about."""
    blocks = extents[ROW_BLOCKS]
    return item - int32(ptx.divide_u32(uint32(item), uint32(blocks))) * blocks


@device_function
def item_behind(item: Index, run: Index) -> Index:
    """The item that a block takes next: those of a run, then its next run."""
    following = int32(item + int32(1))
    if following & int32(run - int32(1)) == 0:
        following += run * int32(cuda.gridDim.x - int32(1))
    return int32(following)


@device_function
def _peek(plan: Address, item: Index, extents: Numbers, place: Array) -> None:
    """Ask for an item's entry."""
    expert, start, count = load_entry(plan, item, extents)
    place[_NEXT_EXPERT], place[_NEXT_START], place[_NEXT_COUNT] = expert, start, count


def _make_look(shape: ExpertWide) -> Any:
    """Rows of memory that a thread's columns of the next item are."""
    is_gate = shape.is_gate

    @device_function
    def look(order: Address, chosen: Index, place: Array, rows: Array) -> None:
        count = place[_NEXT_COUNT]
        if count > int32(0):
            for i in range(ROWS_OF_THREAD):
                column = int32(_THREAD_COLUMNS * i) + (int32(cuda.threadIdx.x) >> int32(3))
                row = place[_NEXT_START] + min(column, count - int32(1))
                if is_gate:
                    choice = ptx.load_u32(order + uint64(row) * uint64(4))
                    row = int32(ptx.divide_u32(choice, uint32(chosen)))
                rows[i] = row

    return look


def _make_aim(shape: ExpertWide) -> Any:
    """Turn to the next item: offsets of columns, address of the warp's first weights."""
    is_gate, tile_bytes = shape.is_gate, shape.tile_bytes
    record = tile_bytes // 2

    @device_function
    def aim(
        weights: Address,
        extents: Numbers,
        warp: Index,
        place: Array,
        rows: Array,
        offsets: Array,
        source: Array,
    ) -> None:
        block, k_tiles = row_block(place[_ITEM], extents), extents[K_TILES]
        place[_COUNT], place[_LEFT] = place[_NEXT_COUNT], k_tiles
        for i in range(ROWS_OF_THREAD):
            offsets[i] = uint32(rows[i]) * uint32(k_tiles) * uint32(256)
            offsets[i] += (uint32(cuda.threadIdx.x) & uint32(7)) * uint32(16)
        row_tile = place[_NEXT_EXPERT] * (extents[NUM_ROWS] >> int32(4))
        pitch = uint64(k_tiles) * uint64(tile_bytes)
        if is_gate:
            row_tile += block * int32(WARPS // 2) + (warp >> int32(1))
            source[0] = weights + uint64(row_tile) * pitch
            source[0] += uint64(warp & int32(1)) * uint64(record)
        else:
            row_tile += block * int32(WARPS) + warp
            source[0] = weights + uint64(row_tile) * pitch

    return aim


def _make_ask_weights(shape: ExpertWide) -> Any:
    """One lane of each warp: records of the warp's tile of one stage."""
    tile_bytes, is_gate = shape.tile_bytes, shape.is_gate
    record = tile_bytes // 2

    @device_function
    def ask_weights(
        to: Address, full: Address, extents: Numbers, warp: Index, upper: Address
    ) -> None:
        if cuda.threadIdx.x & 31 == 0:
            warpgroup.expect_bytes(full, uint32(tile_bytes))
            at = to + uint32(warp) * uint32(tile_bytes)
            if is_gate:
                pitch = uint64(extents[K_TILES]) * uint64(tile_bytes)
                lower = upper + uint64(extents[NUM_ROWS] >> int32(5)) * pitch
                warpgroup.copy_bulk(at, upper, uint32(record), full)
                warpgroup.copy_bulk(at + uint32(record), lower, uint32(record), full)
            else:
                warpgroup.copy_bulk(at, upper, uint32(tile_bytes), full)
        cuda.syncwarp()

    return ask_weights


def _make_ask(shape: ExpertWide) -> Any:
    """A thread's share of one stage, and what the stage waits for."""
    column_bytes, half_bytes = shape.column_bytes, shape.column_bytes // 2
    stages, stage_bytes, full_at = shape.stages, shape.stage_bytes, shape.full_at
    tile_bytes, ask_weights = shape.tile_bytes, _make_ask_weights(shape)

    @device_function
    def ask(
        ring: Address,
        x: Address,
        extents: Numbers,
        warp: Index,
        place: Array,
        offsets: Array,
        source: Array,
    ) -> None:
        thread = uint32(cuda.threadIdx.x)
        to = ring + uint32(place[_TARGET]) * uint32(stage_bytes)
        full = ring + uint32(full_at) + uint32(place[_TARGET]) * uint32(8)
        ask_weights(to + uint32(column_bytes), full, extents, warp, source[0])
        source[0] += uint64(tile_bytes)
        # Row 32 i + thread / 8 has the same place in the swizzle for every i.
        inside = ((thread & uint32(7)) ^ ((thread >> uint32(3)) & uint32(7))) << uint32(4)
        to += (thread >> uint32(3)) * uint32(128) + inside
        wanted = uint32(place[_COUNT])
        if place[_ITEM] & int32(extents[RUN] - int32(1)) != 0 and extents[K_TILES] == int32(stages):
            wanted = uint32(0)
        for i in range(ROWS_OF_THREAD):
            column = uint32(_THREAD_COLUMNS * i) + (thread >> uint32(3))
            is_there = uint32(uint32(column) < wanted)
            piece = x + uint64(offsets[i])
            ptx.copy_async_16_if(to + uint32(128 * _THREAD_COLUMNS * i), piece, is_there)
            there = to + uint32(128 * _THREAD_COLUMNS * i + half_bytes)
            ptx.copy_async_16_if(there, piece + uint64(128), is_there)
            offsets[i] += uint32(256)
        warpgroup.arrive_when_copied(full)

    return ask


def make_start(shape: ExpertWide) -> Any:
    """Turn to the block's first item."""
    look, aim = _make_look(shape), _make_aim(shape)

    @device_function
    def start(
        sources: Numbers,
        extents: Numbers,
        warp: Index,
        place: Array,
        rows: Array,
        offsets: Array,
        source: Array,
    ) -> None:
        item = int32(cuda.blockIdx.x) * extents[RUN]
        place[_ITEM], place[_TARGET], place[_PARITY] = item, int32(0), int32(1)
        for i in range(ROWS_OF_THREAD):
            rows[i] = int32(0)
        _peek(sources[PLAN], item, extents, place)
        look(sources[ORDER], extents[CHOSEN], place, rows)
        aim(sources[WEIGHTS], extents, warp, place, rows, offsets, source)
        _peek(sources[PLAN], item_behind(item, extents[RUN]), extents, place)

    return start


def make_refill(shape: ExpertWide) -> Any:
    """Ask for the next stage once its place is free; it may be of the item behind."""
    stages, empty_at = shape.stages, shape.empty_at
    look, aim, ask = _make_look(shape), _make_aim(shape), _make_ask(shape)

    @device_function
    def refill(
        ring: Address,
        sources: Numbers,
        extents: Numbers,
        warp: Index,
        place: Array,
        rows: Array,
        offsets: Array,
        source: Array,
    ) -> None:
        if place[_COUNT] > int32(0):
            if place[_LEFT] == max(extents[K_TILES] - int32(1), int32(1)):
                look(sources[ORDER], extents[CHOSEN], place, rows)
            empty = ring + uint32(empty_at) + uint32(place[_TARGET]) * uint32(8)
            warpgroup.wait_phase(empty, uint32(place[_PARITY]))
            ask(ring, sources[X], extents, warp, place, offsets, source)
            place[_TARGET] = int32(place[_TARGET] + int32(1))
            if place[_TARGET] == int32(stages):
                place[_TARGET] = int32(0)
                place[_PARITY] ^= int32(1)
            place[_LEFT] = int32(place[_LEFT] - int32(1))
            if place[_LEFT] == int32(0):
                place[_ITEM] = item_behind(place[_ITEM], extents[RUN])
                aim(sources[WEIGHTS], extents, warp, place, rows, offsets, source)
                _peek(sources[PLAN], item_behind(place[_ITEM], extents[RUN]), extents, place)

    return refill
