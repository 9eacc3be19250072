"""Model units over active sequences, and the one pending batch between a unit and its end.

    prefill                         committed at once
    decode | control -> pending -> commit | abort     exactly once, the whole batch, one at a time

A decode round leaves nothing to undo on the device: the recurrent state stays at the round's entry
plus a record, new keys and values lie behind the frontier. Forced tokens do change the state in
place, so the scratch slot holds the image from before until the batch ends. Bookkeeping is the
stores' business, device work is `DecodeRound`'s and `Prefill`'s; this file keeps the two in step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.device import Stream
from ninfer.errors import InvariantError
from ninfer.generation import RopePositions, TokenMask
from ninfer.program.contract import (
    PendingBatch,
    PendingRow,
    PrefillStep,
    RowDecision,
    SequenceHandle,
)
from ninfer.program.decode_round import DecodeRound
from ninfer.program.physical_stores import PhysicalStores, SequenceView
from ninfer.program.prefill import Prefill, chunk_stop
from ninfer.program.round_io import DecodeRow, PrefillChunk, RoundIo
from ninfer.program.round_times import RoundTimes
from ninfer.program.sequence_table import SequencePhase, prefix_axes
from ninfer.program.state_planes import StatePlanes
from ninfer.program.state_store import SlotCopy


@dataclass(frozen=True, slots=True)
class UnitExecutors:
    """What runs units on the device.

    Attributes:
        stream: where everything is enqueued.
        prefill, decode: run a chunk and a round.
        io: the units' inputs and outputs.
        state: planes of the state slots.
        chunk_tokens: size of a full prefill chunk.
        max_rows: largest round.
        vocab_rows: ids below this exist in the embedding.
    """

    stream: Stream
    prefill: Prefill
    decode: DecodeRound
    io: RoundIo
    state: StatePlanes
    chunk_tokens: int
    max_rows: int
    vocab_rows: int


@dataclass(frozen=True, slots=True)
class _PendingRound:
    """A decode round; its recorded columns are folded in by whatever runs next."""

    batch: PendingBatch


@dataclass(frozen=True, slots=True)
class _PendingControl:
    """Forced tokens, with the view of the sequence from before the unit."""

    batch: PendingBatch
    before: SequenceView


class ModelUnits:
    """Owner of the pending batch.

    Args:
        stores: bookkeeping of everything the sequences own.
        executors: the device side.
    """

    def __init__(self, stores: PhysicalStores, executors: UnitExecutors) -> None:
        self._stores: Final = stores
        self._on_device: Final = executors
        self._pending: _PendingRound | _PendingControl | None = None
        self._next_batch_id = 0
        # Anchors that penalties do not know yet, by sequence index. A round counts them before it
        # samples, and they stay counted when the round is dropped: they were committed before it.
        self._uncounted: Final[dict[int, SequenceHandle]] = {}

    @property
    def has_pending(self) -> bool:
        """Whether a batch awaits its end."""
        return self._pending is not None

    def prefill(self, handle: SequenceHandle) -> PrefillStep:
        """Process and commit the next chunk of a prompt."""
        self._expect_nothing_pending()
        view = self._stores.view(handle)
        last = len(view.prompt.token_ids) - 1
        if view.phase is not SequencePhase.PREFILL:
            raise InvariantError(f"{handle} has nothing left to prefill")
        stop = chunk_stop(view.frontier, last, self._on_device.chunk_tokens)
        count = stop - view.frontier
        self._stores.begin_prefill(handle, count)
        self._run_columns(view, view.prompt.token_ids[view.frontier : stop], num_counted=0)
        return self._stores.commit_prefill(handle, count)

    def decode(
        self, handles: Sequence[SequenceHandle], masks: Sequence[TokenMask | None] = ()
    ) -> PendingBatch:
        """Run one exact-B round; without masks every row is free."""
        self._expect_nothing_pending()
        if not 1 <= len(handles) <= self._on_device.max_rows:
            raise InvariantError(
                f"a round of {len(handles)} rows; allowed is 1..{self._on_device.max_rows}"
            )
        masks = masks or [None] * len(handles)
        if len(masks) != len(handles):
            raise InvariantError(f"{len(masks)} masks for a round of {len(handles)} rows")
        views = [self._stores.view(handle) for handle in handles]
        rows = [self._decode_row(view, mask) for view, mask in zip(views, masks, strict=True)]
        self._stores.begin_rows([(handle, 1) for handle in handles])
        self._note_new_tables()
        tokens = self._on_device.decode.run(rows)
        for handle in handles:
            self._uncounted.pop(handle.index, None)
        batch = self._new_batch(
            PendingRow(view.handle, view.frontier, (token,))
            for view, token in zip(views, tokens, strict=True)
        )
        self._pending = _PendingRound(batch)
        return batch

    def control(self, handle: SequenceHandle, tokens: Sequence[int]) -> PendingBatch:
        """Process the anchor and all but the last of given tokens."""
        self._expect_nothing_pending()
        if not tokens or not all(0 <= token < self._on_device.vocab_rows for token in tokens):
            raise InvariantError(f"{tuple(tokens)} cannot be forced on {handle}")
        view = self._stores.view(handle)
        self._stores.begin_rows([(handle, len(tokens))])
        self._copy_state(self._stores.state.snapshot(view.state))
        self._run_forced(view, tokens)
        batch = self._new_batch([PendingRow(handle, view.frontier, tuple(tokens), is_forced=True)])
        self._pending = _PendingControl(batch, view)
        return batch

    def commit(self, batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        """Commit the whole pending batch, one decision per row in order."""
        pending = self._expect_pending(batch)
        if len(decisions) != len(batch.rows):
            raise InvariantError(f"{len(decisions)} decisions for {len(batch.rows)} rows")
        for row, decision in zip(batch.rows, decisions, strict=True):
            _check_decision(row, decision)
        match pending:
            case _PendingRound():
                for row, decision in zip(batch.rows, decisions, strict=True):
                    self._commit_row(row, decision, pending_fold=decision.accepted)
            case _PendingControl(before=before):
                self._commit_control(before, batch.rows[0], decisions[0])
        self._pending = None

    def abort(self, batch: PendingBatch) -> None:
        """Roll the whole pending batch back."""
        match self._expect_pending(batch):
            case _PendingRound():
                for row in batch.rows:
                    # The round has folded in what was pending before it.
                    self._stores.abort_row(row.sequence, pending_fold=0)
            case _PendingControl(before=before):
                self._copy_state(self._stores.state.restore(before.state))
                self._stores.abort_row(before.handle, pending_fold=before.pending_fold)
        self._pending = None

    def abandon(self) -> None:
        """Abort the pending batch, if there is one."""
        if self._pending is not None:
            self.abort(self._pending.batch)

    def pending_logits(self, batch: PendingBatch) -> npt.NDArray[np.float32]:
        """Read back the logits a pending decode round chose from, [B, vocab_rows]."""
        if not isinstance(self._expect_pending(batch), _PendingRound):
            raise InvariantError("forced tokens have no logits")
        return self._on_device.io.download_logits(self._on_device.stream, len(batch.rows))

    def imagine_prompts(self, is_imagined: bool) -> None:
        """Take prompts as processed without processing them, or process them again."""
        self._on_device.prefill.is_imagined = is_imagined

    def round_times(self) -> RoundTimes:
        """Durations of the decode rounds since the last call."""
        return self._on_device.decode.clock.take()

    def replay_rounds(self, num_rows: int, count: int) -> float:
        """Seconds of the newest round of that many rows, repeated without host work between."""
        self._expect_nothing_pending()
        return self._on_device.decode.replay(num_rows, count)

    def _decode_row(self, view: SequenceView, mask: TokenMask | None) -> DecodeRow:
        return DecodeRow(
            token=view.anchor,
            position=view.frontier,
            rope_position=_rope_position(view.prompt.rope, view.frontier),
            table_row=view.row,
            slot=view.slot,
            fold=view.pending_fold,
            is_uncounted=self._is_uncounted(view.handle),
            sampling=view.sampling,
            mask=mask,
        )

    def _run_forced(self, view: SequenceView, tokens: Sequence[int]) -> None:
        """Run the anchor and all but the last of ``tokens``; as many columns as tokens."""
        columns = (view.anchor, *tokens[:-1])
        num_counted = len(columns) - (0 if self._is_uncounted(view.handle) else 1)
        self._run_columns(view, columns, num_counted)

    def _run_columns(self, view: SequenceView, tokens: Sequence[int], num_counted: int) -> None:
        """Run known tokens from the view's frontier on, chunk by chunk."""
        self._note_new_tables()
        self._on_device.decode.clock.interrupt()
        start, end = view.frontier, view.frontier + len(tokens)
        first, fold = start, view.pending_fold
        while first < end:
            stop = chunk_stop(first, end, self._on_device.chunk_tokens)
            self._on_device.prefill.run(
                PrefillChunk(
                    tokens=tokens[first - start : stop - start],
                    first_position=first,
                    rope_axes=_rope_axes(view.prompt.rope, first, stop),
                    table_row=view.row,
                    slot=view.slot,
                    fold=fold,
                    num_counted=min(stop - first, max(0, num_counted - (end - stop))),
                )
            )
            first, fold = stop, 0

    def _commit_control(self, before: SequenceView, row: PendingRow, decision: RowDecision) -> None:
        if decision.accepted == len(row.tokens):
            self._stores.state.discard(before.state)
            self._commit_row(row, decision, pending_fold=0)
            return
        # The image is ahead of what was accepted: go back, and forward again by less.
        self._copy_state(self._stores.state.restore(before.state))
        if decision.accepted:
            self._run_forced(before, row.tokens[: decision.accepted])
        fold = 0 if decision.accepted else before.pending_fold
        self._commit_row(row, decision, pending_fold=fold)

    def _commit_row(self, row: PendingRow, decision: RowDecision, pending_fold: int) -> None:
        self._stores.commit_row(
            row.sequence,
            row.tokens[: decision.accepted],
            is_terminal=decision.is_terminal,
            pending_fold=pending_fold,
            boundaries=decision.boundaries,
        )
        if decision.accepted:
            self._uncounted[row.sequence.index] = row.sequence

    def _is_uncounted(self, handle: SequenceHandle) -> bool:
        return self._uncounted.get(handle.index) == handle

    def _note_new_tables(self) -> None:
        if self._stores.kv.take_dirty_rows():
            self._on_device.io.note_new_tables()

    def _copy_state(self, copy: SlotCopy) -> None:
        self._on_device.state.copy(self._on_device.stream, copy.source, copy.destination)

    def _new_batch(self, rows: Iterable[PendingRow]) -> PendingBatch:
        self._next_batch_id += 1
        return PendingBatch(self._next_batch_id, tuple(rows))

    def _expect_nothing_pending(self) -> None:
        if self._pending is not None:
            raise InvariantError(f"batch {self._pending.batch.batch_id} is still pending")

    def _expect_pending(self, batch: PendingBatch) -> _PendingRound | _PendingControl:
        if self._pending is None or self._pending.batch != batch:
            raise InvariantError(f"batch {batch.batch_id} is not the pending one")
        return self._pending


def _check_decision(row: PendingRow, decision: RowDecision) -> None:
    produced, accepted = len(row.tokens), decision.accepted
    is_partial = accepted < produced
    if not 0 <= accepted <= produced or (is_partial and not decision.is_terminal):
        raise InvariantError(f"{decision} for a row of {produced} tokens")
    if any(not 1 <= boundary <= accepted for boundary in decision.boundaries):
        raise InvariantError(f"{decision} has a boundary outside its {accepted} tokens")


def _rope_position(rope: RopePositions | None, position: int) -> tuple[int, int, int]:
    """Three-axis position of one token; the anchor of a fresh prompt is still one of its own."""
    if rope is None:
        return position, position, position
    if position < len(rope.axes[0]):
        time, height, width = rope.axes
        return time[position], height[position], width[position]
    shifted = position + rope.delta
    return shifted, shifted, shifted


def _rope_axes(
    rope: RopePositions | None, first: int, stop: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Three-axis positions of ``[first, stop)``."""
    axes = prefix_axes(rope, stop)
    if axes is None:
        plain = range(first, stop)
        return plain, plain, plain
    time, height, width = axes
    return time[first:stop], height[first:stop], width[first:stop]
