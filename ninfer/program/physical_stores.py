"""The stores of one Program taken together, and what a model unit does to them.

A unit is bracketed: `begin_prefill` or `begin_rows` maps the pages it will write, afterwards each
row is committed or rolled back. Ownership between requests and checkpoints is changed by resource
transitions only. Everything here is bookkeeping on the host; the device work that must go with it
is asked for through `PhysicalCopies` (by transitions) or done by the caller (by units).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from ninfer.errors import IllegalMove, InvariantError
from ninfer.generation import PreparedPrompt, SamplingParams
from ninfer.program.contract import (
    CheckpointHandle,
    Demand,
    PrefillStep,
    ProgramCapacity,
    ResourceVector,
    SequenceHandle,
)
from ninfer.program.kv_pool import KvPool, PageId, PoolKind, TableRow, pages_for
from ninfer.program.sequence_table import CheckpointTable, SequencePhase, SequenceTable
from ninfer.program.state_store import SlotId, StateHandle, StateStore


class PhysicalCopies(Protocol):
    """Device work of resource transitions; each call enqueues and returns at once.

    ``num_state_slots`` of the stores is the scratch slot, never named here.
    """

    def clear_state(self, slot: SlotId) -> None:
        """Make a slot the image of an empty sequence, sampler counts included."""

    def copy_state(self, source: SlotId, destination: SlotId) -> None:
        """Copy one whole StateImage, unfolded records included."""

    def reset_sampler(self, slot: SlotId) -> None:
        """Clear what belongs to one request in a continued image: the counts of its output."""

    def copy_page(self, pool: PoolKind, source: PageId, destination: PageId) -> None:
        """Copy one page group in all planes of a pool."""


@dataclass(frozen=True, slots=True)
class StoreShape:
    """Extents of the stores, fixed at start-up.

    Attributes:
        max_concurrency: active sequences, also block-table rows.
        max_context: most tokens of a sequence.
        num_state_slots: StateImage slots of the vector, scratch not counted.
        num_main_pages: page groups of the main pool.
        max_fold: record columns of a StateImage.
    """

    max_concurrency: int
    max_context: int
    num_state_slots: int
    num_main_pages: int
    max_fold: int


@dataclass(frozen=True, slots=True)
class SequenceView:
    """What a unit needs to know about one of its rows.

    Attributes:
        frontier: processed tokens; the next one to process stands at this position.
        anchor: newest committed token.
        pending_fold: recorded columns the state image has to fold in first.
        num_output_tokens: committed tokens behind the prompt.
        writable_tokens: positions that can ever be written.
    """

    handle: SequenceHandle
    phase: SequencePhase
    state: StateHandle
    slot: SlotId
    row: TableRow
    frontier: int
    anchor: int
    pending_fold: int
    num_output_tokens: int
    writable_tokens: int
    prompt: PreparedPrompt
    sampling: SamplingParams


class PhysicalStores:
    """Owner of the KV pool, the state slots, the sequences and the checkpoints.

    Args:
        shape: extents.
        owner: identity of the Program, carried by every handle.
        block_table: [max_concurrency, L] int32 of the main pool.
    """

    def __init__(self, shape: StoreShape, owner: int, block_table: npt.NDArray[np.int32]) -> None:
        expected = (shape.max_concurrency, pages_for(shape.max_context))
        if block_table.shape != expected:
            raise InvariantError(f"block table is {block_table.shape}, not {expected}")
        self.shape: Final = shape
        self.kv: Final = KvPool(PoolKind.MAIN, shape.num_main_pages, owner, block_table)
        self.state: Final = StateStore(shape.num_state_slots, owner, shape.max_fold)
        self.sequences: Final = SequenceTable(shape.max_concurrency, owner)
        self.checkpoints: Final = CheckpointTable(owner)

    @property
    def capacity(self) -> ProgramCapacity:
        """Frozen amounts."""
        total = ResourceVector(
            state_slots=self.shape.num_state_slots, main_pages=self.shape.num_main_pages
        )
        return ProgramCapacity(self.shape.max_concurrency, self.shape.max_context, total)

    def free(self) -> ResourceVector:
        """Amounts neither allocated nor reserved."""
        return ResourceVector(state_slots=self.state.free_slots, main_pages=self.kv.free_pages)

    def token_limit(self, demand: Demand) -> int:
        """Tokens the sequence of a demand can ever have."""
        return min(len(demand.prompt.token_ids) + demand.max_new_tokens, self.shape.max_context)

    def root_need(self, demand: Demand) -> ResourceVector | None:
        """What a demand reserves from the root; None when it can never be served, even alone.

        The last token of a sequence is never processed, so one position less is reserved. A demand
        without output only processes its prompt.
        """
        limit = self.token_limit(demand)
        if len(demand.prompt.token_ids) + min(demand.max_new_tokens, 1) > limit:
            return None
        need = ResourceVector(state_slots=1, main_pages=pages_for(limit - 1))
        return need if need.fits(self.capacity.total) else None

    def view(self, handle: SequenceHandle) -> SequenceView:
        """Present facts of a sequence.

        Raises:
            StaleHandle: the sequence does not exist, here and in all other methods.
        """
        record = self.sequences.get(handle)
        return SequenceView(
            handle,
            record.phase,
            record.state,
            record.state.slot,
            record.row,
            self.kv.frontier(record.kv),
            record.anchor,
            self.state.pending_fold(record.state),
            record.num_output_tokens,
            record.writable_tokens,
            record.prompt,
            record.sampling,
        )

    def begin_prefill(self, handle: SequenceHandle, num_tokens: int) -> None:
        """Map what a chunk of ``num_tokens`` prompt tokens writes.

        Raises:
            IllegalMove: the prompt before its anchor has fewer tokens left.
        """
        self.kv.grow(self.sequences.get(handle).kv, self._chunk_end(handle, num_tokens))

    def commit_prefill(self, handle: SequenceHandle, num_tokens: int) -> PrefillStep:
        """Declare the chunk valid; the prefill path leaves nothing unfolded."""
        end = self._chunk_end(handle, num_tokens)
        record = self.sequences.get(handle)
        self.kv.advance(record.kv, end)
        self.state.set_pending_fold(record.state, 0)
        self.sequences.processed(handle, end)
        return PrefillStep(num_tokens, len(record.ledger) - 1 - end)

    def begin_rows(self, rows: Sequence[tuple[SequenceHandle, int]]) -> None:
        """Map what a unit over ready rows writes: for each row its number of columns.

        Raises:
            IllegalMove: a row is not ready, named twice, or has not that many positions left;
                nothing changed for any row.
        """
        if len({handle for handle, _ in rows}) != len(rows):
            raise IllegalMove("a row is named twice")
        for handle, num_columns in rows:
            record = self.sequences.get(handle)
            end = self.kv.frontier(record.kv) + num_columns
            if (
                record.phase is not SequencePhase.READY
                or num_columns < 1
                or end > record.writable_tokens
            ):
                raise IllegalMove(f"a sequence in {record.phase.name} cannot write up to {end}")
        for handle, num_columns in rows:
            record = self.sequences.get(handle)
            self.kv.grow(record.kv, self.kv.frontier(record.kv) + num_columns)
            self.sequences.begin(handle)

    def commit_row(
        self,
        handle: SequenceHandle,
        tokens: Sequence[int],
        *,
        is_terminal: bool,
        pending_fold: int,
        boundaries: Sequence[int] = (),
        keeps_pages: bool = False,
    ) -> None:
        """Commit the accepted tokens of a pending row.

        As many positions become valid as tokens are accepted: the anchor and all but the last of
        them were processed.

        Args:
            handle: the row.
            tokens: accepted tokens, none only for a cancelled row.
            is_terminal: the row can only be retained or released afterwards.
            pending_fold: recorded columns its image has to fold in from now on: the accepted ones
                after a decode round, what it was before after a restored snapshot, else 0.
            boundaries: relative to the accepted span, 1..len(tokens).
            keeps_pages: what is mapped behind the frontier stays so, for a round that runs already.
        """
        record = self.sequences.get(handle)
        frontier = self.kv.frontier(record.kv) + len(tokens)
        self.kv.check_frontier(record.kv, frontier)
        self.state.check_fold(pending_fold)
        self.sequences.commit(handle, tokens, boundaries, is_terminal=is_terminal)
        self.kv.advance(record.kv, frontier)
        if not keeps_pages:
            self.kv.rollback(record.kv)
        self.state.set_pending_fold(record.state, pending_fold)

    def map_rows(self, handles: Sequence[SequenceHandle], num_columns: int = 1) -> None:
        """Map what rounds over pending rows write, that many columns from the frontier on."""
        for handle in handles:
            record = self.sequences.get(handle)
            self.kv.grow(record.kv, self.kv.frontier(record.kv) + num_columns)

    def drop_ahead(self, handle: SequenceHandle) -> None:
        """Unmap what was mapped for a round whose result nobody takes."""
        self.kv.rollback(self.sequences.get(handle).kv)

    def abort_row(self, handle: SequenceHandle, *, pending_fold: int) -> None:
        """Drop a pending row's provisional tokens; the sequence is as before the unit.

        Args:
            handle: the row.
            pending_fold: 0 after a decode round, which has folded the earlier columns in; what it
                was before after a restored snapshot.
        """
        record = self.sequences.get(handle)
        self.state.check_fold(pending_fold)
        self.sequences.settle(handle)
        self.kv.rollback(record.kv)
        self.state.set_pending_fold(record.state, pending_fold)

    def release_sequence(self, handle: SequenceHandle) -> None:
        """End a sequence in any phase and give back all it owns."""
        record = self.sequences.get(handle)
        self.sequences.remove(handle)
        self.kv.release(record.kv)
        self.state.release(record.state)

    def release_checkpoint(self, handle: CheckpointHandle) -> None:
        """Delete a checkpoint and give back what nobody else references."""
        record = self.checkpoints.get(handle)
        self.checkpoints.remove(handle)
        self.kv.release(record.kv)
        self.state.release(record.state)

    def _chunk_end(self, handle: SequenceHandle, num_tokens: int) -> int:
        """Frontier behind a prefill chunk, which must lie in the prompt before its anchor."""
        record = self.sequences.get(handle)
        end = self.kv.frontier(record.kv) + num_tokens
        is_legal = record.phase is SequencePhase.PREFILL and num_tokens > 0
        if not is_legal or end >= len(record.ledger):
            raise IllegalMove(f"a sequence in {record.phase.name} cannot prefill up to {end}")
        return end
