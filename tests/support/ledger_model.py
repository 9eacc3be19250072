"""An independent ledger: who holds which pages, by content, and what is free by definition.

Knows no page ids, tables or reference counts. A full page is an object; holders of the same object
share it. Everything else that a holder was promised is its own. What is free follows from the set
of all holders that are left, which is what the stores' joint post-states are compared with.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from ninfer.program.contract import (
    Capture,
    Demand,
    FromCheckpoint,
    Materialize,
    Rearrange,
    Release,
    ResourceVector,
    Retain,
    Target,
)

PAGE = 64
MAX_CONTEXT = 200


@dataclass(frozen=True)
class Holding:
    """One sequence or checkpoint: its full pages by identity, its promise, its frontier."""

    full: tuple[object, ...]
    reserved: int
    frontier: int

    def advanced(self, frontier: int) -> "Holding":
        """The same holder with more tokens: pages that became full are new ones."""
        fresh = tuple(object() for _ in range(frontier // PAGE - len(self.full)))
        return Holding(self.full + fresh, self.reserved, frontier)

    def continued(self, reserved: int) -> "Holding":
        """Another holder that goes on from here."""
        return Holding(self.full, reserved, self.frontier)

    def frozen(self) -> "Holding":
        """The same content with nothing promised behind it."""
        return Holding(self.full, -(-self.frontier // PAGE), self.frontier)


@dataclass
class Ledger:
    """All holders; every one also holds one state slot."""

    num_pages: int
    num_slots: int
    holders: dict[Hashable, Holding] = field(default_factory=dict)

    def free(self, without: Iterable[Hashable] = (), extra: Iterable[Holding] = ()) -> "Free":
        """State slots and pages free if ``without`` were gone and ``extra`` there."""
        gone = set(without)
        held = [holding for key, holding in self.holders.items() if key not in gone]
        held += extra
        named = [page for holding in held for page in holding.full]
        pages = sum(holding.reserved for holding in held) - len(named) + len(set(map(id, named)))
        return Free(self.num_slots - len(held), self.num_pages - pages)


@dataclass(frozen=True)
class Free:
    """Amounts; negative when the holders would not fit."""

    state_slots: int
    main_pages: int

    @property
    def is_possible(self) -> bool:
        return self.state_slots >= 0 and self.main_pages >= 0


EMPTY = Holding((), 0, 0)


def reserved_for(demand: Demand) -> int:
    """Pages of everything a demand can write; the last token is never processed."""
    limit = min(len(demand.prompt.token_ids) + demand.max_new_tokens, MAX_CONTEXT)
    return -(-(limit - 1) // PAGE)


def free_of(vector: ResourceVector) -> Free:
    """The axes that this ledger knows."""
    return Free(vector.state_slots, vector.main_pages)


def post_state(ledger: Ledger, target: Target) -> tuple[set[Hashable], list[Holding]]:
    """Holders that end and holders that appear, straight from the target's meaning."""
    ended: set[Hashable] = set()
    if not isinstance(target, Release):
        ended |= {action.checkpoint for action in target.actions}
    match target:
        case Materialize(demand=demand, source=source):
            before = EMPTY
            if isinstance(source, FromCheckpoint):
                before = ledger.holders[source.checkpoint]
                ended |= {source.checkpoint} if source.consume else set()
            return ended, [before.continued(reserved_for(demand))]
        case Capture(sequence=sequence):
            return ended, [ledger.holders[sequence].frozen()]
        case Retain(sequence=sequence):
            return ended | {sequence}, [ledger.holders[sequence].frozen()]
        case Release(sequence=sequence):
            return ended | {sequence}, []
        case Rearrange():
            return ended, []


def can_ever_be(ledger: Ledger, target: Target) -> bool:
    """Whether a target could hold in a Program that has nothing else."""
    match target:
        case Materialize(demand=demand, source=source):
            size = len(demand.prompt.token_ids)
            if size >= MAX_CONTEXT or reserved_for(demand) > ledger.num_pages:
                return False
            if isinstance(source, FromCheckpoint):
                return ledger.holders[source.checkpoint].frontier < size
            return True
        case Capture(sequence=sequence):
            own = ledger.holders[sequence]
            alone = Ledger(ledger.num_pages, ledger.num_slots, {0: own})
            return own.frontier > 0 and alone.free(extra=[own.frozen()]).is_possible
        case Retain(sequence=sequence):
            return ledger.holders[sequence].frontier > 0
        case Release() | Rearrange():
            return True
