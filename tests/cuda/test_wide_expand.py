"""Expanded weights and widened columns are the documented image, on the CPU."""

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    device_functions,
    product_output,
    weight_pairs,
    weight_tiles,
    wide_expand,
    wide_layout,
)
from ninfer.kernels.cuda.fragments import num_tiles, pack_columns, padded_width
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.kernels.cuda.wide_expand import expand_grid, make_expand, make_widen
from ninfer.kernels.cuda.wide_layout import image_bytes, image_of
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import f32_to_bf16
from tests.support import warpgroup_simulator as simulator
from tests.support.oracles.linear import random_payload, weight_values

MODULES = (
    wide_expand,
    wide_layout,
    weight_pairs,
    weight_tiles,
    device_functions,
    product_output,
)
POISON = 0xA5


@pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize(("first", "count"), [(0, 35), (5, 9), (16, 19)])
def test_expanded_rows_are_values_rounded_once(
    format: TensorFormat, first: int, count: int
) -> None:
    rows, width = 35, 200
    payload = random_payload(np.random.default_rng(1), format, rows, width)
    layout = WeightLayout(format, rows, width)
    storage = pack_weight(format, payload, rows, width)
    at = -(-storage.size // 256) * 256
    octets = np.full(at + image_bytes(count, width), POISON, np.uint8)
    octets[: storage.size] = storage
    base = simulator.GLOBAL
    planes = (base, base + layout.high_offset, base + layout.scale_offset, base + at)
    tiles = -(-(first + count) // 16) - first // 16

    simulator.launch(
        MODULES,
        octets,
        make_expand(format),
        expand_grid(tiles, layout.k_tiles),
        (*planes, layout.k_tiles, first // 16, first, count),
    )

    values = weight_values(format, payload, rows, width)[first : first + count]
    expected = image_of(f32_to_bf16(values.astype(np.float32)))
    inside = image_of(np.full((count, width), 1, np.uint16)).view(np.uint16) == 1
    touched = image_of(np.full((count, padded_width(width)), 1, np.uint16)).view(np.uint16) == 1
    got = octets[at:].view(np.uint16)
    np.testing.assert_array_equal(got[inside], expected.view(np.uint16)[inside])
    assert np.all(got[~touched] == POISON * 257)


@pytest.mark.parametrize("is_plaited", [False, True])
def test_widened_columns_are_the_same_columns(is_plaited: bool) -> None:
    words = f32_to_bf16(np.random.default_rng(2).standard_normal((21, 200)).astype(np.float32))
    block = pack_columns(words)
    at = -(-block.size // 256) * 256
    octets = np.full(at + image_bytes(len(words), 200), POISON, np.uint8)
    octets[: block.size] = block

    simulator.launch(
        MODULES,
        octets,
        make_widen(is_plaited),
        expand_grid(num_tiles(len(words)), 2),
        (simulator.GLOBAL, simulator.GLOBAL + at, 2),
    )

    touched = image_of(np.full((len(words), 256), 1, np.uint16)).view(np.uint16) == 1
    got, expected = octets[at:].view(np.uint16), image_of(words, is_plaited=is_plaited)
    np.testing.assert_array_equal(got[touched], expected.view(np.uint16)[touched])
