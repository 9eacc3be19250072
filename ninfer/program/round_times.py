"""How long decode rounds take: on the device, and from one to the next, host work included.

      collected        collected
      |---- wall ------|                 only uninterrupted rounds of equal size count
        |- device -|                     between marks around the round on its stream

Whatever runs between two rounds makes the next one a first. Off until somebody asks, because marks
are driver calls. Knows nothing of what a round does.
"""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Durations of uninterrupted rounds.

    Attributes:
        rounds: how many.
        wall_s: from the result of each to the result of the next, summed.
        device_s: of the same rounds on the device, summed.
    """

    rounds: int
    wall_s: float
    device_s: float

    @property
    def mean_s(self) -> float:
        """From one round to the next; 0 without any."""
        return self.wall_s / self.rounds if self.rounds else 0.0

    @property
    def mean_device_s(self) -> float:
        """Of one round on the device; 0 without any."""
        return self.device_s / self.rounds if self.rounds else 0.0


class RoundClock:
    """Takes the times of one Program's rounds; worker thread only.

    Attributes:
        is_running: whether rounds are to be marked.
    """

    def __init__(self) -> None:
        self.is_running = False
        self._num_rows = 0
        self._collected_at: float | None = None
        self._rounds, self._wall_s, self._device_s = 0, 0.0, 0.0

    def begin(self, num_rows: int) -> None:
        """A round of that many rows is asked for."""
        if num_rows != self._num_rows:
            self._num_rows, self._collected_at = num_rows, None

    def arrive(self, device_s: float) -> None:
        """Its result is there."""
        now = time.perf_counter()
        if self._collected_at is not None:
            self._rounds += 1
            self._wall_s += now - self._collected_at
            self._device_s += device_s
        self._collected_at = now

    def interrupt(self) -> None:
        """Something else runs next."""
        self._collected_at = None

    def take(self) -> RoundTimes:
        """Sums since the last call; the clock runs from here on."""
        times = RoundTimes(self._rounds, self._wall_s, self._device_s)
        self._rounds, self._wall_s, self._device_s = 0, 0.0, 0.0
        self._collected_at, self.is_running = None, True
        return times
