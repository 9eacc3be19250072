"""Products that end in SwiGLU, on the host: the two ops that they stand for, and refusals."""

import numpy as np
import pytest

from ninfer.errors import ShapeError
from ninfer.ops import linear, pointwise
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, Shape, TensorFormat
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.linear import random_payload


@pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize(("num_columns", "width"), [(1, 3), (5, 64), (130, 20)])
def test_gated_products_are_products_and_their_gating(
    format: TensorFormat, num_columns: int, width: int
) -> None:
    rng = np.random.default_rng(width)
    payload = random_payload(rng, format, 2 * width + 3, 70)
    x = rng.standard_normal((num_columns, 70)).astype(np.float32) / 1024
    with GuardedBench() as bench:
        weight = bench.matrix(format, payload, 2 * width + 3, 70).rows(2, 2 * width)
        packed, products = bench.in_columns(x), bench.out((num_columns, 2 * width))
        together = bench.out_columns(num_columns, width)
        apart = bench.out_columns(num_columns, width)

        linear.project_gated(bench.ctx, packed, weight, products, together)
        linear.project(bench.ctx, packed, weight, products)
        pointwise.swiglu(bench.ctx, products, apart)

        bench.check()
        np.testing.assert_array_equal(bench.read_columns(together), bench.read_columns(apart))


@pytest.mark.parametrize(
    ("x", "rows", "between", "dtype", "out"),
    [
        ((2, 65), 6, (2, 6), DType.F32, (2, 3)),
        ((2, 64), 5, (2, 5), DType.F32, (2, 3)),
        ((2, 64), 6, (2, 3), DType.F32, (2, 3)),
        ((2, 64), 6, (0, 6), DType.F32, (2, 3)),  # the host stores products
        ((2, 64), 6, (2, 6), DType.BF16, (2, 3)),
        ((2, 64), 6, (2, 6), DType.F32, (2, 6)),
        ((2, 64), 6, (2, 6), DType.F32, (3, 3)),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    x: tuple[int, int], rows: int, between: Shape, dtype: DType, out: tuple[int, int]
) -> None:
    payload = random_payload(np.random.default_rng(0), TensorFormat.Q4, rows, 64)
    with GuardedBench() as bench:
        weight = bench.matrix(TensorFormat.Q4, payload, rows, 64)
        operands = bench.out(between, dtype), bench.out_columns(*out)

        with pytest.raises(ShapeError):
            linear.project_gated(bench.ctx, bench.out_columns(*x), weight, *operands)
