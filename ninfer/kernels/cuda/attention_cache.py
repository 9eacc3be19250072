"""How a block of decode attention reads one page of cached positions of bf16.

A stage in shared memory holds the 64 rows of keys and of values of one key head. Eight warps share
it. For scores, positions are the rows of the products: a warp takes sixteen of them and half of the
components. For outputs, components are the rows: a warp takes 32 of them and all positions. Eight
query heads are the columns of both. So a lane has scores of heads 2t and 2t + 1 (t = lane mod 4),
weights of head lane / 4 and outputs of heads 2t and 2t + 1.

How rows lie in a stage is the knowledge of `attention_bf16`. Rows behind the last position are
zeros, never read. Source of the fragment orders: PTX ISA, m16n8k16.
"""

from typing import Any, Final, NamedTuple

from ninfer.kernels.cuda.launch import WARP

TILE: Final = 64
"""Positions of one stage: a page."""

WARPS: Final = 8
THREADS: Final = WARPS * WARP

WARP_COMPONENTS: Final = 32
"""Components of the outputs of one warp."""


class CacheReader(NamedTuple):
    """Functions that read pages, and what they need.

    Attributes:
        stage_bytes: shared memory of one stage.
        query_words: registers of a lane that hold its part of the queries.
        fetch: ``(stage, keys, values, row, count)``; starts copies of
            ``count`` rows from plane row ``row``, and zeros behind them.
        load_query: ``(address, half, lane, words)`` from the lane's head.
        scores: ``(stage, words, block, half, lane, s)``; s[2 i + j] is position
            16 block + lane / 4 + 8 i, head 2t + j, over half of the components.
        accumulate: ``(stage, p, count, warp, lane, o)``; adds the values with weights p[4 i + 2 j +
            k] of position 16 i + 8 j + 2t + k.
        component: ``(index, warp, lane)``; the component that ``o[index]`` is, of head
            2t + index mod 2.
    """

    stage_bytes: int
    query_words: int
    fetch: Any
    load_query: Any
    scores: Any
    accumulate: Any
    component: Any
