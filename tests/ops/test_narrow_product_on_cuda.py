"""Products of weights that are asked for at once, on the card: the numbers, and equal bits."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.few_product import launch_few
from ninfer.kernels.cuda.narrow_product import launch_narrow
from ninfer.kernels.cuda.narrow_shape import NARROW, STEPS, has_room
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import Formats, RowProduct
from ninfer.tensor_formats import f32_to_bf16
from tests.ops.test_linear_on_devices import columns, exact_and_bound
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload

pytestmark = pytest.mark.gpu
EVERY = [(steps, places) for places, every in STEPS.items() for steps in every]


@pytest.mark.parametrize("num_columns", [1, 5, 8])
@pytest.mark.parametrize(("steps", "places"), EVERY)
@pytest.mark.parametrize(
    "formats", NARROW, ids=lambda value: "-".join(format.name for format in value)
)
def test_rows_agree_with_the_formula_and_have_the_bits_of_other_kernels(
    formats: Formats, steps: int, places: int, num_columns: int
) -> None:
    width, extents = 1024 * steps, (700, 45, 16)
    x = columns(1, num_columns, width)
    rng = np.random.default_rng(steps)
    of = (*formats, formats[-1])
    payloads = [
        random_payload(rng, format, rows, width) for format, rows in zip(of, extents, strict=False)
    ]
    with CudaBench() as bench:
        if not has_room(formats, 8 * steps, places, bench.stream.shared_bytes):
            pytest.skip("the device has no room for the weights")
        block = bench.in_columns(x)
        views = [
            bench.matrix(format, payload, rows, width).rows(5, rows - 5)
            for format, payload, rows in zip(of, payloads, extents, strict=False)
        ]

        def run(launch: Any, *more: int) -> list[Any]:
            outs = [bench.out((num_columns, view.num_rows + 3)) for view in views]
            launch(
                bench.stream,
                block,
                formats,
                [RowProduct.of(v, out, 2, Output.F32) for v, out in zip(views, outs, strict=True)],
                *more,
            )
            bench.check()
            return [bench.read_tensor(out) for out in outs]

        made, others = run(launch_narrow, places), run(launch_few)

    for format, payload, rows, got, other in zip(of, payloads, extents, made, others, strict=False):
        np.testing.assert_array_equal(got, other)
        assert np.all(np.isnan(got[:, :2]))
        assert np.all(np.isnan(got[:, rows - 3 :]))
        exact, bound = exact_and_bound(format, payload, (rows, width), x)
        assert np.all(np.abs(got[:, 2 : rows - 3] - exact[:, 5:]) <= bound[:, 5:])


@pytest.mark.parametrize("num_columns", [1, 8])
def test_launches_that_follow_one_another_add_to_the_same_rows(num_columns: int) -> None:
    rows, width, times = 2048, 4096, 50
    formats = NARROW[0]
    x = columns(9, num_columns, width) * np.float32(2.0**-6)
    before = columns(10, num_columns, rows)
    payload = random_payload(np.random.default_rng(3), formats[0], rows, width)
    with CudaBench() as bench:
        if not has_room(formats, 32, 1, bench.stream.shared_bytes):
            pytest.skip("the device has no room for the weights")
        weight, block = bench.matrix(formats[0], payload, rows, width), bench.in_columns(x)
        stream: Any = bench.stream
        made: list[Any] = []
        for more in ((1,), ()):
            residual = bench.inout(f32_to_bf16(before))
            product = RowProduct.of(weight, residual, 0, Output.ADD)
            for _ in range(times):
                if more:
                    launch_narrow(stream, block, formats, [product], *more)
                else:
                    launch_few(stream, block, formats, [product])
            bench.check()
            made.append(bench.read_tensor(residual))

    np.testing.assert_array_equal(made[0], made[1])
    assert np.any(made[0] != f32_to_bf16(before))
