"""Arenas of every device: one allocation each, handed out front to back.

Views start at multiples of `ALIGNMENT` and are never returned. Knows no device: who made the
allocation gives it back, and makes sure that nothing still runs on it.
"""

from collections.abc import Callable
from typing import Final

from ninfer.device import ALIGNMENT
from ninfer.errors import InvariantError, ShapeError
from ninfer.tensor import DType, Shape, Tensor

Release = Callable[[int], None]
"""Gives an allocation back, by its address."""


class AllocatedArena:
    """Owner of one allocation until `close`.

    Args:
        name: what the arena is for.
        nbytes: size as asked for.
        base: address of the allocation, aligned.
        release: gives the allocation back.
    """

    def __init__(self, name: str, nbytes: int, base: int, release: Release) -> None:
        self._name: Final = name
        self._nbytes: Final = nbytes
        self._base: Final = base
        self._release: Release | None = release
        self._used_bytes = 0

    @property
    def name(self) -> str:
        """What the arena is for."""
        return self._name

    @property
    def nbytes(self) -> int:
        """Size in bytes, as asked for."""
        return self._nbytes

    @property
    def used_bytes(self) -> int:
        """End of the last view, relative to the start: gaps for alignment are included."""
        return self._used_bytes

    def take(self, shape: Shape, dtype: DType) -> Tensor:
        """Hand out the next view that starts at a multiple of `ALIGNMENT`.

        Raises:
            InvariantError: the arena is closed or full; nothing was handed out.
            ShapeError: an extent is negative.
        """
        if self._release is None:
            raise InvariantError(f"arena {self._name!r} is closed")
        if any(extent < 0 for extent in shape):
            raise ShapeError(f"arena {self._name!r}: shape {shape}")
        start = -(-self._used_bytes // ALIGNMENT) * ALIGNMENT
        tensor = Tensor(self._base + start, dtype, shape)
        if start + tensor.nbytes > self._nbytes:
            missing = start + tensor.nbytes - self._nbytes
            raise InvariantError(
                f"arena {self._name!r} is full: {tensor.nbytes} bytes at {start} "
                f"are {missing} too many for {self._nbytes}"
            )
        self._used_bytes = start + tensor.nbytes
        return tensor

    def close(self) -> None:
        """Free the bytes; idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release(self._base)
