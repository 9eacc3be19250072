"""A small thread pool that splits one call over bands of rows.

A band is a half-open range of rows given to one thread. The pool decides only who computes a row,
never how: kernels give each row the same arithmetic in any band. Kernels release the interpreter
lock, which is what makes threads worth having here.
"""

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from ninfer.errors import InvariantError
from ninfer.termination import finish, uninterrupted


def split_bands(num_rows: int, num_bands: int) -> tuple[tuple[int, int], ...]:
    """Cut ``[0, num_rows)`` into at most ``num_bands`` non-empty ranges of nearly equal size."""
    bounds = [num_rows * band // num_bands for band in range(num_bands + 1)]
    return tuple((a, b) for a, b in itertools.pairwise(bounds) if a < b)


class BandPool:
    """Owner of ``num_threads - 1`` threads; the calling thread is the last one.

    Threads start with the first call that has more than one band.
    """

    def __init__(self, num_threads: int) -> None:
        self.num_threads: Final = num_threads
        self._executor: ThreadPoolExecutor | None = None
        self._is_closed = False

    def run(
        self, kernel: Callable[..., object], num_rows: int, min_rows: int, args: tuple[Any, ...]
    ) -> None:
        """Call ``kernel(first, stop, *args)`` for bands that cover ``[0, num_rows)`` once.

        Args:
            kernel: writes only what belongs to the rows ``[first, stop)``.
            num_rows: rows in all; nothing is called for 0.
            min_rows: a band has at least this many rows, if there are that many.
            args: passed on unchanged.
        """
        if self._is_closed:
            raise InvariantError("the thread pool is closed")
        num_bands = max(1, min(self.num_threads, num_rows // max(1, min_rows)))
        bands = split_bands(num_rows, num_bands)
        pending: list[Future[object]] = []
        try:
            if len(bands) > 1:
                uninterrupted(lambda: self._submit(kernel, bands[1:], args, pending))
            if bands:
                kernel(*bands[0], *args)
        finally:
            # Whatever happens: the caller may free the memory that the bands write.
            failures = finish(lambda: [future.exception() for future in pending])
        for failure in failures:
            if failure is not None:
                raise failure

    def _submit(
        self,
        kernel: Callable[..., object],
        bands: Iterable[tuple[int, int]],
        args: tuple[Any, ...],
        pending: list[Future[object]],
    ) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.num_threads - 1, "ninfer-host")
        for first, stop in bands:
            pending.append(self._executor.submit(kernel, first, stop, *args))

    def close(self) -> None:
        """Join the threads; idempotent."""
        self._is_closed = True
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
