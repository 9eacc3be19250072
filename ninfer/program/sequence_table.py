"""Active sequences and checkpoints: handles, token ledger, prefix identity and provenance.

A sequence's *ledger* is every committed token, prompt first. While the prompt is being prefilled
the ledger is longer than the frontier; from then on exactly one token, the anchor, stands behind
it. The phase says what may happen next:

    PREFILL -> READY <-> PENDING -> ENDED

Where the frontier is, only the KV pool knows; nothing here is bytes, pages or slots (those are
handles kept for the owner). Files of this layer read the records; only this file changes them
(design, sections 4 to 6).
"""

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ninfer.errors import IllegalMove, InvariantError, StaleHandle
from ninfer.generation import PreparedPrompt, RopePositions, SamplingParams, TokenType
from ninfer.program.contract import CheckpointHandle, SequenceHandle
from ninfer.program.kv_pool import KvHandle, TableRow
from ninfer.program.state_store import StateHandle

Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class SequencePhase(enum.Enum):
    """What an active sequence may do next."""

    PREFILL = enum.auto()  # prompt tokens before the anchor are unprocessed
    READY = enum.auto()  # only the anchor is unprocessed
    PENDING = enum.auto()  # provisional tokens await a decision
    ENDED = enum.auto()  # can only be retained or released


class SequenceEvent(enum.Enum):
    """What can happen to an active sequence."""

    PREFILLED = enum.auto()
    BEGIN = enum.auto()
    SETTLE = enum.auto()  # committed to go on, or rolled back
    END = enum.auto()


_NEXT: Final = {
    (SequencePhase.PREFILL, SequenceEvent.PREFILLED): SequencePhase.READY,
    (SequencePhase.READY, SequenceEvent.BEGIN): SequencePhase.PENDING,
    (SequencePhase.PENDING, SequenceEvent.SETTLE): SequencePhase.READY,
    (SequencePhase.PENDING, SequenceEvent.END): SequencePhase.ENDED,
}


@dataclass(frozen=True, slots=True)
class PrefixIdentity:
    """Everything that decides the state behind a prefix, and how it came about.

    Attributes:
        token_ids, token_types: of the prefix, one each per token.
        axes: rope positions, or None when they are 0, 1, 2, ... on all axes.
        splits: frontiers at which execution was cut, ascending; provenance, not identity.
        boundaries: reconstruction boundaries inside the prefix, absolute and ascending.
    """

    token_ids: tuple[int, ...]
    token_types: bytes
    axes: Axes | None
    splits: tuple[int, ...] = ()
    boundaries: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        """Tokens covered."""
        return len(self.token_ids)

    def is_prefix_of(self, prompt: PreparedPrompt) -> bool:
        """Whether a request for ``prompt`` may go on from here.

        The prompt's last token is the anchor, so it must lie behind the prefix. A prefix with media
        never matches: its pad tokens do not say which media they stand for.
        """
        size = self.length
        return (
            size < len(prompt.token_ids)
            and not any(self.token_types)
            and self.token_types == prompt.token_types[:size]
            and self.token_ids == prompt.token_ids[:size]
            and self.axes == prefix_axes(prompt.rope, size)
        )


