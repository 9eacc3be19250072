"""Decode attention on CUDA over bf16 planes: splits of the cache.

    m = max s_j ; l = sum exp2(s_j - m) ; a = sum exp2(s_j - m) v_j     s in units of log 2

The query heads of a key head are the columns of the products, so that keys and values are read once
for all of them. A block of eight warps works on one split, page by page, and all warps share a
page: they exchange scores through shared memory, each makes all weights again, and each has 32
components of the outputs, so that nothing is left to merge between them. Pages come through a ring
of asynchronous copies that runs on into the block's next split; those of them that no kernel of
this round can have written are asked for before the predecessor has ended. The splits' results are
merged by `attention_merge`. Traffic: each attended row once, 4 D bytes a head and split of partial
results twice. Scores and sums are f32, probabilities bf16 in the products. Source: flash decoding,
2023.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_bf16 import bf16_reader
from ninfer.kernels.cuda.attention_cache import THREADS, TILE, WARP_COMPONENTS
from ninfer.kernels.cuda.attention_softmax import UNSEEN
from ninfer.kernels.cuda.attention_splits import (
    ROWS,
    column_items,
    next_item,
    split_start,
)
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED
from ninfer.kernels.cuda.product_output import warp_index

_MOST_STAGES: Final = 3

WRITTEN: Final = 128
"""Positions before a column's own that a kernel of the same round may have written."""

_SCORE_STRIDE: Final = 72  # floats from head to head
_HALF_SCORES: Final = ROWS * _SCORE_STRIDE * 4  # bytes of the scores of half of the components

SCORE_BYTES: Final = 2 * _HALF_SCORES
"""Shared memory of a page's scores, behind the stages."""


@device_function
def put_scores(scores: Any, block: Any, half: Any, lane: Any, s: Any) -> None:
    """Store a warp's part of the scores, positions of a head next to each other."""
    at = scores + uint32(half) * uint32(_HALF_SCORES)
    at += ((uint32(lane) & uint32(3)) * uint32(2 * _SCORE_STRIDE)) << uint32(2)
    at += (uint32(block) * uint32(16) + (uint32(lane) >> uint32(2))) << uint32(2)
    ptx.put_shared_f32(at, s[0])
    ptx.put_shared_f32(at + uint32(4 * _SCORE_STRIDE), s[1])
    ptx.put_shared_f32(at + uint32(32), s[2])
    ptx.put_shared_f32(at + uint32(4 * _SCORE_STRIDE + 32), s[3])


@device_function
def seen(score: Any, is_there: Any) -> Any:
    """A score, or that of a position behind the last one."""
    result = score
    if not is_there:
        result = float32(UNSEEN)
    return result


@device_function
def get_scores(scores: Any, count: Any, lane: Any, factor: Any, p: Any) -> Any:
    """Read all scores of a lane's head, in units of log 2; returns the lane's largest.

    Positions behind the last one are never seen.
    """
    pair = (int32(lane) & int32(3)) * int32(2)
    at = scores + ((uint32(lane) >> uint32(2)) * uint32(_SCORE_STRIDE) + uint32(pair)) * uint32(4)
    most = float32(UNSEEN)
    for i in range(TILE // 8):
        a, b = ptx.shared_f32x2(at + uint32(32 * i))
        c, d = ptx.shared_f32x2(at + uint32(_HALF_SCORES + 32 * i))
        place = pair + int32(8 * i)
        p[2 * i] = seen((a + c) * factor, place < int32(count))
        p[2 * i + 1] = seen((b + d) * factor, place + int32(1) < int32(count))
        most = max(most, max(p[2 * i], p[2 * i + 1]))
    return most


@device_function
def weigh(scores: Any, count: Any, lane: Any, factor: Any, p: Any, most: Any, total: Any) -> Any:
    """Make a page's weights of a lane's head, ``p``, from the scores of all warps.

    Returns:
        The largest score so far, this lane's sum of weights, and the correction of earlier sums.
    """
    found = get_scores(scores, count, lane, factor, p)
    found = max(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 1))
    found = max(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 2))
    found = max(found, most)
    correction = ptx.power_of_two(most - found)
    total *= correction
    for i in range(16):
        p[i] = ptx.power_of_two(p[i] - found)
        total += p[i]
    return found, total, correction


@device_function
def correct(o: Any, correction: Any, lane: Any) -> None:
    """Bring a lane's outputs to the new units of their heads, which other lanes know."""
    source = (lane & int32(3)) << int32(3)
    even = cuda.shfl_sync(0xFFFFFFFF, correction, source)
    odd = cuda.shfl_sync(0xFFFFFFFF, correction, source + int32(4))
    for i in range(4):
        o[2 * i] *= even
        o[2 * i + 1] *= odd


