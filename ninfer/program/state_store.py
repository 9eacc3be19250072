"""StateImage slots: who owns which recurrent state, and what may happen to it.

A StateImage is everything of fixed size that a sequence needs to go on: GDN matrices, convolution
windows and record columns of every linear layer, token counts of the sampler. This file keeps the
slots' life cycle; copies are requested by whoever calls it and made elsewhere.

    FREE -> RESERVED -> ACTIVE | FROZEN      a transition fills a slot, then publishes it
    ACTIVE -> FROZEN                         freeze: the sequence ends as a checkpoint
    FROZEN -> ACTIVE                         move: a checkpoint is consumed
    RESERVED | ACTIVE | FROZEN -> FREE       release

Every move hands out the one handle that is valid from then on. A slot's image may lag behind its
frontier by *pending fold* columns, recorded by the newest decode round and folded in by the next
one; the number belongs to the image and follows it through forks and moves. One more slot, outside
the vector, is the scratch copy behind a forced-control unit (design, sections 6 and 7).
"""

import enum
import heapq
from dataclasses import dataclass
from typing import Final, NewType

from ninfer.errors import IllegalMove, InvariantError, StaleHandle

SlotId = NewType("SlotId", int)


@dataclass(frozen=True, slots=True)
class StateHandle:
    """An owned slot; every move makes a new generation."""

    owner: int
    slot: SlotId
    generation: int


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """A copy of one whole StateImage over another."""

    source: SlotId
    destination: SlotId


class SlotState(enum.Enum):
    """Life of a slot."""

    FREE = enum.auto()  # owned by nobody; its bytes mean nothing
    RESERVED = enum.auto()  # a transition is filling it
    ACTIVE = enum.auto()  # one sequence writes it
    FROZEN = enum.auto()  # a checkpoint's image, immutable


class SlotEvent(enum.Enum):
    """What can happen to a slot."""

    RESERVE = enum.auto()
    ACTIVATE = enum.auto()
    FREEZE = enum.auto()
    THAW = enum.auto()
    RELEASE = enum.auto()


_NEXT: Final = {
    (SlotState.FREE, SlotEvent.RESERVE): SlotState.RESERVED,
    (SlotState.RESERVED, SlotEvent.ACTIVATE): SlotState.ACTIVE,
    (SlotState.RESERVED, SlotEvent.FREEZE): SlotState.FROZEN,
    (SlotState.RESERVED, SlotEvent.RELEASE): SlotState.FREE,
    (SlotState.ACTIVE, SlotEvent.FREEZE): SlotState.FROZEN,
    (SlotState.ACTIVE, SlotEvent.RELEASE): SlotState.FREE,
    (SlotState.FROZEN, SlotEvent.THAW): SlotState.ACTIVE,
    (SlotState.FROZEN, SlotEvent.RELEASE): SlotState.FREE,
}


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.FREE
    generation: int = 0
    pending_fold: int = 0


