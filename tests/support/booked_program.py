"""The books of a Program over memory that remembers tokens: units without any model.

`BookedProgram` runs prefill, decode and forced control the way the executing half does, with
tokens for activations, so that a test can read back what each sequence and checkpoint really has
in its pages and in its image.
"""

from collections.abc import Sequence

import numpy as np

from ninfer.generation import PreparedPrompt, SamplingParams
from ninfer.program.contract import (
    CheckpointHandle,
    Demand,
    Materialize,
    ResourceResult,
    Retain,
    Root,
    RunningTransaction,
    SequenceHandle,
    Target,
    Verdict,
)
from ninfer.program.kv_pool import pages_for
from ninfer.program.physical_stores import PhysicalStores, StoreShape
from ninfer.program.resource_projection import CopySizes
from ninfer.program.resource_transaction import ResourceTransitions
from tests.support.physical_memory import Image, SimulatedMemory

OWNER = 11
SIZES = CopySizes(state_bytes=1000, page_bytes=10)
MAX_FOLD = 3


def prompt_of(tokens: Sequence[int]) -> PreparedPrompt:
    """A text prompt."""
    return PreparedPrompt(tuple(tokens), bytes(len(tokens)), None, b"")


def demand_of(tokens: Sequence[int], max_new_tokens: int) -> Demand:
    """A demand for a text prompt."""
    return Demand(prompt_of(tokens), SamplingParams(), max_new_tokens)


