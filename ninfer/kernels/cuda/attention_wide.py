"""Prefill attention on Hopper: two warpgroups of 64 queries each.

    m' = max(m, max s_j) ; c = exp2(m - m') ; p_j = exp2(s_j - m')     s in units of log 2
    l = c l + sum p_j ; a = c a + sum p_j v_j ; out = a / l * sigmoid(gate)

How operands lie in shared memory, `attention_wide_parts` knows. Keys and values of a page come into
slots of their own, two for each, guarded by barriers that count arrivals, and every warp brings
eight rows: no barrier of the block stands between the warpgroups, so that one multiplies while the
other makes weights. Tiles are pages, that is fixed absolute positions, and positions behind a
query's own add nothing: a query's result does not depend on where its chunk begins or ends. Blocks
of late queries, which have most to do, start first. Traffic: the cached rows once for each block,
from the second-level cache mostly; 4 D FLOP a query and position. Bf16 pages of heads of 256 only,
also those that `attention_expand` makes of int8 pages (`attention_prefill` takes the others).
Source: flash attention 3, 2024.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.warpgroup_turned import multiply_turned
from ninfer.kernels.cuda.attention_output import make_write
from ninfer.kernels.cuda.attention_softmax import UNSEEN, over_quad
from ninfer.kernels.cuda.attention_wide_parts import (
    BLOCKS,
    HEAD_DIM,
    LINE_BYTES,
    LINES_END,
    NUM_SUMS,
    PAGE_BLOCK,
    QUERIES,
    QUERY_BLOCK,
    SLOT,
    SLOTS,
    SLOTS_AT,
    THREADS,
    TILE,
    TURNED,
    WARPS,
    block_place,
    fetch_queries,
    finish_keys,
    multiply_keys,
    page_row,
    put_rows,
    round_weights,
    weigh,
)
from ninfer.kernels.cuda.column_image import order_suffix

_FULL_AT: Final = max(SLOTS_AT + SLOTS * SLOT, LINES_END)
_EMPTY_AT: Final = _FULL_AT + 8 * SLOTS
_SHARED_BYTES: Final = _EMPTY_AT + 8 * SLOTS + 1024

_multiply_values = multiply_turned(HEAD_DIM, TILE // 16)


@device_function
def fetch_rows(
    slot: Any, full: Any, plane: Any, row: Any, count: Any, warp: Any, lane: Any
) -> None:
    """Start a warp's copies of one page, eight rows; those behind the last position are zeros."""
    first = uint32(warp) * uint32(8)
    source = (
        plane + (uint64(row) + uint64(first)) * uint64(2 * HEAD_DIM) + uint64(lane) * uint64(16)
    )
    target = uint32(slot) + (uint32(lane) >> uint32(3)) * uint32(PAGE_BLOCK)
    target += first << uint32(7)
    piece = (uint32(lane) & uint32(7)) << uint32(4)
    for r in range(8):
        size = uint32(int32(first) + int32(r) < int32(count)) << uint32(4)
        ptx.copy_async_16(
            target + uint32(r * 128) + (piece ^ uint32(r * 16)),
            source + uint64(r * 2 * HEAD_DIM),
            size,
        )
    warpgroup.arrive_when_copied(full)


