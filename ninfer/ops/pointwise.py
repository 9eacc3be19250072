"""Contract of the gated activation of the feed-forward layers.

    out[t, i] = silu(gate_up[t, i]) * gate_up[t, I + i]        silu(g) = g / (1 + exp(-g))

The result goes straight into a linear input. Elements are independent of one another. Source: model
contract 3.7.
"""

from ninfer.ops.checks import expect
from ninfer.ops.context import OpContext
from ninfer.ops.linear_operands import expect_storage
from ninfer.tensor import LinearInput, Tensor


def swiglu(ctx: OpContext, gate_up: Tensor, out: LinearInput) -> None:
    """Gate the second half of each column by the SiLU of the first half.

    Args:
        ctx: where to run.
        gate_up: [T, 2I] activation type.
        out: T columns of I features, written whole.

    Raises:
        ShapeError: an operand differs from the above.
    """
    shape = (out.num_columns, 2 * out.width)
    expect("gate_up", gate_up, shape, ctx.device.activation_dtype)
    expect_storage(ctx, "out", out)
    ctx.kernels.pointwise.swiglu(ctx.stream, gate_up, out)