class BookedProgram:
    """Stores, transitions and simulated units."""

    def __init__(
        self,
        *,
        num_pages: int = 8,
        num_slots: int = 3,
        max_concurrency: int = 2,
        max_context: int = 256,
        owner: int = OWNER,
    ) -> None:
        shape = StoreShape(max_concurrency, max_context, num_slots, num_pages, MAX_FOLD)
        self.table = np.zeros((max_concurrency, pages_for(max_context)), np.int32)
        self.uploaded = np.full_like(self.table, -(10**6))
        self.stores = PhysicalStores(shape, owner, self.table)
        self.memory = SimulatedMemory(num_pages, num_slots)
        self.transitions = ResourceTransitions(self.stores, self.memory, SIZES)
        self.provisional: dict[SequenceHandle, tuple[int, ...]] = {}

    def run(self, target: Target) -> ResourceResult:
        """Take a feasible target from seal to commit."""
        running = self.transitions.start(self.transitions.seal(target))
        assert running is not None
        while not running.advance():
            continue
        return running.commit()

    def is_feasible(self, target: Target) -> bool:
        """Whether a target could be sealed now."""
        verdict = self.transitions.project(target).verdict
        return verdict in (Verdict.READY, Verdict.NEEDS_TRANSFER)

    def prefill(self, handle: SequenceHandle, num_tokens: int) -> None:
        """Process prompt tokens in place."""
        self.stores.begin_prefill(handle, num_tokens)
        view = self.stores.view(handle)
        tokens = view.prompt.token_ids[view.frontier : view.frontier + num_tokens]
        self._process(handle, tokens)
        self.stores.commit_prefill(handle, num_tokens)

    def prefill_all(self, handle: SequenceHandle) -> None:
        """Process the whole prompt but its anchor."""
        view = self.stores.view(handle)
        left = len(view.prompt.token_ids) - 1 - view.frontier
        if left:
            self.prefill(handle, left)

    def begin_decode(self, handle: SequenceHandle, token: int) -> None:
        """One column: fold what is pending, record the anchor, choose ``token``."""
        self.stores.begin_rows([(handle, 1)])
        view = self.stores.view(handle)
        image = self.memory.images[view.slot]
        folded = image.folded + image.records[: view.pending_fold]
        self.memory.images[view.slot] = Image(folded, (view.anchor,), image.counted)
        self._write(handle, (view.anchor,))
        self.provisional[handle] = (token,)

    def commit(self, handle: SequenceHandle, *, is_terminal: bool = False) -> None:
        """Accept the provisional token of a decode row."""
        view = self.stores.view(handle)
        tokens = self.provisional.pop(handle)
        if view.num_output_tokens:
            self.memory.images[view.slot].counted += (view.anchor,)
        self.stores.commit_row(handle, tokens, is_terminal=is_terminal, pending_fold=1)

    def cancel(self, handle: SequenceHandle) -> None:
        """Commit a decode row with nothing accepted."""
        del self.provisional[handle]
        self.stores.commit_row(handle, (), is_terminal=True, pending_fold=0)

    def abort(self, handle: SequenceHandle) -> None:
        """Drop the provisional token of a decode row."""
        del self.provisional[handle]
        self.stores.abort_row(handle, pending_fold=0)

    def decode(self, handle: SequenceHandle, token: int) -> None:
        """One whole round of one row."""
        self.begin_decode(handle, token)
        self.commit(handle)

    def control(self, handle: SequenceHandle, tokens: Sequence[int], *, is_kept: bool) -> None:
        """Force tokens through the prefill path, behind a snapshot."""
        before = self.stores.view(handle)
        self.stores.begin_rows([(handle, len(tokens))])
        copy = self.stores.state.snapshot(before.state)
        self.memory.copy_state(copy.source, copy.destination)
        processed = (before.anchor, *tokens[:-1])
        self._process(handle, processed)
        if is_kept:
            counted = processed if before.num_output_tokens else processed[1:]
            self.memory.images[before.slot].counted += counted
            self.stores.state.discard(before.state)
            self.stores.commit_row(handle, tokens, is_terminal=False, pending_fold=0)
        else:
            back = self.stores.state.restore(before.state)
            self.memory.copy_state(back.source, back.destination)
            self.stores.abort_row(handle, pending_fold=before.pending_fold)

    def check_contents(self) -> None:
        """Every sequence and checkpoint has exactly its tokens in pages and image."""
        for record in self.stores.sequences:
            view = self.stores.view(record.handle)
            extent = self.stores.kv.extent(record.kv)
            known = list(record.ledger[: view.frontier])
            image = self.memory.images[view.slot]
            assert self.memory.read(extent.pages, view.frontier) == known
            if record.handle not in self.provisional:
                pending = image.records[: view.pending_fold]
                assert [*image.folded, *pending] == known
                assert list(image.counted) == known[len(record.prompt.token_ids) :]
        for checkpoint in self.stores.checkpoints:
            assert self.read_checkpoint(checkpoint.handle) == checkpoint.identity.token_ids

    def read_checkpoint(self, handle: CheckpointHandle) -> tuple[int, ...]:
        """Tokens of a checkpoint's pages, which must be those of its image."""
        record = self.stores.checkpoints.get(handle)
        extent = self.stores.kv.extent(record.kv)
        image = self.memory.images[record.state.slot]
        pending = self.stores.state.pending_fold(record.state)
        tokens = tuple(self.memory.read(extent.pages, extent.frontier))
        assert tokens == image.folded + image.records[:pending]
        return tokens

    def facts(self) -> object:
        """Everything that an abort has to bring back."""
        stores = self.stores
        sequences = [
            (stores.view(r.handle), tuple(r.ledger), stores.kv.extent(r.kv))
            for r in stores.sequences
        ]
        checkpoints = [
            (c, stores.kv.extent(c.kv), stores.state.pending_fold(c.state))
            for c in stores.checkpoints
        ]
        free = (stores.free(), stores.kv.free_rows, stores.sequences.num_free)
        return sequences, checkpoints, free, self.table.tolist()

    def _process(self, handle: SequenceHandle, tokens: Sequence[int]) -> None:
        view = self.stores.view(handle)
        image = self.memory.images[view.slot]
        folded = image.folded + image.records[: view.pending_fold] + tuple(tokens)
        self.memory.images[view.slot] = Image(folded, (), image.counted)
        self._write(handle, tokens)

    def _write(self, handle: SequenceHandle, tokens: Sequence[int]) -> None:
        for row in self.stores.kv.take_dirty_rows():
            self.uploaded[row] = self.table[row]
        view = self.stores.view(handle)
        self.memory.write(self.uploaded[view.row].tolist(), view.frontier, tokens)


def root(program: BookedProgram, num_tokens: int, max_new: int, base: int = 0) -> SequenceHandle:
    """Materialize a prompt ``base, base + 1, ...`` from the root."""
    demand = demand_of(range(base, base + num_tokens), max_new)
    handle = program.run(Materialize(demand, Root())).sequence
    assert handle is not None
    return handle


def retained(program: BookedProgram, num_tokens: int, base: int = 0) -> CheckpointHandle:
    """Leave a checkpoint of ``num_tokens`` tokens ``base, base + 1, ...``."""
    handle = root(program, num_tokens + 1, 1, base)
    program.prefill_all(handle)
    published = program.run(Retain(handle)).published
    assert published is not None
    return published


def started(program: BookedProgram, target: Target) -> RunningTransaction:
    """Start a feasible target."""
    running = program.transitions.start(program.transitions.seal(target))
    assert running is not None
    return running
