"""Checks of linear inputs and stored weights, for every op that takes them.

Their sizes in bytes are the kernel table's choice, so that these checks, unlike those of `checks`,
need a context.
"""

from ninfer.errors import ShapeError
from ninfer.ops.checks import expect, require
from ninfer.ops.context import OpContext
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat

WEIGHT_FORMATS = (
    TensorFormat.BF16,
    TensorFormat.Q4,
    TensorFormat.Q5,
    TensorFormat.Q6,
    TensorFormat.W8,
)


def expect_format(format: TensorFormat) -> None:
    """Require a format that linear kernels read.

    Raises:
        ShapeError: it is another one.
    """
    if format not in WEIGHT_FORMATS:
        raise ShapeError(f"{format.name} is not a linear weight format")


def expect_storage(ctx: OpContext, name: str, block: LinearInput) -> None:
    """Require a linear input whose storage has the size its device asks for.

    Raises:
        ShapeError: it has not.
    """
    expect(
        name,
        block.storage,
        (int(ctx.kernels.linear.input_bytes(block.num_columns, block.width)),),
        DType.U8,
    )


def expect_weight(ctx: OpContext, name: str, weight: Matrix, width: int) -> None:
    """Require a matrix of ``width`` columns in a linear format, with storage of the right size.

    Raises:
        ShapeError: it is another matrix.
    """
    require(weight.num_columns == width, f"{name}: {weight.num_columns} columns, expected {width}")
    expect_format(weight.format)
    shape = (weight.parent_rows, weight.num_columns)
    nbytes = int(ctx.kernels.linear.resident_bytes(weight.format, *shape))
    expect(name, weight.storage, (nbytes,), DType.U8)


def expect_product(
    ctx: OpContext, x: LinearInput, weight: Matrix, out: Tensor, first_column: int
) -> None:
    """Require a weight for these columns, and an output with room for its rows.

    Raises:
        ShapeError: they do not fit each other.
    """
    expect_weight(ctx, "weight", weight, x.width)
    require(len(out.shape) == 2, f"out: shape {out.shape}, expected two axes")
    width = out.shape[1]
    expect("out", out, (x.num_columns, width), ctx.device.activation_dtype, DType.F32)
    require(
        0 <= first_column <= width - weight.num_rows,
        f"out: {weight.num_rows} rows at column {first_column} of {width}",
    )
