"""Operand checks shared by every op family.

An operand of the wrong extent or type is our own mistake, never a caller's input, hence
`ShapeError`. The checks look at descriptors only and never at memory.
"""

from ninfer.errors import ShapeError
from ninfer.tensor import DType, LinearInput, Shape, Tensor


def expect(name: str, tensor: Tensor, shape: Shape, *dtypes: DType) -> None:
    """Require a shape and one of the given element types.

    Args:
        name: operand name for the message.
        tensor: the operand.
        shape: the exact extents.
        dtypes: admissible element types, at least one.

    Raises:
        ShapeError: the operand differs.
    """
    if tensor.shape != shape:
        raise ShapeError(f"{name}: shape {tensor.shape}, expected {shape}")
    if tensor.dtype not in dtypes:
        names = "/".join(dtype.name for dtype in dtypes)
        raise ShapeError(f"{name}: {tensor.dtype.name}, expected {names}")


def expect_input(name: str, block: LinearInput, num_columns: int, width: int) -> None:
    """Require a linear input of ``num_columns`` columns of ``width`` features.

    Raises:
        ShapeError: the block differs.
    """
    if (block.num_columns, block.width) != (num_columns, width):
        raise ShapeError(
            f"{name}: {block.num_columns} columns of {block.width}, "
            f"expected {num_columns} of {width}"
        )


def require(condition: bool, message: str) -> None:
    """Require a relation between extents.

    Raises:
        ShapeError: it does not hold.
    """
    if not condition:
        raise ShapeError(message)
