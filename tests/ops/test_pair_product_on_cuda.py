"""Products by pairs of blocks on the card: the numbers, and the bits of other kernels."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda.few_linear import multiply_few
from ninfer.kernels.cuda.few_product import launch_few
from ninfer.kernels.cuda.pair_product import launch_pairs
from ninfer.kernels.cuda.pair_shape import PAIR_TILES, has_room
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import RowProduct
from ninfer.tensor import DType, LinearInput, TensorFormat
from ninfer.tensor_formats import f32_to_bf16
from tests.ops.test_linear_on_devices import columns, exact_and_bound
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload

pytestmark = pytest.mark.gpu
Q5 = TensorFormat.Q5
UNTOUCHED = 0xFFFF  # what outputs are poisoned with


class SmallCard:
    """A stream as launchers see it on a device of few multiprocessors; notes what is launched."""

    num_multiprocessors = 4

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.launched: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def launch(self, kernel: Kernel, *args: Any, **options: Any) -> None:
        self.launched.append(kernel.name)
        self._stream.launch(kernel, *args, **options)


def expect_pairs(bench: CudaBench, width: int) -> None:
    """Skip the test on a device whose blocks are too small or do not meet."""
    stream = bench.stream
    if not (stream.has_clusters and has_room(Q5, -(-width // 128), stream.shared_bytes)):
        pytest.skip("the device has no room for pairs of blocks")


def launch_blocks(stream: Any, block: LinearInput, product: RowProduct) -> None:
    launch_few(stream, block, (product.format,), [product])


def expect_product(
    bench: CudaBench, launch: Any, x: npt.NDArray[np.float32], rows: int, seed: int
) -> None:
    """Require products of rows of a weight to be right, and those of other kernels."""
    width, num_columns = x.shape[1], len(x)
    payload = random_payload(np.random.default_rng(seed), Q5, rows, width)
    view = bench.matrix(Q5, payload, rows, width).rows(5, rows - 5)
    out, other = (bench.out((num_columns, rows + 3)) for _ in range(2))
    block = bench.in_columns(x)

    launch(bench.stream, block, RowProduct.of(view, out, 2, Output.F32))
    launch_blocks(bench.stream, block, RowProduct.of(view, other, 2, Output.F32))

    bench.check()
    got = bench.read_tensor(out)
    np.testing.assert_array_equal(got, bench.read_tensor(other))
    assert np.all(np.isnan(got[:, :2]))
    assert np.all(np.isnan(got[:, rows - 3 :]))
    exact, bound = exact_and_bound(Q5, payload, (rows, width), x)
    assert np.all(np.abs(got[:, 2 : rows - 3] - exact[:, 5:]) <= bound[:, 5:])


@pytest.mark.parametrize(
    ("num_columns", "width"), [(1, 100), (3, 1300), (5, 640), (8, 2300), (8, 17408)]
)
def test_rows_agree_with_the_formula_and_have_the_bits_of_other_kernels(
    num_columns: int, width: int
) -> None:
    with CudaBench() as bench:
        expect_pairs(bench, width)

        expect_product(bench, launch_pairs, columns(1, num_columns, width), 149, width)


@pytest.mark.parametrize(
    ("num_columns", "width", "is_paired"),
    [(1, 12288, True), (8, 12288, True), (8, 6144, False), (5, 18304, False)],
)
def test_a_long_weight_of_few_row_tiles_is_shared_out(
    num_columns: int, width: int, is_paired: bool
) -> None:
    with CudaBench() as bench:
        expect_pairs(bench, 17408)
        card = SmallCard(bench.stream)

        def launch(stream: Any, block: LinearInput, product: RowProduct) -> None:
            multiply_few(card, block, [product])  # type: ignore[arg-type]

        rows = card.num_multiprocessors // 2 * PAIR_TILES * 16
        expect_product(bench, launch, columns(2, num_columns, width), rows, width)

    assert card.launched[0].startswith("pair") == is_paired
    assert len(card.launched) == 1


@pytest.mark.parametrize(("num_columns", "width"), [(1, 1300), (8, 640), (7, 17408)])
def test_products_are_rounded_where_what_is_written_is_bf16(num_columns: int, width: int) -> None:
    rows, x = 149, columns(4, num_columns, width)
    payload = random_payload(np.random.default_rng(width), Q5, rows, width)
    with CudaBench() as bench:
        expect_pairs(bench, width)
        view = bench.matrix(Q5, payload, rows, width).rows(5, rows - 5)
        block, shape = bench.in_columns(x), (num_columns, rows + 3)
        stored, exact = bench.out(shape, DType.BF16), bench.out(shape)
        stream: Any = bench.stream

        launch_pairs(stream, block, RowProduct.of(view, stored, 2, Output.BF16))
        launch_blocks(stream, block, RowProduct.of(view, exact, 2, Output.F32))

        bench.check()
        got, products = bench.read_tensor(stored), bench.read_tensor(exact)

    np.testing.assert_array_equal(got[:, 2 : rows - 3], f32_to_bf16(products[:, 2 : rows - 3]))
    assert np.all(got[:, :2] == UNTOUCHED)
    assert np.all(got[:, rows - 3 :] == UNTOUCHED)


@pytest.mark.parametrize("num_columns", [1, 8])
def test_launches_that_follow_one_another_add_to_the_same_rows(num_columns: int) -> None:
    rows, width, times = 5120, 1024, 50
    x = columns(9, num_columns, width) * np.float32(2.0**-6)
    before = columns(10, num_columns, rows)
    payload = random_payload(np.random.default_rng(3), Q5, rows, width)

    with CudaBench() as bench:
        expect_pairs(bench, width)
        weight, block = bench.matrix(Q5, payload, rows, width), bench.in_columns(x)
        stream: Any = bench.stream
        made: list[Any] = []
        for launch in (launch_pairs, launch_blocks):
            residual = bench.inout(f32_to_bf16(before))
            for _ in range(times):
                launch(stream, block, RowProduct.of(weight, residual, 0, Output.ADD))
            bench.check()
            made.append(bench.read_tensor(residual))

    np.testing.assert_array_equal(made[0], made[1])
    assert np.any(made[0] != f32_to_bf16(before))
