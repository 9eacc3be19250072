"""The kernel whose warps make whole row tiles, run on the CPU."""

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT
from ninfer.kernels.cuda.whole_product import WHOLE, make_whole
from ninfer.kernels.cuda.whole_shape import WARPS, is_whole, whole_bytes
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.cuda.test_few_product import simulate as simulate_few
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.product_memory import ProductMemory, View, bf16_words, bound
from tests.support.warp_simulator import WarpSimulator


def simulate(view: View, words: npt.NDArray[np.uint16], blocks: int) -> npt.NDArray[np.float32]:
    """Products of a view with the columns, between guard columns of NaN."""
    memory = ProductMemory(words)
    place = memory.add(view)
    args = (
        memory.columns, memory.sums, memory.k_tiles, memory.num_columns,
        place.codes, place.out, place.tiles, place.num_rows, place.num_rows + 3,
        int(Output.F32) << MODE_AT | place.skip << SKIP_AT,
    )  # fmt: skip
    octets = memory.octets()
    nbytes = whole_bytes(view.format, memory.k_tiles)
    kernel = dataclasses.replace(make_whole(view.format), dynamic_shared_bytes=nbytes)

    WarpSimulator(octets).launch(kernel, (blocks, 1, 1), args)

    return memory.products(octets)[0]


@pytest.mark.parametrize(
    ("num_columns", "width", "tiles", "blocks"),
    [
        *(
            pytest.param(*extents, marks=pytest.mark.slow)
            for extents in ((1, 1024, 2 * WARPS + 3, 2), (5, 2048, WARPS + 2, 1))
        ),
        (1, 1024, WARPS + 3, 1),
        (8, 3000, 3, 2),
    ],
)
@pytest.mark.parametrize("format", WHOLE, ids=lambda format: format.name)
def test_rows_have_the_bits_of_other_kernels(
    format: TensorFormat, num_columns: int, width: int, tiles: int, blocks: int
) -> None:
    rng = np.random.default_rng(num_columns)
    words = bf16_words(rng.standard_normal((num_columns, width)).astype(np.float32))
    rows = 16 * tiles - 7
    view = View(format, random_payload(rng, format, rows, width), rows, slice(5, rows))

    got = simulate(view, words, blocks)

    (other,) = simulate_few([view], words, 1)
    np.testing.assert_array_equal(got.view(np.uint32), other.view(np.uint32))
    values = weight_values(format, view.payload, rows, width)[view.rows]
    x = bf16_to_f32(words)
    assert np.all(np.abs(got - x.astype(np.float64) @ values.T) <= bound(values, x))


@pytest.mark.parametrize(
    ("k_tiles", "row_tiles", "shared_bytes", "is_best"),
    [
        (16, 15520, 227 << 10, True),  # the head of the 35B
        (40, 15520, 227 << 10, True),  # of the 27B
        (16, 768, 227 << 10, False),  # a turn
        (15, 15520, 227 << 10, False),  # parts are not alike
        (16, 15520, 99 << 10, False),
    ],
)
def test_weights_of_many_row_tiles_are_made_whole(
    k_tiles: int, row_tiles: int, shared_bytes: int, is_best: bool
) -> None:
    assert is_whole(TensorFormat.Q6, k_tiles, row_tiles, 132, shared_bytes) == is_best
