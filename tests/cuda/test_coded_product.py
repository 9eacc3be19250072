"""Products of coded weights on the CPU: operands, barriers, tile order and endings."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    coded_columns,
    coded_gate,
)
from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.coded_product import make_coded_product
from ninfer.kernels.cuda.coded_shape import Coded
from ninfer.kernels.cuda.column_image import BLOCK_BYTES, BLOCK_FEATURES, image_bytes, image_of
from ninfer.kernels.cuda.fragments import padded_width
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import WeightLayout, pack_weight
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support import warpgroup_simulator as simulator
from tests.support.oracles.linear import random_payload, weight_values

GUARD = 4096

Words = npt.NDArray[np.uint16]


def words(seed: int, *shape: int) -> Words:
    return f32_to_bf16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def coded(
    shape: Coded,
    ending: Ending,
    output: int,
    x: Words,
    parent: tuple[int, int],
    rows: slice,
    before: npt.NDArray[Any],
    first_column: int,
    blocks: int,
    out_width: int | None = None,
    *,
    is_last_ahead: bool | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Run a product between poison; return the output and what float64 makes of it."""
    payload = random_payload(np.random.default_rng(9), shape.format, *parent)
    layout = WeightLayout(shape.format, *parent)
    parts = [
        pack_weight(shape.format, payload, *parent),
        image_of(x),
        before.reshape(-1).view(np.uint8),
    ]
    offsets, octets = [], np.full(GUARD, 0xFF, np.uint8)
    for part in parts:
        offsets.append(octets.size)
        octets = np.concatenate([octets, part, np.full(GUARD - part.size % 256, 0xFF, np.uint8)])
    simulator.launch(
        octets,
        make_coded_product(shape, ending),
        (blocks, 1, 1),
        (
            *(simulator.GLOBAL + offset for offset in offsets),
            layout.k_tiles,
            layout.row_tiles,
            rows.start,
            rows.stop - rows.start,
            len(x),
            before.shape[1] if out_width is None else out_width,
            first_column,
            output,
            0,
        ),
        is_last_ahead=is_last_ahead,
    )
    values = weight_values(shape.format, payload, *parent)[rows].astype(np.float32)
    rounded = bf16_to_f32(f32_to_bf16(values)).astype(np.float64)
    got = octets[offsets[2] :][: before.nbytes].view(before.dtype).reshape(before.shape)
    return got, (bf16_to_f32(x).astype(np.float64) @ rounded.T).astype(np.float32)


def expect_close(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=2**-8, atol=float(scale) * 1e-6)


@pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
def test_products_of_every_format(format: TensorFormat) -> None:
    """Six stages go through a ring of three; the first warpgroup is ahead, or the second."""
    x, before = words(1, 9, 300), np.full((9, 40), 0x7FC1, np.uint16)

    got, exact = coded(
        Coded(format, 128, 3), Ending.BF16, Output.BF16, x, (56, 300), slice(16, 40), before, 8, 1,
        is_last_ahead=format in (TensorFormat.Q5, TensorFormat.W8),
    )  # fmt: skip

    expect_close(bf16_to_f32(got[:, 8:32]), exact)
    assert np.all(got[:, :8] == 0x7FC1)
    assert np.all(got[:, 32:] == 0x7FC1)


@pytest.mark.parametrize(
    ("tile_columns", "columns"),
    [
        (256, 140),  # of two parts, staged in the same place
        *(
            pytest.param(*size, marks=pytest.mark.slow)
            for size in ((64, 150), (128, 150), (256, 530))
        ),
    ],
)
def test_blocks_share_tiles_and_take_them_one_after_the_other(
    tile_columns: int, columns: int
) -> None:
    x, before = words(2, columns, 128), np.full((columns, 144), 0x7FC1, np.uint16)

    got, exact = coded(
        Coded(TensorFormat.Q4, tile_columns, 3, band=2), Ending.BF16, Output.BF16, x, (144, 128),
        slice(0, 144), before, 0, 2,
    )  # fmt: skip

    expect_close(bf16_to_f32(got), exact)


