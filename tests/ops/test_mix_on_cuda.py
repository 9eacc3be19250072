"""A whole mixture on a CUDA device: against the formula, and bit for bit against its parts."""

from typing import Any, cast

import numpy as np
import pytest

from ninfer.ops import linear, moe
from ninfer.ops.moe import MixtureTensors, MixtureWeights
from ninfer.tensor import DType, Matrix, TensorFormat
from tests.ops.test_moe import payload
from tests.ops.test_moe_on_cuda import MixedLayer, relative_error
from tests.support.cuda_bench import CudaBench
from tests.support.oracles.linear import weight_values
from tests.support.oracles.moe import expert_sum
from tests.support.oracles.moe import route as oracle_route
from tests.support.oracles.pointwise import swiglu as swiglu_oracle

pytestmark = pytest.mark.gpu
Q4, Q5, Q6, W8 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6, TensorFormat.W8
BF16 = TensorFormat.BF16


DISTINCT = 16


class CopiedLayer(MixedLayer):
    """As many experts as a model has, each a copy of one of a few, by chance."""

    def __init__(self, format: TensorFormat, down: TensorFormat, *sizes: int) -> None:
        num_experts, *shape = sizes
        super().__init__(format, down, min(DISTINCT, num_experts), *shape)
        copies = np.arange(num_experts)
        copies[DISTINCT:] = np.random.default_rng(9).integers(0, DISTINCT, num_experts)[DISTINCT:]
        self.copies = copies

    def matrices(self, bench: Any) -> tuple[Matrix, Matrix]:
        return (
            self._copied(bench, self.format, self.gate_up, self.gate_up_shape),
            self._copied(bench, self.down_format, self.down, self.down_shape),
        )

    def _copied(
        self, bench: Any, format: TensorFormat, payload: Any, shape: tuple[int, int]
    ) -> Matrix:
        from ninfer.kernels.cuda.weight_layout import pack_weight

        if len(self.copies) == self.num_experts:
            return cast(Matrix, bench.matrix(format, payload, *shape))
        # Row tiles follow one another, so those of an expert are a piece of the storage.
        packed = pack_weight(format, payload, *shape).reshape(self.num_experts, -1)
        rows = shape[0] // self.num_experts * len(self.copies)
        storage = bench.put(packed[self.copies].reshape(-1))
        return Matrix(format, storage, rows, shape[1], 0, rows)


class Mixture:
    """A layer with its shared expert, and the inputs of some tokens."""

    def __init__(
        self,
        formats: tuple[TensorFormat, TensorFormat, TensorFormat],
        num_experts: int,
        hidden: int,
        width: int,
        chosen: int,
        num_tokens: int,
    ) -> None:
        self.layer = CopiedLayer(formats[0], formats[1], num_experts, hidden, width)
        rng = np.random.default_rng(8)
        self.shared_format, self.shape, self.chosen = formats[2], (hidden, width), chosen
        self.shared_down = payload(formats[2], rng.normal(0, width**-0.5, self.shape))
        self.x = rng.normal(0, 1, (num_tokens, hidden)).astype(np.float32)
        self.router = rng.normal(0, 2, (num_tokens, num_experts + 1)).astype(np.float32)
        self.gate_up = rng.normal(0, 1, (num_tokens, 2 * width)).astype(np.float32)
        self.residual = rng.normal(0, 1, (num_tokens, hidden)).astype(np.float32)

    def run(self, some: list[int], *, in_parts: bool = False) -> Any:
        with CudaBench(nbytes=1 << 30) as bench:
            hidden, width = self.shape
            count = len(some)
            between = MixtureTensors(
                bench.out((count, self.chosen), DType.I32),
                bench.out((count, self.chosen)),
                bench.out((count,)),
                bench.out_columns(count, width),
                bench.out_activations((count, hidden)),
            )
            down = bench.matrix(self.shared_format, self.shared_down, *self.shape)
            weights = MixtureWeights(*self.layer.matrices(bench), down)
            x, router = bench.in_columns(self.x[some]), bench.put(self.router[some])
            gate_up = bench.activations(self.gate_up[some])
            residual = bench.inout(bench.read_tensor(bench.activations(self.residual[some])))
            if in_parts:
                ranked = (between.experts, between.weights)
                gate = between.shared_gate
                moe.route_and_gate(bench.ctx, router, gate_up, *ranked, gate, between.hidden)
                linear.project(bench.ctx, between.hidden, down, between.shared)
                both = (weights.gate_up, weights.down)
                moe.experts(bench.ctx, x, *both, *ranked, between.shared, gate, residual)
            else:
                moe.mix(bench.ctx, x, router, gate_up, weights, between, residual)
            bench.check()
            return bench.read_activations(residual)

    def exact(self) -> Any:
        with CudaBench() as bench:
            experts, weights, shared_gate = oracle_route(
                self.router.astype(np.float64), self.chosen
            )
            down = weight_values(self.shared_format, self.shared_down, *self.shape)
            shared = swiglu_oracle(bench.rounded(self.gate_up)) @ down.T
            values = self.layer.values()
            x = bench.rounded(self.x)
            added = expert_sum(x, *values, self.layer.copies[experts], weights, shared, shared_gate)
            return bench.rounded(self.residual) + added


