"""Decoded media: few at a time, each once at a time, the newest kept by the digest of their bytes.

Several requests that bring the same bytes wait for one preparation. A failure is told to everybody
who waits and kept for nobody. Knows no format and no HTTP. Source: the serving contract, section
10.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from ninfer.gateway.bounded_threads import BoundedThreads
from ninfer.gateway.image_pixels import Picture

NUM_WORKERS: Final = 2


class MediaPreparation:
    """A bounded cache over a slow function; safe to share between threads.

    Args:
        prepare: bytes to a picture; may raise.
        capacity_bytes: pictures that are kept.
    """

    def __init__(self, prepare: Callable[[bytes], Picture], capacity_bytes: int) -> None:
        self._prepare = prepare
        self._capacity = capacity_bytes
        self._threads = BoundedThreads("media", NUM_WORKERS)
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Picture] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[bytes, Future[Picture]] = {}

    @property
    def kept_bytes(self) -> int:
        """Bytes of the pictures that are kept; never more than the capacity."""
        return self._kept_bytes

    def prepared(self, data: bytes, limit_s: float) -> Picture:
        """Prepare, or find, one picture.

        Raises:
            TimeoutError: it was not ready within ``limit_s``.
            Exception: whatever the preparation raised.
        """
        digest = hashlib.sha256(data).digest()
        with self._lock:
            found = self._kept.get(digest)
            if found is not None:
                self._kept.move_to_end(digest)
                return found
            future = self._running.get(digest)
            if future is None:
                future = self._threads.start(lambda: self._prepare(data), limit_s)
                self._running[digest] = future
                is_first = True
            else:
                is_first = False
        if is_first:
            future.add_done_callback(lambda done: self._settle(digest, done))
        return future.result(limit_s)

    def _settle(self, digest: bytes, done: "Future[Picture]") -> None:
        """Keep a success, and let the next one with these bytes begin anew."""
        with self._lock:
            self._running.pop(digest, None)
            if done.exception() is not None:
                return
            picture = done.result()
            if picture.nbytes > self._capacity:
                return
            self._kept[digest] = picture
            self._kept_bytes += picture.nbytes
            while self._kept_bytes > self._capacity:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= oldest.nbytes
