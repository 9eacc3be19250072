"""The device block that carries everything which varies from unit to unit.

    device  | header: tokens, positions, slots, sampler settings ... | block tables | masks |
    pinned  | the same bytes                                         | the same     | same  |

A unit writes its header into the pinned twin, uploads once, runs, and reads the chosen tokens back
once. Block tables follow the header so that a unit that mapped new pages uploads both with the same
single copy. Masks allow everything from start-up on; a round with a constrained row uploads its
rows' masks by a copy of their own, and so does the first round that frees such a row. Header
layouts are those of a decode round of exactly B rows and of a prefill chunk of T columns; they lie
over one another, because units exclude one another. Addresses depend on B alone, so a graph may
keep them.

What the values mean is known to whoever fills them in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.device import ALIGNMENT, Arena, Stream, host_array
from ninfer.errors import ShapeError
from ninfer.generation import SamplingParams, TokenMask
from ninfer.models.qwen_hybrid.text import TextColumns
from ninfer.ops.sampling import SamplerRows, mask_words
from ninfer.tensor import DType, Tensor


@dataclass(frozen=True, slots=True)
class RoundShape:
    """Extents of the block.

    Attributes:
        max_rows: largest B.
        max_columns: largest T of a prefill chunk.
        table_rows, table_width: block-table extents.
        vocab_rows: width of a logits row.
    """

    max_rows: int
    max_columns: int
    table_rows: int
    table_width: int
    vocab_rows: int

    @property
    def mask_words(self) -> int:
        """Words of one row's mask."""
        return mask_words(self.vocab_rows)


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Header of a decode round of exactly B rows, and the rows' masks.

    Attributes:
        columns: inputs of the schedule.
        count_flags: i32 [B], whether the row's token still has to be counted for penalties.
        sampler: settings of each row.
        mask: u32 [B, mask words], allowed tokens.
    """

    columns: TextColumns
    count_flags: Tensor
    sampler: SamplerRows
    mask: Tensor


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """Header of a prefill chunk of T columns.

    Attributes:
        columns: inputs of the schedule.
        count_slots, count_flags: i32 [T], whether and where each token is counted for penalties.
    """

    columns: TextColumns
    count_slots: Tensor
    count_flags: Tensor


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """What one row brings to a round.

    Attributes:
        token: the anchor.
        position: where it stands, in tokens.
        rope_position: its time, height and width position.
        table_row, slot: of its sequence.
        fold: recorded columns to fold first.
        is_uncounted: whether the anchor is still to be counted.
        sampling: settings the next token is chosen by.
        mask: tokens that may be chosen; None allows all.
    """

    token: int
    position: int
    rope_position: tuple[int, int, int]
    table_row: int
    slot: int
    fold: int
    is_uncounted: bool
    sampling: SamplingParams
    mask: TokenMask | None = None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """What one chunk brings to a unit.

    Attributes:
        tokens: T tokens at consecutive positions.
        first_position: where the first one stands, in tokens.
        rope_axes: time, height and width positions, T each.
        table_row, slot: of the sequence.
        fold: recorded columns to fold first.
        num_counted: trailing tokens that are counted for penalties.
    """

    tokens: Sequence[int]
    first_position: int
    rope_axes: Sequence[Sequence[int]]
    table_row: int
    slot: int
    fold: int
    num_counted: int = 0


class RoundIo:
    """Filler of the block, and owner of nothing: the bytes are the two arenas' that made it.

    Attributes:
        block_table: i32 [table rows, table width] on the device.
        sampled: i32 [max_rows], tokens a round chose, on the device.
        logits: f32 [max_rows, vocab_rows] on the device.
    """

    def __init__(self, arena: Arena, pinned: Arena, shape: RoundShape) -> None:
        self._shape: Final = shape
        nbytes = _block_bytes(shape)
        self._device: Final = arena.take((nbytes,), DType.U8)
        self._pinned: Final = pinned.take((nbytes,), DType.U8)
        self._bytes: Final[npt.NDArray[np.uint8]] = host_array(self._pinned)
        self._bytes[:] = 0
        carver = _Carver(self._device, _header_bytes(shape))
        self.block_table: Final = carver.take(DType.I32, shape.table_rows, shape.table_width)
        self._tables_end: Final = carver.cursor
        self._mask: Final = carver.take(DType.U32, shape.max_rows, shape.mask_words)
        self.sampled: Final = arena.take((shape.max_rows,), DType.I32)
        self.logits: Final = arena.take((shape.max_rows, shape.vocab_rows), DType.F32)
        self._sampled_pinned: Final = pinned.take((shape.max_rows,), DType.I32)
        self._row_pinned: Final = pinned.take((1, shape.vocab_rows), DType.F32)
        self._decode: Final = tuple(
            _decode_inputs(_Carver(self._device, 0), rows, self._mask)
            for rows in range(1, shape.max_rows + 1)
        )
        self._has_new_tables = True
        self._num_masked = 0  # rows from here on have masks that allow everything

    @staticmethod
    def device_bytes(shape: RoundShape) -> int:
        """Bytes to plan for the device arena."""
        outputs = _aligned(4 * shape.max_rows) + _aligned(4 * shape.max_rows * shape.vocab_rows)
        return _aligned(_block_bytes(shape)) + outputs

    @staticmethod
    def pinned_bytes(shape: RoundShape) -> int:
        """Bytes to plan for the pinned arena."""
        outputs = _aligned(4 * shape.max_rows) + _aligned(4 * shape.vocab_rows)
        return _aligned(_block_bytes(shape)) + outputs

    def decode_inputs(self, num_rows: int) -> DecodeInputs:
        """Fixed views of a round of ``num_rows`` rows."""
        return self._decode[num_rows - 1]

    def prefill_inputs(self, num_columns: int) -> PrefillInputs:
        """Views of a chunk of ``num_columns`` columns.

        Raises:
            ShapeError: the block was not made for that many.
        """
        if not 1 <= num_columns <= self._shape.max_columns:
            raise ShapeError(f"{num_columns} columns; allowed is 1..{self._shape.max_columns}")
        return _prefill_inputs(_Carver(self._device, 0), num_columns)

    def start(self, stream: Stream) -> None:
        """Upload the whole block once, allowing every token in every mask."""
        self._staged(self._mask)[:] = 0xFF
        stream.upload(self._device, self._pinned)
        self._has_new_tables = False

    @property
    def table_mirror(self) -> npt.NDArray[np.int32]:
        """Pinned twin of the block table, [table rows, table width], for the pool to write."""
        return self._staged(self.block_table).view(np.int32).reshape(self.block_table.shape)

    def note_new_tables(self) -> None:
        """Let the next unit's upload carry the block tables, too."""
        self._has_new_tables = True

    def upload_decode(self, stream: Stream, rows: Sequence[DecodeRow]) -> DecodeInputs:
        """Fill in the header of a round and enqueue its upload, and that of masks if there are any.

        Raises:
            ShapeError: a mask is not made of words, or has too many.
        """
        self._upload_masks(stream, rows)
        inputs = self.decode_inputs(len(rows))
        columns, sampler = inputs.columns, inputs.sampler
        positions = [row.position for row in rows]
        settings = [row.sampling for row in rows]
        self._put(columns.tokens, [row.token for row in rows])
        self._put(columns.positions, positions)
        self._put(
            columns.rope_positions, [[row.rope_position[axis] for row in rows] for axis in range(3)]
        )
        self._put(columns.table_rows, [row.table_row for row in rows])
        self._put(columns.slots, [row.slot for row in rows])
        self._put(columns.fold, [row.fold for row in rows])
        self._put(inputs.count_flags, [int(row.is_uncounted) for row in rows])
        self._put(
            sampler.temperature, [0.0 if one.is_greedy else one.temperature for one in settings]
        )
        self._put(sampler.top_p, [one.top_p for one in settings])
        self._put(sampler.min_p, [one.min_p for one in settings])
        self._put(sampler.presence, [one.presence_penalty for one in settings])
        self._put(sampler.frequency, [one.frequency_penalty for one in settings])
        self._put(sampler.top_k, [one.top_k for one in settings])
        self._put(sampler.seeds, [word for one in settings for word in _seed_words(one.seed)])
        self._put(sampler.positions, [position + 1 for position in positions])
        self._upload(stream, last=sampler.positions)
        return inputs

    def upload_prefill(self, stream: Stream, chunk: PrefillChunk) -> PrefillInputs:
        """Fill in the header of a chunk and enqueue its single upload."""
        count = len(chunk.tokens)
        inputs = self.prefill_inputs(count)
        columns = inputs.columns
        self._put(columns.tokens, chunk.tokens)
        self._put(columns.positions, range(chunk.first_position, chunk.first_position + count))
        self._put(columns.rope_positions, chunk.rope_axes)
        self._put(columns.table_rows, [chunk.table_row] * count)
        self._put(columns.slots, [chunk.slot])
        self._put(columns.fold, [chunk.fold])
        self._put(inputs.count_slots, [chunk.slot] * count)
        uncounted = count - chunk.num_counted
        self._put(inputs.count_flags, [0] * uncounted + [1] * chunk.num_counted)
        self._upload(stream, last=inputs.count_flags)
        return inputs

    def download_sampled(self, stream: Stream, num_rows: int) -> tuple[int, ...]:
        """Read the chosen tokens of a round back; waits for everything enqueued."""
        rows = self._sampled_pinned.rows(0, num_rows)
        stream.download(rows, self.sampled.rows(0, num_rows))
        stream.synchronize()
        return tuple(int(token) for token in host_array(rows))

    def download_logits(self, stream: Stream, num_rows: int) -> npt.NDArray[np.float32]:
        """Read the logits of the newest round back, row by row; for diagnostics."""
        logits = np.empty((num_rows, self._shape.vocab_rows), np.float32)
        for row in range(num_rows):
            stream.download(self._row_pinned, self.logits.rows(row, 1))
            stream.synchronize()
            logits[row] = host_array(self._row_pinned)[0]
        return logits

    def _upload(self, stream: Stream, last: Tensor) -> None:
        """Copy the header up to its ``last`` field, and the block tables when they are newer."""
        header_bytes = last.address + last.nbytes - self._device.address
        nbytes = self._tables_end if self._has_new_tables else header_bytes
        stream.upload(self._device.rows(0, nbytes), self._pinned.rows(0, nbytes))
        self._has_new_tables = False

    def _upload_masks(self, stream: Stream, rows: Sequence[DecodeRow]) -> None:
        """Make the masks of the block those of the rows; rows beyond them may keep old ones."""
        last = max((index for index, row in enumerate(rows, 1) if row.mask is not None), default=0)
        num_stale = min(len(rows), max(last, self._num_masked))
        if num_stale == 0:
            return
        masks = self._mask.rows(0, num_stale)
        staged = self._staged(masks).reshape(num_stale, -1)
        for row, words in zip(rows, staged, strict=False):
            _write_mask(row.mask, words)
        stream.upload(masks, self._pinned_twin(masks))
        self._num_masked = last if self._num_masked <= len(rows) else self._num_masked

    def _put(self, field: Tensor, values: npt.ArrayLike) -> None:
        words = np.asarray(values, np.dtype(field.dtype.value))
        self._staged(field)[:] = words.reshape(-1).view(np.uint8)

    def _staged(self, field: Tensor) -> npt.NDArray[np.uint8]:
        """Pinned bytes of a device field."""
        first = field.address - self._device.address
        return self._bytes[first : first + field.nbytes]

    def _pinned_twin(self, field: Tensor) -> Tensor:
        """Pinned counterpart of a device field."""
        return Tensor(
            field.address - self._device.address + self._pinned.address, field.dtype, field.shape
        )