def make_store_outputs(head_dim: int, component: Any) -> Any:
    """Function that stores a warp's outputs of a split, of as many heads as ``rows``."""

    @device_function
    def store_outputs(
        partial: Any, place: Any, rows: Any, max_splits: Any, o: Any, warp: Any, lane: Any
    ) -> None:
        row = (lane & int32(3)) * int32(2)
        line = place + uint64(row) * uint64(max_splits)
        for i in range(8):
            at = line + uint64(i % 2) * uint64(max_splits)
            at = at * uint64(4 * head_dim)
            at += uint64(component(i, warp, lane) << uint32(2))
            is_row = uint32(row + int32(i % 2) < rows)
            ptx.store_f32_if(is_row, partial + at, o[i])

    return store_outputs


@device_function
def place_of(item: Any, items: Any, num_units: Any) -> Any:
    """Split and unit of an item among those of its column, late splits first."""
    units = uint32(num_units)
    rank = ptx.divide_u32(uint32(item), units)
    split = ptx.divide_u32(uint32(items), units) - uint32(1) - rank
    return int32(split), int32(uint32(item) - rank * units)


def split_stages(head_dim: int, block_shared_bytes: int = MULTIPROCESSOR_SHARED) -> int:
    """Pages of the ring: as many as are of use and a block holds; 1 is `attention_page_decode`."""
    most = (block_shared_bytes - SCORE_BYTES) // bf16_reader(head_dim).stage_bytes
    return min(_MOST_STAGES, most)


