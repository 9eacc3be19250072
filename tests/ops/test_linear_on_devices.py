"""Linear products: one body for every device."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.errors import ShapeError
from ninfer.ops import linear
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, Matrix, TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.cuda_bench import CudaBench
from tests.support.device_benches import BenchFactory, every_device
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.tolerances import F32_UNIT

Payload = npt.NDArray[np.uint8]

every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
# Bodies of many calls; the host has its own tests of the same properties.
on_cuda = pytest.mark.parametrize(
    "make_bench", [pytest.param(CudaBench, id="cuda", marks=pytest.mark.gpu)]
)
shapes = pytest.mark.parametrize(
    "shape", [(1, 1), (5, 127), (16, 128), (48, 300), (96, 1152), (257, 2048), (24, 5121)]
)


def columns(seed: int, count: int, width: int) -> npt.NDArray[np.float32]:
    """Columns that bf16 holds exactly, so that every device multiplies the same numbers."""
    x = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return bf16_to_f32(f32_to_bf16(x))


def product(
    make_bench: BenchFactory,
    format: TensorFormat,
    payload: Payload,
    shape: tuple[int, int],
    x: npt.NDArray[np.float32],
    rows: slice | None = None,
    dtype: DType = DType.F32,
) -> npt.NDArray[Any]:
    """Products in a column range of a poisoned output, which stays poisoned elsewhere."""
    with make_bench() as bench:
        weight = bench.matrix(format, payload, *shape)
        if rows is not None:
            weight = weight.rows(rows.start, rows.stop - rows.start)
        out = bench.out((len(x), weight.num_rows + 5), dtype)

        linear.project(bench.ctx, bench.in_columns(x), weight, out, first_column=3)

        bench.check()
        read = bench.read_tensor(out) if dtype is DType.F32 else bench.read_activations(out)
    assert np.all(np.isnan(read[:, :3]))
    assert np.all(np.isnan(read[:, 3 + weight.num_rows :]))
    return np.asarray(read[:, 3 : 3 + weight.num_rows])


def exact_and_bound(
    format: TensorFormat, payload: Payload, shape: tuple[int, int], x: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Float64 products, and the rounding of binary32 sums of codes that carry an offset.

    Codes enter the sums with up to 20 times the magnitude of the largest of their row, and any
    partial sum is rounded, or cut off, at most once for each of its terms' groups. Of many columns,
    weights may have been rounded to bf16 before.
    """
    values = weight_values(format, payload, *shape)
    largest = np.abs(values).max(axis=1) * 20
    magnitude = np.abs(x.astype(np.float64)).sum(axis=1)
    bound = np.outer(magnitude, largest) * 32 * F32_UNIT
    if len(x) > 128:
        bound += np.abs(x.astype(np.float64)) @ np.abs(values).T * 2.0**-8
    return x.astype(np.float64) @ values.T, bound


@on_cuda
@every_format
@shapes
@pytest.mark.parametrize("num_columns", [0, 1, 8, 13, 32, 130])
def test_product_agrees_with_the_formula(
    make_bench: BenchFactory, format: TensorFormat, shape: tuple[int, int], num_columns: int
) -> None:
    payload = random_payload(np.random.default_rng(num_columns), format, *shape)
    x = columns(1, num_columns, shape[1])

    got = product(make_bench, format, payload, shape, x)

    exact, bound = exact_and_bound(format, payload, shape, x)
    assert np.all(np.abs(got - exact) <= bound)


@on_cuda
@every_format
def test_tall_products_agree_with_the_formula(
    make_bench: BenchFactory, format: TensorFormat
) -> None:
    shape = (4240, 384)
    payload = random_payload(np.random.default_rng(4), format, *shape)
    x = columns(1, 7, shape[1])

    got = product(make_bench, format, payload, shape, x)

    exact, bound = exact_and_bound(format, payload, shape, x)
    assert np.all(np.abs(got - exact) <= bound)


