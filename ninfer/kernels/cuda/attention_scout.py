"""The warp of a block of int8 decode attention that knows what comes next.

It takes work items, finds their pages, and turns their queries into the operand of the products, so
that the warps that multiply wait for none of that. A ring of descriptions in shared memory says
which page comes when: page n + stages is described while page n is worked on, and the queries of
page n + 1 are stored. A block's first item is its own; of the others, each block takes the next
one when it is about to have none left, by a ticket, so that blocks with long items take fewer. Who
works on an item changes no bit.
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.attention_cache import TILE
from ninfer.kernels.cuda.attention_decode import WRITTEN, place_of
from ninfer.kernels.cuda.attention_int8 import CodeStage
from ninfer.kernels.cuda.attention_int8_query import make_queries
from ninfer.kernels.cuda.attention_splits import ROWS, column_items, next_item, split_start

PAGES: Final = 4
"""Descriptions in the ring, more than a block has stages."""

_BYTES: Final = 16  # of a description
RING_BYTES: Final = PAGES * _BYTES + 16
"""Shared memory of the ring, and of how many pages are asked for first."""

FIRST: Final = 16
"""Flag of a description: the page is the first of its item."""

LAST: Final = 32
"""The page is the last of its item."""

SLOT: Final = 64
"""The queries are in the second of two places."""

OLD: Final = 128
"""No kernel of this round can have written the page."""

HEADS: Final = 15
"""Bits of the number of query heads; without any there is no page."""

SPLIT_BIT: Final = 8
"""Lowest bit of the split's number, above all flags."""


@device_function
def uniform(value: Any) -> Any:
    """What all lanes have."""
    return value


@device_function
def of_first_lane(value: Any) -> Any:
    """What the first lane has."""
    return cuda.shfl_sync(0xFFFFFFFF, int32(value), 0)


@device_function
def description(ring: Any, page: Any) -> Any:
    """Address of a page's description: plane row over 64, positions, flags and split, query row."""
    return uint32(ring) + (uint32(page) & uint32(PAGES - 1)) * uint32(_BYTES)


@device_function
def flags_of(ring: Any, page: Any) -> Any:
    """Flags of a page's description; 0 if there is no such page."""
    return uniform(ptx.shared_u32(description(ring, page) + uint32(8)))


@device_function
def count_at(ring: Any) -> Any:
    """Address of how many pages are asked for first."""
    return uint32(ring) + uint32(PAGES * _BYTES)


@device_function
def draw(tickets: Any, lane: Any) -> Any:
    """Take a ticket; the first lane has it."""
    return ptx.fetch_add_u32_if(uint32(lane == 0), tickets, uint32(1))