@pytest.mark.parametrize("num_experts", [16, 256])
@pytest.mark.parametrize("down", [Q5, Q6], ids=["Q5", "Q6"])
def test_published_geometry_agrees_with_the_formula_and_with_its_parts(
    down: TensorFormat, num_experts: int
) -> None:
    mixture = Mixture((Q4, down, W8), num_experts, 2048, 512, 8, 8)

    together = mixture.run(list(range(8)))

    assert relative_error(together, mixture.exact()) <= 2.0**-7
    np.testing.assert_array_equal(mixture.run(list(range(8)), in_parts=True), together)
    for some in ([5], [2, 0], [4, 1, 7]):
        np.testing.assert_array_equal(mixture.run(some), together[some])


def test_tokens_that_rank_alike_share_their_experts() -> None:
    mixture = Mixture((Q4, Q5, W8), 16, 2048, 512, 8, 8)
    mixture.router[:] = mixture.router[0]
    mixture.router[5, :16] = 0.0
    mixture.router[6, :16] = [*[-200.0] * 10, 3e38, *[-300.0] * 5]

    for some in ([5, 1, 6, 3], list(range(8))):
        out = mixture.run(some)
        np.testing.assert_array_equal(out, mixture.run(some, in_parts=True))


@pytest.mark.parametrize(
    "formats",
    [(Q4, Q5, W8), (Q4, Q6, W8), (Q4, Q4, W8), (BF16, BF16, BF16)],
    ids=lambda formats: "-".join(format.name for format in formats),
)
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 8, 20, 130])
def test_every_count_of_tokens_has_the_bits_of_its_parts(
    formats: tuple[TensorFormat, TensorFormat, TensorFormat], num_tokens: int
) -> None:
    mixture = Mixture(formats, 8, 64, 32, 2, num_tokens)
    every = list(range(num_tokens))

    out = mixture.run(every)

    np.testing.assert_array_equal(out, mixture.run(every, in_parts=True))
    assert relative_error(out, mixture.exact()) <= 2.0**-7


@pytest.mark.parametrize("token", [0, 1])
def test_equal_and_huge_logits_are_ranked_as_everywhere(token: int) -> None:
    mixture = Mixture((Q4, Q5, W8), 8, 64, 32, 2, 2)
    mixture.router[0] = 0.0
    mixture.router[1] = [3e38, -3e38, 0.0, -3e38, 1.0, 2.0, 3.0, 4.0, -200.0]

    out = mixture.run([token])

    np.testing.assert_array_equal(out, mixture.run([token], in_parts=True))
