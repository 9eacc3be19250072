"""Descriptors of linear operands, viewed as the arrays that host kernels take.

Host residency is the file's encoding, so that viewing a matrix only names its planes. Knows no
arithmetic. Source: artifact page, section 7.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.errors import ShapeError
from ninfer.tensor import LinearInput, Matrix, TensorFormat
from ninfer.tensor_formats.geometry import GROUPED, RowSplitGeometry

BF16_BITS: Final = 16
"""`StoredRows.bits` of the one format without groups."""


class StoredRows(NamedTuple):
    """The encoded rows of a matrix view; axis 0 of each array is the row.

    Attributes:
        bits: bits of a code: 4, 5, 6, 8, or `BF16_BITS` for bf16 words.
        base: [rows, bytes] u8, base plane or bf16 words.
        high: [rows, bytes] u8, high plane; no columns where the format has none.
        scales: [rows, groups] u16, binary16 words; no columns for bf16.
    """

    bits: int
    base: npt.NDArray[np.uint8]
    high: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint16]


def stored_rows(matrix: Matrix) -> StoredRows:
    """View the rows of a matrix.

    Raises:
        ShapeError: the format is not one that linear kernels read.
    """
    payload = host_array(matrix.storage)
    rows = slice(matrix.first_row, matrix.first_row + matrix.num_rows)
    if matrix.format is TensorFormat.BF16:
        base = payload.reshape(matrix.parent_rows, matrix.num_columns * 2)[rows]
        none = np.empty((matrix.num_rows, 0), np.uint8)
        return StoredRows(BF16_BITS, base, none, none.view(np.uint16))
    codec = GROUPED.get(matrix.format)
    if codec is None:
        raise ShapeError(f"{matrix.format.name} is not a linear weight format")
    geometry = RowSplitGeometry(matrix.format, matrix.parent_rows, matrix.num_columns)
    base, high, scales = (
        payload[offset : offset + nbytes].reshape(matrix.num_rows, -1)
        if nbytes
        else np.empty((matrix.num_rows, 0), np.uint8)
        for offset, nbytes in geometry.row_spans(matrix.first_row, matrix.num_rows)
    )
    return StoredRows(codec.bits, base, high, scales.view(np.uint16))


def input_array(x: LinearInput) -> npt.NDArray[Any]:
    """View the activation columns as f32 ``[num_columns, width]``."""
    return host_array(x.storage).view(np.float32).reshape(x.num_columns, x.width)