def make_scout(  # noqa: C901, PLR0915 - one loop, whose state is registers
    layout: CodeStage, stages: int
) -> Any:
    """Function of the warp that does not multiply."""
    head_dim, query_bytes = layout.head_dim, layout.query_bytes
    ask_queries, put_queries = make_queries(layout)
    query_words = ROWS * head_dim // 64

    @device_function
    def ask_first(ring: Any, page: Any, queries: Any, lane: Any, words: Any) -> Any:
        """Ask for queries if a page is the first of its item."""
        flags = flags_of(ring, page)
        is_first = flags & uint32(FIRST) != 0
        if is_first:
            line = uniform(ptx.shared_u32(description(ring, page) + uint32(12)))
            address = queries + uint64(line) * uint64(2 * head_dim)
            ask_queries(address, flags & uint32(HEADS), lane, words)
        return is_first

    @device_function
    def begin(ring: Any, count: Any) -> None:
        """Let the other warps ask for pages, and wait for the predecessor."""
        ptx.put_shared_u32(count_at(ring), uint32(count))
        cuda.syncthreads()
        ptx.wait_for_predecessor()

    @device_function
    def scout(  # noqa: C901, PLR0915 - as above
        ring: Any,
        slots: Any,
        queries: Any,
        block_table: Any,
        table_rows: Any,
        positions: Any,
        tickets: Any,
        num_columns: Any,
        num_kv_heads: Any,
        group: Any,
        table_width: Any,
        lane: Any,
    ) -> None:
        passes = (int32(group) + int32(ROWS - 1)) >> int32(3)
        num_units = int32(num_kv_heads * passes)
        num_heads = int32(num_kv_heads * group)
        words = cuda.local.array(query_words, uint32)
        for i in range(query_words):
            words[i] = uint32(0)
        item, column = int32(cuda.blockIdx.x), int32(0)
        items = column_items(positions, 0, num_columns, num_units)
        passed, ticket = int32(0), uint32(0)
        tile, tiles, start, length, old = int32(0), int32(0), int32(0), int32(0), int32(0)
        kv_head, line, split, rows, slot = int32(0), int32(0), int32(0), int32(0), int32(0)
        pages, ids = uint64(block_table), uint32(0)
        page, found, is_early, is_more, is_on = int32(0), int32(0), True, True, True
        while is_on:
            step = int32(page + int32(1 - stages))  # that starts when this page is described
            has_asked = False
            if not is_early and step >= 0:
                has_asked = ask_first(ring, step, queries, lane, words)
            if tile >= tiles and is_more:
                if page > 0:
                    if is_early:
                        is_early = False
                        begin(ring, found)
                        ticket = draw(tickets, lane)
                    item = int32(of_first_lane(ticket) + int32(cuda.gridDim.x) - passed)
                before = item
                item, column, items = next_item(
                    positions, item, column, items, num_columns, num_units
                )
                passed = int32(passed + (before - item))
                is_more = column < num_columns
                if is_more:
                    if page > 0:
                        ticket = draw(tickets, lane)
                    split, unit = place_of(item, items, num_units)
                    kv_head = int32(ptx.divide_u32(uint32(unit), uint32(passes)))
                    first_row = int32((unit - kv_head * passes) * int32(ROWS))
                    start = split_start(split)
                    offset = uint64(column) * uint64(4)
                    length = int32(ptx.load_i32(positions + offset) + int32(1))
                    old = int32(length - int32(WRITTEN))
                    length = int32(min(length, split_start(split + 1)) - start)
                    tiles = int32((length + int32(TILE - 1)) >> int32(6))
                    tile = int32(0)
                    line = int32(column * num_heads + kv_head * int32(group) + first_row)
                    rows = int32(min(int32(group) - first_row, int32(ROWS)))
                    slot = int32(slot ^ int32(SLOT))
                    pages = block_table
                    pages += uint64(ptx.load_i32(table_rows + offset)) * uint64(table_width * 4)
                    pages += uint64(start >> 6) * uint64(4)
            flags, row = int32(0), int32(0)
            if tile < tiles:
                if tile & int32(31) == 0:
                    mine = min(int32(tile + lane), int32(tiles - 1))
                    ids = ptx.load_u32(pages + uint64(uint32(mine)) * uint64(4))
                row = int32(cuda.shfl_sync(0xFFFFFFFF, int32(ids), tile & int32(31)))
                row = int32(row * int32(num_kv_heads) + kv_head)
                flags = int32(rows | slot | (split << int32(SPLIT_BIT)))
                if tile == 0:
                    flags = int32(flags | int32(FIRST))
                if tile == tiles - 1:
                    flags = int32(flags | int32(LAST))
                if start + (tile + int32(1)) * int32(TILE) <= old:
                    flags = int32(flags | int32(OLD))
                found = int32(found + 1)
            count = int32(length - tile * int32(TILE))
            to = description(ring, page)
            ptx.put_shared_u32x4(to, uint32(row), uint32(count), uint32(flags), uint32(line))
            tile = int32(tile + 1)
            page = int32(page + 1)
            if is_early and page == stages:
                is_early = False
                begin(ring, found)
                ticket = draw(tickets, lane)
            if step >= 0:
                if not has_asked:
                    has_asked = ask_first(ring, step, queries, lane, words)
                known = flags_of(ring, step)
                if has_asked:
                    place = uint32(slots)
                    if known & uint32(SLOT) != 0:
                        place = uint32(slots) + uint32(query_bytes)
                    put_queries(place, words, lane)
                is_on = known != 0
                cuda.syncthreads()
        # The last block to come here leaves the counters as they were: behind every ticket, also
        # those that nobody has looked at.
        mine = uint32(lane == 0)
        done = ptx.fetch_add_release_u32_if(mine, tickets + uint64(4), uint32(1))
        if of_first_lane(done) == int32(cuda.gridDim.x - 1):
            ptx.store_u32x2(tickets, uint32(0), uint32(0))

    return scout
