"""Decode attention on CUDA over int8 planes: splits of the cache.

The same work as `attention_decode` does over bf16 planes, by products of bytes (`attention_int8`).
Four warps of a block multiply, and a fifth one knows what comes next (`attention_scout`). Pages
come through a ring of asynchronous copies that runs on into the block's next split; those of its
first split that no kernel of this round can have written are asked for before the predecessor has
ended. For scores a warp takes every fourth eight positions of a page, for outputs 64 components and
all positions; all warps make all weights again. Traffic: each attended row once, 4 D bytes a head
and split of partial results twice.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_cache import TILE
from ninfer.kernels.cuda.attention_int8 import (
    SCORE_BYTES,
    CodeStage,
    make_accumulate,
    make_fetch,
    make_scores,
    make_store_outputs,
    weigh,
)
from ninfer.kernels.cuda.attention_int8_query import make_get_query
from ninfer.kernels.cuda.attention_scout import (
    FIRST,
    HEADS,
    LAST,
    OLD,
    RING_BYTES,
    SLOT,
    SPLIT_BIT,
    count_at,
    description,
    flags_of,
    make_scout,
    uniform,
)
from ninfer.kernels.cuda.attention_softmax import UNSEEN
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED, RESERVED_SHARED
from ninfer.kernels.cuda.product_output import warp_index

_WARPS: Final = 4
_BLOCKS: Final = 2  # that share a multiprocessor, if they fit
_MOST_STAGES: Final = 3


def int8_stages(
    head_dim: int, block_shared_bytes: int = MULTIPROCESSOR_SHARED, warps: int = _WARPS
) -> int:
    """Pages of the ring: as many as are of use and a block holds."""
    layout = CodeStage(head_dim, warps)
    most = (MULTIPROCESSOR_SHARED + RESERVED_SHARED) // _BLOCKS - RESERVED_SHARED
    room = min(block_shared_bytes, most) - _bytes_behind(layout)
    return min(_MOST_STAGES, max(2, room // layout.nbytes))


def _bytes_behind(layout: CodeStage) -> int:
    """Shared memory behind the stages: two places of queries, the scores, the ring."""
    return 2 * layout.query_bytes + SCORE_BYTES + RING_BYTES


@device_function
def _wait_copies(later: Any) -> None:
    """Wait for all copies but those of so many later pages."""
    if later >= 2:
        ptx.wait_copies_2()
    elif later == 1:
        ptx.wait_copies_1()
    else:
        ptx.wait_copies_0()


@cache
def make_int8_split(  # noqa: C901, PLR0915 - one loop, whose state is a lane's registers
    head_dim: int, stages: int, warps: int = _WARPS
) -> Kernel:
    """Partial results of all splits; grid (any number,), block (32 * warps + 32,).

    Args:
        head_dim: components of a head.
        stages: `int8_stages` of the device, two or three; changes no bit.
        warps: that multiply; change no bit.
    """
    layout = CodeStage(head_dim, warps)
    stage_bytes, query_words = layout.nbytes, head_dim // 8
    fetch, get_query, scout = make_fetch(layout), make_get_query(layout), make_scout(layout, stages)
    put_scores, accumulate = make_scores(layout), make_accumulate(layout)
    store_outputs, out_words = make_store_outputs(layout), layout.warp_components // 4
    queries_at, query_bytes = stages * stage_bytes, layout.query_bytes
    scores_at = queries_at + 2 * query_bytes
    ring_at = scores_at + SCORE_BYTES
    busy_warps = head_dim // layout.warp_components  # that have outputs

    @device_function
    def bring(base: Any, stage: Any, row: Any, planes: Any) -> None:
        """Start the copies of a page."""
        keys, values, key_scales, value_scales = planes
        to = base + uint32(stage) * uint32(stage_bytes)
        fetch(to, keys, values, key_scales, value_scales, uint64(row) * uint64(TILE))
        ptx.close_copies()

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
        tickets: int,
        num_columns: int,
        num_kv_heads: int,
        group: int,
        table_width: int,
        max_splits: int,
        factor: float,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        base = ptx.shared_address(memory)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(warp_index())
        ring = base + uint32(ring_at)
        if warp == warps:
            scout(
                ring,
                base + uint32(queries_at),
                queries,
                block_table,
                table_rows,
                positions,
                tickets,
                num_columns,
                num_kv_heads,
                group,
                table_width,
                lane,
            )
        else:
            q = cuda.local.array(query_words, uint32)
            p = cuda.local.array(16, float32)
            o = cuda.local.array(out_words, float32)
            for i in range(query_words):
                q[i] = uint32(0)
            for i in range(out_words):
                o[i] = float32(0.0)
            planes = keys, values, key_scales, value_scales
            most, total, unit = float32(UNSEEN), float32(0.0), float32(0.0)
            page, asked, stage, to_stage = int32(0), int32(0), int32(0), int32(0)
            cuda.syncthreads()
            early = int32(uniform(ptx.shared_u32(count_at(ring))))
            while asked < early:
                if flags_of(ring, asked) & uint32(OLD) == 0:
                    ptx.wait_for_predecessor()
                bring(base, to_stage, ptx.shared_u32(description(ring, asked)), planes)
                asked = int32(asked + 1)
                to_stage = int32(to_stage + 1) if to_stage < stages - 1 else int32(0)
            ptx.wait_for_predecessor()
            has_work = True
            while has_work:
                _wait_copies(asked - int32(1) - page)
                cuda.syncthreads()
                _, count, flags, line = ptx.shared_u32x4(description(ring, page))
                flags = uniform(flags)
                has_work = flags != 0
                # Ask for what comes after, as far as there are stages.
                while asked < page + int32(stages) and flags_of(ring, asked) != 0:
                    bring(base, to_stage, ptx.shared_u32(description(ring, asked)), planes)
                    asked = int32(asked + 1)
                    to_stage = int32(to_stage + 1) if to_stage < stages - 1 else int32(0)
                if has_work:
                    if flags & uint32(FIRST) != 0:
                        place = base + uint32(queries_at)
                        if flags & uint32(SLOT) != 0:
                            place = base + uint32(queries_at + query_bytes)
                        unit = get_query(place, lane, q) * float32(factor)
                        for i in range(out_words):
                            o[i] = float32(0.0)
                        most, total = float32(UNSEEN), float32(0.0)
                    from_stage = base + uint32(stage) * uint32(stage_bytes)
                    stage = int32(stage + 1) if stage < stages - 1 else int32(0)
                    scores = base + uint32(scores_at)
                    put_scores(from_stage, scores, q, unit, count, warp, lane)
                    ptx.sync_threads(uint32(1), uint32(32 * warps))
                    most, total, correction = weigh(scores, lane, p, most, total)
                    if warp < busy_warps:
                        accumulate(from_stage, p, correction, warp, lane, o)
                    page = int32(page + 1)
                    if flags & uint32(LAST) != 0:
                        place = uint64(line) * uint64(max_splits)
                        place += uint64(flags >> uint32(SPLIT_BIT))
                        rows = int32(flags & uint32(HEADS))
                        if warp < busy_warps:
                            store_outputs(partial, place, rows, max_splits, o, warp, lane)
                        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
                        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
                        if warp == 0:
                            head = lane >> 2
                            to = stats + (place + uint64(head) * uint64(max_splits)) * uint64(8)
                            is_row = uint32(head < rows) * uint32(lane & 3 == 0)
                            ptx.store_f32_if(is_row, to, most)
                            ptx.store_f32_if(is_row, to + uint64(4), total)
        ptx.wait_copies_0()

    params = (Param.ADDRESS,) * 11 + (Param.I32,) * 5 + (Param.F32,)
    return Kernel(
        f"attention_split_{head_dim}_int8_{warps}_{stages}",
        split,
        params,
        threads=32 * warps + 32,
        max_registers=168,
        dynamic_shared_bytes=ring_at + RING_BYTES,
        min_blocks=_BLOCKS,
    )
