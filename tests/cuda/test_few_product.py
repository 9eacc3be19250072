"""The kernel of few columns and several weights, run on the CPU."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.few_product import TOGETHER, make_few
from ninfer.kernels.cuda.few_shape import SLOTS, choose_places, shapes_for
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.product_memory import ProductMemory, View, bf16_words, bound
from tests.support.warp_simulator import WarpSimulator

Q4, Q5, Q6 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6
W8, BF16 = TensorFormat.W8, TensorFormat.BF16
every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def simulate(
    views: Sequence[View], words: npt.NDArray[np.uint16], row_tiles: int, mode: Output = Output.F32
) -> list[npt.NDArray[np.float32]]:
    """Products of every view with the columns in one launch, between guard columns of NaN."""
    memory = ProductMemory(words)
    formats = tuple(dict.fromkeys(view.format for view in views))
    args, end = [memory.columns, memory.sums, memory.k_tiles, memory.num_columns], 0
    for view in views:
        place = memory.add(view)
        own_tiles = shapes_for([view.format], row_tiles, memory.num_columns)[0].row_tiles
        end += -(-place.tiles // own_tiles)
        kind = formats.index(view.format) | int(mode) << 4 | place.skip << 8 | own_tiles << 12
        args += [place.codes, place.out, end, place.tiles]
        args += [place.num_rows, place.num_rows + 3, kind]
    args += args[-7:] * (SLOTS - len(views))
    octets = memory.octets()

    WarpSimulator(octets).launch(
        make_few(formats, row_tiles, memory.num_columns), (end, 1, 1), args
    )

    return memory.products(octets)


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
