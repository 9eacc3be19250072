"""Accesses of the warps of a simulated block to shared memory that no barrier orders.

Each warp has a clock of its own, and knows of every other one until when it has seen it: at a
meeting all learn what the others know. An access is a race where it meets one of another warp that
this warp has not seen yet, and one of the two writes. An asynchronous copy writes from the moment
when it is asked for until it is waited for. Lanes of a warp are one here, and what orders them is
not looked at; neither are barriers in shared memory, which these kernels do not have: those of
warpgroups are watched by `group_race_watch`.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.support.lane_memory import Memory
from tests.support.turns import Meeting, Turns

PIECE: Final = 2
"""Bytes that are watched together; warps share none in any kernel."""

Clocks = npt.NDArray[np.int64]


class RaceError(Exception):
    """Two accesses that nothing orders."""


class WatchedTurns(Turns):
    """Threads that take turns, and what each of them has seen of the others.

    Attributes:
        gathers_order: whether an exchange of values orders accesses, as a meeting does.

    Args:
        count: how many.
        name: of what they do.
        is_last_ahead: which of them get ahead.
        others: clocks beside theirs.
    """

    def __init__(
        self, count: int, name: str, is_last_ahead: bool | None = None, others: int = 0
    ) -> None:
        super().__init__(count, name, is_last_ahead)
        self.gathers_order = True
        self.seen = np.eye(count, count + others, dtype=np.int64)
        """By thread and other thread; the diagonal is the clock."""

    def meeting(self, count: int) -> Meeting:
        return _WatchedMeeting(self, count)


class _WatchedMeeting(Meeting):
    def __init__(self, turns: WatchedTurns, count: int) -> None:
        super().__init__(turns, count)
        self._watched, self._expected = turns, count
        self._begin()

    def _begin(self) -> None:
        self._known = np.zeros(self._watched.seen.shape[1], np.int64)
        self._missing = self._expected

    def wait(self) -> None:
        number, known = self._bring()
        super().wait()
        self._learn(number, known)

    def gather(self, value: Any, make: Callable[[list[Any]], Any] = list) -> Any:
        if not self._watched.gathers_order:
            return super().gather(value, make)
        number, known = self._bring()
        made = super().gather(value, make)
        self._learn(number, known)
        return made

    def _bring(self) -> tuple[int, Clocks]:
        number, known = self._watched.current, self._known
        np.maximum(known, self._watched.seen[number], out=known)
        self._missing -= 1
        if not self._missing:
            self._begin()
        return number, known

    def _learn(self, number: int, known: Clocks) -> None:
        self._watched.seen[number] = known
        self._watched.seen[number, number] += 1


class WatchedMemory(Memory):
    """Shared memory that knows which warp read and wrote each byte last, and when."""

    def __init__(self, base: int, octets: Any, lanes: int, turns: WatchedTurns) -> None:
        super().__init__(base, octets, lanes)
        self._turns = turns
        count = octets.size // PIECE + 1
        self._writer = np.zeros(count, np.int64)
        self._written = np.zeros(count, np.int64)
        self._read = np.zeros((count, turns.count), np.int64)

    def load(self, address: Any, dtype: Any, count: int = 1) -> Any:
        self.look(address, np.dtype(dtype).itemsize * count)
        return super().load(address, dtype, count)

    def store(self, address: Any, values: Any, dtype: Any, mask: Any = 1) -> None:
        nbytes = np.dtype(dtype).itemsize * len(values)
        self.expect(address, nbytes, mask)
        places, me = self._places(address, nbytes, mask), self._turns.current
        self._writer[places], self._written[places] = me, self._turns.seen[me, me]
        super().store(address, values, dtype, mask)

    def look(self, address: Any, nbytes: int) -> None:
        """Note that bytes are read."""
        places, me = self._places(address, nbytes), self._turns.current
        self._expect_written(places, "read")
        self._read[places, me] = self._turns.seen[me, me]

    def expect(self, address: Any, nbytes: int, mask: Any = 1) -> None:
        """Note that bytes may be written from now on."""
        places, me = self._places(address, nbytes, mask), self._turns.current
        self._expect_written(places, "written")
        unseen = self._read[places] > self._turns.seen[me]
        unseen[:, me] = False
        if unseen.any():
            place, other = (int(index) for index in np.argwhere(unseen)[0])
            raise RaceError(
                f"{PIECE * places[place]} is written by {me} where {other} may still read it"
            )

    def _expect_written(self, places: Any, how: str) -> None:
        me, writer = self._turns.current, self._writer[places]
        unseen = (writer != me) & (self._written[places] > self._turns.seen[me, writer])
        if unseen.any():
            place = int(np.argmax(unseen))
            raise RaceError(
                f"{PIECE * places[place]} is {how} by {me} where {writer[place]} writes it"
            )

    def _places(self, address: Any, nbytes: int, mask: Any = 1) -> Any:
        """Pieces of an access, some of them perhaps more than once."""
        first, chosen = self._at(address, nbytes, mask), self._chosen(mask)
        if not chosen.all():
            first = np.broadcast_to(first, self._everybody.shape)[chosen]
        pieces = np.arange(max(1, nbytes // PIECE))
        return (first.reshape(-1, 1) // PIECE + pieces).reshape(-1)
