"""Products that end in SwiGLU, on a card: the bits of the two ops that they stand for."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.ops import linear, pointwise
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, TensorFormat
from ninfer.tensor_formats import bf16_to_f32, encode_matrix, f32_to_bf16
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.oracles.pointwise import swiglu as swiglu_oracle

pytestmark = pytest.mark.gpu

Payload = npt.NDArray[np.uint8]

every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def columns(seed: int, count: int, width: int) -> npt.NDArray[np.float32]:
    x = np.random.default_rng(seed).standard_normal((count, width)) / 64
    return bf16_to_f32(f32_to_bf16(x.astype(np.float32)))


def both(
    format: TensorFormat,
    payload: Payload,
    shape: tuple[int, int],
    rows: slice,
    x: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """What one op makes of columns, and what two make of them."""
    with CudaBench(nbytes=1 << 29) as bench:
        weight = bench.matrix(format, payload, *shape).rows(rows.start, rows.stop - rows.start)
        packed, width = bench.in_columns(x), weight.num_rows // 2
        together, apart = bench.out_columns(len(x), width), bench.out_columns(len(x), width)
        products = bench.out_activations((len(x), 2 * width))

        linear.project_gated(bench.ctx, packed, weight, products, together)
        linear.project(bench.ctx, packed, weight, products)
        pointwise.swiglu(bench.ctx, products, apart)

        bench.check()
        return bench.read_columns(together), bench.read_columns(apart)


@every_format
@pytest.mark.parametrize("num_columns", [1, 9, 128, 129, 256, 300, 1000])
def test_products_and_their_gating_are_the_same_bits_together(
    format: TensorFormat, num_columns: int
) -> None:
    shape = (1024, 640)
    payload = random_payload(np.random.default_rng(num_columns), format, *shape)

    together, apart = both(format, payload, shape, slice(0, 1024), columns(1, num_columns, 640))

    np.testing.assert_array_equal(together, apart)


@every_format
@pytest.mark.parametrize(
    ("parent", "rows"),
    [(256, slice(0, 256)), (300, slice(16, 272)), (300, slice(8, 264)), (384, slice(0, 320))],
)
def test_rows_of_any_extent_are_gated(format: TensorFormat, parent: int, rows: slice) -> None:
    shape = (parent, 200)
    payload = random_payload(np.random.default_rng(parent), format, *shape)

    together, apart = both(format, payload, shape, rows, columns(2, 391, 200))

    np.testing.assert_array_equal(together, apart)


@every_format
def test_gated_products_agree_with_the_formula(format: TensorFormat) -> None:
    """Errors of both products are those of sums and of two roundings each."""
    shape, rng = (512, 384), np.random.default_rng(3)
    payload, x = random_payload(rng, format, *shape), columns(3, 200, 384)
    values = weight_values(format, payload, *shape)
    x = bf16_to_f32(f32_to_bf16(x / np.float32(np.abs(values).max())))

    got, _ = both(format, payload, shape, slice(0, 512), x)

    products = x.astype(np.float64) @ values.T
    bound = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(values, axis=1) * 2.0**-7
    bound += np.abs(products) * 2.0**-7
    gate, up = np.split(np.abs(products), 2, axis=1)
    off_gate, off_up = np.split(bound, 2, axis=1)
    # SiLU has a slope below 1.1 and is no further from nought than its argument.
    allowed = 1.1 * off_gate * (up + off_up) + gate * off_up + gate * up * 2.0**-8
    assert np.all(np.abs(got - swiglu_oracle(products)) <= allowed)


def test_every_gate_has_the_quotient_of_a_division() -> None:
    from tests.support.gate_values import GATES, GRID, make_gate_values

    with CudaBench() as bench:
        out = bench.out((GATES, 2), DType.F32)

        bench.stream.launch(make_gate_values(), GRID, (out.address,))

        got, divided = bench.read_tensor(out).view(np.uint32).T
    np.testing.assert_array_equal(got, divided)


def test_every_gate_is_gated_as_by_two_ops() -> None:
    """Gates are every bf16 pattern, and 254 times that, by ups of many sizes."""
    values = np.zeros((256, 128), np.float32)
    values[:64, 0], values[64:128, 0] = 1, 254
    values[128:, 1] = np.arange(-64, 64) / 16 + 1 / 32
    patterns = np.arange(1 << 16, dtype=np.uint16)
    patterns[patterns & 0x7F80 == 0x7F80] = 0
    x = np.zeros((1 << 16, 128), np.float32)
    x[:, 0] = bf16_to_f32(patterns)
    x[:, 1] = np.random.default_rng(5).standard_normal(1 << 16)
    payload = np.frombuffer(encode_matrix(TensorFormat.W8, values), np.uint8)

    together, apart = both(TensorFormat.W8, payload, (256, 128), slice(0, 256), x)

    np.testing.assert_array_equal(together, apart)
    assert np.isinf(together).any()


@pytest.mark.parametrize("narrow", [64, 128])
def test_gated_products_in_parts_are_the_same_bits(
    narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ninfer.kernels.cuda.coded_turns import Part, plan, tiles_of

    format, shape = TensorFormat.Q4, (1040, 384)
    parts = Part(tiles_of(format, 256), 0, 24), Part(tiles_of(format, narrow), 24, 40)
    payload = random_payload(np.random.default_rng(6), format, *shape)
    monkeypatch.setattr("ninfer.kernels.cuda.coded_linear.plan", _gated_in(parts, plan))

    together, apart = both(format, payload, shape, slice(16, 1040), columns(6, 700, 384))

    np.testing.assert_array_equal(together, apart)


def _gated_in(parts: Any, plan: Any) -> Any:
    """A planner that takes these parts for what is gated."""

    def planned(requests: Any, *sizes: int) -> Any:
        return (parts,) if requests[0].ending.name == "GATED" else plan(requests, *sizes)

    return planned
