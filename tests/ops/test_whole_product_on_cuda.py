"""Products of whole row tiles of a warp on the card: the numbers, and the bits of other kernels."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.few_product import launch_few
from ninfer.kernels.cuda.held_product import launch_held
from ninfer.kernels.cuda.launch import RESERVED_SHARED
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import RowProduct
from ninfer.kernels.cuda.whole_product import WHOLE, launch_whole
from ninfer.kernels.cuda.whole_shape import whole_bytes
from ninfer.tensor import DType, LinearInput, TensorFormat
from tests.ops.test_linear_on_devices import columns, exact_and_bound
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload

pytestmark = pytest.mark.gpu
MULTIPROCESSORS = 4


class SmallCard:
    """A stream as launchers see it on a device of few multiprocessors."""

    num_multiprocessors = MULTIPROCESSORS

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def launch_blocks(stream: Any, block: LinearInput, product: RowProduct) -> None:
    launch_few(stream, block, (product.format,), [product])


def launch_teams(stream: Any, block: LinearInput, product: RowProduct) -> None:
    launch_held(stream, block, (product.format,), [product])


@pytest.mark.parametrize("output", [Output.F32, Output.BF16], ids=lambda output: output.name)
@pytest.mark.parametrize(
    ("num_columns", "width", "rows"),
    [(1, 1024, 16 * 24 * 9 + 5), (5, 2048, 16 * 24 * 5), (8, 3000, 333), (8, 2048, 4000)],
)
@pytest.mark.parametrize("format", WHOLE, ids=lambda format: format.name)
def test_rows_agree_with_the_formula_and_have_the_bits_of_other_kernels(
    format: TensorFormat, num_columns: int, width: int, rows: int, output: Output
) -> None:
    x = columns(1, num_columns, width)
    dtype = DType.BF16 if output is Output.BF16 else DType.F32
    payload = random_payload(np.random.default_rng(rows), format, rows, width)
    with CudaBench() as bench:
        need = whole_bytes(format, -(-width // 128)) + RESERVED_SHARED
        if bench.stream.shared_bytes < need:
            pytest.skip("the device has no room for the columns")
        view = bench.matrix(format, payload, rows, width).rows(5, rows - 5)
        block, card = bench.in_columns(x), SmallCard(bench.stream)
        made = []
        for launch in (launch_whole, launch_teams, launch_blocks):
            out = bench.out((num_columns, rows + 3), dtype)
            launch(card, block, RowProduct.of(view, out, 2, output))  # type: ignore[arg-type]
            bench.check()
            made.append(bench.read_tensor(out))

    for other in made[1:]:
        np.testing.assert_array_equal(made[0].view(np.uint8), other.view(np.uint8))
    if output is Output.F32:
        assert np.all(np.isnan(made[0][:, :2]))
        assert np.all(np.isnan(made[0][:, rows - 3 :]))
        exact, bound = exact_and_bound(format, payload, (rows, width), x)
        assert np.all(np.abs(made[0][:, 2 : rows - 3] - exact[:, 5:]) <= bound[:, 5:])
