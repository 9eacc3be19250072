"""Memory of a simulated kernel: what the lanes of a warp read and write at once.

Not known here: which memory it is and who may see what when.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Memory:
    """Bytes behind integer addresses; every access is checked."""

    def __init__(self, base: int, octets: Array, lanes: int) -> None:
        self.octets, self.base = octets, base
        self._everybody = np.ones(lanes, bool)
        self._views: dict[tuple[np.dtype[Any], int], Array] = {}

    def load(self, address: Any, dtype: Any, count: int = 1) -> Any:
        """Values of all lanes, or one for all where they have one address."""
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * count
        if np.ndim(address) == 0:
            first = self._of_all(int(address), nbytes) // kind.itemsize
            found = self._values(kind, 1)[first : first + count]
            return found[0] if count == 1 else tuple(found)
        rows = self._values(kind, count)
        if count == 1:
            return rows[self._at(address, nbytes) // nbytes]
        return tuple(np.ascontiguousarray(rows[self._at(address, nbytes) // nbytes].T))

    def store(self, address: Any, values: Sequence[Any], dtype: Any, mask: Any = 1) -> None:
        kind = np.dtype(dtype)
        first = self._at(address, kind.itemsize * len(values), mask) // kind.itemsize
        chosen = self._chosen(mask)
        target = self._values(kind, 1)
        is_whole = bool(chosen.all())
        places = first if is_whole else first[chosen]
        for i, value in enumerate(values):
            wide = np.asarray(value, kind)
            target[places + i] = wide if is_whole or wide.ndim == 0 else wide[chosen]

    def look(self, address: Any, nbytes: int) -> None:
        """Told of bytes that are read in another way; for memories that watch."""

    def expect(self, address: Any, nbytes: int, mask: Any = 1) -> None:
        """Told of bytes that a copy may write from now on; for memories that watch."""

    def _values(self, kind: np.dtype[Any], count: int) -> Array:
        """All of the memory as values of one type, or as rows of them."""
        found = self._views.get((kind, count))
        if found is None:
            nbytes = kind.itemsize * count
            whole = self.octets.size // nbytes * nbytes
            found = self.octets[:whole].view(kind)
            if count > 1:
                found = found.reshape(-1, count)
            self._views[kind, count] = found
        return found

    def _of_all(self, address: int, nbytes: int) -> int:
        """First byte of an access that is the same for all lanes."""
        start = address - self.base
        if not 0 <= start <= self.octets.size - nbytes:
            raise IndexError(f"{nbytes} bytes at {start} of {self.octets.size}")
        if start % nbytes:
            raise IndexError(f"{nbytes} bytes at {start}: not aligned")
        return start

    def _at(self, address: Any, nbytes: int, mask: Any = 1) -> Array:
        """First bytes of an access; 0 where there is none.

        An access is aligned to its size, which is a power of two.
        """
        chosen = self._chosen(mask)
        start = np.asarray(address).astype(np.int64) - self.base
        if chosen is not self._everybody or start.ndim == 0:
            start = np.where(chosen, start, 0)
        # A start before the first byte is a very large number here.
        if np.maximum.reduce(start.view(np.uint64)) > self.octets.size - nbytes and chosen.any():
            raise IndexError(f"{nbytes} bytes at {start[chosen]} of {self.octets.size}")
        if np.bitwise_or.reduce(start) & (nbytes - 1):
            raise IndexError(f"{nbytes} bytes at {start[chosen]}: not aligned")
        return start

    def _chosen(self, mask: Any) -> Array:
        """Lanes whose mask is not 0."""
        if isinstance(mask, int) and mask:
            return self._everybody
        return np.asarray((np.asarray(mask) != 0) & self._everybody)
