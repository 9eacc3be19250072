"""What each kind of resource target does: its stages, its publication and its way back.

A stage changes the books and asks for the device work that goes with it; the device runs that work
in the order it was asked for, so a slot or page may be handed on before its old copy has finished.
When a stage may run, and that only one transition runs, is decided by the caller.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ninfer.errors import InvariantError
from ninfer.program.contract import (
    Capture,
    CheckpointHandle,
    Demand,
    FromCheckpoint,
    Materialize,
    Rearrange,
    Release,
    Retain,
    Root,
    SequenceHandle,
    Target,
)
from ninfer.program.kv_pool import KvHandle, TailCopy, pages_for
from ninfer.program.physical_stores import PhysicalCopies, PhysicalStores
from ninfer.program.resource_projection import change_of, is_move, settled
from ninfer.program.sequence_table import Checkpoint, PrefixIdentity
from ninfer.program.state_store import SlotCopy, StateHandle

Stage = Callable[[], None]


@dataclass(frozen=True, slots=True)
class TransitionEnd:
    """What a committed target leaves behind."""

    sequence: SequenceHandle | None = None
    reused_tokens: int = 0
    published: CheckpointHandle | None = None
    released: SequenceHandle | None = None


class TransitionWork(Protocol):
    """The part of a transition that depends on its target."""

    def stages(self) -> tuple[Stage, ...]:
        """Steps before the end."""

    def publish(self) -> TransitionEnd:
        """Make the target true; called once, after all stages."""

    def give_up(self) -> bool:
        """Undo the stages run so far; whether there was anything to undo."""


def plan_work(
    stores: PhysicalStores, copies: PhysicalCopies, target: Target
) -> tuple[TransitionWork, tuple[Stage, ...]]:
    """Choose the work of a feasible target and lay out all its stages."""
    ending = change_of(stores, target).ending
    work = _work(stores, copies, target)

    def delete() -> None:
        for handle in ending:
            stores.release_checkpoint(handle)

    return work, ((delete,) if ending else ()) + work.stages()


def _work(stores: PhysicalStores, copies: PhysicalCopies, target: Target) -> TransitionWork:
    match target:
        case Materialize():
            return _materializing(stores, copies, target)
        case Capture(sequence=handle):
            return _Capturing(stores, copies, handle)
        case Retain(sequence=handle):
            return _Retaining(stores, handle)
        case Release(sequence=handle):
            return _Releasing(stores, handle)
        case Rearrange():
            return _Rearranging()


def _materializing(
    stores: PhysicalStores, copies: PhysicalCopies, target: Materialize
) -> TransitionWork:
    match target.source:
        case Root():
            return _FromRoot(stores, copies, target.demand)
        case FromCheckpoint(checkpoint=handle):
            kind = _Moving if is_move(target) else _Forking
            return kind(stores, copies, target.demand, stores.checkpoints.get(handle))


class _Claims:
    """State slot and allocation that stages reserved, until they are published or given up."""

    def __init__(self, stores: PhysicalStores) -> None:
        self._stores = stores
        self._state: StateHandle | None = None
        self._kv: KvHandle | None = None

    def hold_state(self, state: StateHandle) -> None:
        self._state = state

    def hold_kv(self, kv: KvHandle) -> None:
        self._kv = kv

    def take_state(self) -> StateHandle:
        """Hand the slot over; it is not given up any more."""
        taken, self._state = self._state, None
        if taken is None:
            raise InvariantError("no state slot was reserved")
        return taken

    def take_kv(self) -> KvHandle:
        """Hand the allocation over; it is not given up any more."""
        taken, self._kv = self._kv, None
        if taken is None:
            raise InvariantError("no allocation was reserved")
        return taken

    def give_up(self) -> bool:
        """Release what is still held; whether there was anything."""
        has_any = self._state is not None or self._kv is not None
        if self._kv is not None:
            self._stores.kv.release(self.take_kv())
        if self._state is not None:
            self._stores.state.release(self.take_state())
        return has_any


class _FromRoot:
    """Materialize with an empty image and no pages."""

    def __init__(self, stores: PhysicalStores, copies: PhysicalCopies, demand: Demand) -> None:
        self._stores = stores
        self._copies = copies
        self._demand = demand
        self._claims = _Claims(stores)

    def stages(self) -> tuple[Stage, ...]:
        return (self._reserve_and_clear,)

    def publish(self) -> TransitionEnd:
        state = self._stores.state.activate(self._claims.take_state())
        return _add_sequence(self._stores, self._demand, state, self._claims.take_kv(), None)

    def give_up(self) -> bool:
        return self._claims.give_up()

    def _reserve_and_clear(self) -> None:
        self._claims.hold_kv(self._stores.kv.open(_num_pages(self._stores, self._demand)))
        state = self._stores.state.reserve()
        self._claims.hold_state(state)
        self._copies.clear_state(state.slot)


class _FromSource:
    """Materialize with what a checkpoint has."""

    def __init__(
        self,
        stores: PhysicalStores,
        copies: PhysicalCopies,
        demand: Demand,
        source: Checkpoint,
    ) -> None:
        self._stores = stores
        self._copies = copies
        self._demand = demand
        self._source = source
        self._claims = _Claims(stores)

    def give_up(self) -> bool:
        return self._claims.give_up()


class _Forking(_FromSource):
    """Beside a source that stays."""

    def stages(self) -> tuple[Stage, ...]:
        return (self._reserve_and_copy,)

    def publish(self) -> TransitionEnd:
        state = self._stores.state.activate(self._claims.take_state())
        kv = self._claims.take_kv()
        return _add_sequence(self._stores, self._demand, state, kv, self._source.identity)

    def _reserve_and_copy(self) -> None:
        num_pages = _num_pages(self._stores, self._demand)
        kv, tail = self._stores.kv.fork(self._source.kv, num_pages)
        self._claims.hold_kv(kv)
        state, image = self._stores.state.fork(self._source.state)
        self._claims.hold_state(state)
        _copy(self._stores, self._copies, image, tail)
        self._copies.reset_sampler(state.slot)


class _Moving(_FromSource):
    """Out of a source that ends; nothing is copied."""

    def stages(self) -> tuple[Stage, ...]:
        return (self._reserve_growth,)

    def publish(self) -> TransitionEnd:
        kv = self._claims.take_kv()
        self._stores.checkpoints.remove(self._source.handle)
        self._stores.kv.move(self._source.kv, kv)
        state = self._stores.state.move(self._source.state)
        self._copies.reset_sampler(state.slot)
        return _add_sequence(self._stores, self._demand, state, kv, self._source.identity)

    def _reserve_growth(self) -> None:
        held = pages_for(self._source.identity.length)
        kv = self._stores.kv.open(_num_pages(self._stores, self._demand) - held)
        self._claims.hold_kv(kv)


class _Capturing:
    """Snapshot of an active sequence.

    Reserving and copying are one stage, because the sequence may run on before the next one.
    """

    def __init__(
        self, stores: PhysicalStores, copies: PhysicalCopies, handle: SequenceHandle
    ) -> None:
        self._stores = stores
        self._copies = copies
        self._handle = handle
        self._claims = _Claims(stores)
        self._identity: PrefixIdentity | None = None

    def stages(self) -> tuple[Stage, ...]:
        return (self._reserve_and_copy,)

    def publish(self) -> TransitionEnd:
        if self._identity is None:
            raise InvariantError("nothing was captured")
        state = self._stores.state.freeze(self._claims.take_state())
        kv = self._claims.take_kv()
        published = self._stores.checkpoints.add(state, kv, self._identity)
        return TransitionEnd(published=published.handle)

    def give_up(self) -> bool:
        return self._claims.give_up()

    def _reserve_and_copy(self) -> None:
        record = settled(self._stores, self._handle)
        kv, tail = self._stores.kv.snapshot(record.kv)
        self._claims.hold_kv(kv)
        state, image = self._stores.state.fork(record.state)
        self._claims.hold_state(state)
        self._identity = record.identity(self._stores.kv.frontier(record.kv))
        _copy(self._stores, self._copies, image, tail)


class _Retaining:
    """An active sequence becomes a checkpoint with the image and pages it has."""

    def __init__(self, stores: PhysicalStores, handle: SequenceHandle) -> None:
        self._stores = stores
        self._handle = handle

    def stages(self) -> tuple[Stage, ...]:
        return ()

    def publish(self) -> TransitionEnd:
        record = settled(self._stores, self._handle)
        identity = record.identity(self._stores.kv.frontier(record.kv))
        # First the move that may be refused, while a snapshot is unsettled.
        state = self._stores.state.freeze(record.state)
        kv = self._stores.kv.freeze(record.kv)
        self._stores.sequences.remove(self._handle)
        published = self._stores.checkpoints.add(state, kv, identity)
        return TransitionEnd(published=published.handle, released=self._handle)

    def give_up(self) -> bool:
        return False


class _Releasing:
    """An active sequence ends and leaves nothing."""

    def __init__(self, stores: PhysicalStores, handle: SequenceHandle) -> None:
        self._stores = stores
        self._handle = handle

    def stages(self) -> tuple[Stage, ...]:
        return ()

    def publish(self) -> TransitionEnd:
        settled(self._stores, self._handle)
        self._stores.release_sequence(self._handle)
        return TransitionEnd(released=self._handle)

    def give_up(self) -> bool:
        return False


class _Rearranging:
    """Nothing beyond the deletions, which are a stage of every transition."""

    def stages(self) -> tuple[Stage, ...]:
        return ()

    def publish(self) -> TransitionEnd:
        return TransitionEnd()

    def give_up(self) -> bool:
        return False


def _num_pages(stores: PhysicalStores, demand: Demand) -> int:
    need = stores.root_need(demand)
    if need is None:
        raise InvariantError("a demand beyond the total was sealed")
    return need.main_pages


def _copy(
    stores: PhysicalStores, copies: PhysicalCopies, image: SlotCopy, tail: TailCopy | None
) -> None:
    copies.copy_state(image.source, image.destination)
    if tail is not None:
        copies.copy_page(stores.kv.kind, tail.source, tail.destination)


def _add_sequence(
    stores: PhysicalStores,
    demand: Demand,
    state: StateHandle,
    kv: KvHandle,
    source: PrefixIdentity | None,
) -> TransitionEnd:
    owned = (state, kv, stores.kv.row(kv))
    limit = stores.token_limit(demand)
    record = stores.sequences.add(demand.prompt, demand.sampling, limit, owned, source)
    return TransitionEnd(sequence=record.handle, reused_tokens=record.reused_tokens)
