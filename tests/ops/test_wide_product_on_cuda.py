"""Products of 9 to 32 columns by clusters on the card: the numbers, and the bits of few columns."""

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda.few_linear import multiply_few
from ninfer.kernels.cuda.few_product import TOGETHER
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import RowProduct
from ninfer.kernels.cuda.wide_linear import WIDE, multiply_wide
from ninfer.kernels.cuda.wide_product import choose, launch_wide
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import LinearInput, Matrix, TensorFormat
from ninfer.tensor_formats import f32_to_bf16
from tests.ops.test_linear_on_devices import columns, exact_and_bound
from tests.ops.test_pair_product_on_cuda import SmallCard
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload

pytestmark = pytest.mark.gpu
every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def card_of(bench: CudaBench, multiprocessors: int | None = None) -> Any:
    """The bench's stream, which notes what is launched; or skip a device without clusters."""
    if not bench.stream.has_clusters:
        pytest.skip("the device has no clusters")
    card = SmallCard(bench.stream)
    if multiprocessors is not None:
        monkey = partial(_few_clusters, multiprocessors // 8)
        card.num_clusters = monkey  # type: ignore[attr-defined]
    return card


def _few_clusters(count: int, kernel: Kernel) -> int:
    return count


def launch(card: Any, block: LinearInput, products: list[RowProduct]) -> None:
    """One launch of the products, whether it pays or not."""
    own = {product.format for product in products}
    formats = next(known for known in WIDE if own <= set(known))
    products = sorted(products, key=lambda product: formats.index(product.format))
    chosen = choose(card, block, formats, products)
    assert chosen is not None
    launch_wide(card, block, formats, products, chosen)


def by_eights(bench: CudaBench, x: npt.NDArray[np.float32], weight: Matrix, first: int) -> Any:
    """Products of a weight in calls of eight columns and of one, between guard columns."""
    stream: Any = bench.stream
    parts = []
    starts = [*range(0, len(x) - 1, 8), len(x) - 1]
    for start, stop in zip(starts, [*starts[1:], len(x)], strict=True):
        out = bench.out((stop - start, weight.num_rows + 3))
        row = RowProduct.of(weight, out, first, Output.F32)
        multiply_few(stream, bench.in_columns(x[start:stop]), [row])
        bench.check()
        parts.append(bench.read_tensor(out))
    return np.concatenate(parts)


@every_format
@pytest.mark.parametrize(
    ("num_columns", "width", "rows", "multiprocessors"),
    [
        (9, 100, 40, None),
        (13, 1300, 300, 8),
        (16, 2048, 700, 8),
        (17, 640, 1000, 8),
        (24, 5120, 600, 8),
        (25, 2300, 50, 8),
        (32, 1280, 2500, 16),
        (32, 17408, 170, 8),
        (32, 6144, 700, 8),  # in five bits by rings of two stages
    ],
)
def test_rows_agree_with_the_formula_and_have_the_bits_of_few_columns(
    format: TensorFormat, num_columns: int, width: int, rows: int, multiprocessors: int | None
) -> None:
    x = columns(1, num_columns, width)
    payload = random_payload(np.random.default_rng(rows), format, rows, width)
    with CudaBench() as bench:
        card = card_of(bench, multiprocessors)
        weight = bench.matrix(format, payload, rows, width).rows(5, rows - 7)
        out = bench.out((num_columns, rows - 4))

        launch(card, bench.in_columns(x), [RowProduct.of(weight, out, 2, Output.F32)])

        bench.check()
        got = bench.read_tensor(out)
        assert len(card.launched) == 1
        np.testing.assert_array_equal(got, by_eights(bench, x, weight, 2))
    assert np.all(np.isnan(got[:, [0, 1, -1]]))
    exact, bound = exact_and_bound(format, payload, (rows, width), x)
    assert np.all(np.abs(got[:, 2:-1] - exact[:, 5:-2]) <= bound[:, 5:-2])


@pytest.mark.parametrize("num_columns", [11, 32])
@pytest.mark.parametrize("formats", TOGETHER, ids=lambda f: "-".join(x.name for x in f))
def test_weights_of_one_launch_are_those_of_launches_of_their_own(
    formats: tuple[TensorFormat, ...], num_columns: int
) -> None:
    x, rng = columns(2, num_columns, 1160), np.random.default_rng(4)
    with CudaBench() as bench:
        card = card_of(bench, 16)
        block, together, alone = bench.in_columns(x), [], []
        sizes = zip((*formats, formats[-1]), (700, 333, 48, 27), strict=False)
        for format, rows in sizes:
            payload = random_payload(rng, format, rows, 1160)
            weight = bench.matrix(format, payload, rows, 1160).rows(3, rows - 3)
            outs = [bench.out((num_columns, rows)) for _ in range(2)]
            together.append(RowProduct.of(weight, outs[0], 1, Output.F32))
            alone.append((RowProduct.of(weight, outs[1], 1, Output.F32), outs))

        launch(card, block, together)
        assert len(card.launched) == 1
        for row, _ in alone:
            launch(card, block, [row])

        bench.check()
        for _, (one, other) in alone:
            np.testing.assert_array_equal(bench.read_tensor(one), bench.read_tensor(other))


@pytest.mark.parametrize("num_columns", [12, 32])
@pytest.mark.parametrize("rows", [5120, 12288])
def test_launches_that_follow_one_another_add_to_the_same_rows(num_columns: int, rows: int) -> None:
    width, times, format = 1024, 40, TensorFormat.Q5
    x = columns(9, num_columns, width) * np.float32(2.0**-6)
    before = columns(10, num_columns, rows)
    payload = random_payload(np.random.default_rng(3), format, rows, width)
    with CudaBench() as bench:
        stream: Any = bench.stream
        card = card_of(bench)
        weight = bench.matrix(format, payload, rows, width)
        block = bench.in_columns(x)
        residual = bench.inout(f32_to_bf16(before))
        for _ in range(times):
            row = RowProduct.of(weight, residual, 0, Output.ADD)
            assert multiply_wide(card, block, [row]) == []
        bench.check()
        got = bench.read_tensor(residual)
        for first in range(0, num_columns, 8):
            part = bench.inout(f32_to_bf16(before[first : first + 8]))
            some = bench.in_columns(x[first : first + 8])
            for _ in range(times):
                multiply_few(stream, some, [RowProduct.of(weight, part, 0, Output.ADD)])
            bench.check()
            np.testing.assert_array_equal(got[first : first + 8], bench.read_tensor(part))
    assert np.any(got != f32_to_bf16(before))
