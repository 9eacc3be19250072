"""The kernel of few columns and several weights, run on the CPU."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    device_functions,
    few_columns,
    few_product,
    few_walk,
    group_products,
    product_output,
    weight_pairs,
    weight_tiles,
)
from ninfer.kernels.cuda.few_product import TOGETHER, make_few
from ninfer.kernels.cuda.few_shape import SLOTS, choose_places, shapes_for
from ninfer.kernels.cuda.fragments import fragment_bytes, pack_columns
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.tolerances import F32_UNIT
from tests.support.warp_simulator import GLOBAL, WarpSimulator

Q4, Q5, Q6 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6
W8, BF16 = TensorFormat.W8, TensorFormat.BF16
MODULES = (
    few_columns,
    few_product,
    few_walk,
    group_products,
    weight_tiles,
    weight_pairs,
    product_output,
    device_functions,
)
every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


class View(NamedTuple):
    """Rows of one weight."""

    format: TensorFormat
    payload: npt.NDArray[np.uint8]
    num_rows: int
    rows: slice


def bf16_words(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def simulate(
    views: Sequence[View], words: npt.NDArray[np.uint16], row_tiles: int, mode: Output = Output.F32
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
    args = [columns, columns + fragment_bytes(num_columns, width), -(-width // 128), num_columns]
    outs, end = [], 0
    for view in views:
        layout = WeightLayout(view.format, view.num_rows, width)
        weight = put(pack_weight(view.format, view.payload, view.num_rows, width))
        num_rows = view.rows.stop - view.rows.start
        out = np.full((num_columns, num_rows + 3), np.nan, np.float32)
        outs.append((put(out.view(np.uint8).reshape(-1)) - GLOBAL, out.shape))
        first, skip = divmod(view.rows.start, 16)
        tiles = -(-(skip + num_rows) // 16)
        own_tiles = shapes_for([view.format], row_tiles, num_columns)[0].row_tiles
        end += -(-tiles // own_tiles)
        kind = formats.index(view.format) | int(mode) << 4 | skip << 8 | own_tiles << 12
        tile_bytes = PAIR_FORMATS[view.format].tile_bytes
        codes = weight + first * layout.k_tiles * tile_bytes
        args += [codes, GLOBAL + outs[-1][0] + 4, end, tiles, num_rows, num_rows + 3, kind]
    args += args[-7:] * (SLOTS - len(views))
    octets = np.concatenate(parts)
    before = octets.copy()

    WarpSimulator(MODULES, octets).launch(
        make_few(formats, row_tiles, num_columns), (end, 1, 1), args
    )

    got = []
    for at, shape in outs:
        nbytes = 4 * shape[0] * shape[1]
        out = octets[at : at + nbytes].copy().view(np.float32).reshape(shape)
        assert np.all(np.isnan(out[:, [0, -2, -1]]))
        got.append(out[:, 1:-2])
        before[at : at + nbytes] = octets[at : at + nbytes]
    np.testing.assert_array_equal(octets, before)
    return got


def bound(values: npt.NDArray[np.float64], x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Rounding of sums whose terms carry an offset of up to 160 units of their scale."""
    magnitude = np.abs(values).max(axis=1, keepdims=True) * 24 @ np.abs(x).sum(axis=1)[None]
    return np.asarray(magnitude.T * 24 * F32_UNIT + 1e-30)


@every_format
@pytest.mark.parametrize(
    ("shape", "columns", "row_tiles"),
    [((16, 128), 1, 1), ((40, 1152), 3, 2), ((17, 2300), 4, 1), ((33, 300), 7, 2)],
)
def test_kernel_text_multiplies_what_is_stored(
    format: TensorFormat, shape: tuple[int, int], columns: int, row_tiles: int
) -> None:
    rng = np.random.default_rng(columns)
    payload = random_payload(rng, format, *shape)
    words = bf16_words(rng.standard_normal((columns, shape[1])).astype(np.float32))

    (got,) = simulate([View(format, payload, shape[0], slice(0, shape[0]))], words, row_tiles)

    values, x = weight_values(format, payload, *shape), bf16_to_f32(words)
    assert np.all(np.abs(got - x.astype(np.float64) @ values.T) <= bound(values, x))


@every_format
def test_rows_of_any_view_and_columns_of_any_call_have_the_same_bits(format: TensorFormat) -> None:
    rng = np.random.default_rng(5)
    payload = random_payload(rng, format, 50, 1300)
    words = bf16_words(rng.standard_normal((8, 1300)).astype(np.float32))
    (whole,) = simulate([View(format, payload, 50, slice(0, 50))], words, 2)

    (part,) = simulate([View(format, payload, 50, slice(21, 43))], words[:3], 1)

    np.testing.assert_array_equal(part, whole[:3, 21:43])


@pytest.mark.parametrize("formats", TOGETHER, ids=lambda f: "-".join(x.name for x in f))
@pytest.mark.parametrize("num_columns", [2, 6])
def test_weights_of_one_launch_are_those_of_launches_of_their_own(
    formats: tuple[TensorFormat, ...], num_columns: int
) -> None:
    rng = np.random.default_rng(num_columns)
    words = bf16_words(rng.standard_normal((num_columns, 640)).astype(np.float32))
    views = [
        View(format, random_payload(rng, format, rows, 640), rows, slice(0, rows))
        for format, rows in zip((*formats, formats[-1]), (50, 33, 16, 7), strict=False)
    ]

    together = simulate(views, words, 2)

    for view, got in zip(views, together, strict=True):
        (alone,) = simulate([view], words, 1)
        np.testing.assert_array_equal(got, alone)


@pytest.mark.parametrize(
    ("tiles", "row_tiles", "places"),
    [
        ([(Q5, 320)], 1, 3),  # 2.4 blocks a multiprocessor
        ([(Q4, 448), (Q5, 448)], 2, 2),
        ([(W8, 128)], 1, 1),  # a second block would leave another multiprocessor idle
        ([(Q4, 256), (Q5, 768), (BF16, 3), (BF16, 3)], 2, 2),
        ([(Q4, 2176)], 2, 3),
    ],
)
def test_a_launch_leaves_no_more_places_than_its_blocks_need(
    tiles: list[tuple[TensorFormat, int]], row_tiles: int, places: int
) -> None:
    whole = 228 << 10

    chosen = choose_places(tiles, 1, 132, whole)

    assert chosen.row_tiles == row_tiles
    assert whole // (chosen.shared_bytes + 1024) == places
    assert chosen.blocks == sum(
        -(-n // shapes_for([f], row_tiles, 1)[0].row_tiles) for f, n in tiles
    )


def test_a_small_multiprocessor_gets_smaller_blocks() -> None:
    for format in PAIR_FORMATS:
        for num_columns in (1, 8):
            chosen = choose_places([(format, 500)], num_columns, 128, 100 << 10)
            assert chosen.shared_bytes + 1024 <= 100 << 10
