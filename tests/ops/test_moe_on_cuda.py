"""Mixture of experts on a CUDA device: against the formula, and bit for bit against itself."""

from typing import Any

import numpy as np
import pytest

from ninfer.ops import moe
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, TensorFormat
from tests.ops.test_moe import Columns, Layer
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.moe import expert_sum
from tests.support.oracles.moe import route as oracle_route

pytestmark = pytest.mark.gpu
every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def route(router: Any, chosen: int) -> tuple[Any, Any, Any]:
    with CudaBench() as bench:
        experts = bench.out((len(router), chosen), DType.I32)
        weights, shared_gate = bench.out((len(router), chosen)), bench.out((len(router),))

        moe.route(bench.ctx, bench.put(router), experts, weights, shared_gate)

        bench.check()
        return (
            bench.read_tensor(experts),
            bench.read_tensor(weights),
            bench.read_tensor(shared_gate),
        )


@pytest.mark.parametrize(("num_experts", "chosen"), [(8, 2), (256, 8), (8, 8)])
def test_route_agrees_with_the_formula(num_experts: int, chosen: int) -> None:
    router = np.random.default_rng(1).normal(0, 3, (20, num_experts + 1)).astype(np.float32)

    experts, weights, shared_gate = route(router, chosen)

    expected = oracle_route(router.astype(np.float64), chosen)
    np.testing.assert_array_equal(experts, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=1e-5)
    np.testing.assert_allclose(shared_gate, expected[2], rtol=1e-6)


def test_equal_and_huge_logits_rank_the_lower_index_first() -> None:
    router = np.zeros((3, 9), np.float32)
    router[1, [2, 5, 7]] = 1.0
    router[2] = [3e38, -3e38, 0.0, -3e38, 1.0, 2.0, 3.0, 4.0, -200.0]

    experts, weights, shared_gate = route(router, 4)

    np.testing.assert_array_equal(experts, [[0, 1, 2, 3], [2, 5, 7, 0], [0, 1, 2, 3]])
    np.testing.assert_array_equal(weights[[0, 2]], [[0.25] * 4, [1.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(shared_gate, [0.5, 0.5, 0.0], atol=1e-30)


def run(layer: Layer, columns: Columns, some: list[int]) -> Any:
    with CudaBench(nbytes=1 << 27) as bench:
        residual = bench.inout(_words(bench, columns.residual[some]))
        moe.experts(
            bench.ctx,
            bench.in_columns(columns.x[some]),
            *layer.matrices(bench),  # type: ignore[arg-type]  # the same methods
            bench.put(columns.experts[some]),
            bench.put(columns.weights[some]),
            bench.activations(columns.shared[some]),
            bench.put(columns.shared_gate[some]),
            residual,
        )
        bench.check()
        return bench.read_activations(residual)


def _words(bench: CudaBench, values: Any) -> Any:
    return bench.read_tensor(bench.activations(values))


def expected_of(layer: Layer, columns: Columns) -> Any:
    with CudaBench() as bench:
        added = expert_sum(
            bench.rounded(columns.x),
            *layer.values(),
            columns.experts.astype(np.int64),
            columns.weights.astype(np.float64),
            bench.rounded(columns.shared),
            columns.shared_gate.astype(np.float64),
        )
        return bench.rounded(columns.residual) + added


def relative_error(got: Any, exact: Any) -> float:
    return float(np.max(np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)))


@every_format
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (130, 24)])
def test_experts_agree_with_the_formula(format: TensorFormat, hidden: int, width: int) -> None:
    layer = Layer(format, 8, hidden, width)
    columns = Columns(layer, 11, 3)

    out = run(layer, columns, list(range(11)))

    # One rounding of the activation and one of the result: 2^-9 each.
    assert relative_error(out, expected_of(layer, columns)) <= 2.0**-8


@every_format
def test_a_column_does_not_see_its_batch(format: TensorFormat) -> None:
    layer = Layer(format, 8, 64, 32)
    columns = Columns(layer, 9, 2)
    order = [3, 3, 8, 0, 5, 1]

    together = run(layer, columns, list(range(9)))
    moved = run(layer, columns, order)

    np.testing.assert_array_equal(moved, together[order])
    np.testing.assert_array_equal(run(layer, columns, [7])[0], together[7])


@pytest.mark.parametrize("format", [TensorFormat.BF16, TensorFormat.Q4, TensorFormat.Q5])
def test_many_tokens_agree_with_the_formula(format: TensorFormat) -> None:
    layer = Layer(format, 8, 64, 32)
    columns = Columns(layer, 300, 2)

    out = run(layer, columns, list(range(300)))

    assert relative_error(out, expected_of(layer, columns)) <= 2.0**-8
