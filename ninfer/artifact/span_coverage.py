"""Which bytes of a range have been written: disjoint spans, merged where they touch.

Row blocks arrive in order, so a matrix of three planes keeps three spans however
many blocks it has.
"""

import bisect


class SpanCoverage:
    """A set of bytes, kept as rising disjoint half-open spans."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    @property
    def num_spans(self) -> int:
        """Number of separate spans."""
        return len(self._starts)

    def add(self, start: int, stop: int) -> bool:
        """Add ``[start, stop)``; return False, changing nothing, when a byte was there already."""
        if start >= stop:
            return True
        index = bisect.bisect_left(self._starts, start)
        touches_left = index > 0 and self._stops[index - 1] >= start
        if touches_left and self._stops[index - 1] > start:
            return False
        touches_right = index < len(self._starts) and self._starts[index] <= stop
        if touches_right and self._starts[index] < stop:
            return False
        if touches_left and touches_right:
            self._stops[index - 1] = self._stops[index]
            del self._starts[index], self._stops[index]
        elif touches_left:
            self._stops[index - 1] = stop
        elif touches_right:
            self._starts[index] = start
        else:
            self._starts.insert(index, start)
            self._stops.insert(index, stop)
        return True

    def first_gap(self, start: int, stop: int) -> int | None:
        """Return the first byte of ``[start, stop)`` that was not added."""
        if start >= stop:
            return None
        index = bisect.bisect_right(self._starts, start) - 1
        if index < 0 or self._stops[index] <= start:
            return start
        return self._stops[index] if self._stops[index] < stop else None
