"""Contract of the embedding lookup: rows of a stored table as the start of the residual stream.

    out[t, :] = table[tokens[t], :]

Every stored format that linear products read is read here too, because a tied table is the output
head as well. Source: model contract 3.2; there is no scaling.
"""

from ninfer.ops.checks import expect
from ninfer.ops.context import OpContext
from ninfer.ops.linear_operands import expect_weight
from ninfer.tensor import DType, Matrix, Tensor


def gather(ctx: OpContext, table: Matrix, tokens: Tensor, out: Tensor) -> None:
    """Write the decoded table row of each token.

    A token outside the table is a fault of the device, reported by the stream's next
    synchronisation.

    Args:
        ctx: where to run.
        table: [V, H].
        tokens: [T] I32, 0 <= token < V.
        out: [T, H] activation type, written whole.

    Raises:
        ShapeError: an operand differs from the above.
    """
    expect("tokens", tokens, (tokens.size,), DType.I32)
    expect_weight(ctx, "table", table, table.num_columns)
    expect("out", out, (tokens.size, table.num_columns), ctx.device.activation_dtype)
    ctx.kernels.embedding.gather(ctx.stream, table, tokens, out)
