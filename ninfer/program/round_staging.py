"""Pinned twins of the round's block, written in turns, and what rounds read back into.

    unit n      twin 0 --upload--> block ...     round m      sampled --> results 0
    unit n + 1  twin 1 --upload--> block ...     round m + 1  sampled --> results 1

A round may be enqueued while the one before it still runs, so that unit n + 1 is staged while the
upload of unit n may not have happened yet. That of unit n - 1 has: its result is known. Knows
nothing of fields; where they lie in the block is the caller's business.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ninfer.device import Arena, Event, Stream, host_array
from ninfer.tensor import DType, Tensor

NUM_TWINS: Final = 2


class ChosenTokens:
    """Tokens on their way back from the device.

    Attributes:
        begun: where on the stream their round began, when somebody wants to know.
        arrival: where they have arrived.
    """

    def __init__(self, values: npt.NDArray[np.int32], begun: Event | None, arrival: Event) -> None:
        self._values: Final = values
        self.begun: Final = begun
        self.arrival: Final = arrival

    def wait(self) -> tuple[int, ...]:
        """The tokens, once they have arrived; the second round from here on overwrites them.

        Raises:
            InvariantError: the device reported a fault.
        """
        self.arrival.synchronize()
        return tuple(self._values.tolist())


class RoundStaging:
    """Owner of nothing: the bytes are the pinned arena's.

    Args:
        pinned: where the twins are taken from.
        block: flat U8 on the device.
        max_rows: tokens that come back at most.
    """

    def __init__(self, pinned: Arena, block: Tensor, max_rows: int) -> None:
        self._block: Final = block
        self._twins: Final = [pinned.take(block.shape, DType.U8) for _ in range(NUM_TWINS)]
        self._results: Final = [pinned.take((max_rows,), DType.I32) for _ in range(NUM_TWINS)]
        self._octets: Final = [host_array(twin) for twin in self._twins]
        self._values: Final = [host_array(result) for result in self._results]
        for octets in self._octets:
            octets[:] = 0
        self.turn = 0
        self._result = 0  # not the twins' turn: units without tokens come between rounds

    def next_unit(self) -> int:
        """Begin staging a unit; returns the number of its twin."""
        self.turn = (self.turn + 1) % NUM_TWINS
        return self.turn

    def octets(self, field: Tensor, turn: int | None = None) -> npt.NDArray[np.uint8]:
        """Staged bytes of a field of the block, of this unit's twin or a given one."""
        first = field.address - self._block.address
        return self._octets[self.turn if turn is None else turn][first : first + field.nbytes]

    def values(self, field: Tensor, turn: int) -> npt.NDArray[Any]:
        """Staged values of a field of the block, in a given twin."""
        typed = self.octets(field, turn).view(np.dtype(field.dtype.value))
        return typed.reshape(field.shape)

    def upload(self, stream: Stream, field: Tensor) -> None:
        """Enqueue the copy of a field from this unit's twin."""
        first = field.address - self._block.address
        twin = self._twins[self.turn].rows(first, field.nbytes)
        stream.upload(Tensor(field.address, DType.U8, (field.nbytes,)), twin)

    def download(self, stream: Stream, tokens: Tensor, begun: Event | None) -> ChosenTokens:
        """Enqueue the copy of a round's tokens back."""
        count = tokens.shape[0]
        self._result = (self._result + 1) % NUM_TWINS
        stream.download(self._results[self._result].rows(0, count), tokens)
        return ChosenTokens(self._values[self._result][:count], begun, stream.record())
