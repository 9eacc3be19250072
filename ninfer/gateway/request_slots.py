"""Places for generation requests, taken before a body is parsed, and how long to stay away.

There are as many places as the engine takes requests, active and waiting together, so that a full
house can neither occupy every HTTP thread nor make us parse what will be refused. Knows no HTTP and
no engine. Source: the serving contract, sections 1.1 and 3.2.
"""

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

from ninfer.errors import EngineOverloaded

REMEMBERED_REQUESTS = 32
UNKNOWN_RETRY_S = 5
SHORTEST_RETRY_S, LONGEST_RETRY_S = 1, 60


class RequestSlots:
    """A counted set of places.

    Attributes:
        limit: number of places.
    """

    def __init__(
        self, max_concurrency: int, max_pending: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = max_concurrency + max_pending
        self._max_concurrency = max_concurrency
        self._clock = clock
        self._lock = threading.Lock()
        self._in_use = 0
        self._service_s: deque[float] = deque(maxlen=REMEMBERED_REQUESTS)

    @property
    def in_use(self) -> int:
        """Places taken."""
        return self._in_use

    def acquire(self) -> "RequestSlot":
        """Take a place.

        Raises:
            EngineOverloaded: every place is taken.
        """
        with self._lock:
            if self._in_use >= self.limit:
                raise EngineOverloaded(
                    f"{self._in_use} requests are active or waiting; the limit is {self.limit}"
                )
            self._in_use += 1
        return RequestSlot(self, self._clock())

    def retry_after_s(self, num_waiting: int) -> int:
        """Whole seconds after which a refused client may try again.

        Median service time of the newest requests, times the waiting ones, over the rows that work.
        """
        with self._lock:
            known = list(self._service_s)
        if not known:
            return UNKNOWN_RETRY_S
        wait_s = statistics.median(known) * num_waiting / self._max_concurrency
        return min(max(math.ceil(wait_s), SHORTEST_RETRY_S), LONGEST_RETRY_S)

    def give_back(self, taken_at: float, *, is_served: bool) -> None:
        """Return one place; called by its slot only."""
        with self._lock:
            self._in_use -= 1
            if is_served:
                self._service_s.append(self._clock() - taken_at)


class RequestSlot:
    """One place; `release` returns it exactly once, from any thread."""

    __slots__ = ("_is_released", "_lock", "_slots", "_taken_at", "is_served")

    def __init__(self, slots: RequestSlots, taken_at: float) -> None:
        self._slots = slots
        self._taken_at = taken_at
        self._lock = threading.Lock()
        self._is_released = False
        self.is_served = False

    def release(self) -> None:
        """Return the place. Idempotent."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
        self._slots.give_back(self._taken_at, is_served=self.is_served)
