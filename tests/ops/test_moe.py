from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.ops import linear, moe, pointwise
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.ops.moe import MixtureTensors, MixtureWeights
from ninfer.tensor import DType, Matrix, TensorFormat
from ninfer.tensor_formats import encode_matrix, f32_to_bf16
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.linear import weight_values
from tests.support.oracles.moe import expert_sum
from tests.support.oracles.moe import route as oracle_route

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def route_on(bench: Any, router: F32, chosen: int) -> tuple[Any, Any, Any]:
    """Experts, weights and gates of the shared expert; ``bench`` is of any device."""
    experts = bench.out((len(router), chosen), DType.I32)
    weights, shared_gate = bench.out((len(router), chosen)), bench.out((len(router),))

    moe.route(bench.ctx, bench.put(router), experts, weights, shared_gate)

    bench.check()
    return tuple(bench.read_tensor(found) for found in (experts, weights, shared_gate))


def route(router: F32, chosen: int) -> tuple[I32, F32, F32]:
    with GuardedBench() as bench:
        return route_on(bench, router, chosen)


@pytest.mark.parametrize(("num_experts", "chosen"), [(8, 2), (16, 4), (256, 8), (3, 3)])
def test_route_agrees_with_the_formula(num_experts: int, chosen: int) -> None:
    router = np.random.default_rng(1).normal(0, 3, (20, num_experts + 1)).astype(np.float32)

    experts, weights, shared_gate = route(router, chosen)

    expected = oracle_route(router.astype(np.float64), chosen)
    np.testing.assert_array_equal(experts, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5)
    np.testing.assert_allclose(shared_gate, expected[2], rtol=1e-6)


def test_equal_logits_rank_the_lower_index_first() -> None:
    router = np.zeros((2, 9), np.float32)
    router[1, [2, 5, 7]] = 1.0

    experts, weights, _ = route(router, 4)

    np.testing.assert_array_equal(experts, [[0, 1, 2, 3], [2, 5, 7, 0]])
    np.testing.assert_array_equal(weights[0], np.full(4, 0.25, np.float32))