class StateStore:
    """Owner of the StateImage slots of one Program.

    Args:
        num_slots: slots of the resource vector, ``0..num_slots-1``; slot ``num_slots`` is scratch.
        owner: identity of the Program that the handles belong to.
        max_fold: record columns of an image, the most that can be pending.
    """

    def __init__(self, num_slots: int, owner: int, max_fold: int) -> None:
        if num_slots < 1 or max_fold < 0:
            raise InvariantError(f"no store of {num_slots} slots with {max_fold} record columns")
        self.num_slots: Final = num_slots
        self.scratch_slot: Final = SlotId(num_slots)
        self._owner: Final = owner
        self._max_fold: Final = max_fold
        self._slots = [_Slot() for _ in range(num_slots)]
        self._free = [SlotId(slot) for slot in range(num_slots)]
        self._scratch: tuple[StateHandle, int] | None = None

    @property
    def free_slots(self) -> int:
        """Slots owned by nobody."""
        return len(self._free)

    def state(self, handle: StateHandle) -> SlotState:
        """Present state of an owned slot.

        Raises:
            StaleHandle: the handle is not the valid one, here and in all other methods.
        """
        return self._find(handle).state

    def reserve(self) -> StateHandle:
        """Take a free slot for a transition; its image must be cleared or copied before use.

        Raises:
            InvariantError: no slot is free.
        """
        if not self._free:
            raise InvariantError("no StateImage slot is free")
        slot = heapq.heappop(self._free)
        self._slots[slot].pending_fold = 0
        return self._apply(slot, SlotEvent.RESERVE)

    def fork(self, source: StateHandle) -> tuple[StateHandle, SlotCopy]:
        """Reserve a slot for a copy of ``source``, which stays as it is.

        Returns:
            The reserved slot and the copy that must be made before it is published.
        """
        found = self._find(source)
        if found.state is SlotState.RESERVED:
            raise IllegalMove("an image that is still being filled cannot be forked")
        taken = self.reserve()
        self._slots[taken.slot].pending_fold = found.pending_fold
        return taken, SlotCopy(source.slot, taken.slot)

    def activate(self, handle: StateHandle) -> StateHandle:
        """Hand a filled slot to a sequence."""
        self._find(handle)
        return self._apply(handle.slot, SlotEvent.ACTIVATE)

    def freeze(self, handle: StateHandle) -> StateHandle:
        """Make a filled or active image immutable."""
        self._find(handle)
        self._refuse_held(handle)
        return self._apply(handle.slot, SlotEvent.FREEZE)

    def move(self, handle: StateHandle) -> StateHandle:
        """Consume a frozen image: the same slot becomes active, nothing is copied."""
        self._find(handle)
        return self._apply(handle.slot, SlotEvent.THAW)

    def release(self, handle: StateHandle) -> None:
        """Give a slot back; a scratch copy of it is dropped with it."""
        self._find(handle)
        self._apply(handle.slot, SlotEvent.RELEASE)
        heapq.heappush(self._free, handle.slot)
        if self._scratch is not None and self._scratch[0] == handle:
            self._scratch = None

    def writable(self, handle: StateHandle) -> SlotId:
        """Slot to run a sequence in place.

        Raises:
            IllegalMove: the image is not active.
        """
        if self._find(handle).state is not SlotState.ACTIVE:
            raise IllegalMove(f"{handle} is not active")
        return handle.slot

    def pending_fold(self, handle: StateHandle) -> int:
        """Recorded columns that the image still has to fold in."""
        return self._find(handle).pending_fold

    def set_pending_fold(self, handle: StateHandle, num_columns: int) -> None:
        """Say how many recorded columns of an active image are committed but not folded."""
        self.writable(handle)
        self.check_fold(num_columns)
        self._slots[handle.slot].pending_fold = num_columns

    def check_fold(self, num_columns: int) -> None:
        """Raise `IllegalMove` when an image cannot record that many columns."""
        if not 0 <= num_columns <= self._max_fold:
            raise IllegalMove(f"{num_columns} columns cannot be pending, at most {self._max_fold}")

    def snapshot(self, handle: StateHandle) -> SlotCopy:
        """Hold an active image in scratch until `restore` or `discard`.

        Raises:
            IllegalMove: scratch is in use.
        """
        slot = self.writable(handle)
        if self._scratch is not None:
            raise IllegalMove("scratch already holds an image")
        self._scratch = (handle, self._slots[slot].pending_fold)
        return SlotCopy(slot, self.scratch_slot)

    def restore(self, handle: StateHandle) -> SlotCopy:
        """End the snapshot of ``handle`` by going back to it.

        Raises:
            IllegalMove: scratch does not hold this image.
        """
        self._slots[handle.slot].pending_fold = self._end_snapshot(handle)
        return SlotCopy(self.scratch_slot, handle.slot)

    def discard(self, handle: StateHandle) -> None:
        """End the snapshot of ``handle`` by keeping what was written since."""
        self._end_snapshot(handle)

    def _end_snapshot(self, handle: StateHandle) -> int:
        self._find(handle)
        if self._scratch is None or self._scratch[0] != handle:
            raise IllegalMove(f"scratch does not hold {handle}")
        fold = self._scratch[1]
        self._scratch = None
        return fold

    def _refuse_held(self, handle: StateHandle) -> None:
        if self._scratch is not None and self._scratch[0] == handle:
            raise IllegalMove("an image with an unsettled snapshot cannot be frozen")

    def _find(self, handle: StateHandle) -> _Slot:
        if handle.owner != self._owner or not 0 <= handle.slot < self.num_slots:
            raise StaleHandle(f"{handle} names no slot of this store")
        found = self._slots[handle.slot]
        if found.generation != handle.generation or found.state is SlotState.FREE:
            raise StaleHandle(f"{handle} is out of date")
        return found

    def _apply(self, slot: SlotId, event: SlotEvent) -> StateHandle:
        found = self._slots[slot]
        following = _NEXT.get((found.state, event))
        if following is None:
            raise IllegalMove(f"slot {slot} is {found.state.name} and cannot {event.name}")
        found.state = following
        found.generation += 1
        return StateHandle(self._owner, slot, found.generation)
