"""Tensors: typed views of memory somebody else owns.

A `Tensor` is an address, a type and a shape, always contiguous in row-major order; it says nothing
about which device the address belongs to and never frees. A `Matrix` is a stored weight in one of
the artifact's formats, in the residency its device chose. `LinearInput` is a block of activation
columns in the order that a device's linear kernels read.
"""

import enum
import math
from dataclasses import dataclass
from typing import Self

from ninfer.errors import ShapeError

Shape = tuple[int, ...]


class DType(enum.Enum):
    """Element types; the value is the NumPy spelling, bf16 being kept as its 16-bit words."""

    F32 = "f4"
    F16 = "f2"
    BF16 = "u2"
    I64 = "i8"
    I32 = "i4"
    U32 = "u4"
    I8 = "i1"
    U8 = "u1"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(self.value[1])


class TensorFormat(enum.Enum):
    """Stored formats; the value is the artifact's spelling."""

    BF16 = "BF16"
    FP32 = "FP32"
    I32 = "I32"
    Q4 = "Q4G64_F16S"
    Q5 = "Q5G64_F16S"
    Q6 = "Q6G64_F16S"
    W8 = "W8G32_F16S"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A contiguous row-major view.

    Attributes:
        address: first byte; on the device the owning arena belongs to.
        dtype: element type.
        shape: extents, last one fastest.
    """

    address: int
    dtype: DType
    shape: Shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes covered."""
        return self.size * self.dtype.itemsize

    def rows(self, first: int, count: int) -> Self:
        """View ``[first, first + count)`` of the leading axis.

        Raises:
            ShapeError: the range leaves the axis.
        """
        if not (first >= 0 and count >= 0 and first + count <= self.shape[0]):
            raise ShapeError(f"rows [{first}, {first + count}) leave an axis of {self.shape[0]}")
        step = self.nbytes // self.shape[0] if self.shape[0] else 0
        return type(self)(self.address + first * step, self.dtype, (count, *self.shape[1:]))

    def reshape(self, *shape: int) -> Self:
        """View the same elements under another shape.

        Raises:
            ShapeError: the number of elements differs.
        """
        if math.prod(shape) != self.size:
            raise ShapeError(f"{self.shape} cannot be viewed as {shape}")
        return type(self)(self.address, self.dtype, shape)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight ``[num_rows, num_columns]``: a row range of a stored parent.

    Attributes:
        format: stored format.
        storage: the parent's bytes in the residency of its device (flat U8).
        parent_rows: rows of the parent.
        num_columns: columns K, before any padding.
        first_row: first row of this view in the parent.
        num_rows: rows of this view.
    """

    format: TensorFormat
    storage: Tensor
    parent_rows: int
    num_columns: int
    first_row: int
    num_rows: int

    def rows(self, first: int, count: int) -> Self:
        """View ``[first, first + count)`` of this view's rows."""
        if not (first >= 0 and count > 0 and first + count <= self.num_rows):
            raise ShapeError(f"rows [{first}, {first + count}) leave a matrix of {self.num_rows}")
        return type(self)(
            self.format,
            self.storage,
            self.parent_rows,
            self.num_columns,
            self.first_row + first,
            count,
        )


@dataclass(frozen=True, slots=True)
class LinearInput:
    """Activation columns as linear kernels read them; only ops write or read the storage.

    Attributes:
        storage: flat U8, ``ops.linear.input_bytes`` long.
        num_columns: tokens T.
        width: features K of each column.
    """

    storage: Tensor
    num_columns: int
    width: int