def test_huge_logits_do_not_overflow() -> None:
    router = np.array([[3e38, -3e38, 0.0, 200.0], [-3e38, -3e38, -1e38, -200.0]], np.float32)

    experts, weights, shared_gate = route(router, 2)

    np.testing.assert_array_equal(experts, [[0, 1], [2, 0]])
    np.testing.assert_array_equal(weights, [[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(shared_gate, [1.0, 0.0], atol=1e-30)


@pytest.mark.parametrize("width", [24, 130])
def test_route_and_gate_does_what_its_two_halves_do(width: int) -> None:
    rng = np.random.default_rng(2)
    router = rng.normal(0, 3, (5, 17)).astype(np.float32)
    gate_up = rng.normal(0, 1, (5, 2 * width)).astype(np.float32)
    experts, weights, shared_gate = route(router, 4)

    with GuardedBench() as bench:
        alone, hidden = bench.out_columns(5, width), bench.out_columns(5, width)
        pointwise.swiglu(bench.ctx, bench.put(gate_up), alone)
        found = bench.out((5, 4), DType.I32), bench.out((5, 4)), bench.out((5,))
        operands = bench.put(router), bench.put(gate_up), *found
        moe.route_and_gate(bench.ctx, *operands, hidden)

        bench.check()
        np.testing.assert_array_equal(bench.read_tensor(found[0]), experts)
        np.testing.assert_array_equal(bench.read_tensor(found[1]), weights)
        np.testing.assert_array_equal(bench.read_tensor(found[2]), shared_gate)
        np.testing.assert_array_equal(bench.read_columns(hidden), bench.read_columns(alone))


def test_route_and_gate_refuses_columns_of_another_count() -> None:
    with GuardedBench() as bench:
        found = bench.out((2, 2), DType.I32), bench.out((2, 2)), bench.out((2,))
        operands = bench.out((2, 5)), bench.out((2, 16)), *found
        with pytest.raises(ShapeError, match="hidden"):
            moe.route_and_gate(bench.ctx, *operands, bench.out_columns(3, 8))
        with pytest.raises(ShapeError, match="gate_up"):
            moe.route_and_gate(bench.ctx, *operands, bench.out_columns(2, 9))


def payload(format: TensorFormat, values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    rows = values.astype(np.float32)
    if format is TensorFormat.BF16:
        return f32_to_bf16(rows).reshape(-1).view(np.uint8)
    return encode_matrix(format, rows)


class Layer:
    """Random experts on a bench: E of width I over H features."""

    def __init__(self, format: TensorFormat, num_experts: int, hidden: int, width: int) -> None:
        rng = np.random.default_rng(5)
        self.format, self.num_experts, self.hidden, self.width = format, num_experts, hidden, width
        self.gate_up_shape = (num_experts * 2 * width, hidden)
        self.down_shape = (num_experts * hidden, width)
        self.gate_up = payload(format, rng.normal(0, hidden**-0.5, self.gate_up_shape))
        self.down = payload(format, rng.normal(0, width**-0.5, self.down_shape))

    def matrices(self, bench: GuardedBench) -> tuple[Matrix, Matrix]:
        return (
            bench.matrix(self.format, self.gate_up, *self.gate_up_shape),
            bench.matrix(self.format, self.down, *self.down_shape),
        )

    def values(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        gate_up = weight_values(self.format, self.gate_up, *self.gate_up_shape)
        down = weight_values(self.format, self.down, *self.down_shape)
        return (
            gate_up.reshape(self.num_experts, 2 * self.width, self.hidden),
            down.reshape(self.num_experts, self.hidden, self.width),
        )


class Columns:
    """Inputs of T columns."""

    def __init__(self, layer: Layer, count: int, chosen: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(0, 1, (count, layer.hidden)).astype(np.float32)
        ranked = np.argsort(rng.random((count, layer.num_experts)), axis=1)[:, :chosen]
        self.experts = ranked.astype(np.int32)
        self.weights = rng.random((count, chosen)).astype(np.float32)
        self.shared = rng.normal(0, 1, (count, layer.hidden)).astype(np.float32)
        self.shared_gate = rng.random(count).astype(np.float32)
        self.residual = rng.normal(0, 1, (count, layer.hidden)).astype(np.float32)

    def run(self, layer: Layer, columns: list[int], num_threads: int = 1) -> F32:
        with GuardedBench(num_threads) as bench:
            residual = bench.inout(self.residual[columns])
            moe.experts(
                bench.ctx,
                bench.in_columns(self.x[columns]),
                *layer.matrices(bench),
                bench.put(self.experts[columns]),
                bench.put(self.weights[columns]),
                bench.put(self.shared[columns]),
                bench.put(self.shared_gate[columns]),
                residual,
            )
            bench.check()
            return bench.read_tensor(residual)


@every_format
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (130, 24)])
def test_experts_agree_with_the_formula(format: TensorFormat, hidden: int, width: int) -> None:
    layer = Layer(format, 6, hidden, width)
    columns = Columns(layer, 11, 3)

    out = columns.run(layer, list(range(11)))

    added = expert_sum(
        columns.x.astype(np.float64),
        *layer.values(),
        columns.experts.astype(np.int64),
        columns.weights.astype(np.float64),
        columns.shared.astype(np.float64),
        columns.shared_gate.astype(np.float64),
    )
    expected = columns.residual + added
    # Float32 sums of up to 130 terms of size 1 / sqrt(terms), one after the other.
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@every_format
@settings(max_examples=8, deadline=None)
@given(batch=st.lists(st.integers(0, 6), min_size=1, max_size=9))
def test_a_column_does_not_see_its_batch(format: TensorFormat, batch: list[int]) -> None:
    layer = Layer(format, 4, 64, 32)
    columns = Columns(layer, 7, 2)

    together = columns.run(layer, batch)

    for at, column in enumerate(batch):
        alone = columns.run(layer, [column])
        np.testing.assert_array_equal(together[at], alone[0])


def test_long_calls_and_threads_do_not_change_a_bit() -> None:
    layer = Layer(TensorFormat.Q5, 4, 64, 32)
    columns = Columns(layer, 300, 2)
    every = list(range(300))

    whole = columns.run(layer, every, num_threads=2)

    np.testing.assert_array_equal(whole, columns.run(layer, every))
    np.testing.assert_array_equal(whole[250:], columns.run(layer, every[250:]))


@pytest.mark.parametrize(("order", "expected"), [([0, 1, 2], 0.0), ([1, 2, 0], 2.0)])
def test_experts_are_added_in_ranking_order(order: list[int], expected: float) -> None:
    gate_up = np.array([[128.0], [2.0**-7]] * 3)  # silu(128) is 128 in float32, so h = 1
    down = np.ones((3, 1))
    weights = np.array([2.0**24, 1.0, 1.0], np.float32)[order]  # 2^24 + 1 + 1: lost unless first
    with GuardedBench() as bench:
        residual = bench.inout(np.array([[-(2.0**24)]], np.float32))

        moe.experts(
            bench.ctx,
            bench.in_columns(np.ones((1, 1), np.float32)),
            bench.matrix(TensorFormat.BF16, payload(TensorFormat.BF16, gate_up), 6, 1),
            bench.matrix(TensorFormat.BF16, payload(TensorFormat.BF16, down), 3, 1),
            bench.put(np.array([order], np.int32)),
            bench.put(weights[None]),
            bench.put(np.zeros((1, 1), np.float32)),
            bench.put(np.zeros(1, np.float32)),
            residual,
        )

        bench.check()
        assert bench.read_tensor(residual) == [[expected]]


class Mixture:
    """A layer with its shared expert on a bench, and what lies between its steps."""

    def __init__(self, bench: GuardedBench, layer: Layer, count: int, chosen: int) -> None:
        rng = np.random.default_rng(9)
        hidden, width = layer.hidden, 40
        down = payload(TensorFormat.W8, rng.normal(0, width**-0.5, (hidden, width)))
        self.weights = MixtureWeights(
            *layer.matrices(bench), bench.matrix(TensorFormat.W8, down, hidden, width)
        )
        self.between = MixtureTensors(
            bench.out((count, chosen), DType.I32),
            bench.out((count, chosen)),
            bench.out((count,)),
            bench.out_columns(count, width),
            bench.out((count, hidden)),
        )
        logits = rng.normal(0, 3, (count, layer.num_experts + 1)).astype(np.float32)
        self.router = bench.put(logits)
        self.gate_up = bench.put(rng.normal(0, 1, (count, 2 * width)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_mix_does_what_its_parts_do(count: int) -> None:
    layer = Layer(TensorFormat.Q4, 6, 64, 32)
    columns = Columns(layer, count, 3)
    with GuardedBench() as bench:
        mixture = Mixture(bench, layer, count, 3)
        own, weights, x = mixture.between, mixture.weights, bench.in_columns(columns.x)
        together, apart = (bench.inout(columns.residual) for _ in range(2))

        moe.mix(bench.ctx, x, mixture.router, mixture.gate_up, weights, own, together)

        ranked = (own.experts, own.weights)
        inputs = (mixture.router, mixture.gate_up, *ranked, own.shared_gate, own.hidden)
        moe.route_and_gate(bench.ctx, *inputs)
        linear.project(bench.ctx, own.hidden, weights.shared_down, own.shared)
        matrices = (weights.gate_up, weights.down)
        moe.experts(bench.ctx, x, *matrices, *ranked, own.shared, own.shared_gate, apart)
        bench.check()
        np.testing.assert_array_equal(bench.read_tensor(together), bench.read_tensor(apart))
        assert not np.array_equal(bench.read_tensor(together), columns.residual)


def test_mix_refuses_operands_of_other_shapes() -> None:
    layer = Layer(TensorFormat.Q4, 4, 64, 32)
    columns = Columns(layer, 3, 2)
    with GuardedBench() as bench:
        mixture = Mixture(bench, layer, 3, 2)
        weights, own = mixture.weights, mixture.between
        operands: dict[str, Any] = {
            "ctx": bench.ctx,
            "x": bench.in_columns(columns.x),
            "router": mixture.router,
            "shared_gate_up": mixture.gate_up,
            "weights": weights,
            "between": own,
            "residual": bench.inout(columns.residual),
        }
        wrong: list[tuple[str, Any]] = [
            ("x", bench.in_columns(columns.x[:2])),
            ("router", bench.out((3, 6))),
            ("shared_gate_up", bench.out((3, 82))),
            ("weights", replace(weights, shared_down=weights.shared_down.rows(0, 48))),
            ("weights", replace(weights, down=weights.down.rows(0, 128))),
            ("between", replace(own, experts=bench.out((3, 5), DType.I32))),
            ("between", replace(own, hidden=bench.out_columns(3, 41))),
            ("between", replace(own, shared=bench.out((3, 65)))),
            ("residual", bench.inout(columns.residual[:2])),
        ]

        for name, operand in wrong:
            with pytest.raises(ShapeError):
                moe.mix(**(operands | {name: operand}))


def test_wrong_operands_are_refused() -> None:
    layer = Layer(TensorFormat.Q4, 4, 64, 32)
    columns = Columns(layer, 3, 2)
    with GuardedBench() as bench:
        gate_up, down = layer.matrices(bench)
        operands: dict[str, Any] = {
            "ctx": bench.ctx,
            "x": bench.in_columns(columns.x),
            "gate_up": gate_up,
            "down": down,
            "experts": bench.put(columns.experts),
            "weights": bench.put(columns.weights),
            "shared": bench.put(columns.shared),
            "shared_gate": bench.put(columns.shared_gate),
            "residual": bench.inout(columns.residual),
        }
        wrong: list[tuple[str, Any]] = [
            ("x", bench.in_columns(columns.x[:2])),
            ("gate_up", gate_up.rows(0, 64)),
            ("down", down.rows(0, 100)),
            ("experts", bench.put(columns.weights)),
            ("experts", bench.put(columns.experts[:, :1])),
            ("weights", bench.put(columns.weights[:2])),
            ("shared", bench.put(columns.shared[:, :1])),
            ("shared_gate", bench.put(columns.shared)),
            ("residual", bench.inout(columns.residual[:2])),
        ]

        for name, operand in wrong:
            with pytest.raises(ShapeError):
                moe.experts(**(operands | {name: operand}))


def test_wrong_routing_operands_are_refused() -> None:
    with GuardedBench() as bench:
        operands: dict[str, Any] = {
            "ctx": bench.ctx,
            "router": bench.out((3, 5)),
            "experts": bench.out((3, 2), DType.I32),
            "weights": bench.out((3, 2)),
            "shared_gate": bench.out((3,)),
        }
        wrong: list[tuple[str, Any]] = [
            ("router", bench.out((3, 5), DType.I32)),
            ("experts", bench.out((3, 5), DType.I32)),
            ("experts", bench.out((3, 2))),
            ("weights", bench.out((3, 1))),
            ("shared_gate", bench.out((2,))),
        ]

        for name, operand in wrong:
            with pytest.raises(ShapeError):
                moe.route(**(operands | {name: operand}))
