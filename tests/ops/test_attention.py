import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.device import host_array
from ninfer.errors import ShapeError
from ninfer.ops import attention
from ninfer.ops.kv_cache import PagedKv
from ninfer.tensor import DType
from tests.support.attention_columns import Columns, random_columns
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.attention import gated_attention
from tests.support.paged_cache import make_cache, planes, read_sequence, write_sequence

F32 = npt.NDArray[np.float32]
GEOMETRIES = [(2, 1, 64), (4, 2, 64), (6, 1, 64), (6, 2, 256)]
DTYPES = [DType.F32, DType.BF16, DType.I8]
LENGTHS = [1, 63, 64, 65, 150]
"""Of the five sequences in block-table order: one position, and both sides of page ends."""
NOWHERE = 10_000_000
"""No page: reading it ends the process."""
TABLE = [
    [7, NOWHERE, NOWHERE],
    [2, NOWHERE, NOWHERE],
    [5, NOWHERE, NOWHERE],
    [0, 4, NOWHERE],
    [3, 8, 1],
]
NUM_PAGES = 9


def filled_cache(
    bench: GuardedBench, dtype: DType, num_kv_heads: int, head_dim: int, table: list[list[int]]
) -> PagedKv:
    """Five sequences; everything behind a frontier stays NaN."""
    rng = np.random.default_rng(9)
    kv = make_cache(bench, dtype, num_kv_heads, head_dim, table, NUM_PAGES)
    for row, length in enumerate(LENGTHS):
        keys, values = rng.normal(0, 1, (2, num_kv_heads, length, head_dim)).astype(np.float32)
        write_sequence(kv, row, keys, values)
    return kv


def attend(
    bench: GuardedBench, columns: Columns, kv: PagedKv, is_prefill: bool = False, scale: float = 0.1
) -> F32:
    op = attention.paged_prefill if is_prefill else attention.paged_decode
    count, num_heads, head_dim = columns.queries.shape
    out = bench.out_columns(count, num_heads * head_dim)
    op(
        bench.ctx,
        bench.put(columns.queries),
        bench.put(columns.projected),
        kv,
        bench.put(columns.table_rows),
        bench.put(columns.positions),
        scale,
        out,
    )
    bench.check()
    return bench.read_columns(out)


def expected_of(columns: Columns, kv: PagedKv, scale: float = 0.1) -> npt.NDArray[np.float64]:
    count, num_heads, head_dim = columns.queries.shape
    gate = (num_heads + kv.num_kv_heads) * head_dim
    gates = columns.projected[:, gate : gate + num_heads * head_dim]
    caches = [
        read_sequence(kv, row, position + 1)
        for row, position in zip(columns.table_rows, columns.positions, strict=True)
    ]
    return gated_attention(
        columns.queries.astype(np.float64),
        gates.reshape(count, num_heads, head_dim).astype(np.float64),
        [keys.astype(np.float64) for keys, _ in caches],
        [values.astype(np.float64) for _, values in caches],
        [int(position) + 1 for position in columns.positions],
        scale,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), GEOMETRIES)
def test_decode_agrees_with_the_formula_and_reads_no_stale_byte(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: DType
) -> None:
    places = [(row, length - 1) for row, length in enumerate(LENGTHS)]
    columns = random_columns(num_heads, num_kv_heads, head_dim, places)
    with GuardedBench() as bench:
        kv = filled_cache(bench, dtype, num_kv_heads, head_dim, TABLE)
        before = [host_array(plane).tobytes() for plane in planes(kv)]

        out = attend(bench, columns, kv)

        expected = expected_of(columns, kv)
        assert [host_array(plane).tobytes() for plane in planes(kv)] == before
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_prefill_agrees_with_the_formula_at_every_position(dtype: DType) -> None:
    columns = random_columns(4, 2, 64, [(4, position) for position in range(150)])
    with GuardedBench() as bench:
        kv = filled_cache(bench, dtype, 2, 64, TABLE)

        out = attend(bench, columns, kv, is_prefill=True)

        expected = expected_of(columns, kv)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), num_threads=st.integers(1, 2))
def test_a_column_does_not_see_its_batch_its_rows_or_its_pages(
    dtype: DType, data: st.DataObject, num_threads: int
) -> None:
    places = [(row, length - 1) for row, length in enumerate(LENGTHS)]
    columns = random_columns(4, 2, 64, places)
    batch = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    pages = data.draw(st.permutations(range(NUM_PAGES)))
    rows = data.draw(st.permutations(range(5)))
    needed = [-(-length // 64) for length in LENGTHS]
    ends = np.cumsum(needed)
    moved = [
        [*pages[end - count : end], *([NOWHERE] * (3 - count))]
        for end, count in zip(ends, needed, strict=True)
    ]
    with GuardedBench(num_threads) as bench:
        kv = filled_cache(bench, dtype, 2, 64, TABLE)
        alone = [attend(bench, columns.take([i]), kv)[0] for i in range(5)]
        elsewhere = filled_cache(bench, dtype, 2, 64, moved)
        shuffled = np.empty((5, 3), np.int32)
        shuffled[rows] = moved
        host_array(elsewhere.block_table)[...] = shuffled
        picked = columns.take(batch)
        picked = dataclasses.replace(
            picked, table_rows=np.array([rows[i] for i in batch], np.int32)
        )

        together = attend(bench, picked, elsewhere)

    for at, i in enumerate(batch):
        np.testing.assert_array_equal(together[at], alone[i])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, 149), max_size=5), num_threads=st.integers(1, 2))