@every_device
@pytest.mark.parametrize("num_columns", [1, 8, 13, 32, 70, 130])
@pytest.mark.parametrize(
    "formats",
    [
        (TensorFormat.Q4, TensorFormat.Q5, TensorFormat.BF16, TensorFormat.BF16),
        (TensorFormat.BF16, TensorFormat.W8),
        WEIGHT_FORMATS,
    ],
    ids=lambda formats: "+".join(format.name for format in formats),
)
def test_several_products_have_the_bits_of_single_ones(
    make_bench: BenchFactory, formats: tuple[TensorFormat, ...], num_columns: int
) -> None:
    rng, width = np.random.default_rng(num_columns), 1160
    x = columns(1, num_columns, width)
    with make_bench() as bench:
        products, single = [], []
        for index, format in enumerate(formats):
            parent, first, rows = 24 * index + 40, 3 * index, 20 * index + 9
            weight = bench.matrix(format, random_payload(rng, format, parent, width), parent, width)
            weight = weight.rows(first, rows)
            outs = [bench.out((num_columns, rows + 4), DType.F32) for _ in range(2)]
            products.append((weight, outs[0], index % 4))
            single.append((weight, outs[1], index % 4))

        linear.project_all(bench.ctx, bench.in_columns(x), products)
        for weight, out, first in single:
            linear.project(bench.ctx, bench.in_columns(x), weight, out, first)

        bench.check()
        for (_, together, _), (_, alone, _) in zip(products, single, strict=True):
            np.testing.assert_array_equal(
                bench.read_tensor(together), bench.read_tensor(alone), strict=True
            )


PUBLISHED = {
    "27B DeltaNet": (
        (TensorFormat.Q4, 4096),
        (TensorFormat.Q5, 12288),
        (TensorFormat.BF16, 48),
        (TensorFormat.BF16, 48),
    ),
    "27B attention": ((TensorFormat.Q4, 7168), (TensorFormat.Q5, 7168)),
    "35B DeltaNet": ((TensorFormat.W8, 12288), (TensorFormat.BF16, 32), (TensorFormat.BF16, 32)),
    "35B router": ((TensorFormat.BF16, 257), (TensorFormat.W8, 1024)),
}
"""Weights of one launch, by format and rows: how many rows there are chooses the kernel."""


