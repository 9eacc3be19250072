"""Makes the stored bytes of a planned tensor, one block of rows at a time.

A block is read, checked for values that are not finite, brought into the object's row order and
encoded; it is the only part of a matrix in memory. Blocks are independent, so they may be made on
several threads. Source: artifact contract, sections 6 and 10.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ninfer.convert.plan import PlannedTensor
from ninfer.convert.recipe import Constant, RowRange, Rows, Transposed
from ninfer.convert.safetensors_header import SourceTensor
from ninfer.errors import CheckpointError, InvariantError
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import (
    EncodeError,
    RowSplitGeometry,
    bf16_to_f32,
    encode_rows,
    f32_to_bf16,
)

BLOCK_ELEMENTS: Final = 1 << 21
_BF16_EXPONENT: Final = np.uint16(0x7F80)

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of one object.

    Attributes:
        tensor: the object.
        first_row: of the object.
        ranges: what the rows are made of.
    """

    tensor: PlannedTensor
    first_row: int
    ranges: tuple[RowRange, ...]


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Bytes of an object: pairs of an offset inside the object and an array."""

    name: str
    parts: tuple[tuple[int, Array], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for _, part in self.parts)


def blocks(tensor: PlannedTensor) -> Iterator[Block]:
    """Cut an object into blocks of at most `BLOCK_ELEMENTS` elements (at least one row)."""
    if not isinstance(tensor.recipe, Rows):
        yield Block(tensor, 0, ())
        return
    rows, columns = _extents(tensor)
    described = sum(part.count for part in tensor.recipe.ranges)
    if described != rows:
        raise InvariantError(f"{tensor.wanted.name} has {rows} rows; its recipe has {described}")
    limit = max(1, BLOCK_ELEMENTS // columns)
    first_row, pending, room = 0, [], limit
    for part in tensor.recipe.ranges:
        done = 0
        while done < part.count:
            count = min(room, part.count - done)
            pending.append(RowRange(part.source, part.first + done, count))
            done, room = done + count, room - count
            if room == 0:
                yield Block(tensor, first_row, tuple(pending))
                first_row, pending, room = first_row + limit, [], limit
    if pending:
        yield Block(tensor, first_row, tuple(pending))


def encode_block(block: Block) -> EncodedBlock:
    """Read and encode a block.

    Raises:
        CheckpointError: a source value is not finite or does not fit the format.
        OSError: the source cannot be read.
    """
    tensor, wanted = block.tensor, block.tensor.wanted
    match tensor.recipe:
        case Constant(words):
            return EncodedBlock(wanted.name, ((0, words),))
        case Transposed(source, rows):
            matrix = _read(tensor, RowRange(source, 0, rows), _source_columns(tensor, source, rows))
            return EncodedBlock(wanted.name, ((0, np.ascontiguousarray(_bf16(source, matrix).T)),))
        case Rows():
            return _encode_rows(block)


def _encode_rows(block: Block) -> EncodedBlock:
    tensor, wanted = block.tensor, block.tensor.wanted
    _, columns = _extents(tensor)
    parts = [_read(tensor, part, columns) for part in block.ranges]
    match wanted.format:
        case TensorFormat.BF16:
            sources = [part.source for part in block.ranges]
            words = np.concatenate([_bf16(*pair) for pair in zip(sources, parts, strict=True)])
            return EncodedBlock(wanted.name, ((block.first_row * columns * 2, words),))
        case TensorFormat.FP32:
            values = np.concatenate([_f32(part) for part in parts])
            return EncodedBlock(wanted.name, ((block.first_row * columns * 4, values),))
        case TensorFormat.Q4 | TensorFormat.Q5 | TensorFormat.Q6 | TensorFormat.W8:
            return _encode_grouped(block, wanted.format, parts)
        case TensorFormat.I32 | None:
            raise InvariantError(f"{wanted.name} is not made of source rows")


def _encode_grouped(block: Block, stored: TensorFormat, parts: list[Array]) -> EncodedBlock:
    name = block.tensor.wanted.name
    rows, columns = _extents(block.tensor)
    if len({part.dtype for part in parts}) > 1:
        parts = [_f32(part) for part in parts]
    values = parts[0] if len(parts) == 1 else np.concatenate(parts)
    try:
        planes = encode_rows(stored, values)
    except EncodeError as error:
        raise CheckpointError(
            f"{name} from row {block.first_row} on does not fit {stored.value}: {error}", field=name
        ) from error
    spans = RowSplitGeometry(stored, rows, columns).row_spans(block.first_row, len(values))
    arrays: tuple[Array, ...] = planes
    return EncodedBlock(
        name,
        tuple(
            (span.offset, array) for span, array in zip(spans, arrays, strict=True) if span.nbytes
        ),
    )


def _extents(tensor: PlannedTensor) -> tuple[int, int]:
    """Rows and columns of an object; a vector is a column of single elements."""
    shape = tensor.wanted.shape
    if len(shape) == 1:
        return shape[0], 1
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return rows, shape[-1]


def _source_columns(tensor: PlannedTensor, source: str, rows: int) -> int:
    found = tensor.checkpoint.tensors[source]
    total = 1
    for extent in found.shape:
        total *= extent
    return total // rows


def _read(tensor: PlannedTensor, part: RowRange, columns: int) -> Array:
    """Read rows of a source as a finite matrix."""
    source = tensor.checkpoint.tensors[part.source]
    first = part.first * columns
    words = tensor.checkpoint.read(source, first, part.count * columns)
    _check_finite(source, first, words)
    return words.reshape(part.count, columns)


def _check_finite(source: SourceTensor, first: int, words: Array) -> None:
    if words.dtype == np.uint16:
        is_bad = (words & _BF16_EXPONENT) == _BF16_EXPONENT
    else:
        is_bad = ~np.isfinite(words)
    if is_bad.any():
        flat = first + int(is_bad.argmax())
        index = [int(axis) for axis in np.unravel_index(flat, source.shape)]
        raise CheckpointError(
            f"{source.path.name}: {source.name} holds a value that is not finite at {index}",
            field=source.name,
        )


def _bf16(source: str, values: Array) -> npt.NDArray[np.uint16]:
    if values.dtype == np.uint16:
        return values
    words = f32_to_bf16(values)
    if ((words & _BF16_EXPONENT) == _BF16_EXPONENT).any():
        raise CheckpointError(f"{source} holds a value that is too large for bf16", field=source)
    return words


def _f32(values: Array) -> npt.NDArray[np.float32]:
    return bf16_to_f32(values) if values.dtype == np.uint16 else values
