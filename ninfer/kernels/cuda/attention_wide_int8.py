"""Prefill attention on Hopper over int8 pages that have no room as bf16 pages.

`attention_expand` and `attention_wide` are faster, and have the same bits, where scratch memory has
room for the sequence. Here nothing but the pages themselves is needed: two warpgroups of 64 queries
each turn codes on their way.

The recurrence, tiles, slots and barriers are those of `attention_wide`. Codes of a page come by
asynchronous copies to a place where every thread finds the bytes that it has asked for itself; it
turns them into bf16 in the order of the tensor cores while they work: keys of the next page during
the products with keys, values of the next page during those with values. A slot is full when all
eight warps have written their eight rows, and empty when both warpgroups have used it; every warp
does its rows of every page, also where its own warpgroup needs them no more.

A component is f32(scale) x code, rounded to bf16. Its scale is split into two bf16 numbers whose
sum it is, high + low, so that two operations on pairs of codes do:

    x = code high + bf16(code low) ; |x - code scale| <= (2^-8 + 2^-16) |code scale|

The second term is that of bf16(code low): low is at most four steps of f16, code low differs from
its bf16 by at most one such step, and only where the code is 86 or more. So an output differs from
that of exact components by what half a step of bf16 (2^-8 of each) does to keys, values and, as
with bf16 pages, weights. Heads of 256 only (`attention_prefill` takes the others). Traffic: codes
and scales once for each block, from the second-level cache mostly.
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

_CODES: Final = TILE * HEAD_DIM  # bytes of the codes of a page
_GROUP_CODES: Final = _CODES // BLOCKS
_KEY_CODES_AT: Final = SLOTS_AT + SLOTS * SLOT
_VALUE_CODES_AT: Final = _KEY_CODES_AT + _CODES
_FULL_AT: Final = max(_VALUE_CODES_AT + _CODES, LINES_END)
_EMPTY_AT: Final = _FULL_AT + 8 * SLOTS
_SHARED_BYTES: Final = _EMPTY_AT + 8 * SLOTS + 1024

_start_values = multiply_turned(HEAD_DIM, TILE // 16, is_awaited=False)
_finish_values = warpgroup.finish_products(HEAD_DIM)


@device_function
def fetch_codes(codes: Any, plane: Any, scales: Any, row: Any, count: Any) -> Any:
    """Start a thread's copies of one page: 16 codes of each group of one row.

    Returns:
        The four scales of that row, f16 in two words; zeros, like codes, behind the last position.
    """
    thread = uint32(cuda.threadIdx.x)
    own_row = thread >> uint32(2)
    at = uint64(row) + uint64(own_row)
    source = plane + at * uint64(HEAD_DIM) + uint64((thread & uint32(3)) << uint32(4))
    is_there = uint32(int32(own_row) < int32(count))
    target = uint32(codes) + (thread << uint32(4))
    for g in range(BLOCKS):
        ptx.copy_async_16(
            target + uint32(g * _GROUP_CODES), source + uint64(g * 64), is_there << uint32(4)
        )
    ptx.close_copies()
    steps = scales + at * uint64(2 * BLOCKS)
    return ptx.load_u32_if(steps, is_there), ptx.load_u32_if(steps + uint64(4), is_there)


@device_function
def scaled_pair(pair: Any, high: Any, low: Any) -> Any:
    """Two components from halves 0x43 and a code: (128 + c mod 128) - (128, or 256 below 0)."""
    code = ptx.multiply_add_bf16x2(
        pair & uint32(0xFF80FF80), uint32(0xBF80BF80), pair & uint32(0xFF7FFF7F)
    )
    small = ptx.multiply_add_bf16x2(code, low, uint32(0x80008000))
    return ptx.multiply_add_bf16x2(code, high, small)


@device_function
def scaled_words(word: Any, high: Any, low: Any) -> Any:
    """Two words of components from four codes, in order."""
    upper = uint32(0x43434343)
    first = scaled_pair(ptx.permute_bytes(word, upper, uint32(0x4140)), high, low)
    return first, scaled_pair(ptx.permute_bytes(word, upper, uint32(0x4342)), high, low)


@device_function
def split_scale(scale: Any) -> Any:
    """High and low part of a scale, each in both halves of a word."""
    high = ptx.bf16x2_of_f32(scale, scale)
    rest = scale - ptx.f32_of_bits(high << uint32(16))
    return high, ptx.bf16x2_of_f32(rest, rest)


@device_function
def widen(codes: Any, target: Any, scale: Any) -> None:
    """Turn a thread's 16 codes of a group into two pieces of a row, and scale them."""
    high, low = split_scale(scale)
    a, b, c, d = ptx.shared_u32x4(uint32(codes))
    w0, w1 = scaled_words(a, high, low)
    w2, w3 = scaled_words(b, high, low)
    ptx.put_shared_u32x4(uint32(target), w0, w1, w2, w3)
    w0, w1 = scaled_words(c, high, low)
    w2, w3 = scaled_words(d, high, low)
    ptx.put_shared_u32x4(uint32(target) ^ uint32(16), w0, w1, w2, w3)