def test_any_chunking_equals_decoding_each_position(
    dtype: DType, cuts: set[int], num_threads: int
) -> None:
    columns = random_columns(4, 2, 64, [(4, position) for position in range(150)])
    bounds = [0, *sorted(cuts), 150]
    with GuardedBench(num_threads) as bench:
        kv = filled_cache(bench, dtype, 2, 64, TABLE)
        decoded = attend(bench, columns, kv)

        chunks = [
            attend(bench, columns.take(list(range(first, stop))), kv, is_prefill=True)
            for first, stop in itertools.pairwise(bounds)
        ]

    np.testing.assert_array_equal(np.concatenate(chunks), decoded)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), GEOMETRIES)
def test_prefill_equals_decode_for_every_geometry_and_thread_count(
    num_heads: int, num_kv_heads: int, head_dim: int
) -> None:
    places = [(4, position) for position in range(100, 150)]
    columns = random_columns(num_heads, num_kv_heads, head_dim, places)
    results = []
    for num_threads, is_prefill in ((1, False), (2, False), (1, True), (2, True)):
        with GuardedBench(num_threads) as bench:
            kv = filled_cache(bench, DType.F32, num_kv_heads, head_dim, TABLE)
            results.append(attend(bench, columns, kv, is_prefill).tobytes())

    assert len(set(results)) == 1


def test_scores_far_beyond_the_exponential_stay_finite() -> None:
    places = [(row, length - 1) for row, length in enumerate(LENGTHS)]
    columns = random_columns(4, 2, 64, places)
    columns.projected[:, 6 * 64 : 10 * 64] = 200.0
    columns.projected[0, 6 * 64 : 10 * 64] = -200.0
    with GuardedBench() as bench:
        kv = filled_cache(bench, DType.F32, 2, 64, TABLE)

        out = attend(bench, columns, kv, scale=50.0)

        with np.errstate(over="ignore"):
            expected = expected_of(columns, kv, scale=50.0)
    # A score of about 1000 has an error of up to 64 * 2^-24 of the sum of its terms.
    np.testing.assert_allclose(out, expected, rtol=1e-2, atol=1e-2)


def test_int8_attention_stays_close_to_f32_attention() -> None:
    columns = random_columns(6, 2, 256, [(4, position) for position in range(0, 150, 7)])
    with GuardedBench() as bench:
        exact = filled_cache(bench, DType.F32, 2, 256, TABLE)
        coded = filled_cache(bench, DType.I8, 2, 256, TABLE)
        scale = 1 / 16
        full, rounded = (attend(bench, columns, kv, scale=scale) for kv in (exact, coded))
        keys, values = read_sequence(exact, 4, 150)

    # Half a code of each element: scores move by s = scale * sum|q| * step, weights by a factor of
    # at most e^(2s), an output by that share of max|v| and by half a step of v.
    step = 0.5 / 127 + 2.0**-11
    moved = scale * np.abs(columns.queries).sum(-1).max() * np.abs(keys).max() * step
    bound = np.abs(values).max() * (np.expm1(2 * moved) + step)
    assert np.abs(full - rounded).max() <= bound
    assert np.abs(full - rounded).max() > 0


def test_a_captured_round_reads_rows_and_positions_anew() -> None:
    columns = random_columns(4, 2, 64, [(0, 0), (1, 62)])
    later = dataclasses.replace(
        columns, table_rows=np.array([4, 3], np.int32), positions=np.array([149, 64], np.int32)
    )
    with GuardedBench() as bench:
        kv = filled_cache(bench, DType.F32, 2, 64, TABLE)
        expected = attend(bench, later, kv)
        rows, positions = bench.inout(columns.table_rows), bench.inout(columns.positions)
        out = bench.out_columns(2, 256)
        queries, projected = bench.put(columns.queries), bench.put(columns.projected)
        bench.stream.begin_capture()
        attention.paged_decode(bench.ctx, queries, projected, kv, rows, positions, 0.1, out)
        graph = bench.stream.end_capture()
        host_array(rows)[...], host_array(positions)[...] = later.table_rows, later.positions

        graph.launch(bench.stream)

        np.testing.assert_array_equal(bench.read_columns(out), expected)


def test_wrong_operands_are_refused() -> None:
    columns = random_columns(4, 2, 64, [(0, 0), (1, 62)])
    with GuardedBench() as bench:
        kv = filled_cache(bench, DType.F32, 2, 64, TABLE)
        operands: dict[str, Any] = {
            "ctx": bench.ctx,
            "queries": bench.put(columns.queries),
            "projected": bench.put(columns.projected),
            "kv": kv,
            "table_rows": bench.put(columns.table_rows),
            "positions": bench.put(columns.positions),
            "scale": 0.1,
            "out": bench.out_columns(2, 256),
        }
        wrong: dict[str, Any] = {
            "queries": bench.put(columns.queries[:, :3]),
            "projected": bench.put(columns.projected[:, 1:]),
            "kv": dataclasses.replace(kv, values=bench.out((NUM_PAGES, 2, 64, 64), DType.BF16)),
            "table_rows": bench.out((3,), DType.I32),
            "positions": bench.out((2,)),
            "out": bench.out_columns(2, 128),
        }

        for name, operand in wrong.items():
            for op in (attention.paged_decode, attention.paged_prefill):
                with pytest.raises(ShapeError):
                    op(**(operands | {name: operand}))
