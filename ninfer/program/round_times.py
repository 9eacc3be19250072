"""How long decode rounds take from one to the next, host work included.

    start         start         start
      |-- round --|-- round ... --|        only uninterrupted rounds of equal size count

Whatever runs between two rounds makes the next one a first. Knows nothing of what a round does.
"""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Durations of uninterrupted rounds.

    Attributes:
        rounds: how many.
        wall_s: from the start of each to the start of the next, summed.
    """

    rounds: int
    wall_s: float

    @property
    def mean_s(self) -> float:
        """Duration of one round; 0 without any."""
        return self.wall_s / self.rounds if self.rounds else 0.0


class RoundClock:
    """Takes the times of one Program's rounds; worker thread only."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._started_at: float | None = None
        self._rounds = 0
        self._wall_s = 0.0

    def begin(self, num_rows: int) -> None:
        """A round of that many rows begins."""
        now = time.perf_counter()
        if self._started_at is not None and num_rows == self._num_rows:
            self._rounds += 1
            self._wall_s += now - self._started_at
        self._num_rows, self._started_at = num_rows, now

    def interrupt(self) -> None:
        """Something else runs next."""
        self._started_at = None

    def take(self) -> RoundTimes:
        """Sums since the last call."""
        times = RoundTimes(self._rounds, self._wall_s)
        self._rounds, self._wall_s, self._started_at = 0, 0.0, None
        return times
