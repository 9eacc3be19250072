"""What a resource target would mean: a pure reading of the stores.

Every target is reduced to a `Change`: which checkpoints end first, what must then be reserved
fresh, what the end gives back, what has to be copied. Amounts are those of the complete joint
post-state, counted from the references that would be left, never added up owner by owner; the
peak of every stage is that post-state, because sources that end are ended before anything is
reserved and a moved source is never reserved twice (design, section 6).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ninfer.config import PAGE_TOKENS
from ninfer.errors import IllegalMove, UnsupportedFeature
from ninfer.program.contract import (
    Capture,
    CheckpointHandle,
    Demand,
    Evict,
    FromCheckpoint,
    InactiveAction,
    Materialize,
    Place,
    Projection,
    Rearrange,
    Release,
    ResourceVector,
    Retain,
    Root,
    SequenceHandle,
    Shorten,
    Target,
    Tier,
    Verdict,
)
from ninfer.program.kv_pool import pages_for
from ninfer.program.physical_stores import PhysicalStores
from ninfer.program.sequence_table import ActiveSequence, SequencePhase

_NOTHING: Final = ResourceVector()


@dataclass(frozen=True, slots=True)
class CopySizes:
    """Bytes of the units of copying.

    Attributes:
        state_bytes: one StateImage.
        page_bytes: one page group of the main pool.
    """

    state_bytes: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Change:
    """A target reduced to amounts.

    Attributes:
        ending: checkpoints deleted before anything is reserved.
        fresh: reserved then.
        returned: given back by the end of the target itself.
        is_possible: whether the target makes sense at all, now or later.
        has_row: whether a sequence can still be added, where one is needed.
        reused_tokens: see `Projection`.
        num_state_copies, num_page_copies: copies.
    """

    ending: tuple[CheckpointHandle, ...] = ()
    fresh: ResourceVector = _NOTHING
    returned: ResourceVector = _NOTHING
    is_possible: bool = True
    has_row: bool = True
    reused_tokens: int = 0
    num_state_copies: int = 0
    num_page_copies: int = 0


def project(stores: PhysicalStores, target: Target, sizes: CopySizes) -> Projection:
    """Compute a target's verdict and post-state; changes nothing.

    A target that can never be is `Verdict.PERMANENTLY_INFEASIBLE`; besides a demand beyond the
    total that is a source that is no prefix of the prompt, and a checkpoint of nothing. A target
    that lacks room only because its own actions free too little counts as blocked.

    Raises:
        StaleHandle: a handle does not exist.
        IllegalMove: a sequence awaits a decision, or has ended and is to be captured.
        UnsupportedFeature: an action needs host replicas.
    """
    change = change_of(stores, target)
    room = stores.free() + _freed_by(stores, change.ending)
    if not change.is_possible:
        verdict = Verdict.PERMANENTLY_INFEASIBLE
    elif not (change.has_row and change.fresh.fits(room)):
        verdict = Verdict.TEMPORARILY_BLOCKED
    elif change.num_state_copies + change.num_page_copies:
        verdict = Verdict.NEEDS_TRANSFER
    else:
        verdict = Verdict.READY
    if verdict in (Verdict.PERMANENTLY_INFEASIBLE, Verdict.TEMPORARILY_BLOCKED):
        return Projection(verdict, stores.free(), _lacking(change.fresh, room))
    return Projection(
        verdict,
        room - change.fresh + change.returned,
        ResourceVector(),
        change.reused_tokens,
        change.num_state_copies * sizes.state_bytes + change.num_page_copies * sizes.page_bytes,
        change.num_state_copies + change.num_page_copies,
    )


def change_of(stores: PhysicalStores, target: Target) -> Change:
    """Reduce a target to amounts; raises like `project`."""
    match target:
        case Materialize():
            return _materialize(stores, target)
        case Capture(sequence=handle, actions=actions):
            return _capture(stores, handle, ended_checkpoints(stores, actions))
        case Retain(sequence=handle, actions=actions):
            return _retain(stores, handle, ended_checkpoints(stores, actions))
        case Release(sequence=handle):
            record = settled(stores, handle)
            pages = stores.kv.freed_by([record.kv])
            return Change(returned=ResourceVector(state_slots=1, main_pages=pages))
        case Rearrange(actions=actions):
            return Change(ended_checkpoints(stores, actions))


def is_move(target: Materialize) -> bool:
    """Whether the source ends: it is consumed, or the post-state no longer has it anyway."""
    match target.source:
        case Root():
            return False
        case FromCheckpoint(checkpoint=handle, consume=consume):
            return consume or Evict(handle) in target.actions


def settled(stores: PhysicalStores, handle: SequenceHandle) -> ActiveSequence:
    """Record of a sequence that awaits no decision.

    Raises:
        IllegalMove: it has provisional tokens.
    """
    record = stores.sequences.get(handle)
    if record.phase is SequencePhase.PENDING:
        raise IllegalMove("the sequence has provisional tokens; decide on them first")
    return record


def ended_checkpoints(
    stores: PhysicalStores, actions: Sequence[InactiveAction]
) -> tuple[CheckpointHandle, ...]:
    """Checkpoints that the actions delete, each once, in order.

    Only device residency exists, so placing a checkpoint there changes nothing.
    """
    ended: list[CheckpointHandle] = []
    for action in actions:
        stores.checkpoints.get(action.checkpoint)
        match action:
            case Evict(checkpoint=handle):
                if handle not in ended:
                    ended.append(handle)
            case Place(tiers=tiers):
                if not tiers:
                    raise IllegalMove("a checkpoint without any place is evicted, not placed")
                if Tier.HOST in tiers:
                    raise UnsupportedFeature("host replicas of checkpoints do not exist yet")
            case Shorten():
                raise UnsupportedFeature("a checkpoint cannot be shortened without host replicas")
    return tuple(ended)


def room_for_head(
    stores: PhysicalStores, head: Demand, donors: frozenset[SequenceHandle], borrower: Demand
) -> bool:
    """Whether ``head`` fits from the root once donors and all inactive cache ended.

    The borrower holds its full root reservation for ever, whatever it shares in truth.

    Raises:
        StaleHandle: a donor does not exist.
    """
    needs = (stores.root_need(head), stores.root_need(borrower))
    donor_records = [stores.sequences.get(handle) for handle in sorted(donors, key=_by_index)]
    if needs[0] is None or needs[1] is None:
        return False
    checkpoints = list(stores.checkpoints)
    ended = [record.kv for record in donor_records] + [record.kv for record in checkpoints]
    room = stores.free() + ResourceVector(
        state_slots=len(ended), main_pages=stores.kv.freed_by(ended)
    )
    has_rows = stores.sequences.num_free + len(donors) >= 2
    return has_rows and (needs[0] + needs[1]).fits(room)


def _by_index(handle: SequenceHandle) -> int:
    return handle.index


def _materialize(stores: PhysicalStores, target: Materialize) -> Change:
    ended = ended_checkpoints(stores, target.actions)
    need = stores.root_need(target.demand)
    match target.source:
        case Root():
            if need is None:
                return Change(ended, is_possible=False)
            return Change(ended, need, has_row=stores.sequences.num_free > 0)
        case FromCheckpoint(checkpoint=handle):
            source = stores.checkpoints.get(handle)
            if need is None or not source.identity.is_prefix_of(target.demand.prompt):
                return Change(ended, is_possible=False)
            others = tuple(other for other in ended if other != handle)
            frontier = source.identity.length
            return _continue(stores, frontier, need.main_pages, others, is_move=is_move(target))


def _continue(
    stores: PhysicalStores,
    frontier: int,
    num_pages: int,
    ended: tuple[CheckpointHandle, ...],
    *,
    is_move: bool,
) -> Change:
    has_row = stores.sequences.num_free > 0
    if is_move:
        fresh = ResourceVector(main_pages=num_pages - pages_for(frontier))
        return Change(ended, fresh, has_row=has_row, reused_tokens=frontier)
    return Change(
        ended,
        ResourceVector(state_slots=1, main_pages=num_pages - frontier // PAGE_TOKENS),
        has_row=has_row,
        reused_tokens=frontier,
        num_state_copies=1,
        num_page_copies=_num_tails(frontier),
    )


def _capture(
    stores: PhysicalStores, handle: SequenceHandle, ended: tuple[CheckpointHandle, ...]
) -> Change:
    record = settled(stores, handle)
    if record.phase is SequencePhase.ENDED:
        raise IllegalMove("a sequence that has ended is retained, not captured")
    extent = stores.kv.extent(record.kv)
    tails = _num_tails(extent.frontier)
    fresh = ResourceVector(state_slots=1, main_pages=tails)
    alone = stores.capacity.total - ResourceVector(state_slots=1, main_pages=extent.reserved)
    is_possible = extent.frontier > 0 and fresh.fits(alone)
    return Change(ended, fresh, is_possible=is_possible, num_state_copies=1, num_page_copies=tails)


def _retain(
    stores: PhysicalStores, handle: SequenceHandle, ended: tuple[CheckpointHandle, ...]
) -> Change:
    extent = stores.kv.extent(settled(stores, handle).kv)
    behind = extent.reserved - pages_for(extent.frontier)
    returned = ResourceVector(main_pages=behind)
    return Change(ended, returned=returned, is_possible=extent.frontier > 0)


def _num_tails(frontier: int) -> int:
    return 1 if frontier % PAGE_TOKENS else 0


def _freed_by(stores: PhysicalStores, ending: tuple[CheckpointHandle, ...]) -> ResourceVector:
    pages = stores.kv.freed_by([stores.checkpoints.get(handle).kv for handle in ending])
    return ResourceVector(state_slots=len(ending), main_pages=pages)


def _lacking(fresh: ResourceVector, room: ResourceVector) -> ResourceVector:
    return ResourceVector(
        state_slots=max(0, fresh.state_slots - room.state_slots),
        main_pages=max(0, fresh.main_pages - room.main_pages),
    )
