from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.ops import linear
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, LinearInput, Matrix, TensorFormat
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.linear import lane_product, random_payload, weight_values
from tests.support.tolerances import sum_bound

LANES = 16
SEEDS = st.integers(0, 2**32 - 1)
every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def project(
    format: TensorFormat,
    payload: npt.NDArray[np.uint8],
    shape: tuple[int, int],
    x: npt.NDArray[Any],
    rows: slice | None = None,
    num_threads: int = 1,
) -> npt.NDArray[Any]:
    with GuardedBench(num_threads) as bench:
        weight = bench.matrix(format, payload, *shape)
        if rows is not None:
            weight = weight.rows(rows.start, rows.stop - rows.start)
        out = bench.out((len(x), weight.num_rows))

        linear.project(bench.ctx, bench.in_columns(x), weight, out)

        bench.check()
        return bench.read_tensor(out)


def expect_close(format: TensorFormat, rows: int, width: int, num_columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    payload = random_payload(rng, format, rows, width)
    x = rng.standard_normal((num_columns, width)).astype(np.float32)

    got = project(format, payload, (rows, width), x)

    values = weight_values(format, payload, rows, width)
    terms = x.astype(np.float64)[:, None, :] * values[None]
    error = np.abs(got - terms.sum(-1))
    assert np.all(error <= sum_bound(terms, -(-width // LANES) + 5))


@every_format
@given(rows=st.integers(1, 9), width=st.integers(1, 400), columns=st.integers(1, 7), seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_product_is_within_its_rounding_bound(
    format: TensorFormat, rows: int, width: int, columns: int, seed: int
) -> None:
    expect_close(format, rows, width, columns, seed)


@every_format
@pytest.mark.parametrize(
    ("rows", "width", "columns"),
    [(1, 1, 1), (5, 127, 2), (4, 128, 129), (3, 129, 1), (13, 1152, 3), (2, 5121, 4)],
)
def test_product_is_right_at_edges_of_groups_and_blocks(
    format: TensorFormat, rows: int, width: int, columns: int
) -> None:
    expect_close(format, rows, width, columns, 7)


@every_format
@given(width=st.integers(1, 300), seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_product_is_the_documented_lane_sum_bit_for_bit(
    format: TensorFormat, width: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    payload = random_payload(rng, format, 5, width)
    x = rng.standard_normal((2, width)).astype(np.float32)

    got = project(format, payload, (5, width), x)

    values = weight_values(format, payload, 5, width).astype(np.float32)
    expected = [[lane_product(row, column) for row in values] for column in x]
    np.testing.assert_array_equal(got, np.array(expected))


@every_format
@given(width=st.integers(1, 200), seed=SEEDS)
@settings(max_examples=10, deadline=None)
def test_unit_columns_read_back_every_stored_value_exactly(
    format: TensorFormat, width: int, seed: int
) -> None:
    payload = random_payload(np.random.default_rng(seed), format, 6, width)

    got = project(format, payload, (6, width), np.eye(width, dtype=np.float32))

    values = weight_values(format, payload, 6, width)
    np.testing.assert_array_equal(got.T, values)


def test_all_bf16_subnormals_keep_their_value() -> None:
    words = np.arange(0x80, dtype=np.uint16)
    payload = np.concatenate([words, words | np.uint16(0x8000)]).view(np.uint8)

    got = project(TensorFormat.BF16, payload, (256, 1), np.full((1, 1), 2.0**100, np.float32))

    values = weight_values(TensorFormat.BF16, payload, 256, 1)
    np.testing.assert_array_equal(got[0], values[:, 0] * 2.0**100)
    assert np.count_nonzero(got) == 2 * 127


@every_format
@given(columns=st.integers(2, 40), width=st.integers(1, 300), seed=SEEDS, data=st.data())
@settings(max_examples=15, deadline=None)
def test_column_is_the_same_alone_and_among_others(
    format: TensorFormat, columns: int, width: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    payload = random_payload(rng, format, 7, width)
    x = rng.standard_normal((columns, width)).astype(np.float32)
    which = data.draw(st.integers(0, columns - 1))

    together = project(format, payload, (7, width), x)
    alone = project(format, payload, (7, width), x[which : which + 1])

    np.testing.assert_array_equal(together[which], alone[0])


@every_format
@given(rows=st.integers(1, 23), seed=SEEDS, data=st.data())
@settings(max_examples=15, deadline=None)
def test_row_view_equals_the_rows_of_its_parent(
    format: TensorFormat, rows: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    payload = random_payload(rng, format, rows, 130)
    x = rng.standard_normal((3, 130)).astype(np.float32)
    first = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(first + 1, rows))

    parent = project(format, payload, (rows, 130), x)
    view = project(format, payload, (rows, 130), x, slice(first, stop))

    np.testing.assert_array_equal(view, parent[:, first:stop])


@every_format
@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_threads_do_not_change_a_bit(format: TensorFormat, num_threads: int) -> None:
    rng = np.random.default_rng(num_threads)
    payload = random_payload(rng, format, 601, 512)
    x = rng.standard_normal((5, 512)).astype(np.float32)

    single = project(format, payload, (601, 512), x)
    shared = project(format, payload, (601, 512), x, num_threads=num_threads)

    np.testing.assert_array_equal(shared, single)


def test_projection_touches_its_own_columns_only() -> None:
    rng = np.random.default_rng(1)
    payload = random_payload(rng, TensorFormat.Q5, 6, 70)
    x = rng.standard_normal((3, 70)).astype(np.float32)
    with GuardedBench() as bench:
        weight = bench.matrix(TensorFormat.Q5, payload, 6, 70)
        out = bench.out((3, 11))

        linear.project(bench.ctx, bench.in_columns(x), weight, out, first_column=4)

        bench.check()
        got = bench.read_tensor(out)
    assert np.all(np.isnan(got[:, :4]))
    assert np.all(np.isnan(got[:, 10:]))
    np.testing.assert_array_equal(got[:, 4:10], project(TensorFormat.Q5, payload, (6, 70), x))


@every_format
def test_project_add_adds_the_product_once(format: TensorFormat) -> None:
    rng = np.random.default_rng(2)
    payload = random_payload(rng, format, 9, 200)
    x, before = (rng.standard_normal((4, n)).astype(np.float32) for n in (200, 9))
    with GuardedBench() as bench:
        residual = bench.inout(before)

        linear.project_add(
            bench.ctx, bench.in_columns(x), bench.matrix(format, payload, 9, 200), residual
        )

        bench.check()
        got = bench.read_tensor(residual)
    np.testing.assert_array_equal(got, before + project(format, payload, (9, 200), x))


def test_no_columns_are_no_work() -> None:
    payload = random_payload(np.random.default_rng(3), TensorFormat.Q4, 3, 128)

    got = project(TensorFormat.Q4, payload, (3, 128), np.empty((0, 128), np.float32))

    assert got.shape == (0, 3)


def test_replayed_product_reads_the_present_columns() -> None:
    rng = np.random.default_rng(4)
    payload = random_payload(rng, TensorFormat.Q6, 5, 130)
    x, later = rng.standard_normal((2, 2, 130)).astype(np.float32)
    with GuardedBench() as bench:
        plain = bench.inout(x)
        block, out = bench.out_columns(2, 130), bench.out((2, 5))
        weight = bench.matrix(TensorFormat.Q6, payload, 5, 130)
        bench.stream.begin_capture()
        linear.pack(bench.ctx, plain, block)
        linear.project(bench.ctx, block, weight, out)
        graph = bench.stream.end_capture()
        untouched = bench.read_tensor(out)
        bench.stream.upload(plain, bench.put(later))

        graph.launch(bench.stream)

        bench.check()
        got = bench.read_tensor(out)
    assert np.all(np.isnan(untouched))
    np.testing.assert_array_equal(got, project(TensorFormat.Q6, payload, (5, 130), later))


def block(bench: GuardedBench, width: int = 64, num_columns: int = 2) -> LinearInput:
    return bench.out_columns(num_columns, width)


def weights(bench: GuardedBench, rows: int = 3, width: int = 64) -> Matrix:
    payload = random_payload(np.random.default_rng(0), TensorFormat.Q4, rows, width)
    return bench.matrix(TensorFormat.Q4, payload, rows, width)


@pytest.mark.parametrize(
    ("width", "out_shape", "first", "dtype"),
    [
        (65, (2, 3), 0, DType.F32),
        (64, (1, 3), 0, DType.F32),
        (64, (2, 3), 1, DType.F32),
        (64, (2, 3), -1, DType.F32),
        (64, (2, 3), 0, DType.BF16),
        (64, (2, 3, 1), 0, DType.F32),
    ],
)
def test_projection_refuses_operands_that_do_not_fit(
    width: int, out_shape: tuple[int, ...], first: int, dtype: DType
) -> None:
    with GuardedBench() as bench:
        out = bench.out(out_shape, dtype)

        with pytest.raises(ShapeError):
            linear.project(bench.ctx, block(bench, width), weights(bench), out, first)


@pytest.mark.parametrize("format", [TensorFormat.FP32, TensorFormat.I32])
def test_formats_without_products_are_refused(format: TensorFormat) -> None:
    with GuardedBench() as bench, pytest.raises(ShapeError):
        linear.resident_bytes(bench.ctx, format, 4, 4)


def test_residency_is_made_of_whole_parents_only() -> None:
    with GuardedBench() as bench:
        weight = weights(bench)
        encoded = bench.out((weight.storage.nbytes,), DType.U8)

        with pytest.raises(ShapeError):
            linear.make_resident(bench.ctx, encoded, weight.rows(0, 2))


def test_encoding_of_another_size_is_refused() -> None:
    with GuardedBench() as bench:
        weight = weights(bench)
        encoded = bench.out((weight.storage.nbytes + 2,), DType.U8)

        with pytest.raises(ShapeError):
            linear.make_resident(bench.ctx, encoded, weight)


def test_residual_of_another_width_is_refused() -> None:
    with GuardedBench() as bench, pytest.raises(ShapeError):
        linear.project_add(bench.ctx, block(bench), weights(bench), bench.out((2, 4)))
