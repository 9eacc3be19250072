"""Paged attention on a CUDA device: against the formula, and bit for bit against itself."""

import itertools
from typing import Any

import numpy as np
import pytest

from ninfer.ops import attention
from ninfer.tensor import DType
from tests.support.attention_columns import Columns, random_columns
from tests.support.cuda_bench import CudaBench
from tests.support.cuda_cache import CacheContent, make_content
from tests.support.oracles.attention import gated_attention

pytestmark = pytest.mark.gpu

LENGTHS = [1, 63, 64, 65, 150, 1000, 8800]
"""Both sides of page and split ends; the last one reaches splits of twice the width."""
GEOMETRIES = [(4, 2, 64), (10, 1, 64), (24, 4, 256), (16, 2, 256)]
every_geometry = pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), GEOMETRIES)
every_dtype = pytest.mark.parametrize("dtype", [DType.BF16, DType.I8], ids=lambda d: d.name)


def attend(
    columns: Columns,
    content: CacheContent,
    is_prefill: bool = False,
    narrow_bytes: int | None = None,
) -> Any:
    op = attention.paged_prefill if is_prefill else attention.paged_decode
    count, num_heads, head_dim = columns.queries.shape
    with CudaBench(nbytes=1 << 28, narrow_bytes=narrow_bytes) as bench:
        out = bench.out_columns(count, num_heads * head_dim)
        op(
            bench.ctx,
            bench.activations(columns.queries),
            bench.activations(columns.projected),
            content.on(bench),
            bench.put(columns.table_rows),
            bench.put(columns.positions),
            head_dim**-0.5,
            out,
        )
        bench.check()
        return bench.read_columns(out)


def relative_error(got: Any, columns: Columns, content: CacheContent) -> float:
    """Largest error of a column, relative to the column's norm."""
    count, num_heads, head_dim = columns.queries.shape
    gate = (num_heads + content.keys[0].shape[0]) * head_dim
    gates = columns.projected[:, gate : gate + num_heads * head_dim]
    with CudaBench() as bench:
        exact = gated_attention(
            bench.rounded(columns.queries),
            bench.rounded(gates).reshape(count, num_heads, head_dim),
            [content.keys[row] for row in columns.table_rows],
            [content.values[row] for row in columns.table_rows],
            [int(position) + 1 for position in columns.positions],
            head_dim**-0.5,
        )
    error = np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)
    return float(np.max(error))


@every_dtype
@every_geometry
def test_decode_agrees_with_the_formula_and_reads_no_stale_element(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: DType
) -> None:
    places = [(row, length - 1) for row, length in enumerate(LENGTHS)]
    columns = random_columns(num_heads, num_kv_heads, head_dim, places)
    content = make_content(dtype, num_kv_heads, head_dim, LENGTHS)

    out = attend(columns, content)

    # One rounding of weights and one of the result: 2^-9 each, and room for scaled int8 weights.
    assert relative_error(out, columns, content) <= 2.0**-7


@every_dtype
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(4, 2, 64), (12, 2, 256), (16, 2, 256), (8, 2, 256)],  # 27B; 35B; 0.8B to 9B
)
@pytest.mark.parametrize(("first", "stop"), [(40, 300), (1500, 1640)])
def test_prefill_agrees_with_the_formula(
    num_heads: int, num_kv_heads: int, head_dim: int, first: int, stop: int, dtype: DType
) -> None:
    places = [(0, position) for position in range(first, stop)]
    columns = random_columns(num_heads, num_kv_heads, head_dim, places)
    content = make_content(dtype, num_kv_heads, head_dim, [stop])

    out = attend(columns, content, is_prefill=True)

    # Int8 keys are rounded to bf16 on their way to the products, which errors of 3.9e-3 include.
    assert relative_error(out, columns, content) <= 2.0**-7


@every_dtype
def test_a_column_does_not_see_its_batch_or_its_pages(dtype: DType) -> None:
    places = [(row, length - 1) for row, length in enumerate(LENGTHS)]
    columns = random_columns(24, 4, 256, places)
    content = make_content(dtype, 4, 256, LENGTHS)
    together = attend(columns, content)
    order = [6, 2, 5, 2, 0, 4, 3, 1]

    moved = attend(columns.take(order), make_content(dtype, 4, 256, LENGTHS, seed=1))
    alone = np.concatenate([attend(columns.take([i]), content) for i in range(len(LENGTHS))])

    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(moved, together[order])


@every_dtype
def test_chunks_do_not_change_a_bit_of_a_prefill(dtype: DType) -> None:
    columns = random_columns(6, 1, 256, [(0, position) for position in range(300)])
    content = make_content(dtype, 1, 256, [300])
    whole = attend(columns, content, is_prefill=True)

    chunks = [
        attend(columns.take(slice(first, stop)), content, is_prefill=True)
        for first, stop in itertools.pairwise([0, 1, 64, 200, 300])
    ]

    np.testing.assert_array_equal(np.concatenate(chunks), whole)


@pytest.mark.parametrize(("first", "stop"), [(0, 300), (1500, 1640), (1500, 1600)])
def test_a_sequence_too_long_for_the_scratch_memory_gets_the_same_bits(
    first: int, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = random_columns(12, 2, 256, [(0, position) for position in range(first, stop)])
    content = make_content(DType.I8, 2, 256, [stop])
    whole = attend(columns, content, is_prefill=True)

    monkeypatch.setattr("ninfer.kernels.cuda.attention_expand.POSITION_BYTES", 1 << 40)
    beyond = attend(columns, content, is_prefill=True)

    np.testing.assert_array_equal(beyond, whole)
