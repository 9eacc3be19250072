"""The kernel that keeps columns in shared memory, run on the CPU."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    device_functions,
    group_products,
    held_product,
    held_walk,
    product_output,
    weight_pairs,
    weight_tiles,
)
from ninfer.kernels.cuda.fragments import fragment_bytes, pack_columns
from ninfer.kernels.cuda.held_product import HELD, make_held
from ninfer.kernels.cuda.held_shape import held_bytes
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.cuda.test_few_product import View, bf16_words, bound
from tests.cuda.test_few_product import simulate as simulate_few
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.warp_simulator import GLOBAL, WarpSimulator

MODULES = (
    held_product,
    held_walk,
    group_products,
    weight_tiles,
    weight_pairs,
    product_output,
    device_functions,
)
EXTENTS = [(1, 640, 1), (8, 2400, 1)]
"""Columns, features and blocks beside those that every kernel is tested with."""
MOST = max(HELD, key=len)
"""The kernel with a branch for every place of a format."""


def simulate(
    views: Sequence[View], words: npt.NDArray[np.uint16], blocks: int
) -> list[npt.NDArray[np.float32]]:
    """Products of every view with the columns in one launch, between guard columns of NaN."""
    num_columns, width = words.shape
    parts: list[npt.NDArray[np.uint8]] = []
    places: list[int] = []

    def put(octets: npt.NDArray[np.uint8]) -> int:
        places.append(sum(part.size for part in parts))
        parts.append(np.pad(octets, (0, -octets.size % 256), constant_values=0xA5))
        return GLOBAL + places[-1]

    columns = put(pack_columns(words))
    formats = tuple(dict.fromkeys(view.format for view in views))
    k_tiles = -(-width // 128)
    args = [columns, columns + fragment_bytes(num_columns, width), k_tiles, num_columns, 0]
    outs, end = [], 0
    for view in views:
        layout = WeightLayout(view.format, view.num_rows, width)
        weight = put(pack_weight(view.format, view.payload, view.num_rows, width))
        num_rows = view.rows.stop - view.rows.start
        out = np.full((num_columns, num_rows + 3), np.nan, np.float32)
        outs.append((put(out.view(np.uint8).reshape(-1)) - GLOBAL, out.shape))
        first, skip = divmod(view.rows.start, 16)
        end += -(-(skip + num_rows) // 16)
        kind = formats.index(view.format) | int(Output.F32) << MODE_AT | skip << SKIP_AT
        codes = weight + first * layout.k_tiles * PAIR_FORMATS[view.format].tile_bytes
        args += [codes, GLOBAL + outs[-1][0] + 4, end, num_rows, num_rows + 3, kind]
    args += args[-6:] * (4 - len(views))
    args[4] = end
    octets = np.concatenate(parts)
    before = octets.copy()
    kernel = make_held(formats)
    kernel = dataclasses.replace(kernel, dynamic_shared_bytes=held_bytes(formats, k_tiles))

    WarpSimulator(MODULES, octets).launch(kernel, (blocks, 1, 1), args)

    got = []
    for at, shape in outs:
        nbytes = 4 * shape[0] * shape[1]
        out = octets[at : at + nbytes].copy().view(np.float32).reshape(shape)
        assert np.all(np.isnan(out[:, [0, -2, -1]]))
        got.append(out[:, 1:-2])
        before[at : at + nbytes] = octets[at : at + nbytes]
    np.testing.assert_array_equal(octets, before)
    return got


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