@device_function
def widen_group(codes: Any, slot: Any, g: Any, scale: Any) -> None:
    """Turn a thread's part of a group; ``codes`` and ``slot`` are its own first bytes."""
    widen(codes + uint32(g * _GROUP_CODES), slot + uint32(g * PAGE_BLOCK), scale)


@device_function
def widen_page(codes: Any, slot: Any, steps0: Any, steps1: Any) -> None:
    """Turn a thread's part of a page."""
    widen_group(codes, slot, 0, ptx.f32_of_f16(steps0))
    widen_group(codes, slot, 1, ptx.f32_of_upper_f16(steps0))
    widen_group(codes, slot, 2, ptx.f32_of_f16(steps1))
    widen_group(codes, slot, 3, ptx.f32_of_upper_f16(steps1))


@device_function
def publish(is_first: Any, full: Any) -> None:
    """Let the products of both warpgroups see what this warp has written."""
    ptx.fence_shared_async()
    ptx.sync_warp()
    warpgroup.arrive_if(is_first, full)


@cache
def make_wide_int8_prefill(to_image: bool) -> Kernel:  # noqa: PLR0915 - one loop, whose state is a lane's registers
    """Grid (query tiles, heads), block (256,).

    Nothing is done where the chunk ends at a position of at most ``limit``.
    """
    write = make_write(HEAD_DIM, to_image)

    def wide_prefill(  # noqa: PLR0915 - as above
        queries: int,
        projected: int,
        keys: int,
        values: int,
        key_scales: int,
        value_scales: int,
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
        for slot in range(2 * SLOTS):
            at = shared + uint32(_FULL_AT + 8 * slot)
            warpgroup.init_barrier_if(is_first, at, uint32(WARPS))
        warpgroup.publish_barriers()
        ptx.release_successor()
        ptx.wait_for_predecessor()
        first, head, kv_head = block_place(num_heads, num_kv_heads)
        block_row = block_table
        block_row += uint64(ptx.load_i32(table_rows)) * uint64(table_width * 4)
        start = ptx.load_i32(positions)
        if start + int32(num_columns) <= int32(limit):
            return
        length = start + min(first + int32(QUERIES), int32(num_columns))
        tiles = (length + int32(TILE - 1)) >> int32(6)
        slots, full_at = shared + uint32(SLOTS_AT), shared + uint32(_FULL_AT)
        empty_at = shared + uint32(_EMPTY_AT)
        key_codes, value_codes = shared + uint32(_KEY_CODES_AT), shared + uint32(_VALUE_CODES_AT)
        # A thread's own bytes: sixteen codes of each group; two pieces of row thread / 4.
        own_codes = uint32(thread) << uint32(4)
        own_row = uint32(thread) >> uint32(2)
        own_piece = ((uint32(thread) & uint32(3)) << uint32(1)) ^ (own_row & uint32(7))
        own_place = (own_row << uint32(7)) + (own_piece << uint32(4))
        row = page_row(block_row, 0, num_kv_heads, kv_head)
        key_steps0, key_steps1 = fetch_codes(key_codes, keys, key_scales, row, length)
        value_steps0, value_steps1 = fetch_codes(value_codes, values, value_scales, row, length)
        fetch_queries(shared, queries, first, num_columns, head, num_heads)
        ptx.close_copies()
        ptx.wait_copies_0()
        widen_page(key_codes + own_codes, slots + own_place, key_steps0, key_steps1)
        at = slots + uint32(SLOT) + own_place
        widen_page(value_codes + own_codes, at, value_steps0, value_steps1)
        ptx.fence_shared_async()
        cuda.syncthreads()
        is_first = uint32(lane == 0)
        warpgroup.arrive_if(is_first, full_at)
        warpgroup.arrive_if(is_first, full_at + uint32(8))
        # Pages behind the last one are zeros: who brings and turns them need not ask.
        row = page_row(block_row, min(int32(1), tiles - int32(1)), num_kv_heads, kv_head)
        behind = length - int32(TILE)
        key_steps0, key_steps1 = fetch_codes(key_codes, keys, key_scales, row, behind)
        value_steps0, value_steps1 = fetch_codes(value_codes, values, value_scales, row, behind)

        own_first = first + warp * int32(16)
        position = start + own_first + (lane >> int32(2))
        group_last = start + first + (warp >> int32(2)) * int32(64) + int32(63)
        # Only the last page can stand behind all queries of a warpgroup.
        own_tiles = min(tiles, (group_last >> int32(6)) + int32(1))
        s = cuda.local.array(32, float32)
        words = cuda.local.array(16, uint32)
        o = cuda.local.array(NUM_SUMS, float32)
        for i in range(NUM_SUMS):
            o[i] = float32(0.0)
        most0, most1 = float32(UNSEEN), float32(UNSEEN)
        total0, total1 = float32(0.0), float32(0.0)
        own_rows = shared + uint32(warp >> int32(2)) * uint32(64 * 128)
        left = uint64(warpgroup.DESCRIPTOR) + uint64(own_rows >> uint32(4))
        for tile in range(own_tiles):
            slot = (uint32(tile) & uint32(1)) << uint32(1)
            parity = (uint32(tile) >> uint32(1)) & uint32(1)
            other = slot ^ uint32(2)
            # Phase in which the other slots became empty; before their first use all are.
            free = (((uint32(tile) + uint32(1)) >> uint32(1)) & uint32(1)) ^ uint32(1)
            full, empty = full_at + slot * uint32(8), empty_at + slot * uint32(8)
            other_full, other_empty = full_at + other * uint32(8), empty_at + other * uint32(8)
            page = (slots + slot * uint32(SLOT)) >> uint32(4)
            place = slots + other * uint32(SLOT) + own_place
            codes = key_codes + own_codes
            warpgroup.wait_phase(full, parity)
            warpgroup.wait_phase(other_empty, free)
            ptx.wait_copies_1()
            for i in range(32):
                s[i] = float32(0.0)
            right = uint64(warpgroup.DESCRIPTOR) + uint64(page)
            multiply_keys(s, left, right)
            widen_group(codes, place, 0, ptx.f32_of_f16(key_steps0))
            multiply_keys(s, left + uint64(QUERY_BLOCK // 16), right + uint64(PAGE_BLOCK // 16))
            widen_group(codes, place, 1, ptx.f32_of_upper_f16(key_steps0))
            multiply_keys(
                s, left + uint64(2 * QUERY_BLOCK // 16), right + uint64(2 * PAGE_BLOCK // 16)
            )
            widen_group(codes, place, 2, ptx.f32_of_f16(key_steps1))
            multiply_keys(
                s, left + uint64(3 * QUERY_BLOCK // 16), right + uint64(3 * PAGE_BLOCK // 16)
            )
            widen_group(codes, place, 3, ptx.f32_of_upper_f16(key_steps1))
            publish(is_first, other_full)
            next_tile = min(int32(tile) + int32(2), tiles - int32(1))
            row = page_row(block_row, next_tile, num_kv_heads, kv_head)
            behind = length - (int32(tile) + int32(2)) * int32(TILE)
            key_steps0, key_steps1 = fetch_codes(key_codes, keys, key_scales, row, behind)
            finish_keys(s)
            warpgroup.arrive_if(is_first, empty)
            most0, most1, total0, total1 = weigh(
                s, o, factor, int32(tile) * int32(TILE), position, lane, most0, most1, total0,
                total1,
            )  # fmt: skip
            round_weights(s, words)
            warpgroup.wait_phase(full + uint32(8), parity)
            warpgroup.wait_phase(other_empty + uint32(8), free)
            ptx.wait_copies_1()
            _start_values(o, words, uint64(TURNED) + uint64(page + uint32(SLOT // 16)))
            widen_page(value_codes + own_codes, place + uint32(SLOT), value_steps0, value_steps1)
            publish(is_first, other_full + uint32(8))
            value_steps0, value_steps1 = fetch_codes(value_codes, values, value_scales, row, behind)
            _finish_values(o)
            warpgroup.arrive_if(is_first, empty + uint32(8))
        inverse0 = ptx.reciprocal(over_quad(total0))
        inverse1 = ptx.reciprocal(over_quad(total1))
        # Nobody reads or fills the slots any more when their place is written.
        ptx.wait_copies_0()
        cuda.syncthreads()
        rows = shared + uint32(SLOTS_AT) + uint32(warp) * uint32(16 * LINE_BYTES)
        put_rows(rows, o, inverse0, inverse1, uint32(lane))
        write(
            rows, projected, base, sums, own_first, num_columns, head, num_heads, num_kv_heads,
            padded, lane,
        )  # fmt: skip

    return Kernel(
        f"attention_prefill_wide_int8{order_suffix(to_image)}",
        wide_prefill,
        (Param.ADDRESS,) * 11 + (Param.I32,) * 6 + (Param.F32,),
        threads=THREADS,
        max_registers=255,
        dynamic_shared_bytes=_SHARED_BYTES,
        min_blocks=1,
        is_warpgroup=True,
    )
