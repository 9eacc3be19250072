"""Contract of linear products: activation columns times stored weight rows.

    out[t, first_column + n] = sum over k of weight[n, k] * x[t, k]

Weights stay in their stored format (BF16, Q4, Q5, Q6, W8); values are f32(scale) * f32(code) and
sums are binary32. The order of a sum depends on (format, N, K) only: a column does not change with
the number of other columns, nor a row with the view it is computed through. Calls of more than 128
columns, which only prefill makes, may have an arithmetic of their own with the same properties, and
round values once to the activation type before they are multiplied. What a linear input or a
resident matrix looks like in memory is the kernel table's business.
"""

from collections.abc import Sequence

from ninfer.ops.checks import expect, require
from ninfer.ops.context import OpContext
from ninfer.ops.linear_operands import expect_format, expect_product
from ninfer.ops.linear_operands import expect_storage as expect_storage
from ninfer.ops.linear_operands import expect_weight as expect_weight
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat


def input_bytes(ctx: OpContext, num_columns: int, width: int) -> int:
    """Return the storage of a linear input of ``num_columns`` columns, in bytes."""
    return int(ctx.kernels.linear.input_bytes(num_columns, width))


def resident_bytes(ctx: OpContext, format: TensorFormat, num_rows: int, num_columns: int) -> int:
    """Return the device bytes of a whole matrix ``[num_rows, num_columns]``.

    Raises:
        ShapeError: linear kernels do not read the format.
    """
    expect_format(format)
    return int(ctx.kernels.linear.resident_bytes(format, num_rows, num_columns))


def make_resident(ctx: OpContext, encoded: Tensor, matrix: Matrix) -> None:
    """Bring a whole matrix from its file encoding into the device's residency.

    Args:
        ctx: where to run.
        encoded: flat U8 on the device, the payload as stored in the artifact.
        matrix: all rows of a parent; its storage is written.

    Raises:
        ShapeError: an operand differs from the above.
    """
    require(
        matrix.first_row == 0 and matrix.num_rows == matrix.parent_rows,
        f"matrix: rows [{matrix.first_row}, +{matrix.num_rows}) of {matrix.parent_rows}, not all",
    )
    expect_weight(ctx, "matrix", matrix, matrix.num_columns)
    expect("encoded", encoded, (encoded.size,), DType.U8)
    ctx.kernels.linear.make_resident(ctx.stream, encoded, matrix)


def pack(ctx: OpContext, x: Tensor, out: LinearInput) -> None:
    """Turn plain columns into a linear input.

    Args:
        ctx: where to run.
        x: [T, K] activation type or F32.
        out: T columns of K features, written.

    Raises:
        ShapeError: an operand differs from the above.
    """
    expect("x", x, (out.num_columns, out.width), ctx.device.activation_dtype, DType.F32)
    expect_storage(ctx, "out", out)
    ctx.kernels.linear.pack(ctx.stream, x, out)


def project(
    ctx: OpContext, x: LinearInput, weight: Matrix, out: Tensor, first_column: int = 0
) -> None:
    """Multiply T columns with N weight rows into a column range of ``out``.

    Args:
        ctx: where to run.
        x: T columns of K features.
        weight: [N, K].
        out: [T, W] activation type or F32; columns ``[first_column, first_column + N)`` written.
        first_column: where the first row's products go.

    Raises:
        ShapeError: an operand differs from the above.
    """
    expect_storage(ctx, "x", x)
    expect_product(ctx, x, weight, out, first_column)
    ctx.kernels.linear.project(ctx.stream, x, weight, out, first_column)


def project_all(
    ctx: OpContext, x: LinearInput, products: Sequence[tuple[Matrix, Tensor, int]]
) -> None:
    """Multiply T columns with several weights, as so many calls of `project` would, bit for bit.

    Args:
        ctx: where to run.
        x: T columns of K features.
        products: weight, output and first column of each, as `project` takes them; the column
            ranges that are written do not overlap.

    Raises:
        ShapeError: an operand differs from the above.
    """
    expect_storage(ctx, "x", x)
    for weight, out, first_column in products:
        expect_product(ctx, x, weight, out, first_column)
    ctx.kernels.linear.project_all(ctx.stream, x, products)


def gates_at_once(ctx: OpContext, num_columns: int, gate_up: Matrix) -> bool:
    """Whether `project_gated` of so many columns leaves ``between`` alone."""
    return bool(ctx.kernels.linear.gates_at_once(ctx.stream, num_columns, gate_up))


def project_gated(
    ctx: OpContext, x: LinearInput, gate_up: Matrix, between: Tensor, out: LinearInput
) -> None:
    """Gate the products of T columns: `project`, then `pointwise.swiglu`, bit for bit.

    Args:
        ctx: where to run.
        x: T columns of K features.
        gate_up: [2I, K], the rows of the gates first.
        between: [T, 2I] activation type, for products on their way; it may have no rows where
            `gates_at_once`.
        out: T columns of I features, written whole.

    Raises:
        ShapeError: an operand differs from the above.
    """
    expect_storage(ctx, "x", x)
    expect_weight(ctx, "gate_up", gate_up, x.width)
    expect_storage(ctx, "out", out)
    shape = (x.num_columns, gate_up.num_rows)
    require(
        shape == (out.num_columns, 2 * out.width),
        f"out: [{out.num_columns}, {out.width}] of products {list(shape)}",
    )
    if between.shape[0] == 0 and gates_at_once(ctx, x.num_columns, gate_up):
        shape = 0, gate_up.num_rows
    expect("between", between, shape, ctx.device.activation_dtype)
    ctx.kernels.linear.project_gated(ctx.stream, x, gate_up, between, out)


def project_add(ctx: OpContext, x: LinearInput, weight: Matrix, residual: Tensor) -> None:
    """Add the products of T columns with N weight rows to the residual stream.

    Args:
        ctx: where to run.
        x: T columns of K features.
        weight: [N, K].
        residual: [T, N] activation type; each element is read, added to once, and written.

    Raises:
        ShapeError: an operand differs from the above.
    """
    expect_storage(ctx, "x", x)
    expect_weight(ctx, "weight", weight, x.width)
    shape = (x.num_columns, weight.num_rows)
    expect("residual", residual, shape, ctx.device.activation_dtype)
    ctx.kernels.linear.project_add(ctx.stream, x, weight, residual)
