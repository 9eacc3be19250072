"""The kernel of 9 to 32 columns, by clusters of eight blocks, run on the CPU."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.wide_linear import WIDE
from ninfer.kernels.cuda.wide_product import make_wide
from ninfer.kernels.cuda.wide_shape import (
    PLAN_BYTES,
    column_tiles,
    ring_bytes,
    step_bytes,
    turn_bytes,
)
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.cuda.test_few_product import simulate as simulate_few
from tests.support.cluster_simulator import ClusterSimulator
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.product_memory import ProductMemory, View, bf16_words, bound

Q4, Q5, Q6 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6
W8, BF16 = TensorFormat.W8, TensorFormat.BF16


def simulate(
    views: Sequence[View],
    words: npt.NDArray[np.uint16],
    *,
    warps: int,
    clusters: int = 1,
    is_last_ahead: bool | None = None,
) -> list[npt.NDArray[np.float32]]:
    """Products of every view with the columns in one launch, between guard columns of NaN."""
    memory = ProductMemory(words)
    own = {view.format for view in views}
    formats = next(known for known in WIDE if own <= set(known))
    tiles = column_tiles(memory.num_columns)
    rows: list[int] = []
    end = 0
    for view in views:
        place = memory.add(view)
        end += -(-place.tiles // 2)
        kind = formats.index(view.format) | int(Output.F32) << MODE_AT | place.skip << SKIP_AT
        rows += [place.codes, place.out, end, place.num_rows, place.num_rows + 3, kind]
    rows += rows[-6:] * (4 - len(views))
    turns = -(-end // (clusters * warps))
    own = warps * (ring_bytes(formats, 3) + PLAN_BYTES) + -(-memory.k_tiles // PARTS) * step_bytes(
        formats, tiles
    )
    own = -(-own // 16) * 16
    sums = turn_bytes(tiles, warps)
    sums_at = warps * PLAN_BYTES if turns == 1 else own
    nbytes = max(own, sums_at + sums) if turns == 1 else own + 2 * sums
    args = [memory.columns, memory.sums, memory.k_tiles, memory.num_columns, end]
    args += [warps, turns, sums_at, *rows]
    octets = memory.octets()
    kernel = make_wide(formats, tiles)
    kernel = dataclasses.replace(kernel, dynamic_shared_bytes=nbytes, threads=32 * warps)

    simulator = ClusterSimulator(octets)
    simulator.is_last_ahead = is_last_ahead
    simulator.launch(kernel, (PARTS * clusters, 1, 1), args)

    return memory.products(octets)


def expect_bits_of_few(
    views: Sequence[View],
    words: npt.NDArray[np.uint16],
    got: Sequence[npt.NDArray[np.float32]],
) -> None:
    """Require the formula, and the bits of calls of eight columns."""
    x = bf16_to_f32(words)
    for view, products in zip(views, got, strict=True):
        for first in range(0, len(words), 8):
            (alone,) = simulate_few([view], words[first : first + 8], 1)
            np.testing.assert_array_equal(products[first : first + 8], alone)
        values = weight_values(view.format, view.payload, view.num_rows, words.shape[1])[view.rows]
        assert np.all(np.abs(products - x.astype(np.float64) @ values.T) <= bound(values, x))


def make_words(num_columns: int, width: int) -> npt.NDArray[np.uint16]:
    rng = np.random.default_rng(num_columns)
    return bf16_words(rng.standard_normal((num_columns, width)).astype(np.float32))


@pytest.mark.parametrize("is_last_ahead", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "format",
    [Q4, Q5, *(pytest.param(format, marks=pytest.mark.slow) for format in (Q6, W8, BF16))],
    ids=lambda f: f.name,
)
@pytest.mark.parametrize(
    ("num_columns", "width", "num_rows", "first", "warps"),
    [(17, 1300, 85, 5, 3), (9, 2200, 70, 3, 1)],
)
def test_rows_have_the_bits_of_other_kernels(
    format: TensorFormat,
    num_columns: int,
    width: int,
    num_rows: int,
    first: int,
    warps: int,
    is_last_ahead: bool,
) -> None:
    rng = np.random.default_rng(num_columns)
    words = make_words(num_columns, width)
    payload = random_payload(rng, format, num_rows, width)
    views = [View(format, payload, num_rows, slice(first, num_rows))]

    got = simulate(views, words, warps=warps, is_last_ahead=is_last_ahead)

    expect_bits_of_few(views, words, got)


@pytest.mark.parametrize(
    ("formats", "num_columns", "warps", "clusters"),
    [
        ((Q4, Q5, BF16), 11, 2, 1),
        pytest.param((W8, BF16), 26, 1, 2, marks=pytest.mark.slow),
        ((Q4, Q5), 9, 4, 1),
    ],
    ids=lambda value: "-".join(x.name for x in value) if isinstance(value, tuple) else str(value),
)
def test_weights_of_one_launch_have_the_bits_of_other_kernels(
    formats: tuple[TensorFormat, ...], num_columns: int, warps: int, clusters: int
) -> None:
    rng = np.random.default_rng(num_columns)
    words = make_words(num_columns, 1160)
    views = [
        View(format, random_payload(rng, format, rows, 1160), rows, slice(first, rows))
        for format, rows, first in zip(
            (*formats, formats[-1]), (85, 33, 16, 7), (0, 5, 3, 0), strict=False
        )
    ]

    got = simulate(views, words, warps=warps, clusters=clusters)

    expect_bits_of_few(views, words, got)
