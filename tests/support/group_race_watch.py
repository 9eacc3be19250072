"""Accesses of the threads of a simulated block to shared memory that nothing orders.

As `race_watch`, for `warpgroup_simulator`: here each thread has a clock, and so has each barrier in
shared memory. Who arrives at a barrier leaves what it knows, and who waits for the phase learns it.
Bulk copies are the barrier's own and write from the moment when they are asked for until the phase
has ended; copies of a thread until it has waited for them. Products read what they multiply until
their thread has waited for them, and see what ordinary stores have written only behind a fence of
the thread that wrote it. Shuffles, votes and products order nothing. Matrix loads, and products of
two operands in shared memory, are not looked at.
"""

import re
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.support.race_watch import PIECE, RaceError, WatchedTurns
from tests.support.warpgroup_simulator import GLOBAL, SHARED, Block, Copy

_BARRIERS: Final = 16
_UNDER_WAY: Final = 1 << 30
"""The clock of what has not ended yet."""

Clocks = npt.NDArray[np.int64]


class WatchedBlock(Block):
    """A block whose accesses to shared memory must be ordered."""

    def make_turns(self, name: str, is_last_ahead: bool | None) -> WatchedTurns:
        self._seen = WatchedTurns(self.kernel.threads, name, is_last_ahead, _BARRIERS)
        self._seen.gathers_order = False
        count, threads = self.shared.size // PIECE, self.kernel.threads
        self._writer, self._written = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self._read = np.zeros((count, threads), np.int32)
        self._added = np.zeros((count, threads), np.int32)
        self._operands: dict[tuple[int, int], Clocks] = {}
        self._products = [deque[Clocks]() for _ in range(threads)]
        self._fenced = np.zeros(threads + _BARRIERS, np.int32)
        self._fenced[threads:] = _UNDER_WAY  # bulk copies need no fence
        self._numbers: dict[int, int] = {}
        self._left = np.zeros((_BARRIERS, threads + _BARRIERS), np.int64)
        self._learnt = np.zeros_like(self._left)
        return self._seen

    # Memory.

    def load(self, address: Any, dtype: Any, count: int = 1) -> Any:
        if int(address) < GLOBAL:
            places = self._places(address, np.dtype(dtype).itemsize * count)
            self._expect_written(places, "read")
            self._read[places, self._me] = self._now
        return super().load(address, dtype, count)

    def store(self, address: Any, values: Any, dtype: Any) -> None:
        if int(address) < GLOBAL:
            places = self._places(address, np.dtype(dtype).itemsize * len(values))
            self._expect_unread(places)
            self._stamp(places, self._me, self._now)
        super().store(address, values, dtype)

    def add(self, address: Any, value: Any) -> Any:
        places, me = self._places(address, 4), self._me
        self._expect_written(places, "added to", but_added=True)
        if (self._read[places] > self._seen.seen[me, : self.kernel.threads]).any():
            raise RaceError(f"{int(address)} is added to by {me} where it may still be read")
        self._added[places, me] = self._now
        return super().add(address, value)

    def copy_async(self, to: Any, source: Any, nbytes: Any, room: int = 16) -> None:
        places = self._places(to, room)
        self._expect_unread(places)
        self._stamp(places, self._me, _UNDER_WAY)
        super().copy_async(to, source, nbytes, room)

    def _copy(self, group: list[Copy]) -> None:
        super()._copy(group)
        for to, _, _, room in group:
            self._written[self._places(to, room)] = self._now

    def copy_bulk(self, to: Any, source: Any, nbytes: Any, barrier: Any) -> None:
        places, phase = self._places(to, nbytes), self.barriers[int(barrier)].phase
        self._expect_unread(places)
        self._stamp(places, self.kernel.threads + self._numbers[int(barrier)], phase + 1)
        super().copy_bulk(to, source, nbytes, barrier)

    def fence(self) -> None:
        self._fenced[self._me] = self._now
        self._tick()

    # Barriers.

    def init(self, address: Any, count: Any) -> None:
        self._numbers[int(address)] = len(self._numbers)
        super().init(address, count)

    def arrive(self, address: Any, nbytes: Any = 0) -> None:
        left = self._left[self._numbers[int(address)]]
        np.maximum(left, self._seen.seen[self._me], out=left)
        self._tick()
        super().arrive(address, nbytes)

    def settle(self, address: int) -> None:
        barrier, number = self.barriers[address], self._numbers[address]
        phase = barrier.phase
        super().settle(address)
        if barrier.phase > phase:
            self._left[number, self.kernel.threads + number] = barrier.phase
            self._learnt[number] = self._left[number]

    def wait(self, address: Any, parity: Any) -> None:
        super().wait(address, parity)
        seen = self._seen.seen[self._me]
        np.maximum(seen, self._learnt[self._numbers[int(address)]], out=seen)

    # Products.

    def multiply_registers(
        self, sums: Any, words: Any, right: Any, width: int, *, is_turned: bool = False
    ) -> None:
        """The right operand: groups of eight rows, each 1024 bytes behind the one before."""
        assert not is_turned
        me, threads = self._me, self.kernel.threads
        start, nbytes = (int(right) & 0x3FFF) << 4, 128 * width
        places = slice((start - SHARED) // PIECE, (start - SHARED + nbytes) // PIECE)
        self._expect_written(places, "multiplied")
        late = self._written[places] > self._fenced[self._writer[places]]
        if late.any():
            raise RaceError(f"{start} is multiplied by {me}, without a fence of who wrote it")
        clocks = self._operands.setdefault((start, nbytes), np.zeros(threads, np.int64))
        clocks[me] = _UNDER_WAY
        self._products[me].append(clocks)
        super().multiply_registers(sums, words, right, width)

    def finish_products(self, text: str) -> None:
        pending = re.search(r"wgmma\.wait_group\.sync\.aligned (\d);", text)
        mine = self._products[self._me]
        while pending and len(mine) > int(pending[1]):
            clocks = mine.popleft()
            if not any(other is clocks for other in mine):
                clocks[self._me] = self._now

    # What is known.

    @property
    def _me(self) -> int:
        return self.turns.current

    @property
    def _now(self) -> int:
        return int(self._seen.seen[self._me, self._me])

    def _tick(self) -> None:
        self._seen.seen[self._me, self._me] += 1

    def _places(self, address: Any, nbytes: Any) -> slice:
        first = int(address) - SHARED
        return slice(first // PIECE, max(first + int(nbytes), first + PIECE) // PIECE)

    def _stamp(self, places: slice, writer: int, clock: int) -> None:
        self._writer[places], self._written[places] = writer, clock

    def _expect_written(self, places: slice, how: str, *, but_added: bool = False) -> None:
        seen = self._seen.seen[self._me]
        unseen = self._written[places] > seen[self._writer[places]]
        if unseen.any():
            place = places.start + int(np.argmax(unseen))
            raise RaceError(
                f"{SHARED + PIECE * place} is {how} by {self._me} "
                f"where {self._writer[place]} writes it"
            )
        if not but_added:
            self._expect_seen(self._added[places], places, how)

    def _expect_unread(self, places: slice) -> None:
        self._expect_written(places, "written")
        self._expect_seen(self._read[places], places, "written")
        first, behind = SHARED + PIECE * places.start, SHARED + PIECE * places.stop
        for (start, nbytes), clocks in self._operands.items():
            if start < behind and first < start + nbytes:
                self._expect_seen(clocks[None], places, "written")

    def _expect_seen(self, clocks: Any, places: slice, how: str) -> None:
        unseen = clocks > self._seen.seen[self._me, : self.kernel.threads]
        if unseen.any():
            place, other = (int(index) for index in np.argwhere(unseen)[0])
            at = SHARED + PIECE * (places.start + place)
            raise RaceError(f"{at} is {how} by {self._me} where {other} may still use it")
