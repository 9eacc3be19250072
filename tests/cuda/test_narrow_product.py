"""The kernel that asks for all of a short weight at once, run on the CPU."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.narrow_product import make_narrow
from ninfer.kernels.cuda.narrow_shape import NARROW
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT, Formats
from tests.cuda.test_few_product import simulate as simulate_few
from tests.support.oracles.linear import random_payload
from tests.support.product_memory import ProductMemory, View, bf16_words
from tests.support.warp_simulator import WarpSimulator


def simulate(views: Sequence[View], words: npt.NDArray[np.uint16]) -> list[npt.NDArray[np.float32]]:
    """Products of every view with the columns in one launch, between guard columns of NaN."""
    memory = ProductMemory(words)
    formats = tuple(dict.fromkeys(view.format for view in views))
    args, end = [memory.columns, memory.k_tiles, memory.num_columns], 0
    for view in views:
        place = memory.add(view)
        end += place.tiles
        kind = formats.index(view.format) | int(Output.F32) << MODE_AT | place.skip << SKIP_AT
        args += [place.codes, place.out, end, place.num_rows, place.num_rows + 3, kind]
    args += args[-6:] * (4 - len(views))
    octets = memory.octets()
    kernel = make_narrow(formats, memory.k_tiles // 8, 1)

    WarpSimulator(octets).launch(kernel, (end, 1, 1), args)

    return memory.products(octets)


@pytest.mark.parametrize(
    ("num_columns", "width"), [(1, 2048), pytest.param(5, 4096, marks=pytest.mark.slow), (8, 2048)]
)
@pytest.mark.parametrize(
    "formats", NARROW, ids=lambda value: "-".join(format.name for format in value)
)
def test_rows_have_the_bits_of_other_kernels(
    formats: Formats, num_columns: int, width: int
) -> None:
    rng = np.random.default_rng(num_columns)
    words = bf16_words(rng.standard_normal((num_columns, width)).astype(np.float32))
    views = [
        View(format, random_payload(rng, format, rows, width), rows, slice(first, rows))
        for format, rows, first in zip(
            (*formats, formats[-1]), (40, 33, 16), (0, 5, 3), strict=False
        )
    ]
    for view, got in zip(views, simulate(views, words), strict=True):
        (alone,) = simulate_few([view], words, 1)
        np.testing.assert_array_equal(got, alone)
