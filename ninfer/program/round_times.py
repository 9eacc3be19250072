"""How long decode rounds take: on the device, and how long it idles from one to the next.

    arrival       begun          arrival
    |--- idle ----|--- device ---|        only uninterrupted rounds of equal size count

Only the largest rounds count: smaller ones are those of a batch that fills or empties.

All three are marks on the rounds' stream, in its order, so that neither part can be negative. A
clock of the host could not say this: when it hears of an arrival late, the next round has been
running for a while already. Whatever runs between two rounds makes the next one a first. Off until
somebody asks, because marks are driver calls. Knows nothing of what a round does.
"""

from dataclasses import dataclass

from ninfer.device import Event


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Durations of uninterrupted rounds.

    Attributes:
        rounds: how many.
        num_rows: of each of them, the most that a round had.
        idle_s: from the result of each to the begin of the next on the device, summed.
        device_s: of the same rounds on the device, summed.
    """

    rounds: int
    num_rows: int
    idle_s: float
    device_s: float

    @property
    def mean_s(self) -> float:
        """From one round to the next; 0 without any."""
        return self.mean_idle_s + self.mean_device_s

    @property
    def mean_idle_s(self) -> float:
        """What the host adds to a round; 0 without any."""
        return self.idle_s / self.rounds if self.rounds else 0.0

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
        self._num_rows, self._most_rows = 0, 0
        self._last: Event | None = None
        self._rounds, self._idle_s, self._device_s = 0, 0.0, 0.0

    def begin(self, num_rows: int) -> None:
        """A round of that many rows is asked for."""
        if num_rows != self._num_rows:
            self._num_rows, self._last = num_rows, None
        if num_rows > self._most_rows:
            self._most_rows = num_rows
            self._rounds, self._idle_s, self._device_s = 0, 0.0, 0.0

    def arrive(self, begun: Event, arrival: Event) -> None:
        """A round's result is there.

        Args:
            begun: mark before the round.
            arrival: mark behind its result, reached.
        """
        if self._last is not None and self._num_rows == self._most_rows:
            self._rounds += 1
            self._idle_s += begun.elapsed_ms(self._last) / 1e3
            self._device_s += arrival.elapsed_ms(begun) / 1e3
        self._last = arrival

    def interrupt(self) -> None:
        """Something else runs next."""
        self._last = None

    def take(self) -> RoundTimes:
        """Sums since the last call; the clock runs from here on."""
        times = RoundTimes(self._rounds, self._most_rows, self._idle_s, self._device_s)
        self._rounds, self._idle_s, self._device_s = 0, 0.0, 0.0
        self._num_rows, self._most_rows = 0, 0
        self._last, self.is_running = None, True
        return times