@cache
def make_split(  # noqa: C901, PLR0915 - one loop, whose state is a lane's registers
    head_dim: int, stages: int
) -> Kernel:
    """Partial results of all splits; grid (any number,), block (256,).

    Args:
        head_dim: components of a head.
        stages: `split_stages` of the device, two or more; changes no bit.
    """
    reader = bf16_reader(head_dim)
    query_words, stage_bytes = reader.query_words, reader.stage_bytes
    ahead = stages - 1
    wait_copies = (ptx.wait_copies_0, ptx.wait_copies_1, ptx.wait_copies_2, ptx.wait_copies_3)[
        ahead - 1
    ]
    fetch, load_query, scores = reader.fetch, reader.load_query, reader.scores
    accumulate, store_outputs = reader.accumulate, make_store_outputs(head_dim, reader.component)
    scores_at = stages * stage_bytes
    shared_bytes = scores_at + SCORE_BYTES
    busy_warps = head_dim // WARP_COMPONENTS  # that have outputs

    def split(  # noqa: C901, PLR0915 - as above
        queries: int,
        keys: int,
        values: int,
        key_scales: int,
        value_scales: int,
        block_table: int,
        table_rows: int,
        positions: int,
        partial: int,
        stats: int,
        num_columns: int,
        num_kv_heads: int,
        group: int,
        table_width: int,
        max_splits: int,
        factor: float,
    ) -> None:
        ring = cuda.shared.array(0, uint64)
        ptx.release_successor()
        base = ptx.shared_address(ring)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(warp_index())
        block, half = warp & int32(3), warp >> int32(2)
        passes = (int32(group) + int32(ROWS - 1)) >> int32(3)
        num_units = int32(num_kv_heads * passes)
        num_heads = num_kv_heads * group
        q = cuda.local.array(query_words, uint32)
        s = cuda.local.array(4, float32)
        p = cuda.local.array(16, float32)
        o = cuda.local.array(8, float32)

        # The cursor of the loads runs some tiles ahead of the work.
        load_item, load_column = int32(cuda.blockIdx.x), int32(0)
        load_items = column_items(positions, 0, num_columns, num_units)
        load_tile, load_tiles, load_stage = int32(0), int32(0), int32(0)
        load_start, load_length, load_head = int32(0), int32(0), int32(0)
        load_line, load_page, old = block_table, int32(0), int32(0)
        item, column, items = load_item, load_column, load_items
        tile, tiles, start, length = int32(0), int32(0), int32(0), int32(0)
        unit, index, rows, place = int32(0), int32(0), int32(0), uint64(0)
        most, total = float32(UNSEEN), float32(0.0)
        has_work, warm, stage = True, int32(0), int32(0)
        while has_work:
            if warm >= ahead:
                wait_copies()
                cuda.syncthreads()
            # Start the copies of the cursor's tile, then move the cursor.
            if load_tile >= load_tiles:
                load_item, load_column, load_items = next_item(
                    positions, load_item, load_column, load_items, num_columns, num_units
                )
                if load_column < num_columns:
                    at = uint64(load_column) * uint64(4)
                    index, unit_there = place_of(load_item, load_items, num_units)
                    load_start = split_start(index)
                    load_length = ptx.load_i32(positions + at) + int32(1)
                    old = load_length - int32(WRITTEN)
                    load_length = min(load_length, split_start(index + 1))
                    load_tiles = (load_length - load_start + int32(TILE - 1)) >> int32(6)
                    load_head = int32(ptx.divide_u32(uint32(unit_there), uint32(passes)))
                    table_row = ptx.load_i32(table_rows + at)
                    load_line = block_table + uint64(table_row) * uint64(table_width * 4)
                    load_line += uint64(load_start >> 6) * uint64(4)
                    load_page = ptx.load_i32(load_line)
                    load_tile = int32(0)
                    load_item = int32(load_item + cuda.gridDim.x)
            if load_tile < load_tiles:
                first = load_start + load_tile * int32(TILE)
                if warm < ahead and first + int32(TILE) > old:
                    ptx.wait_for_predecessor()
                cache_row = uint64(load_page) * uint64(num_kv_heads) + uint64(load_head)
                fetch(
                    base + uint32(load_stage) * uint32(stage_bytes),
                    keys,
                    values,
                    cache_row * uint64(TILE),
                    load_length - first,
                )
                load_tile = int32(load_tile + 1)
                if load_tile < load_tiles:
                    load_page = ptx.load_i32(load_line + uint64(load_tile) * uint64(4))
            ptx.close_copies()
            load_stage = int32(load_stage + 1) if load_stage < stages - 1 else int32(0)
            if warm < ahead:
                warm = int32(warm + 1)
                if warm == ahead:
                    ptx.wait_for_predecessor()
            else:
                if tile >= tiles:
                    item, column, items = next_item(
                        positions, item, column, items, num_columns, num_units
                    )
                    has_work = column < num_columns
                    if has_work:
                        length = ptx.load_i32(positions + uint64(column) * uint64(4)) + int32(1)
                        index, unit = place_of(item, items, num_units)
                        kv_head = int32(ptx.divide_u32(uint32(unit), uint32(passes)))
                        first_row = (unit - kv_head * passes) * int32(ROWS)
                        start = split_start(index)
                        length = min(length, split_start(index + 1))
                        tiles = (length - start + int32(TILE - 1)) >> int32(6)
                        tile = int32(0)
                        line = uint64(column) * uint64(num_heads)
                        line += uint64(kv_head * int32(group) + first_row)
                        place = line * uint64(max_splits) + uint64(index)
                        rows = int32(group) - first_row
                        row = min(lane >> 2, rows - int32(1))
                        address = queries + (line + uint64(row)) * uint64(2 * head_dim)
                        load_query(address, half, lane, q)
                        for i in range(8):
                            o[i] = float32(0.0)
                        most, total = float32(UNSEEN), float32(0.0)
                        item = int32(item + cuda.gridDim.x)
                if has_work:
                    at_stage = base + uint32(stage) * uint32(stage_bytes)
                    stage = int32(stage + 1) if stage < stages - 1 else int32(0)
                    count = length - start - tile * int32(TILE)
                    scores(at_stage, q, block, half, lane, s)
                    put_scores(base + uint32(scores_at), block, half, lane, s)
                    cuda.syncthreads()
                    most, total, correction = weigh(
                        base + uint32(scores_at), count, lane, factor, p, most, total
                    )
                    if warp < busy_warps:
                        correct(o, correction, lane)
                        accumulate(at_stage, p, count, warp, lane, o)
                    tile = int32(tile + 1)
                    if tile >= tiles:
                        if warp < busy_warps:
                            store_outputs(partial, place, rows, max_splits, o, warp, lane)
                        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
                        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
                        if warp == 0:
                            row = lane >> 2
                            at = stats + (place + uint64(row) * uint64(max_splits)) * uint64(8)
                            is_row = uint32(row < rows) * uint32(lane & 3 == 0)
                            ptx.store_f32_if(is_row, at, most)
                            ptx.store_f32_if(is_row, at + uint64(4), total)
        ptx.wait_copies_0()

    params = (Param.ADDRESS,) * 10 + (Param.I32,) * 5 + (Param.F32,)
    name = f"attention_split_{head_dim}_bf16"
    return Kernel(
        name if stages == _MOST_STAGES else f"{name}_{stages}",
        split,
        params,
        threads=THREADS,
        max_registers=128,
        dynamic_shared_bytes=shared_bytes,
        min_blocks=1,
    )
