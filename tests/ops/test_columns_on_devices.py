"""Ops that write linear inputs, and the embedding: one body for every device."""

from typing import Any

import numpy as np
import pytest

from ninfer.ops import embedding, norm, pointwise
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.device_benches import BenchFactory, every_device
from tests.support.oracles.linear import random_payload, weight_values
from tests.support.oracles.norm import offset_norm
from tests.support.oracles.pointwise import swiglu as swiglu_oracle

EPS = 1e-6
F32_NOISE = 2.0**-19  # sums and quotients in binary32, far below one rounding to bf16
FORMATS = [
    TensorFormat.BF16,
    TensorFormat.Q4,
    TensorFormat.Q5,
    TensorFormat.Q6,
    TensorFormat.W8,
]

widths = pytest.mark.parametrize("width", [1, 7, 64, 130, 1000, 1024, 2560, 5120])


def norm_of(make_bench: BenchFactory, x: Any, weight: Any) -> tuple[Any, Any, float]:
    with make_bench() as bench:
        out = bench.out_columns(*x.shape)
        words = f32_to_bf16(weight)

        norm.rms_norm(bench.ctx, bench.activations(x), bench.put(words), EPS, out)

        bench.check()
        exact = offset_norm(bench.rounded(x), bf16_to_f32(words).astype(np.float64), EPS)
        return bench.read_columns(out), exact, bench.unit


@every_device
@widths
@pytest.mark.parametrize("num_tokens", [0, 1, 9, 131])
def test_norm_agrees_with_the_formula(
    make_bench: BenchFactory, width: int, num_tokens: int
) -> None:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((num_tokens, width)).astype(np.float32)

    got, exact, unit = norm_of(make_bench, x, rng.standard_normal(width).astype(np.float32))

    assert np.all(np.abs(got - exact) <= np.abs(exact) * (unit + F32_NOISE) + 1e-30)


@every_device
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_norm_of_tiny_and_huge_columns(make_bench: BenchFactory, scale: float) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((2, 512)) * scale).astype(np.float32)

    got, exact, unit = norm_of(make_bench, x, rng.standard_normal(512).astype(np.float32))

    assert np.all(np.abs(got - exact) <= np.abs(exact) * (unit + F32_NOISE) + 1e-30)


@every_device
@pytest.mark.parametrize("num_tokens", [33, 300])
@pytest.mark.parametrize("width", [70, 2048])
def test_norm_of_a_column_does_not_depend_on_the_others(
    make_bench: BenchFactory, width: int, num_tokens: int
) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((num_tokens, width)).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)
    order = rng.permutation(num_tokens)

    together, _, _ = norm_of(make_bench, x, weight)
    moved, _, _ = norm_of(make_bench, x[order], weight)
    alone, _, _ = norm_of(make_bench, x[11:12], weight)

    np.testing.assert_array_equal(moved, together[order])
    np.testing.assert_array_equal(alone[0], together[11])


def swiglu_of(make_bench: BenchFactory, gate_up: Any) -> tuple[Any, Any, float]:
    with make_bench() as bench:
        out = bench.out_columns(len(gate_up), gate_up.shape[1] // 2)

        pointwise.swiglu(bench.ctx, bench.activations(gate_up), out)

        bench.check()
        return bench.read_columns(out), swiglu_oracle(bench.rounded(gate_up)), bench.unit


@every_device
@pytest.mark.parametrize("width", [1, 9, 64, 160, 512, 3584, 17408])
@pytest.mark.parametrize("num_tokens", [1, 10, 131])
def test_swiglu_agrees_with_the_formula(
    make_bench: BenchFactory, width: int, num_tokens: int
) -> None:
    rng = np.random.default_rng(width)
    gate_up = (rng.standard_normal((num_tokens, 2 * width)) * 4).astype(np.float32)

    got, exact, unit = swiglu_of(make_bench, gate_up)

    assert np.all(np.abs(got - exact) <= np.abs(exact) * (unit + F32_NOISE) + 1e-30)


@every_device
@pytest.mark.parametrize("num_tokens", [17, 300])
def test_swiglu_of_a_column_does_not_depend_on_the_others(
    make_bench: BenchFactory, num_tokens: int
) -> None:
    gate_up = np.random.default_rng(2).standard_normal((num_tokens, 640)).astype(np.float32)

    together, _, _ = swiglu_of(make_bench, gate_up)
    alone, _, _ = swiglu_of(make_bench, gate_up[9:10])

    np.testing.assert_array_equal(alone[0], together[9])


@every_device
@pytest.mark.parametrize(
    ("gate", "expected"), [(1e4, 3e4), (-1e4, 0.0), (-104.0, 0.0), (0.0, 0.0), (-3e38, 0.0)]
)
def test_swiglu_saturates(make_bench: BenchFactory, gate: float, expected: float) -> None:
    got, _, _ = swiglu_of(make_bench, np.array([[gate, 3.0]], np.float32))

    np.testing.assert_allclose(got[0, 0], expected, rtol=2.0**-8, atol=1e-38)


@every_device
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("width", [40, 128, 200, 1024])
def test_gather_decodes_rows_exactly(
    make_bench: BenchFactory, format: TensorFormat, width: int
) -> None:
    payload = random_payload(np.random.default_rng(width), format, 50, width)
    tokens = np.array([0, 36, 3, 36, 15, 16, 17, 22], np.int32)
    with make_bench() as bench:
        table = bench.matrix(format, payload, 50, width).rows(13, 37)
        out = bench.out_activations((len(tokens), width))

        embedding.gather(bench.ctx, table, bench.put(tokens), out)

        bench.check()
        got = bench.read_activations(out)
        expected = bench.rounded(weight_values(format, payload, 50, width)[13:][tokens])
    np.testing.assert_array_equal(got, expected.astype(np.float32))
