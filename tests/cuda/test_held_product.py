"""The kernel that keeps columns in shared memory, run on the CPU."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.held_product import HELD, make_held
from ninfer.kernels.cuda.held_shape import held_bytes
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.cuda.test_few_product import simulate as simulate_few
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.product_memory import ProductMemory, View, bf16_words, bound
from tests.support.warp_simulator import WarpSimulator

EXTENTS = [(1, 640, 1), (8, 2400, 1)]
"""Columns, features and blocks beside those that every kernel is tested with."""
MOST = max(HELD, key=len)
"""The kernel with a branch for every place of a format."""


def simulate(
    views: Sequence[View], words: npt.NDArray[np.uint16], blocks: int
) -> list[npt.NDArray[np.float32]]:
    """Products of every view with the columns in one launch, between guard columns of NaN."""
    memory = ProductMemory(words)
    formats = tuple(dict.fromkeys(view.format for view in views))
    args, end = [memory.columns, memory.sums, memory.k_tiles, memory.num_columns, 0], 0
    for view in views:
        place = memory.add(view)
        end += place.tiles
        kind = formats.index(view.format) | int(Output.F32) << MODE_AT | place.skip << SKIP_AT
        args += [place.codes, place.out, end, place.num_rows, place.num_rows + 3, kind]
    args += args[-6:] * (4 - len(views))
    args[4] = end
    octets = memory.octets()
    kernel = make_held(formats)
    nbytes = held_bytes(formats, memory.k_tiles)
    kernel = dataclasses.replace(kernel, dynamic_shared_bytes=nbytes)

    WarpSimulator(octets).launch(kernel, (blocks, 1, 1), args)

    return memory.products(octets)


@pytest.mark.parametrize(
    ("formats", "num_columns", "width", "blocks"),
    [
        *((formats, 5, 1300, 2) for formats in HELD),
        *((MOST, *extent) for extent in EXTENTS),
        *(
            pytest.param(formats, *extent, marks=pytest.mark.slow)
            for formats in HELD
            if formats != MOST
            for extent in EXTENTS
        ),
    ],
    ids=lambda value: "-".join(x.name for x in value) if isinstance(value, tuple) else str(value),
)
def test_rows_have_the_bits_of_other_kernels(
    formats: tuple[TensorFormat, ...], num_columns: int, width: int, blocks: int
) -> None:
    rng = np.random.default_rng(num_columns)
    words = bf16_words(rng.standard_normal((num_columns, width)).astype(np.float32))
    views = [
        View(format, random_payload(rng, format, rows, width), rows, slice(first, rows))
        for format, rows, first in zip(
            (*formats, formats[-1]), (85, 33, 16, 7), (0, 5, 3, 0), strict=False
        )
    ]

    together = simulate(views, words, blocks)

    for view, got in zip(views, together, strict=True):
        (alone,) = simulate_few([view], words, 1)
        np.testing.assert_array_equal(got, alone)
        values = weight_values(view.format, view.payload, view.num_rows, width)[view.rows]
        x = bf16_to_f32(words)
        assert np.all(np.abs(got - x.astype(np.float64) @ values.T) <= bound(values, x))