class _Carver:
    """Bump allocator over the device block."""

    def __init__(self, block: Tensor, first: int) -> None:
        self._block = block
        self.cursor = first

    def take(self, dtype: DType, *shape: int) -> Tensor:
        tensor = Tensor(self._block.address + self.cursor, dtype, shape)
        self.cursor = _aligned(self.cursor + tensor.nbytes)
        return tensor


def _decode_inputs(carver: _Carver, b: int, mask: Tensor) -> DecodeInputs:
    return DecodeInputs(
        _columns(carver, b, b),
        carver.take(DType.I32, b),
        SamplerRows(
            temperature=carver.take(DType.F32, b),
            top_p=carver.take(DType.F32, b),
            min_p=carver.take(DType.F32, b),
            presence=carver.take(DType.F32, b),
            frequency=carver.take(DType.F32, b),
            top_k=carver.take(DType.I32, b),
            seeds=carver.take(DType.U32, b, 2),
            positions=carver.take(DType.I32, b),
        ),
        mask.rows(0, b),
    )


def _prefill_inputs(carver: _Carver, t: int) -> PrefillInputs:
    return PrefillInputs(
        _columns(carver, t, 1), carver.take(DType.I32, t), carver.take(DType.I32, t)
    )


def _columns(carver: _Carver, t: int, num_sequences: int) -> TextColumns:
    return TextColumns(
        tokens=carver.take(DType.I32, t),
        positions=carver.take(DType.I32, t),
        rope_positions=carver.take(DType.I32, 3, t),
        table_rows=carver.take(DType.I32, t),
        slots=carver.take(DType.I32, num_sequences),
        fold=carver.take(DType.I32, num_sequences),
    )


