"""The device block that carries everything which varies from unit to unit.

    device  | header of a chunk | block tables | header of a round | masks |
    pinned  | the same bytes, twice (`round_staging`)                       |

A unit writes its header into a pinned twin, uploads once, runs, and reads the chosen tokens back
once. The single copy is a range of the block: both headers lie beside the block tables, which a
unit that mapped new pages takes along, and a round's lies beside the masks as well. Masks allow
everything from start-up on; a round with a constrained row takes its rows' masks along, and so does
the first round that frees such a row. A chunk of T columns has its header end where the tables
begin, a round of B rows has its begin where they end. Addresses of a round depend on B alone, so a
graph may keep them.

What the values mean is known to whoever fills them in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.device import ALIGNMENT, Arena, Event, Stream, host_array
from ninfer.errors import ShapeError
from ninfer.generation import TokenMask
from ninfer.models.qwen_hybrid.text import TextColumns
from ninfer.ops.sampling import SamplerRows, mask_words
from ninfer.program.decode_header import DecodeHeader, DecodeInputs, DecodeRow
from ninfer.program.round_staging import NUM_TWINS, ChosenTokens, RoundStaging
from ninfer.tensor import DType, Tensor

_NOWHERE: Final = Tensor(0, DType.U8, (0,))


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
        self._device: Final = arena.take((_block_bytes(shape),), DType.U8)
        self._staging: Final = RoundStaging(pinned, self._device, shape.max_rows)
        self._tables_at: Final = _chunk_bytes(shape.max_columns)
        carver = _Carver(self._device, self._tables_at)
        self.block_table: Final = carver.take(DType.I32, shape.table_rows, shape.table_width)
        self._round_at: Final = carver.cursor
        carver.cursor += _round_bytes(shape.max_rows)
        self._mask: Final = carver.take(DType.U32, shape.max_rows, shape.mask_words)
        self.sampled: Final = arena.take((shape.max_rows,), DType.I32)
        self.logits: Final = arena.take((shape.max_rows, shape.vocab_rows), DType.F32)
        self._row_pinned: Final = pinned.take((1, shape.vocab_rows), DType.F32)
        self._decode: Final = tuple(
            _decode_inputs(_Carver(self._device, self._round_at), rows, self._mask)
            for rows in range(1, shape.max_rows + 1)
        )
        self._headers: Final = tuple(
            tuple(DecodeHeader(self._staging, inputs, turn) for inputs in self._decode)
            for turn in range(NUM_TWINS)
        )
        self._newest: Final[list[DecodeHeader | None]] = [None] * NUM_TWINS
        # Not a twin itself: pages may be mapped while an upload of a twin is still to happen.
        self.table_mirror: Final = np.zeros(self.block_table.shape, np.int32)
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
        twin = _aligned(_block_bytes(shape)) + _aligned(4 * shape.max_rows)
        return NUM_TWINS * twin + _aligned(4 * shape.vocab_rows)

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
        begin = self._tables_at - _chunk_bytes(num_columns)
        return _prefill_inputs(_Carver(self._device, begin), num_columns)

    def start(self, stream: Stream) -> None:
        """Upload the whole block once, allowing every token in every mask."""
        self._staging.octets(self._mask)[:] = 0xFF
        self._stage_tables()
        self._staging.upload(stream, self._device)

    def note_new_tables(self) -> None:
        """Let the next unit's upload carry the block tables, too."""
        self._has_new_tables = True

    def upload_decode(
        self, stream: Stream, rows: Sequence[DecodeRow], sources: Sequence[int] = ()
    ) -> DecodeInputs:
        """Fill in the header of a round, and masks if there are any, and enqueue the upload.

        Args:
            stream: where the round will run.
            rows: what the rows bring.
            sources: when given, the tokens of the rows are those that the newest round of the
                stream chooses for these rows of its own; what the rows say is ignored.

        Raises:
            ShapeError: a mask is not made of words, or has too many.
        """
        turn = self._staging.next_unit()
        inputs, header = self.decode_inputs(len(rows)), self._headers[turn][len(rows) - 1]
        header.fill(rows, is_over_other=self._newest[turn] is not header)
        self._newest[turn] = header
        tokens, masks = inputs.columns.tokens, self._stage_masks(rows)
        self._upload(
            stream,
            first=self.block_table if self._has_new_tables else tokens,
            last=inputs.sampler.positions if masks is None else masks,
        )
        if tuple(sources) == tuple(range(len(rows))):
            stream.copy(tokens, self.sampled.rows(0, len(rows)))
        else:
            for row, source in enumerate(sources):
                stream.copy(tokens.rows(row, 1), self.sampled.rows(source, 1))
        return inputs

    def upload_prefill(self, stream: Stream, chunk: PrefillChunk) -> PrefillInputs:
        """Fill in the header of a chunk and enqueue its single upload."""
        count = len(chunk.tokens)
        inputs = self.prefill_inputs(count)
        self._staging.next_unit()
        columns = inputs.columns
        first = chunk.first_position
        self._put(columns.tokens, chunk.tokens)
        self._put(columns.positions, range(first, first + count))
        for axis, positions in enumerate(chunk.rope_axes):
            self._put(columns.rope_positions.rows(axis, 1), positions)
        self._put(columns.table_rows, chunk.table_row)
        self._put(columns.slots, chunk.slot)
        self._put(columns.fold, chunk.fold)
        self._put(inputs.count_slots, chunk.slot)
        self._put(inputs.count_flags, 0)
        if chunk.num_counted:
            counted = inputs.count_flags.rows(count - chunk.num_counted, chunk.num_counted)
            self._put(counted, 1)
        self._upload(
            stream,
            first=columns.tokens,
            last=self.block_table if self._has_new_tables else inputs.count_flags,
        )
        return inputs

    def download_sampled(
        self, stream: Stream, num_rows: int, begun: Event | None = None
    ) -> ChosenTokens:
        """Enqueue the read-back of a round's tokens; the second round from here overwrites it."""
        return self._staging.download(stream, self.sampled.rows(0, num_rows), begun)

    def download_logits(self, stream: Stream, num_rows: int) -> npt.NDArray[np.float32]:
        """Read the logits of the newest round back, row by row; for diagnostics."""
        logits = np.empty((num_rows, self._shape.vocab_rows), np.float32)
        for row in range(num_rows):
            stream.download(self._row_pinned, self.logits.rows(row, 1))
            stream.synchronize()
            logits[row] = host_array(self._row_pinned)[0]
        return logits

    def _upload(self, stream: Stream, first: Tensor, last: Tensor) -> None:
        """Copy the block from one field to another, with what lies between."""
        if self._has_new_tables:
            self._stage_tables()
        nbytes = last.address + last.nbytes - first.address
        self._staging.upload(stream, Tensor(first.address, DType.U8, (nbytes,)))

    def _stage_tables(self) -> None:
        self._staging.octets(self.block_table)[:] = self.table_mirror.reshape(-1).view(np.uint8)
        self._has_new_tables = False

    def _stage_masks(self, rows: Sequence[DecodeRow]) -> Tensor | None:
        """Stage the masks that the block lacks, if any; rows beyond these may keep old ones."""
        last = max((index for index, row in enumerate(rows, 1) if row.mask is not None), default=0)
        num_stale = min(len(rows), max(last, self._num_masked))
        if num_stale == 0:
            return None
        masks = self._mask.rows(0, num_stale)
        staged = self._staging.octets(masks).reshape(num_stale, -1)
        for row, words in zip(rows, staged, strict=False):
            _write_mask(row.mask, words)
        self._num_masked = last if self._num_masked <= len(rows) else self._num_masked
        return masks

    def _put(self, field: Tensor, values: Sequence[int] | int) -> None:
        """Stage values of this unit, or one value everywhere; a range costs no list."""
        staged = self._staging.values(field, self._staging.turn)
        if isinstance(values, range):
            staged[...] = np.arange(values.start, values.stop, values.step)
        else:
            staged[...] = values


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


def _chunk_bytes(num_columns: int) -> int:
    """Header of a chunk."""
    carver = _Carver(_NOWHERE, 0)
    _prefill_inputs(carver, num_columns)
    return carver.cursor


def _round_bytes(num_rows: int) -> int:
    """Header of a round."""
    carver = _Carver(_NOWHERE, 0)
    _decode_inputs(carver, num_rows, Tensor(0, DType.U32, (num_rows, 0)))
    return carver.cursor


def _block_bytes(shape: RoundShape) -> int:
    tables = _aligned(4 * shape.table_rows * shape.table_width)
    masks = _aligned(4 * shape.max_rows * shape.mask_words)
    return _chunk_bytes(shape.max_columns) + tables + _round_bytes(shape.max_rows) + masks


def _write_mask(mask: TokenMask | None, words: npt.NDArray[np.uint8]) -> None:
    """Write one row's mask, [bytes of a row]."""
    if mask is None:
        words[:] = 0xFF
        return
    if len(mask) % 4 or len(mask) > words.size:
        raise ShapeError(f"a mask of {len(mask)} bytes; a row has {words.size}")
    words[: len(mask)] = np.frombuffer(mask, np.uint8)
    words[len(mask) :] = 0


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
