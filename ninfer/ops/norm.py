"""Contract of the offset RMS norm, the norm of every text layer.

    out[t, i] = x[t, i] / sqrt(mean over i of x[t, i]^2 + eps) * (1 + weight[i])

The result goes straight into a linear input, because only projections read it. Columns are
independent of one another. Source: model contract 3.1.
"""

from ninfer.ops.checks import expect, expect_input, require
from ninfer.ops.context import OpContext
from ninfer.ops.linear_operands import expect_storage
from ninfer.tensor import DType, LinearInput, Tensor


def rms_norm(ctx: OpContext, x: Tensor, weight: Tensor, eps: float, out: LinearInput) -> None:
    """Normalise each column by its root mean square.

    Args:
        ctx: where to run.
        x: [T, H] activation type.
        weight: [H] BF16, zero-centred.
        eps: added to the mean square.
        out: T columns of H features, written whole.

    Raises:
        ShapeError: an operand differs from the above.
    """
    require(len(x.shape) == 2, f"x: shape {x.shape}, expected two axes")
    num_tokens, hidden = x.shape
    expect("x", x, (num_tokens, hidden), ctx.device.activation_dtype)
    expect("weight", weight, (hidden,), DType.BF16)
    expect_input("out", out, num_tokens, hidden)
    expect_storage(ctx, "out", out)
    ctx.kernels.norm.rms_norm(ctx.stream, x, weight, eps, out)
