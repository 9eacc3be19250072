"""Mixture of experts on a CUDA device: against the formula, and bit for bit against itself."""

from functools import cached_property
from typing import Any

import numpy as np
import pytest

from ninfer.ops import moe, pointwise
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, Matrix, TensorFormat
from tests.ops.test_moe import Columns, Layer, payload, route_on
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import weight_values
from tests.support.oracles.moe import expert_sum
from tests.support.oracles.moe import route as oracle_route
from tests.support.oracles.pointwise import swiglu as swiglu_oracle

pytestmark = pytest.mark.gpu
every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


def route(router: Any, chosen: int) -> tuple[Any, Any, Any]:
    with CudaBench() as bench:
        return route_on(bench, router, chosen)


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


@pytest.mark.parametrize(
    ("num_experts", "chosen", "width"), [(8, 2, 64), (256, 8, 512), (8, 3, 50)]
)
@pytest.mark.parametrize("num_tokens", [1, 8, 21, 130])
def test_route_and_gate_has_the_bits_of_its_two_halves(
    num_experts: int, chosen: int, width: int, num_tokens: int
) -> None:
    rng = np.random.default_rng(2)
    router = rng.normal(0, 3, (num_tokens, num_experts + 1)).astype(np.float32)
    gate_up = rng.normal(0, 2, (num_tokens, 2 * width))
    experts, weights, shared_gate = route(router, chosen)

    with CudaBench() as bench:
        projected = bench.activations(gate_up)
        alone, hidden = (bench.out_columns(num_tokens, width) for _ in range(2))
        pointwise.swiglu(bench.ctx, projected, alone)
        choices = bench.out((num_tokens, chosen), DType.I32), bench.out((num_tokens, chosen))
        gate = bench.out((num_tokens,))
        moe.route_and_gate(bench.ctx, bench.put(router), projected, *choices, gate, hidden)

        bench.check()
        np.testing.assert_array_equal(bench.read_tensor(choices[0]), experts)
        np.testing.assert_array_equal(bench.read_tensor(choices[1]), weights)
        np.testing.assert_array_equal(bench.read_tensor(gate), shared_gate)
        np.testing.assert_array_equal(bench.read_columns(hidden), bench.read_columns(alone))
        exact = swiglu_oracle(bench.rounded(gate_up))
        np.testing.assert_allclose(bench.read_columns(hidden), exact, rtol=2.0**-8, atol=1e-6)
        np.testing.assert_array_equal(experts, oracle_route(router.astype(np.float64), chosen)[0])


class MixedLayer(Layer):
    """A layer whose second matrix has another format."""

    def __init__(
        self, format: TensorFormat, down: TensorFormat, num_experts: int, hidden: int, width: int
    ) -> None:
        super().__init__(format, num_experts, hidden, width)
        rng = np.random.default_rng(6)
        self.down_format = down
        self.down = payload(down, rng.normal(0, width**-0.5, self.down_shape))

    def matrices(self, bench: Any) -> tuple[Matrix, Matrix]:
        return (
            bench.matrix(self.format, self.gate_up, *self.gate_up_shape),
            bench.matrix(self.down_format, self.down, *self.down_shape),
        )

    def values(self) -> tuple[Any, Any]:
        return self._values

    @cached_property
    def _values(self) -> tuple[Any, Any]:
        gate_up = weight_values(self.format, self.gate_up, *self.gate_up_shape)
        gate_up = gate_up.reshape(self.num_experts, 2 * self.width, self.hidden)
        down = weight_values(self.down_format, self.down, *self.down_shape)
        return gate_up, down.reshape(self.num_experts, self.hidden, self.width)


def run(
    layer: Layer,
    columns: Columns,
    some: list[int],
    narrow_bytes: int | None = None,
    nbytes: int = 1 << 28,
) -> Any:
    with CudaBench(nbytes=nbytes, narrow_bytes=narrow_bytes) as bench:
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


def expected_of(layer: Layer, columns: Columns, *, is_rounded: bool = False) -> Any:
    """The formula in float64; of many tokens the weights may be rounded to bf16 before."""
    with CudaBench() as bench:
        weights = layer.values()
        if is_rounded:
            weights = bench.rounded(weights[0]), bench.rounded(weights[1])
        added = expert_sum(
            bench.rounded(columns.x),
            *weights,
            columns.experts.astype(np.int64),
            columns.weights.astype(np.float64),
            bench.rounded(columns.shared),
            columns.shared_gate.astype(np.float64),
        )
        return bench.rounded(columns.residual) + added


def relative_error(got: Any, exact: Any) -> float:
    return float(np.max(np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)))


def expect_many(out: Any, layer: Layer, columns: Columns) -> None:
    """Roundings of activations, of each expert's result and of the sum; and one of the weights."""
    assert relative_error(out, expected_of(layer, columns, is_rounded=True)) <= 2.0**-8
    assert relative_error(out, expected_of(layer, columns)) <= 3 * 2.0**-9


@every_format
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (272, 48)])
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


@every_format
def test_found_and_listed_columns_have_equal_bits(format: TensorFormat) -> None:
    layer = Layer(format, 8, 64, 32)
    columns = Columns(layer, 120, 2)

    many = run(layer, columns, list(range(120)))
    few = [run(layer, columns, list(range(first, first + 7))) for first in (0, 56, 113)]

    np.testing.assert_array_equal(
        np.concatenate(few), many[[*range(7), *range(56, 63), *range(113, 120)]]
    )


