"""Threads that take turns: one runs until it has to wait for others, then the first that can.

Or the last that can. So that a simulated block does the same in every run, that the first threads
or the last are as far ahead of others as what they wait for allows, and that a wait without an end
is found at once. Not known here: what threads do.
"""

import heapq
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class StuckError(Exception):
    """Threads wait for each other, or for one that has failed."""


class Turns:
    """Some threads, one of which runs.

    Args:
        count: how many.
        name: of what they do, which says whether the first of them or the last get ahead.
        is_last_ahead: says it instead.
    """

    def __init__(self, count: int, name: str, is_last_ahead: bool | None = None) -> None:
        self.count, self.current = count, 0
        if is_last_ahead is None:
            is_last_ahead = zlib.crc32(name.encode()) % 2 == 1
        self._step = -1 if is_last_ahead else 1
        self._locks = [threading.Lock() for _ in range(count)]
        self._ready = [self._step * number for number in range(count)]
        heapq.heapify(self._ready)
        self._waiting: set[int] = set()
        self._failures: list[BaseException] = []

    def run(self, body: Callable[[int], None]) -> None:
        """Run ``body`` in every thread, with its number; raises what the first one raised."""

        def run(number: int) -> None:
            self._take(number)
            try:
                body(number)
            except BaseException as failure:  # noqa: BLE001  # raised by the caller's thread
                self._fail(failure)
            self._pass_on()

        threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(self.count)]
        for lock in self._locks:
            lock.acquire()
        with _one_processor():
            for thread in threads:
                thread.start()
        self._pass_on()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def wait(self, queue: list[int]) -> None:
        """Let others run until one of them wakes the queue.

        Raises:
            StuckError: none of them ever will.
        """
        self._expect_no_failure()
        number = self.current
        queue.append(number)
        self._waiting.add(number)
        self._pass_on()
        self._take(number)
        self._expect_no_failure()

    def wake(self, queue: list[int]) -> None:
        """Let the threads of a queue run, each when it is its turn."""
        self._expect_no_failure()
        self._let(queue)
        queue.clear()

    def meeting(self, count: int) -> "Meeting":
        """Make a place where so many threads meet, time and again."""
        return Meeting(self, count)

    def _expect_no_failure(self) -> None:
        if self._failures:
            raise StuckError("another thread has failed")

    def _take(self, number: int) -> None:
        self._locks[number].acquire()
        self.current = number

    def _pass_on(self) -> None:
        if self._waiting and not self._ready:
            self._fail(StuckError(f"{len(self._waiting)} threads wait for ever"))
        if self._ready:
            self._locks[self._step * heapq.heappop(self._ready)].release()

    def _let(self, numbers: Iterable[int]) -> None:
        """These threads wait no longer."""
        for number in list(numbers):
            heapq.heappush(self._ready, self._step * number)
            self._waiting.discard(number)

    def _fail(self, failure: BaseException) -> None:
        self._failures.append(failure)
        self._let(self._waiting)


@contextmanager
def _one_processor() -> Iterator[None]:
    """Threads that are started here run on one processor: handing over to another takes longer.

    Processes beside each other have different ones.
    """
    allowed = os.sched_getaffinity(0)
    number = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{os.getpid()}")[2:])
    os.sched_setaffinity(0, {sorted(allowed)[number % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Meeting:
    """Where threads meet: each waits until all have come."""

    def __init__(self, turns: Turns, count: int) -> None:
        self._turns, self._count = turns, count
        self._queue: list[int] = []
        self._brought: dict[int, Any] = {}
        self._made: Any = None

    def wait(self) -> None:
        """Wait for the others."""
        if len(self._queue) + 1 < self._count:
            self._turns.wait(self._queue)
        else:
            self._turns.wake(self._queue)

    def gather(self, value: Any, make: Callable[[list[Any]], Any] = list) -> Any:
        """Meet and bring a value; returns what ``make`` makes of all, as soon as all have come.

        Values are in the order of the threads' numbers. What is made of them, once for all, stays
        as it is.
        """
        self._brought[self._turns.current] = value
        if len(self._queue) + 1 < self._count:
            self._turns.wait(self._queue)
        else:
            self._made = make([self._brought[number] for number in sorted(self._brought)])
            self._turns.wake(self._queue)
        return self._made
