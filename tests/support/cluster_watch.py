"""Accesses of the threads of a simulated cluster to shared memory that nothing orders.

Each thread has a clock of its own, and knows of every other one until when it has seen it: meetings
of warps, blocks and clusters, and barriers in shared memory, hand on what threads know. An access
is a race where it meets one of another thread that this one has not seen yet, one of them writes,
and not both add; but lanes of a warp may write the same value. What is written into another block,
and what a bulk copy brings, is written from the moment when it is asked for.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.support.race_watch import RaceError, WatchedTurns

_PIECE: Final = 4
"""Bytes that are watched together."""

Clocks = npt.NDArray[np.int32]


class BlockWatch:
    """Who has read, written and added to the words of one block's shared memory, and when.

    Args:
        nbytes: of the memory.
        turns: the threads of the cluster.
        base: address of the first byte.
    """

    def __init__(self, nbytes: int, turns: WatchedTurns, base: int) -> None:
        shape = (-(-nbytes // _PIECE), turns.count)
        self._turns, self._base = turns, base
        self._read = np.zeros(shape, np.int32)
        self._written = np.zeros(shape, np.int32)
        self._added = np.zeros(shape, np.int32)

    def read(self, address: Any, nbytes: int) -> None:
        self._note(self._read, (self._written, self._added), address, nbytes, "read")

    def write(self, address: Any, nbytes: int, is_change: bool = True) -> None:
        others = (self._written, self._added, self._read)
        self._note(self._written, others, address, nbytes, "written", is_change)

    def add(self, address: Any, nbytes: int) -> None:
        """Note an addition that others may make at the same time."""
        self._note(self._added, (self._written, self._read), address, nbytes, "added to")

    def _note(
        self,
        own: Clocks,
        others: tuple[Clocks, ...],
        address: Any,
        nbytes: int,
        how: str,
        is_change: bool = True,
    ) -> None:
        me, first = self._turns.current, int(address) - self._base
        places = slice(first // _PIECE, -(-(first + nbytes) // _PIECE))
        for clocks in others:
            unseen = clocks[places] > self._turns.seen[me]
            unseen[:, me] = False
            if not is_change and clocks is self._written:
                unseen[:, me // 32 * 32 : me // 32 * 32 + 32] = False
            if unseen.any():
                other = int(np.argwhere(unseen)[0][1])
                raise RaceError(f"{first} is {how} by {me}, and used by {other} at any time")
        own[places, me] = self._turns.seen[me, me]


class Knowledge:
    """What threads that come to a place know, for those that leave it."""

    def __init__(self, turns: WatchedTurns) -> None:
        self._turns = turns
        self._known = np.zeros(turns.count, np.int64)

    def alike(self) -> "Knowledge":
        """Make another one of the same threads, which nobody has come to."""
        return Knowledge(self._turns)

    def bring(self) -> None:
        """The thread that runs leaves what it knows, and goes on."""
        seen, me = self._turns.seen, self._turns.current
        np.maximum(self._known, seen[me], out=self._known)
        seen[me, me] += 1

    def take(self) -> None:
        """The thread that runs learns what others have left."""
        seen, me = self._turns.seen, self._turns.current
        np.maximum(seen[me], self._known, out=seen[me])
