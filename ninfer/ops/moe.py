"""Contract of the mixture-of-experts FFN: routing, and the routed experts with their sum.

    p = softmax(router) over all experts ; e = top-k of p ; w = p_e / sum(p_e)
    residual += sum_i w_i * down_e(silu(g) * u), [g | u] = gate_up_e x ; += sigmoid(s) * shared

`mix` is all of it behind the projections of the router and of the shared expert; the other three
are its parts.

Experts are added in the order of the router's ranking, one after another, so that a column's sum
does not depend on which other columns chose the same expert. The shared expert's own projections
are plain linear ops of the caller. Source: model contract 3.6.
"""

from dataclasses import dataclass

from ninfer.ops.checks import expect, expect_input, require
from ninfer.ops.context import OpContext
from ninfer.ops.linear_operands import expect_storage, expect_weight
from ninfer.tensor import DType, LinearInput, Matrix, Tensor


@dataclass(frozen=True, slots=True)
class MixtureWeights:
    """Weights of `mix`.

    Attributes:
        gate_up: [E * 2I, H], expert-major; of each expert I gate rows, then I up rows.
        down: [E * H, I], expert-major.
        shared_down: [H, S], of the shared expert.
    """

    gate_up: Matrix
    down: Matrix
    shared_down: Matrix


@dataclass(frozen=True, slots=True)
class MixtureTensors:
    """Room for what lies between the launches of `mix`; what it holds afterwards is undefined.

    Attributes:
        experts: [T, k] I32.
        weights: [T, k] F32.
        shared_gate: [T] F32.
        hidden: T columns of S features.
        shared: [T, H] activation type.
    """

    experts: Tensor
    weights: Tensor
    shared_gate: Tensor
    hidden: LinearInput
    shared: Tensor


def mix(
    ctx: OpContext,
    x: LinearInput,
    router: Tensor,
    shared_gate_up: Tensor,
    weights: MixtureWeights,
    between: MixtureTensors,
    residual: Tensor,
) -> None:
    """`route_and_gate`, the shared expert's down projection and `experts`, with their bits.

    A device may do it in fewer steps.

    Args:
        ctx: where to run.
        x: T columns of H features.
        router: [T, E + 1] F32 logits; the last column is the shared expert's gate.
        shared_gate_up: [T, 2S] activation type, the shared expert's projections.
        weights: of the routed experts, and the shared expert's last.
        between: room; how many experts a column has is said by its shapes.
        residual: [T, H] activation type, added to.

    Raises:
        ShapeError: an operand differs from the above.
    """
    _expect_route(router, between.experts, between.weights, between.shared_gate)
    _expect_gated(shared_gate_up, between.hidden, router.shape[0], ctx)
    hidden = weights.gate_up.num_columns
    expect_weight(ctx, "shared_down", weights.shared_down, between.hidden.width)
    require(
        weights.shared_down.num_rows == hidden,
        f"shared_down: {weights.shared_down.num_rows} rows, expected {hidden}",
    )
    num_experts = router.shape[1] - 1
    require(
        weights.down.num_rows == num_experts * hidden,
        f"down: {weights.down.num_rows} rows for {num_experts} experts of {hidden}",
    )
    ranked = (between.experts, between.weights)
    shared = (between.shared, between.shared_gate)
    _expect_experts(x, weights.gate_up, weights.down, *ranked, *shared, residual, ctx)
    ctx.kernels.moe.mix(ctx.stream, x, router, shared_gate_up, weights, between, residual)


def route(
    ctx: OpContext, router: Tensor, experts: Tensor, weights: Tensor, shared_gate: Tensor
) -> None:
    """Choose the experts of each column, best first; equal probabilities: lower index first.

    Args:
        ctx: where to run.
        router: [T, E + 1] F32 logits; the last column is the shared expert's gate.
        experts: [T, k] I32, output.
        weights: [T, k] F32, output; renormalised over the chosen.
        shared_gate: [T] F32, output; sigmoid of the last column.

    Raises:
        ShapeError: an operand differs from the above.
    """
    _expect_route(router, experts, weights, shared_gate)
    ctx.kernels.moe.route(ctx.stream, router, experts, weights, shared_gate)


