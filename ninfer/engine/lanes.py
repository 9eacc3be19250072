"""Logical lanes: long-lived places of active requests, and their life cycle.

    FREE -> MATERIALIZING -> ACTIVE -> TERMINAL_PENDING -> FREE

A lane is neither a state slot, a block-table row nor a row of a round; none of them may be derived
from another. Source: system design, sections 4 and 5.
"""

import enum
from dataclasses import dataclass
from typing import Final, NewType

from ninfer.errors import IllegalMove
from ninfer.program.contract import SequenceHandle

LaneId = NewType("LaneId", int)


class LaneState(enum.Enum):
    """What a lane owns."""

    FREE = enum.auto()  # nothing
    MATERIALIZING = enum.auto()  # a claim that may still be aborted
    ACTIVE = enum.auto()  # everything the request needs to finish
    TERMINAL_PENDING = enum.auto()  # model work over, resources not yet settled


class LaneMove(enum.Enum):
    """What can happen to a lane."""

    CLAIM = enum.auto()
    ABORT = enum.auto()
    ADOPT = enum.auto()
    END = enum.auto()
    SETTLE = enum.auto()


_NEXT: Final = {
    (LaneState.FREE, LaneMove.CLAIM): LaneState.MATERIALIZING,
    (LaneState.MATERIALIZING, LaneMove.ABORT): LaneState.FREE,
    (LaneState.MATERIALIZING, LaneMove.ADOPT): LaneState.ACTIVE,
    (LaneState.ACTIVE, LaneMove.END): LaneState.TERMINAL_PENDING,
    (LaneState.TERMINAL_PENDING, LaneMove.SETTLE): LaneState.FREE,
}


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane; ``sequence`` exists exactly while it is ACTIVE or TERMINAL_PENDING."""

    state: LaneState = LaneState.FREE
    sequence: SequenceHandle | None = None


class LaneTable:
    """All lanes of an engine; the only place that changes one."""

    def __init__(self, num_lanes: int) -> None:
        self._lanes = [Lane() for _ in range(num_lanes)]

    @property
    def num_free(self) -> int:
        """Lanes that a claim could take."""
        return sum(lane.state is LaneState.FREE for lane in self._lanes)

    def state(self, lane: LaneId) -> LaneState:
        """State of a lane."""
        return self._lanes[lane].state

    def sequence(self, lane: LaneId) -> SequenceHandle:
        """The active sequence of a lane.

        Raises:
            IllegalMove: the lane owns none.
        """
        sequence = self._lanes[lane].sequence
        if sequence is None:
            raise IllegalMove(f"lane {lane} owns no sequence in {self._lanes[lane].state.name}")
        return sequence

    def sequences(self) -> frozenset[SequenceHandle]:
        """Every sequence owned by a lane."""
        return frozenset(lane.sequence for lane in self._lanes if lane.sequence is not None)

    def claim(self) -> LaneId:
        """Take the lowest free lane.

        Raises:
            IllegalMove: no lane is free.
        """
        for index, lane in enumerate(self._lanes):
            if lane.state is LaneState.FREE:
                self._move(LaneId(index), LaneMove.CLAIM, None)
                return LaneId(index)
        raise IllegalMove("no lane is free")

    def abort(self, lane: LaneId) -> None:
        """Give a claim back."""
        self._move(lane, LaneMove.ABORT, None)

    def adopt(self, lane: LaneId, sequence: SequenceHandle) -> None:
        """Make a claimed lane the owner of its new sequence."""
        self._move(lane, LaneMove.ADOPT, sequence)

    def end(self, lane: LaneId) -> None:
        """Note that no model work is left; the sequence stays owned."""
        self._move(lane, LaneMove.END, self._lanes[lane].sequence)

    def settle(self, lane: LaneId) -> None:
        """Free a lane whose sequence no longer exists."""
        self._move(lane, LaneMove.SETTLE, None)

    def clear(self) -> None:
        """Forget everything, after Program released all active state in a failure."""
        self._lanes = [Lane() for _ in self._lanes]

    def _move(self, lane: LaneId, move: LaneMove, sequence: SequenceHandle | None) -> None:
        state = self._lanes[lane].state
        target = _NEXT.get((state, move))
        if target is None:
            raise IllegalMove(f"lane {lane}: {move.name} is illegal in {state.name}")
        self._lanes[lane] = Lane(target, sequence)
