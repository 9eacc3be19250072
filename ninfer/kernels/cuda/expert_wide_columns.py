"""Columns of `expert_wide` on their way into shared memory, 128 features of an item at a time.

Two warps bring them by pieces of 16 bytes: for gate and up those of an image (`column_image`),
which lie wherever tokens lie, for down rows in the order of places. A stage of theirs is announced
when its pieces are there and those of the next have been asked for. The first warp leaves a note
with the first stage of each item, so that nobody who multiplies looks at the plan; behind the last
item is a note that no columns are left.

Where K fills the ring just once, columns stay in their stages over a run of items of one entry. The
entry of the item behind the one that is asked for is known, and its columns are looked for early.
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.column_image import BLOCK_BYTES
from ninfer.kernels.cuda.expert_wide_items import (
    CHOSEN,
    FIRST,
    K_TILES,
    ORDER,
    PLAN,
    RUN,
    X,
    item_behind,
    load_entry,
    make_following,
    row_block,
    wait_empty,
)
from ninfer.kernels.cuda.expert_wide_shape import (
    COLUMN_BYTES,
    COLUMN_WARPS,
    COLUMNS,
    TABLE_BYTES,
    ExpertWide,
)

_LINES: Final = 4 * COLUMN_WARPS  # columns that are asked for at once, 128 bytes each
_ROWS: Final = COLUMNS // _LINES  # columns of a lane

Address = Any
Array = Any
Index = Any
Numbers = Any
"""A tuple of `expert_wide_items`."""


def _make_find(shape: ExpertWide) -> Any:
    is_gate = shape.is_gate

    @device_function
    def look(order: Address, extents: Numbers, start: Index, count: Index, column: Index) -> Any:
        """Where what a column of an entry multiplies begins, in bytes."""
        row = int32(0)
        if count > int32(0):
            row = int32(start + min(column, int32(count - int32(1))))
            if is_gate:
                choice = ptx.load_u32(order + uint64(uint32(row) * uint32(4)))
                row = int32(ptx.divide_u32(choice, uint32(extents[CHOSEN])))
                row = int32(row + extents[FIRST])
        if is_gate:
            blocks = uint32(row >> int32(7)) * uint32(extents[K_TILES])
            return blocks * uint32(2 * BLOCK_BYTES) + uint32(row & int32(127)) * uint32(128)
        return uint32(row) * uint32(extents[K_TILES]) * uint32(256)

    @device_function
    def find(order: Address, extents: Numbers, start: Index, count: Index, column: Index) -> Any:
        """The same of a lane's two columns."""
        row = look(order, extents, start, count, column)
        return row, look(order, extents, start, count, int32(column + int32(8 * _LINES)))

    return find


