"""Wide products on the CPU: images, descriptors, barriers, tile order and endings."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import device_functions, product_output, wide_output, wide_product
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.wide_layout import feature_blocks, image_of
from ninfer.kernels.cuda.wide_output import Ending
from ninfer.kernels.cuda.wide_product import Wide, make_wide_product
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support import warpgroup_simulator as simulator

MODULES = (wide_product, wide_output, product_output, device_functions)
GUARD = 4096


def words(seed: int, *shape: int) -> npt.NDArray[np.uint16]:
    return f32_to_bf16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def wide(
    shape: Wide,
    ending: Ending,
    output: Output,
    x: npt.NDArray[np.uint16],
    w: npt.NDArray[np.uint16],
    before: npt.NDArray[Any],
    first_column: int,
    blocks: int,
) -> npt.NDArray[Any]:
    """Run a product over images between poison; return the output."""
    parts = [image_of(x), image_of(w)]
    if shape.row_blocks == 2 and len(w) % 256 <= 128:
        parts[1] = np.concatenate(
            [parts[1], np.full(feature_blocks(x.shape[1]) * 16384, 0xFF, np.uint8)]
        )
    parts.append(before.reshape(-1).view(np.uint8))
    offsets, octets = [], np.full(GUARD, 0xFF, np.uint8)
    for part in parts:
        offsets.append(octets.size)
        octets = np.concatenate([octets, part, np.full(GUARD - part.size % 256, 0xFF, np.uint8)])
    at = [simulator.GLOBAL + offset for offset in offsets]
    simulator.launch(
        MODULES,
        octets,
        make_wide_product(shape, ending),
        (blocks, 1, 1),
        (*at, feature_blocks(x.shape[1]), len(w), len(x), before.shape[1], first_column, output),
    )
    return octets[offsets[2] :][: before.nbytes].view(before.dtype).reshape(before.shape)


def exact(x: npt.NDArray[np.uint16], w: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    values = bf16_to_f32(x).astype(np.float64) @ bf16_to_f32(w).astype(np.float64).T
    return values.astype(np.float32)


@pytest.mark.parametrize("row_blocks", [1, 2])
@pytest.mark.parametrize("shape", [(130, 264, 128), (40, 136, 300)])
def test_rounded_products(row_blocks: int, shape: tuple[int, int, int]) -> None:
    num_columns, num_rows, width = shape
    x, w = words(1, num_columns, width), words(2, num_rows, width)
    before = np.full((num_columns, num_rows + 16), 0x7FC1, np.uint16)

    got = wide(Wide(row_blocks, 3, band=1), Ending.BF16, Output.BF16, x, w, before, 8, 2)

    np.testing.assert_allclose(bf16_to_f32(got[:, 8:-8]), exact(x, w), rtol=2**-8, atol=1e-3)
    assert np.all(got[:, :8] == 0x7FC1)
    assert np.all(got[:, -8:] == 0x7FC1)


@pytest.mark.parametrize("row_blocks", [1, 2])
def test_added_products(row_blocks: int) -> None:
    x, w, before = words(3, 131, 128), words(4, 144, 128), words(5, 131, 144)

    got = wide(Wide(row_blocks, 2), Ending.ADD, Output.ADD, x, w, before.copy(), 0, 1)

    expected = exact(x, w) + bf16_to_f32(before)
    np.testing.assert_allclose(bf16_to_f32(got), expected, rtol=2**-8, atol=1e-3)


@pytest.mark.parametrize("output", list(Output))
def test_products_of_any_extent(output: Output) -> None:
    x, w = words(6, 5, 128), words(7, 131, 128)
    is_f32 = output is Output.F32
    before: npt.NDArray[Any] = words(8, 5, 137)
    if is_f32:
        before = bf16_to_f32(before)

    got = wide(Wide(2, 2), Ending.ANY, output, x, w, before.copy(), 3, 1)

    values = got if is_f32 else bf16_to_f32(got)
    old = before if is_f32 else bf16_to_f32(before)
    expected = exact(x, w) + (old[:, 3:134] if output is Output.ADD else 0)
    np.testing.assert_allclose(values[:, 3:134], expected, rtol=2**-8, atol=1e-3)
    np.testing.assert_array_equal(values[:, :3], old[:, :3])
    np.testing.assert_array_equal(values[:, 134:], old[:, 134:])
