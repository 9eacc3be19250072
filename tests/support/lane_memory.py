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
        self._views: dict[np.dtype[Any], Array] = {}

    def load(self, address: Any, dtype: Any, count: int = 1) -> Any:
        """Values of all lanes, or one for all where they have one address."""
        kind = np.dtype(dtype)
        first = self._at(address, kind.itemsize * count) // kind.itemsize
        if np.ndim(address) == 0:
            first = first[0]
        values = self._values(kind)
        if count == 1:
            return values[first]
        return tuple(values[first + i] for i in range(count))

    def store(self, address: Any, values: Sequence[Any], dtype: Any, mask: Any = 1) -> None:
        kind = np.dtype(dtype)
        first = self._at(address, kind.itemsize * len(values), mask) // kind.itemsize
        chosen = self._chosen(mask)
        target = self._values(kind)
        is_whole = bool(chosen.all())
        places = first if is_whole else first[chosen]
        for i, value in enumerate(values):
            wide = np.asarray(value, kind)
            target[places + i] = wide if is_whole or wide.ndim == 0 else wide[chosen]

    def look(self, address: Any, nbytes: int) -> None:
        """Told of bytes that are read in another way; for memories that watch."""

    def expect(self, address: Any, nbytes: int, mask: Any = 1) -> None:
        """Told of bytes that a copy may write from now on; for memories that watch."""

    def _values(self, kind: np.dtype[Any]) -> Array:
        """All of the memory as values of one type."""
        found = self._views.get(kind)
        if found is None:
            whole = self.octets.size // kind.itemsize * kind.itemsize
            found = self._views[kind] = self.octets[:whole].view(kind)
        return found

    def _at(self, address: Any, nbytes: int, mask: Any = 1) -> Array:
        """First bytes of an access, which is aligned to its size; 0 where there is none."""
        chosen = self._chosen(mask)
        start = np.where(chosen, np.asarray(address).astype(np.int64) - self.base, 0)
        if start.min() < 0 or (start.max() + nbytes > self.octets.size and chosen.any()):
            raise IndexError(f"{nbytes} bytes at {start[chosen]} of {self.octets.size}")
        if np.any(start % nbytes):
            raise IndexError(f"{nbytes} bytes at {start[chosen]}: not aligned")
        return start

    def _chosen(self, mask: Any) -> Array:
        """Lanes whose mask is not 0."""
        if isinstance(mask, int) and mask:
            return self._everybody
        return np.asarray((np.asarray(mask) != 0) & self._everybody)
