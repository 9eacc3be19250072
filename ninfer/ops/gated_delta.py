"""Contract of the Gated DeltaNet mixer, with lazily folded state.

    c = silu(causal depthwise convolution of x)         x is the projected [q | k | v] column
    q, k = L2-normalised heads of c, q also / sqrt(Dk) ; v = the rest
    g = -exp(a_log) * softplus(a + dt_bias) ; beta = sigmoid(b)
    S = exp(g) S ; S += k (beta (v - S^T k))^T ; o = S^T q
    out = norm * rms(o) * silu(z)

A decode round leaves matrices and window where the round began and only records its columns; the
*next* call on the slot folds in as many of them as were accepted. Rejecting a round is therefore
fold = 0. Folding is one arithmetic wherever it happens; a prefill may advance by chunks, whose
numbers depend on the call's first column alone and agree with the folded ones to rounding. Slots,
acceptance and round borders are the caller's knowledge. Source: model contract 3.5 and 5.4, way 2.
"""

from dataclasses import dataclass

from ninfer.ops.checks import expect, expect_input, require
from ninfer.ops.context import OpContext
from ninfer.ops.linear_operands import expect_storage
from ninfer.tensor import DType, LinearInput, Tensor

CONV_WIDTH = 4
"""Taps of the convolution; a window holds one column fewer."""


@dataclass(frozen=True, slots=True)
class GatedDeltaDims:
    """Heads of the mixer. Consecutive value heads share a key head."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """All key heads together."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Cv: all value heads together."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """C: channels of the convolution, ``[q | k | v]``."""
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class GatedDeltaWeights:
    """Small weights of the mixer.

    Attributes:
        convolution: [4, C] BF16, tap-major, tap 3 is applied to the newest column.
        a_log, dt_bias: [Hv] F32.
        norm: [Dv] BF16, plain (not zero-centred).
    """

    convolution: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True)
class GatedDeltaState:
    """State of one layer, one slot for each sequence, and the records of unfolded columns.

    Attributes:
        matrices: [slots, Hv, Dk, Dv] F32.
        window: [slots, 3, C] activation type, last convolution inputs, oldest first.
        record_x: [slots, R, C] activation type, convolution inputs.
        record_k: [slots, R, Hk * Dk] F32, normalised keys.
        record_v: [slots, R, Hv * Dv] F32.
        record_g, record_beta: [slots, R, Hv] F32.
    """

    matrices: Tensor
    window: Tensor
    record_x: Tensor
    record_k: Tensor
    record_v: Tensor
    record_g: Tensor
    record_beta: Tensor


def decode(
    ctx: OpContext,
    projected: Tensor,
    ab: Tensor,
    weights: GatedDeltaWeights,
    dims: GatedDeltaDims,
    state: GatedDeltaState,
    slots: Tensor,
    fold: Tensor,
    eps: float,
    out: LinearInput,
) -> None:
    """Fold each row's accepted columns, compute one column of each row and record it.

    Args:
        ctx: where to run.
        projected: [B, C + Cv] activation type; columns ``[q | k | v | z]``.
        ab: [B, 2Hv] activation type or F32; decay inputs a, then b.
        weights: the layer's small weights.
        dims: heads.
        state: the layer's state.
        slots: [B] I32, distinct.
        fold: [B] I32 in 0..R, leading recorded columns to fold first.
        eps: epsilon of the output norm.
        out: B columns of Cv features, output.

    Writes: ``out``; in the named slots: matrices and window advanced by ``fold`` columns, record 0.

    Raises:
        ShapeError: an operand differs from the above.
    """
    require(len(slots.shape) == 1, f"slots: shape {slots.shape}, expected one axis")
    num_rows = slots.shape[0]
    expect("slots", slots, (num_rows,), DType.I32)
    expect("fold", fold, (num_rows,), DType.I32)
    _check(num_rows, projected, ab, weights, dims, state, out, ctx)
    ctx.kernels.gated_delta.decode(
        ctx.stream, projected, ab, weights, dims, state, slots, fold, eps, out
    )


def prefill(
    ctx: OpContext,
    projected: Tensor,
    ab: Tensor,
    weights: GatedDeltaWeights,
    dims: GatedDeltaDims,
    state: GatedDeltaState,
    slot: Tensor,
    fold: Tensor,
    eps: float,
    out: LinearInput,
) -> None:
    """Fold a slot's accepted columns, then advance it over a chunk of its sequence.

    Args:
        ctx: where to run.
        projected: [T, C + Cv] activation type; columns ``[q | k | v | z]``, T consecutive tokens;
            with T = 0 the call only folds.
        ab: [T, 2Hv] activation type or F32; decay inputs a, then b.
        weights: the layer's small weights.
        dims: heads.
        state: the layer's state.
        slot: [1] I32.
        fold: [1] I32 in 0..R, leading recorded columns to fold first.
        eps: epsilon of the output norm.
        out: T columns of Cv features, output.

    Writes: ``out``; in the slot: matrices and window advanced by ``fold + T`` columns. Records are
    left alone and are void: the next call on the slot passes fold = 0.

    Raises:
        ShapeError: an operand differs from the above.
    """
    require(len(projected.shape) == 2, f"projected: shape {projected.shape}, expected two axes")
    expect("slot", slot, (1,), DType.I32)
    expect("fold", fold, (1,), DType.I32)
    _check(projected.shape[0], projected, ab, weights, dims, state, out, ctx)
    ctx.kernels.gated_delta.prefill(
        ctx.stream, projected, ab, weights, dims, state, slot, fold, eps, out
    )


def _check(
    num_columns: int,
    projected: Tensor,
    ab: Tensor,
    weights: GatedDeltaWeights,
    dims: GatedDeltaDims,
    state: GatedDeltaState,
    out: LinearInput,
    ctx: OpContext,
) -> None:
    """Require the operands to agree with the dimensions."""
    act = ctx.device.activation_dtype
    heads, key_dim, value_dim = dims.num_value_heads, dims.key_dim, dims.value_dim
    require(heads % dims.num_key_heads == 0, "value heads are no multiple of key heads")
    expect("projected", projected, (num_columns, dims.channels + dims.value_width), act)
    expect("ab", ab, (num_columns, 2 * heads), act, DType.F32)
    expect_input("out", out, num_columns, dims.value_width)
    expect_storage(ctx, "out", out)
    expect("convolution", weights.convolution, (CONV_WIDTH, dims.channels), DType.BF16)
    expect("a_log", weights.a_log, (heads,), DType.F32)
    expect("dt_bias", weights.dt_bias, (heads,), DType.F32)
    expect("norm", weights.norm, (value_dim,), DType.BF16)
    require(len(state.record_x.shape) == 3, "record_x: expected three axes")
    slots, columns = state.record_x.shape[:2]
    require(columns >= 1, "records: no column")
    expect("matrices", state.matrices, (slots, heads, key_dim, value_dim), DType.F32)
    expect("window", state.window, (slots, CONV_WIDTH - 1, dims.channels), act)
    expect("record_x", state.record_x, (slots, columns, dims.channels), act)
    expect("record_k", state.record_k, (slots, columns, dims.key_width), DType.F32)
    expect("record_v", state.record_v, (slots, columns, dims.value_width), DType.F32)
    expect("record_g", state.record_g, (slots, columns, heads), DType.F32)
    expect("record_beta", state.record_beta, (slots, columns, heads), DType.F32)
