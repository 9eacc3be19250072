"""Where the numbers of every stored format lie inside a payload.

*Direct* formats are rows of words without padding. *Grouped* formats store small integer codes with
one binary16 scale for each group of columns, in three planes (row-split layout). Only sizes and
offsets here; this module touches no value. Source: artifact page, sections 5 and 7.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from ninfer.errors import ShapeError
from ninfer.tensor import Shape, TensorFormat

PLANE_ALIGNMENT: Final = 256
"""Planes of a row-split payload start at multiples of this many bytes."""

PADDED_COLUMNS: Final = 128
"""Rows of a row-split payload are padded to a multiple of this many columns."""

BASE_BYTES: Final = 32
"""Base-plane bytes of one group, the same in every grouped format."""


@dataclass(frozen=True, slots=True)
class GroupedCodec:
    """Constants of one grouped format.

    Attributes:
        bits: width of a code.
        group: columns that share one scale.
        code_min: smallest legal code.
        code_max: largest legal code.
        high_bytes: high-plane bytes of one group.
    """

    bits: int
    group: int
    code_min: int
    code_max: int
    high_bytes: int


GROUPED: Final[Mapping[TensorFormat, GroupedCodec]] = MappingProxyType(
    {
        TensorFormat.Q4: GroupedCodec(4, 64, -8, 7, 0),
        TensorFormat.Q5: GroupedCodec(5, 64, -16, 15, 8),
        TensorFormat.Q6: GroupedCodec(6, 64, -32, 31, 16),
        TensorFormat.W8: GroupedCodec(8, 32, -127, 127, 0),
    }
)

DIRECT: Final[Mapping[TensorFormat, np.dtype[Any]]] = MappingProxyType(
    {
        TensorFormat.BF16: np.dtype("<u2"),
        TensorFormat.FP32: np.dtype("<f4"),
        TensorFormat.I32: np.dtype("<i4"),
    }
)


class Span(NamedTuple):
    """A byte range inside a payload."""

    offset: int
    nbytes: int


def align_up(value: int, alignment: int) -> int:
    """Return the smallest multiple of ``alignment`` that is at least ``value``."""
    return -(-value // alignment) * alignment


@dataclass(frozen=True, slots=True)
class DirectGeometry:
    """Where the words of a direct format lie: row-major, without padding."""

    format: TensorFormat
    shape: Shape

    def __post_init__(self) -> None:
        if self.format not in DIRECT or any(extent < 1 for extent in self.shape):
            raise ShapeError(f"{self.format.name} {self.shape} is not a direct tensor")

    @property
    def payload_bytes(self) -> int:
        """Encoded size; a scalar has one element."""
        return math.prod(self.shape) * DIRECT[self.format].itemsize

    @property
    def spans(self) -> tuple[Span, ...]:
        """The bytes that carry values."""
        return (Span(0, self.payload_bytes),)


@dataclass(frozen=True, slots=True)
class RowSplitGeometry:
    """Where the planes of a grouped matrix lie.

        base  rows * groups_per_row * 32            at 0
        high  rows * groups_per_row * high_bytes    at the next multiple of 256
        scale rows * groups_per_row * 2             at the next multiple of 256

    Inside a plane, groups follow one another row by row.
    """

    format: TensorFormat
    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.format not in GROUPED or self.rows < 1 or self.columns < 1:
            raise ShapeError(
                f"{self.format.name} [{self.rows}, {self.columns}] is not a grouped matrix"
            )

    @property
    def codec(self) -> GroupedCodec:
        """Constants of the format."""
        return GROUPED[self.format]

    @property
    def padded_columns(self) -> int:
        """Columns K rounded up to whole 128s."""
        return align_up(self.columns, PADDED_COLUMNS)

    @property
    def groups_per_row(self) -> int:
        """Groups of one row, padding groups included."""
        return self.padded_columns // self.codec.group

    @property
    def base_row_bytes(self) -> int:
        """Base-plane bytes of one row."""
        return self.groups_per_row * BASE_BYTES

    @property
    def high_row_bytes(self) -> int:
        """High-plane bytes of one row; 0 for Q4 and W8."""
        return self.groups_per_row * self.codec.high_bytes

    @property
    def scale_row_bytes(self) -> int:
        """Scale-plane bytes of one row."""
        return self.groups_per_row * 2

    @property
    def high_offset(self) -> int:
        """First byte of the high plane (the base plane starts at 0)."""
        return align_up(self.rows * self.base_row_bytes, PLANE_ALIGNMENT)

    @property
    def scale_offset(self) -> int:
        """First byte of the scale plane."""
        return self.high_offset + align_up(self.rows * self.high_row_bytes, PLANE_ALIGNMENT)

    @property
    def payload_bytes(self) -> int:
        """Encoded size: padding between planes counts, after the last plane there is none."""
        return self.scale_offset + self.rows * self.scale_row_bytes

    @property
    def spans(self) -> tuple[Span, ...]:
        """The bytes that carry values: all three planes."""
        return self.row_spans(0, self.rows)

    def row_spans(self, first: int, count: int) -> tuple[Span, Span, Span]:
        """Base, high and scale bytes of rows ``[first, first + count)``.

        Raises:
            ShapeError: the range leaves the matrix.
        """
        if first < 0 or count < 0 or first + count > self.rows:
            raise ShapeError(f"rows [{first}, {first + count}) leave a matrix of {self.rows}")
        base, high, scale = self.base_row_bytes, self.high_row_bytes, self.scale_row_bytes
        return (
            Span(first * base, count * base),
            Span(self.high_offset + first * high, count * high),
            Span(self.scale_offset + first * scale, count * scale),
        )


def geometry_of(format: TensorFormat, shape: Shape) -> DirectGeometry | RowSplitGeometry:
    """Return the geometry that ``format`` gives to ``shape``.

    Raises:
        ShapeError: an extent is below 1, or a grouped format is asked for another rank than 2.
    """
    if format in DIRECT:
        return DirectGeometry(format, shape)
    if len(shape) != 2:
        raise ShapeError(f"{format.name} stores matrices only, not rank {len(shape)}")
    return RowSplitGeometry(format, shape[0], shape[1])


def encoded_bytes(format: TensorFormat, shape: Shape) -> int:
    """Return the encoded size of a tensor in bytes."""
    return geometry_of(format, shape).payload_bytes
