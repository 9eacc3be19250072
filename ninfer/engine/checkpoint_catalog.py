"""What the engine knows of checkpoints: entries, their value classes, claims and session bindings.

The catalog is logical. It names checkpoints that Program says exist and never counts their bytes;
adopting a result replaces the set of entries by the one Program published. A place for a new entry
is reserved when a request becomes active, so that publication at its end cannot fail for want of
storage. Source: system design, sections 4 and 6.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NewType

from ninfer.errors import InvariantError
from ninfer.program.contract import CheckpointHandle, CheckpointSummary, Tier

ReservationId = NewType("ReservationId", int)


class CheckpointKind(enum.Enum):
    """What a checkpoint is a checkpoint of."""

    SESSION_ENDPOINT = enum.auto()  # end of a finished turn
    TURN_CLOSURE = enum.auto()  # before the replaceable assistant suffix
    RESPONSE_REPLAY = enum.auto()  # before the generation opener
    LONG_ANCHOR = enum.auto()  # earlier point in a long history
    SHARED_STABLE_PREFIX = enum.auto()  # common to many histories


class RetentionClass(enum.IntEnum):
    """How much losing a private checkpoint hurts; the value is its weight in the price."""

    DISPOSABLE = 1
    RECENT = 4
    LIVE_SESSION = 16


@dataclass(frozen=True, slots=True)
class Publication:
    """The engine's own facts of a checkpoint that is about to be published.

    Attributes:
        publication_order: of the request it comes from.
        session_key: binding to update, if any.
    """

    kind: CheckpointKind
    retention: RetentionClass
    publication_order: int
    session_key: str | None


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One checkpoint that exists."""

    handle: CheckpointHandle
    frontier: int
    tiers: frozenset[Tier]
    publication: Publication


@dataclass(frozen=True, slots=True)
class _Binding:
    publication_order: int
    handle: CheckpointHandle


class SessionIndex:
    """Session key to newest checkpoint: a search hint that owns nothing."""

    def __init__(self) -> None:
        self._bindings: dict[str, _Binding] = {}

    def bind(self, session_key: str, publication_order: int, handle: CheckpointHandle) -> bool:
        """Bind a key, unless a later request has done so already."""
        bound = self._bindings.get(session_key)
        if bound is not None and bound.publication_order >= publication_order:
            return False
        self._bindings[session_key] = _Binding(publication_order, handle)
        return True

    def find(self, session_key: str) -> CheckpointHandle | None:
        """Checkpoint of the key's newest finished request, while it exists."""
        bound = self._bindings.get(session_key)
        return None if bound is None else bound.handle

    def forget_all_but(self, handles: Iterable[CheckpointHandle]) -> None:
        """Drop bindings to checkpoints that no longer exist."""
        kept = set(handles)
        self._bindings = {k: b for k, b in self._bindings.items() if b.handle in kept}


class CheckpointCatalog:
    """All checkpoints of one engine, with a fixed number of places."""

    def __init__(self, num_slots: int) -> None:
        self.sessions = SessionIndex()
        self._num_slots = num_slots
        self._entries: dict[CheckpointHandle, CatalogEntry] = {}
        self._reservations: set[ReservationId] = set()
        self._next_reservation = 0
        self._claimed: frozenset[CheckpointHandle] = frozenset()

    @property
    def num_free(self) -> int:
        """Places neither used nor reserved."""
        return self._num_slots - len(self._entries) - len(self._reservations)

    @property
    def num_reserved(self) -> int:
        """Places reserved by active requests."""
        return len(self._reservations)

    def entries(self) -> tuple[CatalogEntry, ...]:
        """Every entry, oldest publication first."""
        return tuple(self._entries.values())

    def unprotected(self) -> tuple[CheckpointHandle, ...]:
        """Entries that a plan may move or delete: all that no transition has claimed."""
        return tuple(handle for handle in self._entries if handle not in self._claimed)

    def reserve(self) -> ReservationId | None:
        """Set a place aside for one publication; None when there is none."""
        if self.num_free <= 0:
            return None
        reservation = ReservationId(self._next_reservation)
        self._next_reservation += 1
        self._reservations.add(reservation)
        return reservation

    def cancel(self, reservation: ReservationId) -> None:
        """Give a reserved place back unused.

        Raises:
            InvariantError: it is not reserved.
        """
        if reservation not in self._reservations:
            raise InvariantError(f"catalog reservation {reservation} does not exist")
        self._reservations.remove(reservation)

    def claim(self, handles: frozenset[CheckpointHandle]) -> None:
        """Protect what a starting transition reads or changes.

        Raises:
            InvariantError: a claim is held already, or an entry does not exist.
        """
        if self._claimed:
            raise InvariantError("two resource transitions claim checkpoints at the same time")
        unknown = handles - self._entries.keys()
        if unknown:
            raise InvariantError(
                f"a plan names checkpoints that do not exist: {sorted_of(unknown)}"
            )
        self._claimed = handles

    def unclaim(self) -> None:
        """End the claim of the transition that ended."""
        self._claimed = frozenset()

    def check(
        self, summaries: tuple[CheckpointSummary, ...], published: CheckpointHandle | None
    ) -> None:
        """Verify that a result's checkpoints can be adopted; changes nothing.

        Raises:
            InvariantError: a checkpoint appears twice, from nowhere, or was published and is gone.
        """
        handles = [summary.handle for summary in summaries]
        known = self._entries.keys() | ({published} if published is not None else set())
        if len(set(handles)) != len(handles):
            raise InvariantError("a result names a checkpoint twice")
        if not set(handles) <= known:
            raise InvariantError("a result names a checkpoint that nobody published")
        if published is not None and (published not in handles or published in self._entries):
            raise InvariantError("a published checkpoint is not new, or does not exist")

    def adopt(
        self,
        summaries: tuple[CheckpointSummary, ...],
        published: CheckpointHandle | None,
        reservation: ReservationId | None,
        publication: Publication | None,
    ) -> None:
        """Replace the entries by a checked result's set, filling the reserved place if asked."""
        present = {summary.handle: summary for summary in summaries}
        self._entries = {
            handle: replace(entry, frontier=present[handle].frontier, tiers=present[handle].tiers)
            for handle, entry in self._entries.items()
            if handle in present
        }
        if reservation is not None:
            self.cancel(reservation)
        if published is not None and publication is not None:
            summary = present[published]
            self._entries[published] = CatalogEntry(
                published, summary.frontier, summary.tiers, publication
            )
            if publication.session_key is not None:
                self.sessions.bind(
                    publication.session_key, publication.publication_order, published
                )
        self.sessions.forget_all_but(self._entries)

    def clear(self) -> None:
        """Forget everything, after Program released it in a failure."""
        self._entries.clear()
        self._reservations.clear()
        self._claimed = frozenset()
        self.sessions.forget_all_but(())


def sorted_of(handles: Iterable[CheckpointHandle]) -> list[int]:
    """Indices of handles in order, for messages."""
    return sorted(handle.index for handle in handles)