@cache
def make_wide_prefill(to_image: bool) -> Kernel:  # noqa: C901, PLR0915 - one loop, whose state is a lane's registers
    """Grid (query tiles, heads), block (256,).

    Nothing is done where the chunk ends at a position of more than ``limit``.
    """
    write = make_write(HEAD_DIM, to_image)

    def wide_prefill(  # noqa: C901, PLR0915 - as above
        queries: int,
        projected: int,
        keys: int,
        values: int,
        block_table: int,
        table_rows: int,
        positions: int,
        base: int,
        sums: int,
        num_columns: int,
        num_heads: int,
        num_kv_heads: int,
        table_width: int,
        padded: int,
        limit: int,
        factor: float,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        shared = (ptx.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00)
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread & int32(31), int32(cuda.shfl_sync(0xFFFFFFFF, thread >> int32(5), 0))
        is_first = uint32(thread == 0)
        for slot in range(SLOTS):
            at = shared + uint32(_FULL_AT + 8 * slot)
            warpgroup.init_barrier_if(is_first, at, uint32(THREADS))
            at = shared + uint32(_EMPTY_AT + 8 * slot)
            warpgroup.init_barrier_if(is_first, at, uint32(WARPS))
        warpgroup.publish_barriers()
        ptx.release_successor()
        ptx.wait_for_predecessor()
        first, head, kv_head = block_place(num_heads, num_kv_heads)
        block_row = block_table
        block_row += uint64(ptx.load_i32(table_rows)) * uint64(table_width * 4)
        start = ptx.load_i32(positions)
        if start + int32(num_columns) > int32(limit):
            return
        length = start + min(first + int32(QUERIES), int32(num_columns))
        tiles = (length + int32(TILE - 1)) >> int32(6)
        fetch_queries(shared, queries, first, num_columns, head, num_heads)
        ptx.close_copies()
        ptx.wait_copies_0()
        ptx.fence_shared_async()
        cuda.syncthreads()
        slots, full_at = shared + uint32(SLOTS_AT), shared + uint32(_FULL_AT)
        empty_at = shared + uint32(_EMPTY_AT)
        row = page_row(block_row, 0, num_kv_heads, kv_head)
        fetch_rows(slots, full_at, keys, row, length, warp, lane)
        fetch_rows(slots + uint32(SLOT), full_at + uint32(8), values, row, length, warp, lane)
        if tiles > 1:
            row = page_row(block_row, 1, num_kv_heads, kv_head)
            fetch_rows(
                slots + uint32(2 * SLOT), full_at + uint32(16), keys, row,
                length - int32(TILE), warp, lane,
            )  # fmt: skip

        own_first = first + warp * int32(16)
        position = start + own_first + (lane >> int32(2))
        group_last = start + first + (warp >> int32(2)) * int32(64) + int32(63)
        s = cuda.local.array(32, float32)
        words = cuda.local.array(16, uint32)
        o = cuda.local.array(NUM_SUMS, float32)
        for i in range(NUM_SUMS):
            o[i] = float32(0.0)
        most0, most1 = float32(UNSEEN), float32(UNSEEN)
        total0, total1 = float32(0.0), float32(0.0)
        own_rows = shared + uint32(warp >> int32(2)) * uint32(64 * 128)
        left = uint64(warpgroup.DESCRIPTOR) + uint64(own_rows >> uint32(4))
        is_first = uint32(lane == 0)
        for tile in range(tiles):
            slot = (uint32(tile) & uint32(1)) << uint32(1)
            parity = (uint32(tile) >> uint32(1)) & uint32(1)
            full, empty = full_at + slot * uint32(8), empty_at + slot * uint32(8)
            page = (slots + slot * uint32(SLOT)) >> uint32(4)
            behind = length - int32(tile) * int32(TILE)
            is_seen = int32(tile) * int32(TILE) <= group_last
            warpgroup.wait_phase(full, parity)
            ptx.fence_shared_async()
            if is_seen:
                for i in range(32):
                    s[i] = float32(0.0)
                right = uint64(warpgroup.DESCRIPTOR) + uint64(page)
                for block in range(BLOCKS):
                    multiply_keys(
                        s,
                        left + uint64(block * (QUERY_BLOCK // 16)),
                        right + uint64(block * (PAGE_BLOCK // 16)),
                    )
                finish_keys(s)
            warpgroup.arrive_if(is_first, empty)
            if is_seen:
                most0, most1, total0, total1 = weigh(
                    s, o, factor, int32(tile) * int32(TILE), position, lane, most0, most1, total0,
                    total1,
                )  # fmt: skip
                round_weights(s, words)
            # Values of the next page, where those of the last one have been used.
            other = slot ^ uint32(2)
            if tile + 1 < tiles:
                if tile > 0:
                    used = ((uint32(tile) - uint32(1)) >> uint32(1)) & uint32(1)
                    warpgroup.wait_phase(empty_at + other * uint32(8) + uint32(8), used)
                row = page_row(block_row, tile + 1, num_kv_heads, kv_head)
                fetch_rows(
                    slots + (other + uint32(1)) * uint32(SLOT),
                    full_at + other * uint32(8) + uint32(8),
                    values, row, behind - int32(TILE), warp, lane,
                )  # fmt: skip
            warpgroup.wait_phase(full + uint32(8), parity)
            ptx.fence_shared_async()
            if is_seen:
                page += uint32(SLOT // 16)
                _multiply_values(o, words, uint64(TURNED) + uint64(page))
            warpgroup.arrive_if(is_first, empty + uint32(8))
            # Keys of the page after the next, where those of this one have been used.
            if tile + 2 < tiles:
                warpgroup.wait_phase(empty, parity)
                row = page_row(block_row, tile + 2, num_kv_heads, kv_head)
                fetch_rows(
                    slots + slot * uint32(SLOT), full, keys, row,
                    behind - int32(2 * TILE), warp, lane,
                )  # fmt: skip
        inverse0 = ptx.reciprocal(over_quad(total0))
        inverse1 = ptx.reciprocal(over_quad(total1))
        # Nobody reads the pages any more when their place is written.
        cuda.syncthreads()
        rows = shared + uint32(SLOTS_AT) + uint32(warp) * uint32(16 * LINE_BYTES)
        put_rows(rows, o, inverse0, inverse1, uint32(lane))
        write(
            rows, projected, base, sums, own_first, num_columns, head, num_heads, num_kv_heads,
            padded, lane,
        )  # fmt: skip

    return Kernel(
        f"attention_prefill_wide{order_suffix(to_image)}",
        wide_prefill,
        (Param.ADDRESS,) * 9 + (Param.I32,) * 6 + (Param.F32,),
        threads=THREADS,
        max_registers=255,
        dynamic_shared_bytes=_SHARED_BYTES,
        min_blocks=1,
        is_warpgroup=True,
    )
