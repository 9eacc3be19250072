"""Work of other libraries that cannot be interrupted, so that its caller can stop waiting for it.

Each piece runs in a thread of its own; few of them at a time, and one that had to wait too long for
its turn never begins. Knows no subject.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


class BoundedThreads:
    """Threads for one kind of work.

    Args:
        name: of the threads.
        limit: pieces that run at a time, those included whose caller has given up.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._turns = threading.BoundedSemaphore(limit)

    def start(self, work: Callable[[], Value], wait_s: float) -> "Future[Value]":
        """Begin a piece of work within ``wait_s``, or end it with `TimeoutError`."""
        future: Future[Value] = Future()

        def run() -> None:
            if not self._turns.acquire(timeout=max(0.0, min(wait_s, threading.TIMEOUT_MAX))):
                future.set_exception(TimeoutError())
                return
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                future.set_exception(error)
            finally:
                self._turns.release()

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future
