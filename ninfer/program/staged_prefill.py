"""The prompt that is being read: its present chunk, and which parts of that are still to run.

    begin -> step (some parts) -> step ... -> step (the last part): the chunk is committed

Until its last part has run a chunk counts for nothing, although pages and state are written: its
sequence can be released then, and not be kept. Decode rounds may run between two parts; a unit
that needs the activations itself has the rest of the chunk run first. The chunk of another prompt
gives it up: the first one's request has ended then, and waits for its release. Who takes turns with
whom is the engine's decision. Program's stores know what is valid, `Prefill` runs the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ninfer.errors import InvariantError, StaleHandle
from ninfer.program.contract import PrefillStep, SequenceHandle
from ninfer.program.physical_stores import PhysicalStores, SequenceView
from ninfer.program.prefill import Prefill, chunk_stop
from ninfer.program.rope_axes import rope_axes
from ninfer.program.round_io import PrefillChunk
from ninfer.program.sequence_table import SequencePhase


@dataclass(frozen=True, slots=True)
class _BegunChunk:
    """A chunk under way.

    Attributes:
        handle: its sequence.
        chunk: its inputs.
        parts: still to run; none when only its commit is left.
        remaining_tokens: prompt tokens to process while it is not committed.
    """

    handle: SequenceHandle
    chunk: PrefillChunk
    parts: range
    remaining_tokens: int


class StagedPrefill:
    """Owner of the chunk under way; there is one at most.

    Args:
        stores: bookkeeping of everything the sequences own.
        prefill: runs chunks.
        chunk_tokens: size of a full chunk.
    """

    def __init__(self, stores: PhysicalStores, prefill: Prefill, chunk_tokens: int) -> None:
        self._stores: Final = stores
        self._prefill: Final = prefill
        self._chunk_tokens: Final = chunk_tokens
        self._begun: _BegunChunk | None = None
        self._given_up: set[SequenceHandle] = set()

    def begin(self, handle: SequenceHandle) -> None:
        """Map what the next chunk of a prompt writes, unless it is under way already.

        Raises:
            InvariantError: nothing is left to prefill, or a chunk of this prompt was given up.
        """
        self._given_up = {each for each in self._given_up if self._exists(each)}
        if handle in self._given_up:
            raise InvariantError(f"the chunk of {handle} was given up")
        begun = self._under_way()
        if begun is not None:
            if begun.handle == handle:
                return
            self._given_up.add(begun.handle)
        view = self._stores.view(handle)
        last = len(view.prompt.token_ids) - 1
        if view.phase is not SequencePhase.PREFILL:
            raise InvariantError(f"{handle} has nothing left to prefill")
        stop = chunk_stop(view.frontier, last, self._chunk_tokens)
        self._stores.begin_prefill(handle, stop - view.frontier)
        tokens = view.prompt.token_ids[view.frontier : stop]
        self._begun = _BegunChunk(
            handle,
            chunk_of(view, tokens, view.frontier, view.pending_fold, num_counted=0),
            range(self._prefill.num_parts(len(tokens))),
            last - view.frontier,
        )

    def step(self, handle: SequenceHandle, *, is_alone: bool) -> PrefillStep:
        """Run the begun chunk to its end, or the next part of it; commit it behind the last one."""
        begun = self._under_way()
        if begun is None or begun.handle != handle:
            raise InvariantError(f"no chunk of {handle} is under way")
        parts = begun.parts if is_alone else begun.parts[:1]
        self._run(begun, parts)
        if len(parts) < len(begun.parts):
            return PrefillStep(0, begun.remaining_tokens)
        self._begun = None
        return self._stores.commit_prefill(handle, len(begun.chunk.tokens))

    def finish_parts(self) -> None:
        """Run what is left of the chunk, whose activations another unit is about to overwrite."""
        begun = self._under_way()
        if begun is not None:
            self._run(begun, begun.parts)

    def expect_whole(self, handle: SequenceHandle) -> None:
        """Refuse to keep a sequence whose chunk is under way or was given up.

        Raises:
            InvariantError: it is this one's.
        """
        is_begun = self._begun is not None and self._begun.handle == handle
        if is_begun or handle in self._given_up:
            raise InvariantError(f"{handle} is in the middle of a chunk")

    def abandon(self) -> None:
        """Forget the chunk."""
        self._begun = None

    def _under_way(self) -> _BegunChunk | None:
        """The chunk, unless its sequence was released: the handle says so, in every way to end."""
        if self._begun is not None and not self._exists(self._begun.handle):
            self._begun = None
        return self._begun

    def _exists(self, handle: SequenceHandle) -> bool:
        try:
            self._stores.sequences.get(handle)
        except StaleHandle:
            return False
        return True

    def _run(self, begun: _BegunChunk, parts: range) -> None:
        if parts:
            self._prefill.run(begun.chunk, parts)
            self._begun = replace(begun, parts=begun.parts[len(parts) :])


def chunk_of(
    view: SequenceView, tokens: Sequence[int], first: int, fold: int, *, num_counted: int
) -> PrefillChunk:
    """Inputs of a chunk of a sequence.

    Args:
        view: the sequence.
        tokens: of the chunk.
        first: position of the first one.
        fold: recorded columns to fold first.
        num_counted: trailing tokens that are counted for penalties.
    """
    return PrefillChunk(
        tokens=tokens,
        first_position=first,
        rope_axes=rope_axes(view.prompt.rope, first, first + len(tokens)),
        table_row=view.row,
        slot=view.slot,
        fold=fold,
        num_counted=num_counted,
    )