def route_and_gate(
    ctx: OpContext,
    router: Tensor,
    gate_up: Tensor,
    experts: Tensor,
    weights: Tensor,
    shared_gate: Tensor,
    hidden: LinearInput,
) -> None:
    """`route`, and `pointwise.swiglu` of the shared expert; a device may do both at once.

    Args:
        ctx: where to run.
        router: [T, E + 1] F32 logits; the last column is the shared expert's gate.
        gate_up: [T, 2I] activation type, the shared expert's projections.
        experts: [T, k] I32, output.
        weights: [T, k] F32, output; renormalised over the chosen.
        shared_gate: [T] F32, output; sigmoid of the last column.
        hidden: T columns of I features, written whole.

    Raises:
        ShapeError: an operand differs from the above.
    """
    _expect_route(router, experts, weights, shared_gate)
    _expect_gated(gate_up, hidden, router.shape[0], ctx)
    ctx.kernels.moe.route_and_gate(
        ctx.stream, router, gate_up, experts, weights, shared_gate, hidden
    )


def experts(
    ctx: OpContext,
    x: LinearInput,
    gate_up: Matrix,
    down: Matrix,
    experts: Tensor,
    weights: Tensor,
    shared: Tensor,
    shared_gate: Tensor,
    residual: Tensor,
) -> None:
    """Add the routed experts and the gated shared expert to the residual stream.

    Args:
        ctx: where to run.
        x: T columns of H features.
        gate_up: [E * 2I, H], expert-major; of each expert I gate rows, then I up rows.
        down: [E * H, I], expert-major.
        experts: [T, k] I32 from `route`.
        weights: [T, k] F32 from `route`.
        shared: [T, H] activation type, output of the shared expert.
        shared_gate: [T] F32 from `route`.
        residual: [T, H] activation type, added to.

    Raises:
        ShapeError: an operand differs from the above.
    """
    _expect_experts(x, gate_up, down, experts, weights, shared, shared_gate, residual, ctx)
    ctx.kernels.moe.experts(
        ctx.stream, x, gate_up, down, experts, weights, shared, shared_gate, residual
    )


def _expect_route(router: Tensor, experts: Tensor, weights: Tensor, shared_gate: Tensor) -> None:
    require(len(router.shape) == 2, f"router: shape {router.shape}, expected two axes")
    require(len(experts.shape) == 2, f"experts: shape {experts.shape}, expected two axes")
    num_tokens, chosen = router.shape[0], experts.shape[1]
    require(1 <= chosen <= router.shape[1] - 1, f"experts: {chosen} of {router.shape[1] - 1}")
    expect("router", router, router.shape, DType.F32)
    expect("experts", experts, (num_tokens, chosen), DType.I32)
    expect("weights", weights, (num_tokens, chosen), DType.F32)
    expect("shared_gate", shared_gate, (num_tokens,), DType.F32)


def _expect_gated(gate_up: Tensor, hidden: LinearInput, num_tokens: int, ctx: OpContext) -> None:
    expect_input("hidden", hidden, num_tokens, hidden.width)
    expect("gate_up", gate_up, (num_tokens, 2 * hidden.width), ctx.device.activation_dtype)
    expect_storage(ctx, "hidden", hidden)


def _expect_experts(
    x: LinearInput,
    gate_up: Matrix,
    down: Matrix,
    experts: Tensor,
    weights: Tensor,
    shared: Tensor,
    shared_gate: Tensor,
    residual: Tensor,
    ctx: OpContext,
) -> None:
    act = ctx.device.activation_dtype
    require(len(experts.shape) == 2, f"experts: shape {experts.shape}, expected two axes")
    num_tokens, chosen = experts.shape
    hidden, width = gate_up.num_columns, down.num_columns
    expect_input("x", x, num_tokens, hidden)
    expect_storage(ctx, "x", x)
    expect_weight(ctx, "gate_up", gate_up, hidden)
    expect_weight(ctx, "down", down, width)
    num_experts, rest = divmod(down.num_rows, hidden)
    require(rest == 0, f"down: {down.num_rows} rows are no experts of {hidden}")
    require(
        gate_up.num_rows == num_experts * 2 * width,
        f"gate_up: {gate_up.num_rows} rows, expected {num_experts} experts of {2 * width}",
    )
    require(1 <= chosen <= num_experts, f"experts: {chosen} of {num_experts}")
    expect("experts", experts, (num_tokens, chosen), DType.I32)
    expect("weights", weights, (num_tokens, chosen), DType.F32)
    expect("shared", shared, (num_tokens, hidden), act)
    expect("shared_gate", shared_gate, (num_tokens,), DType.F32)
    expect("residual", residual, (num_tokens, hidden), act)
