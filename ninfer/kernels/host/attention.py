"""Gated causal attention over the paged cache on the host.

For each query head, page by page in position order, with running maximum m, sum l and vector a:

    s_j = scale * q k_j                            of the page's attended positions
    m' = max(m, max s) ; c = exp(m - m') ; p_j = exp(s_j - m')
    l = c l + sum p_j ; a = c a + sum p_j v_j
    out = a / l * sigmoid(gate)

Blocks are pages, that is fixed absolute positions, and sums run in index order: a column's result
depends on its own query and cache alone. A work item is one key head and a tile of columns of one
sequence; a tile reads each page once, transposed for the scores, which changes no order of
summation. Positions behind a column's own are never touched. Source: online softmax, Milakov and
Gimelshein, arXiv 1805.02867.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel, kernel_part
from ninfer.kernels.host.kv_cache import PAGE_TOKENS, PLANE_CODES, Plane, load_rows, plane_views
from ninfer.kernels.host.operands import input_array
from ninfer.kernels.operand_groups import KvPlanes
from ninfer.tensor import LinearInput, Tensor

Array = npt.NDArray[Any]

_TILE_COLUMNS = 16  # prefill columns that share one read of a page
_MIN_PAGE_READS = 64  # query-head pages (about 3 us each) worth a thread


def paged_decode(
    stream: HostStream,
    queries: Tensor,
    projected: Tensor,
    kv: KvPlanes,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
    out: LinearInput,
) -> None:
    """Launch `_attend` with one column a tile."""
    _launch(stream, queries, projected, kv, table_rows, positions, scale, out, 1)


def paged_prefill(
    stream: HostStream,
    queries: Tensor,
    projected: Tensor,
    kv: KvPlanes,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
    out: LinearInput,
) -> None:
    """Launch `_attend` with tiles of neighbouring columns."""
    _launch(stream, queries, projected, kv, table_rows, positions, scale, out, _TILE_COLUMNS)


def _launch(
    stream: HostStream,
    queries: Tensor,
    projected: Tensor,
    kv: KvPlanes,
    table_rows: Tensor,
    positions: Tensor,
    scale: float,
    out: LinearInput,
    tile_columns: int,
) -> None:
    num_tokens, num_heads = queries.shape[:2]
    num_kv_heads = kv.keys.shape[1]
    num_tiles = -(-num_tokens // tile_columns)
    page_reads = tile_columns * (num_heads // num_kv_heads) * kv.block_table.shape[1]
    stream.enqueue_bands(
        _attend,
        num_kv_heads * num_tiles,
        -(-_MIN_PAGE_READS // page_reads),
        tile_columns,
        host_array(queries),
        host_array(projected),
        host_array(kv.block_table),
        PLANE_CODES[kv.keys.dtype],
        plane_views(kv.keys, kv.key_scales),
        plane_views(kv.values, kv.value_scales),
        num_kv_heads,
        host_array(table_rows),
        host_array(positions),
        np.float32(scale),
        input_array(out),
    )


@kernel_part
def _transpose(rows: Array, num_rows: int, out: Array) -> None:
    """Turn [num_rows, D] into [D, num_rows]."""
    for row in range(num_rows):
        for i in range(rows.shape[1]):
            out[i, row] = rows[row, i]


@kernel_part
def _merge_page(
    query: Array,
    scale: Any,
    keys: Array,
    values: Array,
    is_first: bool,
    scores: Array,
    softmax: Array,
    total: Array,
) -> None:
    """Merge one page's first ``scores.size`` positions into (m, l) = ``softmax`` and a = ``total``.

    ``keys`` is [D, 64], ``values`` [64, D]; ``scores`` is scratch. The first page starts anew.
    """
    if is_first:
        softmax[0], softmax[1] = -np.inf, np.float32(0.0)
    for j in range(scores.size):
        scores[j] = np.float32(0.0)
    for i in range(query.size):
        component, row = query[i], keys[i]
        for j in range(scores.size):
            scores[j] += component * row[j]
    largest = softmax[0]
    for j in range(scores.size):
        scores[j] *= scale
        largest = max(largest, scores[j])
    correction = np.float32(math.exp(softmax[0] - largest))
    weight_sum = np.float32(0.0)
    for j in range(scores.size):
        scores[j] = math.exp(scores[j] - largest)
        weight_sum += scores[j]
    softmax[0], softmax[1] = largest, softmax[1] * correction + weight_sum
    for i in range(total.size):
        total[i] = np.float32(0.0) if is_first else total[i] * correction
    for j in range(scores.size):
        weight, row = scores[j], values[j]
        for i in range(total.size):
            total[i] += weight * row[i]


@kernel_part
def _write_gated(
    total: Array, weight_sum: Any, gate: Array, gate_at: int, out: Array, at: int
) -> None:
    """Normalise one head and apply its gate, into ``out[at:]``."""
    for i in range(total.size):
        sigmoid = np.float32(1.0) / (np.float32(1.0) + np.float32(math.exp(-gate[gate_at + i])))
        out[at + i] = (total[i] / weight_sum) * sigmoid


@kernel
def _attend(
    first: int,
    stop: int,
    tile_columns: int,
    queries: Array,
    projected: Array,
    block_table: Array,
    code: int,
    keys: Plane,
    values: Plane,
    num_kv_heads: int,
    table_rows: Array,
    positions: Array,
    scale: Any,
    out: Array,
) -> None:
    """Work items [first, stop); item = key head * tiles + tile."""
    num_tokens, num_heads, head_dim = queries.shape
    sharing = num_heads // num_kv_heads
    num_tiles = (num_tokens + tile_columns - 1) // tile_columns
    gate_column = (num_heads + num_kv_heads) * head_dim
    planes = (keys, values)
    page_keys = np.empty((PAGE_TOKENS, head_dim), np.float32)
    page_values = np.empty((PAGE_TOKENS, head_dim), np.float32)
    turned = np.empty((head_dim, PAGE_TOKENS), np.float32)
    scores = np.empty(PAGE_TOKENS, np.float32)
    softmax = np.empty((tile_columns * sharing, 2), np.float32)
    totals = np.empty((tile_columns * sharing, head_dim), np.float32)
    for item in range(first, stop):
        kv_head = item // num_tiles
        begin = (item % num_tiles) * tile_columns
        end = min(begin + tile_columns, num_tokens)
        length = 0
        for t in range(begin, end):
            length = max(length, positions[t] + 1)
        for start in range(0, length, PAGE_TOKENS):
            page = block_table[table_rows[begin], start // PAGE_TOKENS]
            row = (page * num_kv_heads + kv_head) * PAGE_TOKENS
            size = min(PAGE_TOKENS, length - start)
            for which in range(2):
                page_rows = page_keys if which == 0 else page_values
                load_rows(code, planes[which], row, size, page_rows)
            _transpose(page_keys, size, turned)
            for t in range(begin, end):
                seen = min(size, positions[t] + 1 - start)
                for g in range(sharing if seen > 0 else 0):
                    _merge_page(
                        queries[t, kv_head * sharing + g],
                        scale,
                        turned,
                        page_values,
                        start == 0,
                        scores[:seen],
                        softmax[(t - begin) * sharing + g],
                        totals[(t - begin) * sharing + g],
                    )
        for t in range(begin, end):
            for g in range(sharing):
                at = (kv_head * sharing + g) * head_dim
                state = (t - begin) * sharing + g
                _write_gated(
                    totals[state], softmax[state, 1], projected[t], gate_column + at, out[t], at
                )