def test_tokens_that_choose_alike_share_an_expert() -> None:
    layer = Layer(TensorFormat.Q4, 8, 64, 32)
    columns = Columns(layer, 24, 2)
    columns.experts[:] = [6, 1]

    out = run(layer, columns, list(range(24)))

    assert relative_error(out, expected_of(layer, columns)) <= 2.0**-8
    for count in (3, 5, 8):
        np.testing.assert_array_equal(run(layer, columns, list(range(count))), out[:count])


@every_format
@pytest.mark.parametrize("num_tokens", [129, 700])
def test_many_tokens_agree_with_the_formula(format: TensorFormat, num_tokens: int) -> None:
    layer = Layer(format, 8, 256, 128)
    columns = Columns(layer, num_tokens, 2)

    out = run(layer, columns, list(range(num_tokens)))

    expect_many(out, layer, columns)


@pytest.mark.parametrize("hidden", [64, 96])
def test_many_tokens_of_narrow_layers_agree_with_the_formula(hidden: int) -> None:
    layer = Layer(TensorFormat.Q4, 8, hidden, 32)
    columns = Columns(layer, 300, 2)

    out = run(layer, columns, list(range(300)))

    assert relative_error(out, expected_of(layer, columns)) <= 2.0**-8


@every_format
def test_a_column_of_many_does_not_see_the_others(format: TensorFormat) -> None:
    layer = Layer(format, 8, 256, 128)
    columns = Columns(layer, 400, 2)

    together = run(layer, columns, list(range(400)))

    np.testing.assert_array_equal(run(layer, columns, list(range(100, 300))), together[100:300])


LOADS = {
    "uneven": [0, 1, 31, 32, 33, 127, 128, 0],
    "many": [1, 0, 63, 81, 129, 385, 0, 65],
    "one": [0, 0, 0, 0, 0, 0, 0, 700],
}
"""Columns of each expert: as many as entries and their instructions have, and one beside it."""


@every_format
@pytest.mark.parametrize(
    ("load", "hidden", "width"),
    [
        *((load, 256, 128) for load in LOADS),
        # K as long as rings, whose columns stay for several rows.
        *(("uneven", 512, width) for width in (256, 384, 512)),
    ],
)
def test_experts_of_any_load_agree_with_the_formula(
    load: str, hidden: int, width: int, format: TensorFormat
) -> None:
    layer = MixedLayer(format, format, 8, hidden, width)
    columns = Columns(layer, sum(LOADS[load]), 1)
    chosen = np.repeat(np.arange(8, dtype=np.int32), LOADS[load])
    columns.experts[:, 0] = np.random.default_rng(7).permutation(chosen)

    expect_many(run(layer, columns, list(range(len(chosen)))), layer, columns)


class RepeatedLayer(MixedLayer):
    """256 experts of which few differ."""

    count = 256

    def matrices(self, bench: Any) -> tuple[Matrix, Matrix]:
        return self._repeated(bench, self.format, self.gate_up, *self.gate_up_shape), (
            self._repeated(bench, self.down_format, self.down, *self.down_shape)
        )

    def _repeated(
        self, bench: Any, format: TensorFormat, payload: Any, rows: int, width: int
    ) -> Matrix:
        from ninfer.kernels.cuda.weight_layout import pack_weight

        each = pack_weight(format, payload, rows, width).reshape(self.num_experts, -1)
        rows = rows // self.num_experts * self.count
        storage = bench.put(each[np.arange(self.count) % self.num_experts].reshape(-1))
        return Matrix(format, storage, rows, width, 0, rows)


def test_published_layer_with_uneven_loads_agrees_with_the_formula() -> None:
    layer = RepeatedLayer(TensorFormat.Q4, TensorFormat.Q5, 5, 2048, 512)

    for num_tokens in (300, 4096):
        columns = Columns(layer, num_tokens, 5)
        rng = np.random.default_rng(3)
        # All choose the last expert; of the others some are chosen often, and 55 never.
        liked = rng.normal(0, 0.7, 200) + rng.gumbel(0, 1, (num_tokens, 200))
        ranked = np.argsort(-liked, axis=1)[:, :7]
        columns.experts = np.insert(ranked, 3, 255, axis=1).astype(np.int32)
        columns.weights = rng.random((num_tokens, 8)).astype(np.float32)

        out = run(layer, columns, list(range(num_tokens)), nbytes=1 << 30)

        some = [0, 1, 127, 128, num_tokens // 2, num_tokens - 1]
        for name in ("x", "experts", "weights", "shared", "shared_gate", "residual"):
            setattr(columns, name, getattr(columns, name)[some])
        columns.experts %= layer.num_experts
        expect_many(out[some], layer, columns)


@pytest.mark.parametrize(
    ("gate_up", "down"),
    [
        (TensorFormat.Q4, TensorFormat.Q5),
        (TensorFormat.Q4, TensorFormat.Q6),
        *((format, format) for format in WEIGHT_FORMATS),
    ],
    ids=lambda format: format.name,
)
def test_published_geometry_agrees_with_the_formula(
    gate_up: TensorFormat, down: TensorFormat
) -> None:
    layer = MixedLayer(gate_up, down, 16, 2048, 512)
    columns = Columns(layer, 130, 8)
    exact = expected_of(layer, columns)

    # Counts that have kernels of their own: one alone, few, several tiles, listed, many.
    listed = run(layer, columns, list(range(40)))
    assert relative_error(listed, exact[:40]) <= 2.0**-8
    for count in (1, 3, 8, 12):
        np.testing.assert_array_equal(run(layer, columns, list(range(count))), listed[:count])
    expect_many(run(layer, columns, list(range(130))), layer, columns)