def _make_ask(shape: ExpertWide) -> Any:
    is_gate = shape.is_gate
    behind = BLOCK_BYTES if is_gate else 128

    @device_function
    def ask_four(to: Address, x: Address, wanted: Index, table: Address, first: int) -> None:
        begins = ptx.shared_u32x4(table + uint32(4 * first))
        own = (uint32(cuda.threadIdx.x) & uint32(7)) << uint32(4)
        for i in range(4):
            is_there = uint32(wanted > int32(_LINES * (first + i)))
            begin = begins[i]
            if is_gate:
                # The image's swizzle: piece xor the column's number of eight.
                begin += ((begin >> uint32(3)) ^ own) & uint32(0x70)
            else:
                begin += own
            piece, there = x + uint64(begin), to + uint32(128 * _LINES * (first + i))
            ptx.copy_async_16_if(there, piece, is_there)
            ptx.copy_async_16_if(
                there + uint32(COLUMN_BYTES // 2), piece + uint64(behind), is_there
            )

    @device_function
    def ask(to: Address, x: Address, wanted: Index, table: Address) -> None:
        """A lane's pieces of the columns of a stage; ``table`` has where its rows begin."""
        for first in range(0, _ROWS, 4):
            if wanted > int32(_LINES * first):
                ask_four(to, x, wanted, table, first)

    return ask


def _make_announce(shape: ExpertWide) -> Any:
    """A note, and announcing stages when the next ones have been asked for."""
    stages, full_at, note_at = shape.stages, shape.full_at, shape.note_at

    @device_function
    def announce(ring: Address, slot: Index) -> None:
        ptx.fence_shared_async()
        warpgroup.arrive(ring + uint32(full_at) + slot * uint32(8))

    @device_function
    def note(ring: Address, slot: Index, count: Index, start: Index, block: Index) -> None:
        at = ring + uint32(note_at) + slot * uint32(16)
        ptx.put_shared_u32x4(at, uint32(count), uint32(start), uint32(block), uint32(0))

    @device_function
    def pass_on(ring: Address, slot: Index, last: Index) -> Any:
        """A stage has been asked for, and ``last`` before it; returns which is still silent."""
        ptx.close_copies()
        ptx.wait_copies_1()
        if last != uint32(stages):
            announce(ring, last)
        return slot

    @device_function
    def finish(ring: Address, last: Index) -> None:
        if last != uint32(stages):
            ptx.wait_copies_0()
            announce(ring, last)

    return announce, note, pass_on, finish


@device_function
def _put(at: Address, found: Any) -> None:
    """Where a lane's columns begin, for the lanes that ask for them."""
    row, other = found
    ptx.put_shared_u32(at, row)
    ptx.put_shared_u32(at + uint32(32), other)
    ptx.sync_warp()


def make_bring_columns(shape: ExpertWide) -> Any:
    """Make ``(ring, warp, sources, extents)``: what the warps do that bring columns."""
    stages, stage_bytes, empty_at = shape.stages, shape.stage_bytes, shape.empty_at
    table_at, stage_step = shape.table_at, 2 * BLOCK_BYTES if shape.is_gate else 256
    find, ask, following = _make_find(shape), _make_ask(shape), make_following(shape)
    announce, note, pass_on, finish = _make_announce(shape)

    @device_function
    def bring_columns(ring: Address, warp: Index, sources: Numbers, extents: Numbers) -> None:
        lane, k_tiles = uint32(uint32(cuda.threadIdx.x) & uint32(31)), extents[K_TILES]
        line = uint32(uint32(warp) * uint32(4) + (lane >> uint32(3)))
        # Column _LINES i + line has the same place in the swizzle for every i.
        inside = uint32((((lane ^ line) & uint32(7)) << uint32(4)) + line * uint32(128))
        empty, table = ring + uint32(empty_at), ring + uint32(table_at)
        table += uint32(warp) * uint32(2 * TABLE_BYTES)
        # A lane looks for columns _LINES i + line: i is its number of eight, and eight more.
        column = int32(line + (lane & uint32(7)) * uint32(_LINES))
        own = uint32((lane >> uint32(3)) * uint32(4 * _ROWS) + (lane & uint32(7)) * uint32(4))
        item, turn = int32(int32(cuda.blockIdx.x) * extents[RUN]), int32(0)
        _, start, count = load_entry(sources[PLAN], item, extents)
        found = find(sources[ORDER], extents, start, count, column)
        slot, parity, last = uint32(0), uint32(1), uint32(stages)
        looks_at = int32(max(int32(k_tiles - int32(2)), int32(0)))
        while count > int32(0):
            _put(table + own, found)
            wanted = int32(count - int32(line))
            if item & int32(extents[RUN] - int32(1)) != 0 and k_tiles == int32(stages):
                wanted = int32(0)
            wait_empty(empty, slot, parity)
            if warp == int32(0) and lane == uint32(0):
                note(ring, slot, count, start, row_block(item, extents))
            item, turn = item_behind(item, turn, extents[RUN])
            _, start, count = load_entry(sources[PLAN], item, extents)
            x = sources[X]
            for k in range(k_tiles):
                if k == looks_at:
                    here = int32(ptx.placed_u32(uint32(column)))
                    found = find(sources[ORDER], extents, start, count, here)
                wait_empty(empty, slot, parity)
                to = ring + slot * uint32(stage_bytes) + inside
                ask(to, x, wanted, table + (lane >> uint32(3)) * uint32(4 * _ROWS))
                x += uint64(stage_step)
                last = pass_on(ring, slot, last)
                slot, parity = following(slot, parity)
            table ^= uint32(TABLE_BYTES)
        finish(ring, last)
        wait_empty(empty, slot, parity)
        if warp == int32(0) and lane == uint32(0):
            note(ring, slot, int32(0), int32(0), int32(0))
        announce(ring, slot)

    return bring_columns
