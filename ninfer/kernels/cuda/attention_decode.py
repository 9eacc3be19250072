"""Decode attention on CUDA: splits of the cache, and their merge.

    split:  m = max s_j ; l = sum exp2(s_j - m) ; a = sum exp2(s_j - m) v_j     s in units of log 2
    merge:  out = sum_i exp2(m_i - M) a_i / sum_i exp2(m_i - M) l_i * sigmoid(gate)

The query heads of a key head are the columns of the products, so that keys and values are read once
for all of them. A block of four warps works on one split; a warp takes every fourth tile of sixteen
positions, through its own ring of asynchronous copies, which runs on into the block's next split:
no barrier stands between a warp and its loads. The warps' results are merged in shared memory in
the order of the warps, the splits' by a second kernel in the order of positions, one thread a
component. Traffic: each attended row once, 4 D bytes a head and split of partial results twice.
Scores and sums are f32, probabilities bf16 in the products. Source: flash decoding, 2023.
"""

import math
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_cache import TILE, bf16_reader
from ninfer.kernels.cuda.attention_int8 import int8_reader
from ninfer.kernels.cuda.attention_splits import (
    ROWS,
    column_items,
    count_splits,
    split_start,
)
from ninfer.kernels.cuda.device_functions import load_chunk
from ninfer.kernels.cuda.fragments import store_chunk
from ninfer.kernels.cuda.launch import WARP

WARPS: Final = 4
_STAGES: Final = {False: 3, True: 2}  # int8 tiles are half as large: two blocks fit
_UNSEEN: Final = float("-inf")


@device_function
def weight_of(largest: Any, base: Any) -> Any:
    """``exp2(largest - base)``, 0 where nothing was seen."""
    weight = float32(0.0)
    if largest > float32(_UNSEEN):
        weight = ptx.power_of_two(largest - base)
    return weight


@device_function
def over_rows_sum(value: Any) -> Any:
    """Sum over the eight lanes that share a query head."""
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 4)
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 8)
    return value + cuda.shfl_xor_sync(0xFFFFFFFF, value, 16)


@device_function
def over_rows_max(value: Any) -> Any:
    """Largest of the eight lanes that share a query head."""
    value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 4))
    value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 8))
    return max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 16))


@device_function
def softmax_column(s: Any, j: Any, largest: Any) -> Any:
    """Turn the scores of head j of a lane into weights; the new maximum and the correction."""
    found = max(largest, over_rows_max(max(s[j], s[j + 2])))
    base = found
    if found == float32(_UNSEEN):
        base = float32(0.0)
    s[j] = ptx.power_of_two(s[j] - base)
    s[j + 2] = ptx.power_of_two(s[j + 2] - base)
    return found, ptx.power_of_two(largest - base)


