"""Decode attention on CUDA where a block has no room for two pages of bf16: one page at a time.

Results are bit for bit those of `attention_decode`, and so are the parts. Keys and values of a page
have a buffer each: values come while scores are made, the next keys while values are added. That
keeps half a page under way, which is enough where multiprocessors are that small; only the first
keys of a split are waited for. A block needs 69 KB at 256 components of a head.
"""

from functools import cache
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_bf16 import bf16_reader
from ninfer.kernels.cuda.attention_cache import THREADS, TILE, WARP_COMPONENTS
from ninfer.kernels.cuda.attention_decode import (
    SCORE_BYTES,
    correct,
    make_store_outputs,
    place_of,
    put_scores,
    weigh,
)
from ninfer.kernels.cuda.attention_softmax import UNSEEN
from ninfer.kernels.cuda.attention_splits import ROWS, column_items, next_item, split_start
from ninfer.kernels.cuda.product_output import warp_index


def _make_load_plane(head_dim: int) -> Any:
    """Function that starts copies of a page's keys or values, zeros behind ``count``."""
    row_bytes = 2 * head_dim
    pieces = row_bytes // 16

    @device_function
    def load_plane(to: Any, plane: Any, row: Any, count: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        source = plane + uint64(row) * uint64(row_bytes) + uint64(thread << uint32(4))
        for i in range(TILE * pieces // THREADS):
            index = uint32(i * THREADS) + thread
            place, piece = index // uint32(pieces), index % uint32(pieces)
            size = uint32(int32(place) < int32(count)) << uint32(4)
            turned = (piece ^ (place & uint32(7))) << uint32(4)
            to_row = uint32(to) + place * uint32(row_bytes)
            ptx.copy_async_16(to_row + turned, source + uint64(i * THREADS * 16), size)
        ptx.close_copies()

    return load_plane


@cache
def make_page_split(  # noqa: PLR0915 - one loop, whose state is a lane's registers
    head_dim: int,
) -> Kernel:
    """Partial results of all splits of a bf16 cache; grid (any number,), block (256,)."""
    reader = bf16_reader(head_dim)
    query_words, scores_at = reader.query_words, reader.stage_bytes
    values_at = scores_at // 2
    load_query, scores = reader.load_query, reader.scores
    accumulate, store_outputs = reader.accumulate, make_store_outputs(head_dim, reader.component)
    load_plane = _make_load_plane(head_dim)
    busy_warps = head_dim // WARP_COMPONENTS  # that have outputs

    def split(  # noqa: PLR0915 - as above
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
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        stage = ptx.shared_address(memory)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(warp_index())
        block, half = warp & int32(3), warp >> int32(2)
        passes = (int32(group) + int32(ROWS - 1)) >> int32(3)
        num_units = int32(num_kv_heads * passes)
        num_heads = num_kv_heads * group
        q = cuda.local.array(query_words, uint32)
        s = cuda.local.array(4, float32)
        p = cuda.local.array(16, float32)
        o = cuda.local.array(8, float32)
        item, column = int32(cuda.blockIdx.x), int32(0)
        items = column_items(positions, 0, num_columns, num_units)
        item, column, items = next_item(positions, item, column, items, num_columns, num_units)
        while column < num_columns:
            index, unit = place_of(item, items, num_units)
            kv_head = int32(ptx.divide_u32(uint32(unit), uint32(passes)))
            first_row = (unit - kv_head * passes) * int32(ROWS)
            start = split_start(index)
            length = ptx.load_i32(positions + uint64(column) * uint64(4)) + int32(1)
            length = min(length, split_start(index + 1)) - start
            pages = ptx.load_i32(table_rows + uint64(column) * uint64(4))
            page_at = block_table + uint64(pages) * uint64(table_width * 4)
            page_at += uint64(start >> 6) * uint64(4)
            cache_row = int32((ptx.load_i32(page_at) * num_kv_heads + kv_head) * int32(TILE))
            load_plane(stage, keys, cache_row, length)
            line = uint64(column) * uint64(num_heads)
            line += uint64(kv_head * int32(group) + first_row)
            rows = int32(group) - first_row
            row = min(lane >> 2, rows - int32(1))
            load_query(queries + (line + uint64(row)) * uint64(2 * head_dim), half, lane, q)
            for i in range(8):
                o[i] = float32(0.0)
            most, total = float32(UNSEEN), float32(0.0)
            ptx.wait_copies_0()
            cuda.syncthreads()
            while length > 0:
                load_plane(stage + uint32(values_at), values, cache_row, length)
                count = length
                length = int32(length - int32(TILE))
                if length > 0:
                    page_at += uint64(4)
                    cache_row = ptx.load_i32(page_at) * num_kv_heads + kv_head
                    cache_row = int32(cache_row * int32(TILE))
                scores(stage, q, block, half, lane, s)
                put_scores(stage + uint32(scores_at), block, half, lane, s)
                ptx.wait_copies_0()
                cuda.syncthreads()
                if length > 0:
                    load_plane(stage, keys, cache_row, length)
                most, total, correction = weigh(
                    stage + uint32(scores_at), count, lane, factor, p, most, total
                )
                if warp < busy_warps:
                    correct(o, correction, lane)
                    accumulate(stage, p, count, warp, lane, o)
                ptx.wait_copies_0()
                cuda.syncthreads()
            place = line * uint64(max_splits) + uint64(index)
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
            item = int32(item + cuda.gridDim.x)
            item, column, items = next_item(positions, item, column, items, num_columns, num_units)

    params = (Param.ADDRESS,) * 10 + (Param.I32,) * 5 + (Param.F32,)
    return Kernel(
        f"attention_page_split_{head_dim}",
        split,
        params,
        threads=THREADS,
        max_registers=255,
        dynamic_shared_bytes=scores_at + SCORE_BYTES,
        min_blocks=1,
    )
