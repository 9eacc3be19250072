"""Wide products of experts on the CPU: items, stages, barriers, operands and endings."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.column_image import image_of
from ninfer.kernels.cuda.expert_wide import make_expert_wide
from ninfer.kernels.cuda.expert_wide_shape import ExpertWide
from ninfer.kernels.cuda.weight_layout import pack_weight
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.ops.test_moe import payload as payload_of
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.linear import weight_values
from tests.support.warpgroup_simulator import launch

EXPERTS = 3
FIRST = 120
"""Column of the image that is the first token; some tokens lie in its second block."""

Words = npt.NDArray[np.uint16]


def words(seed: int, *shape: int) -> Words:
    return f32_to_bf16(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def as_rows(columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Features in the order of pieces: word j of chunk c of a slab at 16 j + 4 c."""
    pairs = columns.reshape(len(columns), -1, 4, 2, 4).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(pairs).reshape(len(columns), -1)


def rounded_weights(format: TensorFormat, payload: Any, rows: int, width: int) -> Any:
    values = weight_values(format, payload, EXPERTS * rows, width).astype(np.float32)
    values = bf16_to_f32(f32_to_bf16(values)).astype(np.float64)
    return values.reshape(EXPERTS, rows, width)


def multiply(
    shape: ExpertWide,
    counts: list[tuple[int, int]],
    rows: int,
    width: int,
    blocks: int,
    run: int = 1,
) -> tuple[Any, Any]:
    """Sums of (expert, count) entries, and what float64 makes of rounded weights."""
    stored = np.random.default_rng(9).normal(0, width**-0.5, (EXPERTS * rows, width))
    payload = payload_of(shape.format, stored)
    places, chosen = sum(count for _, count in counts), 2
    order = np.random.default_rng(1).permutation(places).astype(np.int32)
    x = words(2, FIRST + places // chosen + 1 if shape.is_gate else places, width)
    entries, start = [], 0
    for expert, count in counts:
        entries.append((expert, start, count))
        start += count
    entries.append((7777, -7777, 0))  # unused: nothing but the count is there
    out = np.full((places, rows // 2 if shape.is_gate else rows), 0x7FC1, np.uint16)
    octets, at, views = lay_out(
        {
            "weight": pack_weight(shape.format, payload, EXPERTS * rows, width),
            "x": image_of(x) if shape.is_gate else as_rows(x),
            "plan": np.array(entries, np.int32),
            "order": order,
            "out": out,
        }
    )
    arguments: list[Any] = [np.uint64(at[n]) for n in ("weight", "x", "plan", "order", "out")]
    row_blocks = rows // 256
    first = FIRST if shape.is_gate else 0
    extents = (width // 128, rows, chosen, first, row_blocks, len(entries) * row_blocks, run)
    arguments += [np.int32(extent) for extent in extents]

    launch(octets, make_expert_wide(shape), (blocks, 1, 1), arguments)

    weights = rounded_weights(shape.format, payload, rows, width)
    columns = bf16_to_f32(x).astype(np.float64)
    exact = np.zeros(out.shape)
    for expert, start, count in entries[:-1]:
        for place in range(start, start + count):
            if shape.is_gate:
                both = weights[expert] @ columns[FIRST + order[place] // chosen]
                gate, up = both[: rows // 2], both[rows // 2 :]
                exact[place] = gate / (1 + np.exp(-gate)) * up
            else:
                exact[place] = weights[expert] @ columns[place]
    return bf16_to_f32(views["out"]), as_rows(exact) if shape.is_gate else exact


def expect_close(got: Any, exact: Any) -> None:
    np.testing.assert_allclose(got, exact, rtol=2**-8, atol=float(np.abs(exact).max()) * 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("is_gate", [True, False], ids=["gate", "down"])
@pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
def test_products_of_every_format(format: TensorFormat, is_gate: bool) -> None:
    got, exact = multiply(ExpertWide(format, is_gate), [(2, 3)], 256, 256, 1)

    expect_close(got, exact)


@pytest.mark.slow
@pytest.mark.parametrize("is_gate", [True, False], ids=["gate", "down"])
def test_blocks_take_items_of_any_width_one_after_the_other(is_gate: bool) -> None:
    counts = [(0, 5), (1, 70), (1, 33), (2, 97), (0, 128)]

    got, exact = multiply(ExpertWide(TensorFormat.Q4, is_gate), counts, 512, 128, 2)

    expect_close(got, exact)


@pytest.mark.slow
def test_items_of_a_run_keep_their_columns() -> None:
    counts = [(0, 5), (1, 128), (1, 33), (2, 40)]

    got, exact = multiply(ExpertWide(TensorFormat.Q4, False), counts, 512, 512, 2, run=2)

    expect_close(got, exact)