@device_function
def scale_scores(s: Any, count: Any, lane: Any, factor: Any) -> None:
    """Bring scores to units of log 2; positions behind the last one are never seen."""
    place = int32(lane >> 2)
    for i in range(4):
        s[i] = s[i] * factor
        if place + int32(i // 2 * 8) >= int32(count):
            s[i] = float32(_UNSEEN)


def line_bytes_of(head_dim: int) -> int:
    """Bytes from row to row of the results of a warp; no bank conflicts."""
    return 4 * (head_dim + 4)


def make_merge_warps(head_dim: int, merge_at: int, stats_at: int) -> Any:
    """Function that merges a block's results, from shared to scratch memory."""
    line_bytes = line_bytes_of(head_dim)

    @device_function
    def merge_warps(
        base: Any, rows: Any, partial: Any, stats: Any, first_place: Any, num_places: Any
    ) -> None:
        """Merge the block's four results of each row; ``num_places`` places lie between heads."""
        index = int32(cuda.threadIdx.x)
        while index < int32(rows) * int32(head_dim // 4):
            row, piece = index // int32(head_dim // 4), index % int32(head_dim // 4)
            at = base + uint32(stats_at) + uint32(row) * uint32(8)
            m0, l0 = ptx.shared_f32x2(at)
            m1, l1 = ptx.shared_f32x2(at + uint32(ROWS * 8))
            m2, l2 = ptx.shared_f32x2(at + uint32(2 * ROWS * 8))
            m3, l3 = ptx.shared_f32x2(at + uint32(3 * ROWS * 8))
            at = base + uint32(merge_at) + uint32(row) * uint32(line_bytes)
            at += uint32(piece) * uint32(16)
            a0, a1, a2, a3 = ptx.shared_f32x4(at)
            b0, b1, b2, b3 = ptx.shared_f32x4(at + uint32(ROWS * line_bytes))
            c0, c1, c2, c3 = ptx.shared_f32x4(at + uint32(2 * ROWS * line_bytes))
            d0, d1, d2, d3 = ptx.shared_f32x4(at + uint32(3 * ROWS * line_bytes))
            most = max(max(m0, m1), max(m2, m3))
            w0, w1 = weight_of(m0, most), weight_of(m1, most)
            w2, w3 = weight_of(m2, most), weight_of(m3, most)
            place = uint64(first_place) + uint64(row) * uint64(num_places)
            to = partial + (place * uint64(head_dim) + uint64(piece * 4)) * uint64(4)
            ptx.store_f32x2(
                to, ((w0 * a0 + w1 * b0) + w2 * c0) + w3 * d0,
                ((w0 * a1 + w1 * b1) + w2 * c1) + w3 * d1,
            )  # fmt: skip
            ptx.store_f32x2(
                to + uint64(8), ((w0 * a2 + w1 * b2) + w2 * c2) + w3 * d2,
                ((w0 * a3 + w1 * b3) + w2 * c3) + w3 * d3,
            )  # fmt: skip
            if piece == 0:
                total = w0 * l0 + w1 * l1 + w2 * l2 + w3 * l3
                ptx.store_f32x2(stats + place * uint64(8), most, total)
            index += int32(WARPS * 32)

    return merge_warps


@cache
def make_split(  # noqa: C901, PLR0915 - one loop, whose state is a lane's registers
    head_dim: int, is_int8: bool
) -> Kernel:
    """Partial results of all splits; grid (any number,), block (128,).

    Args:
        head_dim: components of a head.
        is_int8: cache type.
    """
    reader = int8_reader(head_dim) if is_int8 else bf16_reader(head_dim)
    query_words, stage_bytes = reader.query_words, reader.stage_bytes
    stages = _STAGES[is_int8]
    ahead = stages - 1
    wait_copies = ptx.wait_copies_1 if ahead == 2 else ptx.wait_copies_0
    fetch, load_query, scores = reader.fetch, reader.load_query, reader.scores
    accumulate, component = reader.accumulate, reader.component
    outputs_per_lane = head_dim // 4
    merge_at = WARPS * stages * stage_bytes
    line_bytes = line_bytes_of(head_dim)
    stats_at = merge_at + WARPS * ROWS * line_bytes
    shared_bytes = stats_at + WARPS * ROWS * 8
    merge_warps = make_merge_warps(head_dim, merge_at, stats_at)

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
        ptx.wait_for_predecessor()
        base = ptx.shared_address(ring)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        own = base + uint32(warp) * uint32(stages * stage_bytes)
        passes = (int32(group) + int32(ROWS - 1)) // int32(ROWS)
        num_units = int32(num_kv_heads * passes)
        num_heads = num_kv_heads * group
        q = cuda.local.array(query_words, uint32)
        s = cuda.local.array(4, float32)
        o = cuda.local.array(outputs_per_lane, float32)

        # The cursor of the loads runs two tiles ahead of the work.
        load_item, load_column = int32(cuda.blockIdx.x), int32(0)
        load_tile, load_tiles, load_stage = int32(0), int32(0), int32(0)
        load_start, load_length, load_head = int32(0), int32(0), int32(0)
        load_line, load_page = block_table, int32(0)
        item, column = int32(cuda.blockIdx.x), int32(0)
        items = column_items(positions, 0, num_columns, num_units)
        load_items = items
        has_work, warm, stage = True, int32(0), int32(0)
        while has_work:
            while item >= items:
                item = int32(item - items)
                column = int32(column + 1)
                items = column_items(positions, column, num_columns, num_units)
            has_work = column < num_columns
            tiles, start, length, unit, index = int32(0), int32(0), int32(0), int32(0), int32(0)
            if has_work:
                length = ptx.load_i32(positions + uint64(column) * uint64(4)) + int32(1)
                unit = int32(item % num_units)
                index = int32(items // num_units - 1 - item // num_units)
                start = split_start(index)
                length = min(length, split_start(index + 1))
                tiles = (length - start + int32(63)) >> int32(6)
            kv_head = unit // int32(passes)
            first_row = unit % int32(passes) * int32(ROWS)
            row = first_row + (lane >> 2)
            line = uint64(column) * uint64(num_heads) + uint64(kv_head * group)
            address = uint64(0)
            if has_work and row < group:
                address = queries + (line + uint64(row)) * uint64(2 * head_dim)
            load_query(address, lane, q)
            for i in range(outputs_per_lane):
                o[i] = float32(0.0)
            most0, most1 = float32(_UNSEEN), float32(_UNSEEN)
            total0, total1 = float32(0.0), float32(0.0)
            tile = int32(0)
            while tile < tiles or warm < ahead:
                # Start the copies of the cursor's tile, then move the cursor.
                while load_column < num_columns and load_tile >= load_tiles:
                    while load_item >= load_items:
                        load_item = int32(load_item - load_items)
                        load_column = int32(load_column + 1)
                        load_items = column_items(positions, load_column, num_columns, num_units)
                    if load_column < num_columns:
                        at = uint64(load_column) * uint64(4)
                        place = int32(load_items // num_units - 1 - load_item // num_units)
                        load_start = split_start(place)
                        load_length = ptx.load_i32(positions + at) + int32(1)
                        load_length = min(load_length, split_start(place + 1))
                        load_tiles = (load_length - load_start + int32(63)) >> int32(6)
                        load_head = load_item % num_units // int32(passes)
                        table_row = ptx.load_i32(table_rows + at)
                        load_line = block_table + uint64(table_row) * uint64(table_width * 4)
                        load_tile = int32(0)
                        load_item = int32(load_item + cuda.gridDim.x)
                        load_line += uint64(load_start >> 6) * uint64(4)
                        load_page = ptx.load_i32(load_line)
                if warm >= ahead:
                    wait_copies()
                    cuda.syncwarp()
                if load_column < num_columns and load_tile < load_tiles:
                    first = load_start + load_tile * int32(64)
                    cache_row = (
                        uint64(load_page) * uint64(num_kv_heads) + uint64(load_head)
                    ) * uint64(64) + uint64(warp * TILE)
                    fetch(
                        own + uint32(load_stage) * uint32(stage_bytes),
                        keys,
                        values,
                        key_scales,
                        value_scales,
                        cache_row,
                        load_length - first - warp * int32(TILE),
                        lane,
                    )
                    load_tile = int32(load_tile + 1)
                    if load_tile < load_tiles:
                        load_page = ptx.load_i32(load_line + uint64(load_tile) * uint64(4))
                ptx.close_copies()
                load_stage = int32(load_stage + 1) if load_stage < stages - 1 else int32(0)
                if warm < ahead:
                    warm = int32(warm + 1)
                else:
                    at_stage = own + uint32(stage) * uint32(stage_bytes)
                    count = length - start - tile * int32(64) - warp * int32(TILE)
                    scores(at_stage, q, lane, s)
                    scale_scores(s, count, lane, factor)
                    most0, correction0 = softmax_column(s, 0, most0)
                    most1, correction1 = softmax_column(s, 1, most1)
                    total0 = total0 * correction0 + (s[0] + s[2])
                    total1 = total1 * correction1 + (s[1] + s[3])
                    for i in range(outputs_per_lane // 2):
                        o[2 * i] = o[2 * i] * correction0
                        o[2 * i + 1] = o[2 * i + 1] * correction1
                    accumulate(at_stage, s, count, lane, o)
                    stage = int32(stage + 1) if stage < stages - 1 else int32(0)
                    tile = int32(tile + 1)
            if has_work:
                total0, total1 = over_rows_sum(total0), over_rows_sum(total1)
                at_row = uint32(warp * ROWS) + ((uint32(lane) & uint32(3)) << uint32(1))
                if lane < 4:
                    at_stats = base + uint32(stats_at) + at_row * uint32(8)
                    ptx.put_shared_f32x2(at_stats, most0, total0)
                    ptx.put_shared_f32x2(at_stats + uint32(8), most1, total1)
                at_line = base + uint32(merge_at) + at_row * uint32(line_bytes)
                for i in range(outputs_per_lane):
                    at_value = at_line + (component(i, lane) << uint32(2))
                    ptx.put_shared_f32(at_value + uint32(i % 2 * line_bytes), o[i])
                cuda.syncthreads()
                first_place = (line + uint64(first_row)) * uint64(max_splits) + uint64(index)
                rows = min(int32(group) - first_row, int32(ROWS))
                merge_warps(base, rows, partial, stats, first_place, max_splits)
                cuda.syncthreads()
                item = int32(item + cuda.gridDim.x)
        ptx.wait_copies_0()

    params = (Param.ADDRESS,) * 10 + (Param.I32,) * 5 + (Param.F32,)
    return Kernel(
        f"attention_split_{head_dim}_{'int8' if is_int8 else 'bf16'}",
        split,
        params,
        threads=WARPS * WARP,
        max_registers=255,
        dynamic_shared_bytes=shared_bytes,
    )


@cache
def make_merge(head_dim: int) -> Kernel:
    """Merge splits, gate, and write a linear input; grid (columns, heads), block (head_dim,)."""
    chunks = head_dim // 8

    def merge(
        partial: int,
        stats: int,
        positions: int,
        projected: int,
        base: int,
        sums: int,
        num_heads: int,
        num_kv_heads: int,
        max_splits: int,
        padded: int,
        first_column: int,
    ) -> None:
        row = cuda.shared.array(head_dim, float32, alignment=16)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        place, head, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        column = int32(place) + int32(first_column)
        position = ptx.load_i32(positions + uint64(column) * uint64(4))
        count = count_splits(position + int32(1))
        first = (uint64(place) * uint64(num_heads) + uint64(head)) * uint64(max_splits)
        stat = stats + first * uint64(8)
        part = partial + (first * uint64(head_dim) + uint64(thread)) * uint64(4)
        most = float32(_UNSEEN)
        for i in range(count):
            most = max(most, ptx.load_f32(stat + uint64(i) * uint64(8)))
        total, value = float32(0.0), float32(0.0)
        for i in range(count):
            largest, weight_sum = ptx.load_f32x2(stat + uint64(i) * uint64(8))
            weight = weight_of(largest, most)
            total += weight * weight_sum
            value += weight * ptx.load_f32(part + uint64(i) * uint64(4 * head_dim))
        row[thread] = value / total
        cuda.syncthreads()
        if thread < 32:
            width = num_heads * head_dim
            chunk = head * chunks + thread
            is_last = head == num_heads - 1
            is_inside = thread < chunks or (is_last and chunk * 8 < padded)
            x = cuda.local.array(8, float32)
            for i in range(8):
                x[i] = float32(0.0)
            if thread < chunks:
                line = projected + uint64(column) * uint64(
                    2 * (num_heads + num_kv_heads) * head_dim * 2
                )
                gates = line + uint64((num_heads + num_kv_heads) * head_dim * 2)
                g = load_chunk(gates, chunk, width)
                for i in range(8):
                    x[i] = row[thread * 8 + i] / (float32(1.0) + math.exp(-g[i]))
            store_chunk(
                base,
                sums,
                uint32(padded),
                column,
                chunk,
                is_inside,
                x[0],
                x[1],
                x[2],
                x[3],
                x[4],
                x[5],
                x[6],
                x[7],
            )

    params = (Param.ADDRESS,) * 6 + (Param.I32,) * 5
    name = f"attention_merge_{head_dim}"
    return Kernel(name, merge, params, threads=head_dim, max_registers=64)