@on_cuda
@pytest.mark.parametrize("num_columns", [1, 3, 5, 8, 16, 32])
@pytest.mark.parametrize("weights", PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_launches_agree_with_the_formula(
    make_bench: BenchFactory, weights: tuple[tuple[TensorFormat, int], ...], num_columns: int
) -> None:
    rng, width = np.random.default_rng(num_columns), 640
    payloads = [random_payload(rng, format, rows, width) for format, rows in weights]
    x = columns(5, num_columns, width)
    with make_bench() as bench:
        products = [
            (
                bench.matrix(format, payload, rows, width),
                bench.out((num_columns, rows), DType.F32),
                0,
            )
            for (format, rows), payload in zip(weights, payloads, strict=True)
        ]

        linear.project_all(bench.ctx, bench.in_columns(x), products)

        bench.check()
        results = [bench.read_tensor(out) for _, out, _ in products]
    for (format, rows), payload, got in zip(weights, payloads, results, strict=True):
        exact, bound = exact_and_bound(format, payload, (rows, width), x)
        assert np.all(np.abs(got - exact) <= bound)


@on_cuda
@every_format
def test_columns_do_not_depend_on_their_company(
    make_bench: BenchFactory, format: TensorFormat
) -> None:
    shape = (4112, 1280)
    payload = random_payload(np.random.default_rng(2), format, *shape)
    x = columns(3, 128, shape[1])
    together = product(make_bench, format, payload, shape, x)

    for first, stop in ((0, 1), (3, 11), (5, 6), (16, 32), (100, 128), (61, 94)):
        some = product(make_bench, format, payload, shape, x[first:stop])
        np.testing.assert_array_equal(some, together[first:stop])


@on_cuda
@every_format
@pytest.mark.parametrize("rows", [slice(0, 16), slice(32, 80), slice(7, 8), slice(21, 4100)])
def test_rows_do_not_depend_on_their_view(
    make_bench: BenchFactory, format: TensorFormat, rows: slice
) -> None:
    shape = (4112, 640)
    payload = random_payload(np.random.default_rng(6), format, *shape)
    x = columns(4, 3, shape[1])

    view = product(make_bench, format, payload, shape, x, rows)

    np.testing.assert_array_equal(view, product(make_bench, format, payload, shape, x)[:, rows])


@every_device
@every_format
def test_activations_are_the_products_rounded_once(
    make_bench: BenchFactory, format: TensorFormat
) -> None:
    payload = random_payload(np.random.default_rng(7), format, 40, 500)
    x = columns(4, 9, 500) * np.float32(2.0**-12)
    with make_bench() as bench:
        dtype, rounded = bench.device.activation_dtype, bench.rounded

    got = product(make_bench, format, payload, (40, 500), x, dtype=dtype)

    np.testing.assert_array_equal(got, rounded(product(make_bench, format, payload, (40, 500), x)))


@every_device
@every_format
@pytest.mark.parametrize("num_columns", [4, 20, 150])
def test_sums_are_added_to_the_residual_once(
    make_bench: BenchFactory, format: TensorFormat, num_columns: int
) -> None:
    payload = random_payload(np.random.default_rng(8), format, 50, 200)
    x, before = columns(5, num_columns, 200), columns(6, num_columns, 50)
    with make_bench() as bench:
        is_f32 = bench.device.activation_dtype is DType.F32
        residual = bench.inout(before if is_f32 else f32_to_bf16(before))

        linear.project_add(
            bench.ctx, bench.in_columns(x), bench.matrix(format, payload, 50, 200), residual
        )

        bench.check()
        got, rounded = bench.read_activations(residual), bench.rounded
    product_of = product(make_bench, format, payload, (50, 200), x)
    np.testing.assert_array_equal(got, rounded(before + product_of))


@every_device
@every_format
@pytest.mark.parametrize("shape", [(1, 1), (16, 128), (37, 333), (160, 1030)])
def test_weights_made_resident_multiply_alike(
    make_bench: BenchFactory, format: TensorFormat, shape: tuple[int, int]
) -> None:
    payload = random_payload(np.random.default_rng(9), format, *shape)
    x = columns(7, 5, shape[1])
    with make_bench() as bench:
        nbytes = linear.resident_bytes(bench.ctx, format, *shape)
        weight = Matrix(format, bench.out((nbytes,), DType.U8), *shape, 0, shape[0])
        out = bench.out((5, shape[0]))
        linear.make_resident(bench.ctx, bench.put(payload), weight)
        bench.stream.synchronize()

        linear.project(bench.ctx, bench.in_columns(x), weight, out)

        bench.check()
        got = bench.read_tensor(out)
    np.testing.assert_array_equal(got, product(make_bench, format, payload, shape, x))


@every_device
@pytest.mark.parametrize("shape", [(1, 1), (3, 128), (9, 333), (130, 64), (259, 200)])
def test_packed_columns_are_those_of_the_bench(
    make_bench: BenchFactory, shape: tuple[int, int]
) -> None:
    x = np.random.default_rng(10).standard_normal(shape).astype(np.float32)
    with make_bench() as bench:
        from_f32, from_activations = bench.out_columns(*shape), bench.out_columns(*shape)

        linear.pack(bench.ctx, bench.put(x), from_f32)
        linear.pack(bench.ctx, bench.activations(x), from_activations)

        bench.check()
        np.testing.assert_array_equal(bench.read_columns(from_f32), bench.rounded(x))
        np.testing.assert_array_equal(bench.read_columns(from_activations), bench.rounded(x))


@every_device
def test_encoding_of_another_size_is_refused(make_bench: BenchFactory) -> None:
    payload = random_payload(np.random.default_rng(0), TensorFormat.Q4, 3, 64)
    with make_bench() as bench:
        weight = bench.matrix(TensorFormat.Q4, payload, 3, 64)
        encoded = bench.out((payload.nbytes + 2,), DType.U8)

        with pytest.raises(ShapeError):
            linear.make_resident(bench.ctx, encoded, weight)