@dataclass(slots=True)
class ActiveSequence:
    """Record of an active sequence; read-only outside this file.

    Attributes:
        handle: what the engine calls it.
        state, kv, row: what it owns in the stores.
        prompt, sampling: of its request.
        token_limit: tokens its ledger can ever have.
        ledger: committed tokens, prompt first.
        reused_tokens: prompt tokens it started with.
        splits, boundaries: see `PrefixIdentity`.
    """

    handle: SequenceHandle
    state: StateHandle
    kv: KvHandle
    row: TableRow
    prompt: PreparedPrompt
    sampling: SamplingParams
    token_limit: int
    reused_tokens: int
    phase: SequencePhase
    ledger: list[int]
    splits: list[int] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)

    @property
    def anchor(self) -> int:
        """Newest committed token, not processed yet once prefill is complete."""
        return self.ledger[-1]

    @property
    def num_output_tokens(self) -> int:
        """Committed tokens behind the prompt."""
        return len(self.ledger) - len(self.prompt.token_ids)

    @property
    def writable_tokens(self) -> int:
        """Positions that can ever be written: the last token is never processed."""
        return self.token_limit - 1

    def identity(self, frontier: int) -> PrefixIdentity:
        """Identity of the first ``frontier`` tokens."""
        types = self.prompt.token_types[:frontier]
        return PrefixIdentity(
            tuple(self.ledger[:frontier]),
            types + bytes([TokenType.TEXT]) * (frontier - len(types)),
            prefix_axes(self.prompt.rope, frontier),
            tuple(split for split in self.splits if split <= frontier),
            tuple(boundary for boundary in self.boundaries if boundary <= frontier),
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Record of an immutable continuation; its frontier is the identity's length."""

    handle: CheckpointHandle
    state: StateHandle
    kv: KvHandle
    identity: PrefixIdentity


class SequenceTable:
    """Owner of the active sequences.

    Args:
        max_concurrency: most sequences at a time.
        owner: identity of the Program that the handles belong to.
    """

    def __init__(self, max_concurrency: int, owner: int) -> None:
        self._owner: Final = owner
        self._records: list[ActiveSequence | None] = [None] * max_concurrency
        self._generations = [0] * max_concurrency

    @property
    def num_free(self) -> int:
        """Sequences that could still be added."""
        return self._records.count(None)

    def __iter__(self) -> Iterator[ActiveSequence]:
        return (record for record in self._records if record is not None)

    def get(self, handle: SequenceHandle) -> ActiveSequence:
        """Record of a handle.

        Raises:
            StaleHandle: the sequence does not exist, here and in all other methods.
        """
        is_ours = handle.owner == self._owner and 0 <= handle.index < len(self._records)
        record = self._records[handle.index] if is_ours else None
        if record is None or record.handle != handle:
            raise StaleHandle(f"{handle} names no active sequence")
        return record

    def add(
        self,
        prompt: PreparedPrompt,
        sampling: SamplingParams,
        token_limit: int,
        owned: tuple[StateHandle, KvHandle, TableRow],
        source: PrefixIdentity | None,
    ) -> ActiveSequence:
        """Add a sequence whose resources are complete.

        Args:
            prompt: of the request.
            sampling: of the request.
            token_limit: tokens the ledger can ever have.
            owned: what the sequence owns in the stores.
            source: the checkpoint's identity it starts from; None from the root.
        """
        if None not in self._records:
            raise InvariantError("every sequence slot is taken")
        index = self._records.index(None)
        self._generations[index] += 1
        reused = source.length if source is not None else 0
        is_complete = reused + 1 == len(prompt.token_ids)
        record = ActiveSequence(
            SequenceHandle(self._owner, index, self._generations[index]),
            *owned,
            prompt,
            sampling,
            token_limit,
            reused,
            SequencePhase.READY if is_complete else SequencePhase.PREFILL,
            list(prompt.token_ids),
            list(source.splits) if source is not None else [],
            list(source.boundaries) if source is not None else [],
        )
        self._records[index] = record
        return record

    def remove(self, handle: SequenceHandle) -> None:
        """Forget a sequence whose resources went elsewhere."""
        self._records[self.get(handle).handle.index] = None

    def processed(self, handle: SequenceHandle, frontier: int) -> None:
        """Record that prefill was cut at ``frontier``; complete when only the anchor is left."""
        record = self.get(handle)
        if record.phase is not SequencePhase.PREFILL or frontier >= len(record.ledger):
            raise IllegalMove(f"a sequence in {record.phase.name} cannot prefill to {frontier}")
        if frontier + 1 == len(record.ledger):
            self._apply(record, SequenceEvent.PREFILLED)
        record.splits.append(frontier)

    def begin(self, handle: SequenceHandle) -> None:
        """A unit makes provisional tokens from here on."""
        self._apply(self.get(handle), SequenceEvent.BEGIN)

    def settle(self, handle: SequenceHandle) -> None:
        """Drop the provisional tokens; the sequence is as before the unit."""
        self._apply(self.get(handle), SequenceEvent.SETTLE)

    def commit(
        self,
        handle: SequenceHandle,
        tokens: Sequence[int],
        boundaries: Sequence[int],
        *,
        is_terminal: bool,
    ) -> None:
        """Append accepted tokens.

        Args:
            handle: a pending sequence.
            tokens: accepted tokens, none only for a cancelled row, which is terminal.
            boundaries: ascending, relative to the accepted span, 1..len(tokens).
            is_terminal: the sequence can only be retained or released afterwards.
        """
        record = self.get(handle)
        base = len(record.ledger)
        if base + len(tokens) > record.token_limit or not (tokens or is_terminal):
            raise IllegalMove(f"{len(tokens)} tokens cannot follow {base} of {record.token_limit}")
        if any(not 1 <= relative <= len(tokens) for relative in boundaries):
            raise IllegalMove(f"boundaries {tuple(boundaries)} leave a span of {len(tokens)}")
        self._apply(record, SequenceEvent.END if is_terminal else SequenceEvent.SETTLE)
        record.ledger.extend(tokens)
        record.boundaries.extend(base + relative for relative in sorted(boundaries))

    def _apply(self, record: ActiveSequence, event: SequenceEvent) -> None:
        following = _NEXT.get((record.phase, event))
        if following is None:
            raise IllegalMove(f"a sequence in {record.phase.name} cannot {event.name}")
        record.phase = following


class CheckpointTable:
    """Owner of the published checkpoints; grows as needed, bounded by the StateImage slots."""

    def __init__(self, owner: int) -> None:
        self._owner: Final = owner
        self._records: list[Checkpoint | None] = []
        self._generations: list[int] = []

    def __iter__(self) -> Iterator[Checkpoint]:
        return (record for record in self._records if record is not None)

    def get(self, handle: CheckpointHandle) -> Checkpoint:
        """Record of a handle.

        Raises:
            StaleHandle: the checkpoint does not exist.
        """
        is_ours = handle.owner == self._owner and 0 <= handle.index < len(self._records)
        record = self._records[handle.index] if is_ours else None
        if record is None or record.handle != handle:
            raise StaleHandle(f"{handle} names no checkpoint")
        return record

    def add(self, state: StateHandle, kv: KvHandle, identity: PrefixIdentity) -> Checkpoint:
        """Publish a checkpoint whose frozen image and pages are complete."""
        if None not in self._records:
            self._records.append(None)
            self._generations.append(0)
        index = self._records.index(None)
        self._generations[index] += 1
        handle = CheckpointHandle(self._owner, index, self._generations[index])
        record = Checkpoint(handle, state, kv, identity)
        self._records[index] = record
        return record

    def remove(self, handle: CheckpointHandle) -> None:
        """Forget a checkpoint whose resources went elsewhere."""
        self._records[self.get(handle).handle.index] = None


def prefix_axes(rope: RopePositions | None, length: int) -> Axes | None:
    """Rope positions of the first ``length`` tokens, None when they are 0, 1, 2, ... ."""
    if rope is None:
        return None
    given = len(rope.axes[0])
    behind = tuple(range(given + rope.delta, length + rope.delta))
    time, height, width = (axis[:length] + behind for axis in rope.axes)
    plain = tuple(range(length))
    return None if time == height == width == plain else (time, height, width)