@pytest.mark.parametrize(
    ("format", "tile_columns", "columns", "width", "blocks"),
    [
        pytest.param(TensorFormat.Q4, 128, 130, 128, 2, marks=pytest.mark.slow),
        (TensorFormat.Q5, 256, 140, 64, 1),
        (TensorFormat.Q6, 64, 9, 64, 1),
        pytest.param(TensorFormat.W8, 64, 70, 64, 1, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_gated_products_are_an_image(
    format: TensorFormat,
    tile_columns: int,
    columns: int,
    width: int,
    blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of features behind the width and rows around the view belong to nobody."""
    monkeypatch.setattr(coded_gate, "math", SimpleNamespace(exp=np.exp))
    values = np.random.default_rng(4).standard_normal((columns, 200)) / 512
    x, parent = f32_to_bf16(values.astype(np.float32)), (2 * width + 32, 200)
    k_blocks = padded_width(width) // BLOCK_FEATURES
    image = np.full(image_bytes(columns, width) // 2, 0x7FC1, np.uint16)

    got, sums = coded(
        Coded(format, tile_columns, 3, band=2), Ending.GATED, width // 16, x, parent,
        slice(16, 16 + 2 * width), image, 0, blocks, out_width=k_blocks,
    )  # fmt: skip

    gate, up = np.split(bf16_to_f32(f32_to_bf16(sums)).astype(np.float64), 2, axis=1)
    with np.errstate(over="ignore"):
        expected = f32_to_bf16((gate / (1 + np.exp(-gate)) * up).astype(np.float32))
    places = image_of(np.arange(1, columns * width + 1, dtype=np.uint16).reshape(columns, width))
    order = np.argsort(places.view(np.uint16), kind="stable")[-columns * width :]
    found, wanted = bf16_to_f32(got[order]), bf16_to_f32(expected).reshape(-1)
    expect_close(found, wanted)
    assert np.mean(found == wanted) > 0.97  # others are at the edge of a rounding
    assert np.all(np.delete(got, order) == 0x7FC1)


def test_a_part_of_gated_products_has_gates_and_ups_of_its_own_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second of two blocks of features: its rows lie among those of the first."""
    monkeypatch.setattr(coded_gate, "math", SimpleNamespace(exp=np.exp))
    values = np.random.default_rng(7).standard_normal((20, 128)) / 512
    x, parent = f32_to_bf16(values.astype(np.float32)), (272, 128)
    block = np.full(BLOCK_BYTES // 2, 0x7FC1, np.uint16)

    got, _ = coded(
        Coded(TensorFormat.Q4, 64, 3), Ending.GATED, 128 // 16, x, parent,
        slice(16 + 64, 16 + 64 + 128), block, 0, 1, out_width=2,
    )  # fmt: skip

    payload = random_payload(np.random.default_rng(9), TensorFormat.Q4, *parent)
    weights = weight_values(TensorFormat.Q4, payload, *parent).astype(np.float32)
    sums = bf16_to_f32(x).astype(np.float64) @ bf16_to_f32(f32_to_bf16(weights)).T
    rounded = bf16_to_f32(f32_to_bf16(sums.astype(np.float32))).astype(np.float64)
    gate, up = rounded[:, 16 + 64 : 16 + 128], rounded[:, 16 + 192 : 16 + 256]
    with np.errstate(over="ignore"):
        expected = f32_to_bf16((gate / (1 + np.exp(-gate)) * up).astype(np.float32))
    places = image_of(np.pad(expected, ((0, 0), (0, 64)))).view(np.uint16)[: block.size]
    live = places.reshape(128, 64)[:20]
    found = bf16_to_f32(got.reshape(128, 64)[:20])
    assert np.mean(found == bf16_to_f32(live)) > 0.97
    expect_close(found, bf16_to_f32(live))


@pytest.mark.parametrize("band", [1, 2, 4, 8])
@pytest.mark.parametrize(("column_tiles", "row_blocks"), [(1, 1), (1, 3), (3, 2), (8, 3), (17, 5)])
def test_numbers_of_tiles_go_through_bands_row_by_row(
    band: int, column_tiles: int, row_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        coded_columns,
        "ptx",
        SimpleNamespace(divide_u32=lambda a, b: int(a) // int(b), smaller_u32=min),
    )
    place = coded_columns.make_place(Coded(TensorFormat.Q4, band=band)).py_func

    found = [place(tile, column_tiles, row_blocks) for tile in range(column_tiles * row_blocks)]

    assert found == sorted(
        ((column, row) for column in range(column_tiles) for row in range(row_blocks)),
        key=lambda at: (at[0] // band, at[1], at[0]),
    )


@pytest.mark.parametrize(
    ("tile_columns", "num_rows"),
    [(256, 112), (64, 112), pytest.param(128, 144, marks=pytest.mark.slow)],
)
def test_added_products(tile_columns: int, num_rows: int) -> None:
    x, before = words(3, 70, 128), words(5, 70, num_rows)

    got, exact = coded(
        Coded(TensorFormat.Q4, tile_columns, 3), Ending.ADD, Output.ADD, x, (num_rows, 128),
        slice(0, num_rows), before.copy(), 0, 1,
    )  # fmt: skip

    expect_close(bf16_to_f32(got), exact + bf16_to_f32(before))


@pytest.mark.parametrize(
    ("output", "stop", "tile_columns"),
    [
        (Output.BF16, 101, 128),
        (Output.ADD, 101, 64),
        (Output.F32, 136, 128),  # of two tiles
        *(pytest.param(o, 136, 128, marks=pytest.mark.slow) for o in (Output.BF16, Output.ADD)),
    ],
)
def test_products_of_any_extent(output: Output, stop: int, tile_columns: int) -> None:
    x = words(6, 5, 128)
    is_f32 = output is Output.F32
    before: npt.NDArray[Any] = words(8, 5, 137)
    if is_f32:
        before = bf16_to_f32(before)

    got, exact = coded(
        Coded(TensorFormat.Q6, tile_columns, 3), Ending.ANY, output, x, (150, 128), slice(5, stop),
        before.copy(), 3, 1,
    )  # fmt: skip

    values = got if is_f32 else bf16_to_f32(got)
    old = before if is_f32 else bf16_to_f32(before)
    expect_close(
        values[:, 3 : stop - 2], exact + (old[:, 3 : stop - 2] if output is Output.ADD else 0)
    )
    np.testing.assert_array_equal(values[:, :3], old[:, :3])
    np.testing.assert_array_equal(values[:, stop - 2 :], old[:, stop - 2 :])
