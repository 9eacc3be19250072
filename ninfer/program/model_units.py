"""Model units over active sequences, and the one pending batch between a unit and its end.

    prefill                         committed behind a chunk's last part (`staged_prefill`)
    decode | control -> pending -> commit | abort     exactly once, the whole batch, one at a time

A decode round leaves nothing to undo on the device: the recurrent state stays at the round's entry
plus a record, new keys and values lie behind the frontier. In a steady round that is given up once
the next one has been started (`round_ahead`). Forced tokens do change the state in
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
from ninfer.generation import TokenMask
from ninfer.program.contract import (
    PendingBatch,
    PendingRow,
    PrefillStep,
    RowDecision,
    SequenceHandle,
)
from ninfer.program.decode_header import DecodeRow
from ninfer.program.decode_round import DecodeRound
from ninfer.program.physical_stores import PhysicalStores, SequenceView
from ninfer.program.prefill import Prefill, chunk_stop
from ninfer.program.rope_axes import rope_position
from ninfer.program.round_ahead import RoundAhead
from ninfer.program.round_io import RoundIo
from ninfer.program.round_staging import ChosenTokens
from ninfer.program.round_times import RoundTimes
from ninfer.program.staged_prefill import StagedPrefill, chunk_of
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
        self._staged: Final = StagedPrefill(stores, executors.prefill, executors.chunk_tokens)
        self._pending: _PendingRound | _PendingControl | None = None
        self._next_batch_id = 0
        # Anchors that penalties do not know yet, by sequence index. A round counts them before it
        # samples, and they stay counted when the round is dropped: they were committed before it.
        self._uncounted: Final[dict[int, SequenceHandle]] = {}
        self._ahead: RoundAhead | None = None
        self._spoiled: Final[dict[int, SequenceHandle]] = {}

    @property
    def has_pending(self) -> bool:
        """Whether a batch awaits its end."""
        return self._pending is not None

    @property
    def staged(self) -> StagedPrefill:
        """The prompt that is being read."""
        return self._staged

    def prefill(self, handle: SequenceHandle, *, is_alone: bool = True) -> PrefillStep:
        """Process and commit the next chunk of a prompt, or process a part of it."""
        self._expect_nothing_pending()
        self._staged.begin(handle)
        self._note_new_tables()
        self._on_device.decode.clock.interrupt()
        return self._staged.step(handle, is_alone=is_alone)

    def decode(
        self,
        handles: Sequence[SequenceHandle],
        masks: Sequence[TokenMask | None] = (),
        *,
        is_steady: bool = False,
    ) -> PendingBatch:
        """Run one exact-B round; without masks every row is free.

        In a steady round the next one of the same rows is started before this one has come back.
        """
        self._expect_nothing_pending()
        if not 1 <= len(handles) <= self._on_device.max_rows:
            raise InvariantError(
                f"a round of {len(handles)} rows; allowed is 1..{self._on_device.max_rows}"
            )
        masks = masks or [None] * len(handles)
        if len(masks) != len(handles):
            raise InvariantError(f"{len(masks)} masks for a round of {len(handles)} rows")
        views = [self._stores.view(handle) for handle in handles]
        self._stores.begin_rows([(handle, 1) for handle in handles])
        self._on_device.decode.clock.begin(len(handles))
        chosen, places = self._start_round(views, masks)
        if is_steady:
            self._start_ahead(views, places)
        tokens = self._on_device.decode.collect(chosen)
        batch = self._new_batch(
            PendingRow(view.handle, view.frontier, (tokens[place],))
            for view, place in zip(views, places, strict=True)
        )
        self._pending = _PendingRound(batch)
        return batch

    def leave_ahead(self, handle: SequenceHandle) -> None:
        """Let a sequence be worked on otherwise than by the round that may run ahead with it."""
        if self._ahead is not None and handle in self._ahead.waiting:
            self._ahead = self._ahead.without(handle)
            self._stores.drop_ahead(handle)

    def is_spoiled(self, handle: SequenceHandle) -> bool:
        """Whether the state of an ended sequence is ahead of its tokens, good for nothing."""
        return self._spoiled.get(handle.index) == handle

    def control(self, handle: SequenceHandle, tokens: Sequence[int]) -> PendingBatch:
        """Process the anchor and all but the last of given tokens."""
        self._expect_nothing_pending()
        self.leave_ahead(handle)
        if not tokens or not all(0 <= token < self._on_device.vocab_rows for token in tokens):
            raise InvariantError(f"{tuple(tokens)} cannot be forced on {handle}")
        self._staged.finish_parts()
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
                    if self._ahead is not None and row.sequence in self._ahead.waiting:
                        self._commit_ahead_row(row, decision)
                    else:
                        self._commit_row(row, decision, pending_fold=decision.accepted)
            case _PendingControl(before=before):
                self._commit_control(before, batch.rows[0], decisions[0])
        self._pending = None

    def abort(self, batch: PendingBatch) -> None:
        """Roll the whole pending batch back; a steady one ends its rows instead."""
        match self._expect_pending(batch):
            case _PendingRound():
                for row in batch.rows:
                    if self._ahead is not None and row.sequence in self._ahead.waiting:
                        self._commit_ahead_row(row, RowDecision(0, is_terminal=True))
                    else:
                        # The round has folded in what was pending before it.
                        self._stores.abort_row(row.sequence, pending_fold=0)
            case _PendingControl(before=before):
                self._copy_state(self._stores.state.restore(before.state))
                self._stores.abort_row(before.handle, pending_fold=before.pending_fold)
        self._pending = None

    def abandon(self) -> None:
        """Abort the pending batch, if there is one, and forget what else is under way."""
        self._ahead = None
        self._staged.abandon()
        if self._pending is not None:
            self.abort(self._pending.batch)

    def pending_logits(self, batch: PendingBatch) -> npt.NDArray[np.float32]:
        """Read back the logits a pending decode round chose from, [B, vocab_rows]."""
        if not isinstance(self._expect_pending(batch), _PendingRound):
            raise InvariantError("forced tokens have no logits")
        if self._ahead is not None:
            raise InvariantError("the next round has overwritten the logits")
        return self._on_device.io.download_logits(self._on_device.stream, len(batch.rows))

    def imagine_prompts(self, is_imagined: bool) -> None:
        """Take prompts as processed without processing them, or process them again."""
        self._on_device.prefill.is_imagined = is_imagined

    def round_times(self) -> RoundTimes:
        """Durations of the decode rounds since the last call; taken from the first call on."""
        return self._on_device.decode.clock.take()

    def _start_round(
        self, views: Sequence[SequenceView], masks: Sequence[TokenMask | None]
    ) -> tuple[ChosenTokens, Sequence[int]]:
        """Start a round unless it runs already; its tokens, and where in it the rows stand."""
        handles = [view.handle for view in views]
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            is_served = ahead.serves(handles) and not any(mask is not None for mask in masks)
            for left in ahead.waiting.difference(handles if is_served else ()):
                self._stores.drop_ahead(left)
            if is_served:
                return ahead.chosen, ahead.places(handles)
            self._stores.map_rows(handles)
        rows = [self._decode_row(view, mask) for view, mask in zip(views, masks, strict=True)]
        self._note_new_tables()
        chosen = self._on_device.decode.launch(rows)
        for handle in handles:
            self._uncounted.pop(handle.index, None)
        return chosen, range(len(rows))

    def _start_ahead(self, views: Sequence[SequenceView], places: Sequence[int]) -> None:
        """Start the round after the one of these rows, unless one of them may have no more."""
        handles = [view.handle for view in views]
        if any(view.frontier + 2 > view.writable_tokens for view in views):
            return
        self._stores.map_rows(handles, num_columns=2)
        rows = [
            DecodeRow(
                token=0,  # the device knows it
                position=view.frontier + 1,
                rope_position=rope_position(view.prompt.rope, view.frontier + 1),
                table_row=view.row,
                slot=view.slot,
                fold=1,
                is_uncounted=True,
                sampling=view.sampling,
            )
            for view in views
        ]
        self._note_new_tables()
        self._ahead = RoundAhead.of(handles, self._on_device.decode.launch(rows, places))

    def _decode_row(self, view: SequenceView, mask: TokenMask | None) -> DecodeRow:
        return DecodeRow(
            token=view.anchor,
            position=view.frontier,
            rope_position=rope_position(view.prompt.rope, view.frontier),
            table_row=view.row,
            slot=view.slot,
            fold=view.pending_fold,
            is_uncounted=self._is_uncounted(view.handle),
            sampling=view.sampling,
            mask=mask,
        )

    def _commit_ahead_row(self, row: PendingRow, decision: RowDecision) -> None:
        """Commit a row of which the round ahead has folded and counted all that was recorded."""
        handle = row.sequence
        self._stores.commit_row(
            handle,
            row.tokens[: decision.accepted],
            is_terminal=decision.is_terminal,
            pending_fold=0,
            boundaries=decision.boundaries,
            keeps_pages=True,
        )
        self._uncounted.pop(handle.index, None)
        if decision.is_terminal:
            self.leave_ahead(handle)
        if not decision.accepted:
            self._spoiled[handle.index] = handle

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
            counted = min(stop - first, max(0, num_counted - (end - stop)))
            part = tokens[first - start : stop - start]
            self._on_device.prefill.run(chunk_of(view, part, first, fold, num_counted=counted))
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