def _header_bytes(shape: RoundShape) -> int:
    nowhere = Tensor(0, DType.U8, (0,))
    decode, prefill = _Carver(nowhere, 0), _Carver(nowhere, 0)
    _decode_inputs(decode, shape.max_rows, Tensor(0, DType.U32, (shape.max_rows, 0)))
    _prefill_inputs(prefill, shape.max_columns)
    return max(decode.cursor, prefill.cursor)


def _block_bytes(shape: RoundShape) -> int:
    tables = _aligned(4 * shape.table_rows * shape.table_width)
    return _header_bytes(shape) + tables + _aligned(4 * shape.max_rows * shape.mask_words)


def _write_mask(mask: TokenMask | None, words: npt.NDArray[np.uint8]) -> None:
    """Write one row's mask, [bytes of a row]."""
    if mask is None:
        words[:] = 0xFF
        return
    if len(mask) % 4 or len(mask) > words.size:
        raise ShapeError(f"a mask of {len(mask)} bytes; a row has {words.size}")
    words[: len(mask)] = np.frombuffer(mask, np.uint8)
    words[len(mask) :] = 0


def _seed_words(seed: int) -> tuple[int, int]:
    """Split the two's-complement bits of an int64 into its low and its high word."""
    bits = seed & 0xFFFF_FFFF_FFFF_FFFF
    return bits & 0xFFFF_FFFF, bits >> 32


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
