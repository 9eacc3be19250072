"""Products by pairs of blocks on the card: the numbers, and the bits of other kernels."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.few_product import launch_few
from ninfer.kernels.cuda.pair_product import launch_pairs
from ninfer.kernels.cuda.pair_shape import PAIR_TILES, has_room
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import RowProduct
from ninfer.ops import linear
from ninfer.tensor import LinearInput, TensorFormat
from ninfer.tensor_formats import f32_to_bf16
from tests.ops.test_linear_on_devices import columns, exact_and_bound
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload

pytestmark = pytest.mark.gpu
Q5 = TensorFormat.Q5


@pytest.mark.parametrize(
    ("num_columns", "width"), [(1, 640), (3, 1300), (5, 12500), (8, 17408), (8, 18300)]
)
def test_rows_agree_with_the_formula_and_have_the_bits_of_other_kernels(
    num_columns: int, width: int
) -> None:
    x = columns(num_columns, num_columns, width)
    with CudaBench(nbytes=1 << 28) as bench:
        stream: Any = bench.stream
        tiles = stream.num_multiprocessors // 2 * PAIR_TILES - 3
        rows, k_tiles = tiles * 16 - 5, -(-width // 128)
        payload = random_payload(np.random.default_rng(width), Q5, rows, width)
        weight = bench.matrix(Q5, payload, rows, width)
        view = weight.rows(21, rows - 21)
        out, chosen, other = (bench.out((num_columns, rows + 3)) for _ in range(3))
        block = bench.in_columns(x)
        product = RowProduct.of(view, out, 2, Output.F32)

        linear.project(bench.ctx, block, weight, chosen)
        launch_few(stream, block, (Q5,), [RowProduct.of(view, other, 2, Output.F32)])
        if stream.has_clusters and has_room(Q5, k_tiles, stream.shared_bytes):
            launch_pairs(stream, block, product)
        else:
            launch_few(stream, block, (Q5,), [product])

        bench.check()
        got = bench.read_tensor(out)
        np.testing.assert_array_equal(got, bench.read_tensor(other))
        whole = bench.read_tensor(chosen)[:, :rows]
    assert np.all(np.isnan(got[:, :2]))
    assert np.all(np.isnan(got[:, rows - 19 :]))
    np.testing.assert_array_equal(got[:, 2 : rows - 19], whole[:, 21:])
    exact, bound = exact_and_bound(Q5, payload, (rows, width), x)
    assert np.all(np.abs(whole - exact) <= bound)


@pytest.mark.parametrize("num_columns", [1, 8])
def test_launches_that_follow_one_another_add_to_the_same_rows(num_columns: int) -> None:
    rows, width, times = 5120, 6144, 20
    x = columns(9, num_columns, width) * np.float32(2.0**-6)
    before = columns(10, num_columns, rows)
    payload = random_payload(np.random.default_rng(3), Q5, rows, width)

    with CudaBench(nbytes=1 << 28) as bench:
        stream: Any = bench.stream
        if not (stream.has_clusters and has_room(Q5, width // 128, stream.shared_bytes)):
            pytest.skip("the device has no room for pairs of blocks")
        weight, block = bench.matrix(Q5, payload, rows, width), bench.in_columns(x)
        made: list[Any] = []
        for launch in (launch_pairs, _launch_blocks):
            residual = bench.inout(f32_to_bf16(before))
            for _ in range(times):
                launch(stream, block, RowProduct.of(weight, residual, 0, Output.ADD))
            bench.check()
            made.append(bench.read_tensor(residual))

    np.testing.assert_array_equal(made[0], made[1])


def _launch_blocks(stream: Any, block: LinearInput, product: RowProduct) -> None:
    launch_few(stream, block, (product.format,), [product])
