"""The kernel of pairs of blocks, run on the CPU."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.fragments import fragment_bytes, pack_columns
from ninfer.kernels.cuda.pair_product import PAIRED, make_pair
from ninfer.kernels.cuda.pair_shape import (
    HOME_TILES,
    LONG_TILES,
    OWN_PARTS,
    PAIR_THREADS,
    PAIR_TILES,
    PAIR_WARPS,
    columns_at,
    has_room,
    is_worth_pairing,
    pair_bytes,
    sums_at,
)
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.cuda.test_few_product import simulate as simulate_few
from tests.support.cluster_simulator import ClusterSimulator
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.product_memory import View, bf16_words, bound
from tests.support.warp_simulator import GLOBAL

Q5 = TensorFormat.Q5


def simulate(
    view: View,
    words: npt.NDArray[np.uint16],
    mode: Output = Output.F32,
    before: npt.NDArray[np.uint16] | None = None,
    is_last_ahead: bool | None = None,
) -> npt.NDArray[np.float32]:
    """Products of a view with the columns, between guard columns of NaN."""
    num_columns, width = words.shape
    num_rows = view.rows.stop - view.rows.start
    dtype = np.dtype(np.float32 if mode is Output.F32 else np.uint16)
    out = np.full((num_columns, num_rows + 3), np.nan, np.float32).view(np.uint32)
    out = out.view(np.float32) if mode is Output.F32 else (out >> 16).astype(np.uint16)
    if before is not None:
        out[:, 1:-2] = before
    layout = WeightLayout(view.format, view.num_rows, width)
    parts = [
        np.pad(octets, (0, -octets.size % 256), constant_values=0xA5)
        for octets in (
            pack_columns(words),
            pack_weight(view.format, view.payload, view.num_rows, width),
            out.view(np.uint8).reshape(-1),
        )
    ]
    columns, weight, target = (GLOBAL + sum(p.size for p in parts[:i]) for i in range(3))
    first, skip = divmod(view.rows.start, 16)
    tiles = -(-(skip + num_rows) // 16)
    codes = weight + first * layout.k_tiles * PAIR_FORMATS[view.format].tile_bytes
    args = [
        columns,
        columns + fragment_bytes(num_columns, width),
        -(-width // 128),
        num_columns,
        codes,
        target + dtype.itemsize,
        tiles,
        num_rows,
        num_rows + 3,
        int(mode) << MODE_AT | skip << SKIP_AT,
    ]
    octets = np.concatenate(parts)
    untouched = octets.copy()

    kernel = make_pair(view.format)
    kernel = replace(kernel, dynamic_shared_bytes=pair_bytes(view.format, args[2]))

    simulator = ClusterSimulator(octets)
    simulator.is_last_ahead = is_last_ahead
    simulator.launch(kernel, (2 * -(-tiles // PAIR_TILES), 1, 1), args)

    at = target - GLOBAL
    got = octets[at : at + out.nbytes].view(dtype).reshape(out.shape).copy()
    np.testing.assert_array_equal(got[:, [0, -2, -1]], out[:, [0, -2, -1]])
    octets[at : at + out.nbytes] = untouched[at : at + out.nbytes]
    np.testing.assert_array_equal(octets, untouched)
    return got[:, 1:-2]


@pytest.mark.parametrize("is_last_ahead", [False, True])
@pytest.mark.parametrize("format", PAIRED, ids=lambda f: f.name)
@pytest.mark.parametrize(
    ("num_rows", "width", "num_columns", "first"),
    [(80, 1300, 3, 5), (120, 2400, 1, 0), (75, 640, 8, 21), (80, 2300, 5, 0), (20, 100, 6, 0)],
)
def test_rows_have_the_bits_of_other_kernels(
    format: TensorFormat,
    num_rows: int,
    width: int,
    num_columns: int,
    first: int,
    is_last_ahead: bool,
) -> None:
    rng = np.random.default_rng(num_columns)
    words = bf16_words(rng.standard_normal((num_columns, width)).astype(np.float32))
    payload = random_payload(rng, format, num_rows, width)
    view = View(format, payload, num_rows, slice(first, num_rows))

    got = simulate(view, words, is_last_ahead=is_last_ahead)

    (alone,) = simulate_few([view], words, 1)
    np.testing.assert_array_equal(got, alone)
    values, x = weight_values(format, payload, num_rows, width)[view.rows], bf16_to_f32(words)
    assert np.all(np.abs(got - x.astype(np.float64) @ values.T) <= bound(values, x))


def test_products_are_added_to_what_is_there() -> None:
    rng = np.random.default_rng(7)
    words = bf16_words(rng.standard_normal((2, 384)).astype(np.float32))
    view = View(Q5, random_payload(rng, Q5, 70, 384), 70, slice(0, 70))
    before = bf16_words(rng.standard_normal((2, 70)).astype(np.float32))

    added = simulate(view, words, Output.ADD, before)

    (product,) = simulate_few([view], words, 1)
    np.testing.assert_array_equal(added, f32_to_bf16(product + bf16_to_f32(before)))


@pytest.mark.parametrize("is_last_ahead", [False, True])
def test_products_are_rounded_where_what_is_written_is_bf16(is_last_ahead: bool) -> None:
    rng = np.random.default_rng(8)
    words = bf16_words(rng.standard_normal((5, 1280)).astype(np.float32))
    view = View(Q5, random_payload(rng, Q5, 90, 1280), 90, slice(3, 88))

    stored = simulate(view, words, Output.BF16, is_last_ahead=is_last_ahead)

    (product,) = simulate_few([view], words, 1)
    np.testing.assert_array_equal(stored, f32_to_bf16(product))


@given(st.integers(1, 2000), st.integers(1, 200))
def test_pairs_that_are_worth_it_fill_the_card_once(tiles: int, multiprocessors: int) -> None:
    pairs = -(-tiles // PAIR_TILES)

    is_worth = is_worth_pairing(tiles, LONG_TILES, multiprocessors)

    assert is_worth <= (2 * pairs <= multiprocessors)
    # A smaller share of each pair would not be enough.
    assert is_worth <= ((PAIR_TILES - 1) * (multiprocessors // 2) < tiles)
    assert not is_worth_pairing(tiles, LONG_TILES - 1, multiprocessors)


def test_parts_of_all_row_tiles_have_a_warp_of_their_own() -> None:
    assert 2 * PAIR_WARPS == PAIR_TILES * PARTS


@given(st.integers(1, 400))
def test_places_in_shared_memory_do_not_overlap(k_tiles: int) -> None:
    steps = -(-k_tiles // PARTS)
    columns = steps * OWN_PARTS * 2048
    sums = steps * OWN_PARTS * 64

    assert sums_at(Q5) == PAIR_WARPS * 3 * PAIR_FORMATS[Q5].tile_bytes
    assert columns_at(Q5) == sums_at(Q5) + HOME_TILES * OWN_PARTS * 16 * 8 * 4
    barriers = 8 * steps * OWN_PARTS
    assert pair_bytes(Q5, k_tiles) == columns_at(Q5) + columns + sums + barriers
    assert columns_at(Q5) % 16 == 0  # bulk copies
    assert steps * OWN_PARTS <= PAIR_THREADS or not has_room(Q5, k_tiles, 227 << 10)


def test_the_widest_published_weight_has_room() -> None:
    assert has_room(Q5, 17408 // 128, 227 << 10)
    assert not has_room(Q5, 17408 // 128, 163 << 10)
