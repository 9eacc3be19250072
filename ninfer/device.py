"""What a device is, for everything above it.

`ninfer.cuda` and `ninfer.host` both satisfy these protocols. Memory is planned once: an `Arena` is
one allocation, `take` hands out views of it and nothing is ever returned to it. Work goes to a
`Stream` in order. Between `begin_capture` and `end_capture` a stream records instead of running;
the resulting `Graph` replays the same work on the same addresses, so whatever varies must be data
in memory.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from ninfer.tensor import DType, Shape, Tensor

ALIGNMENT = 256
"""Every tensor an arena hands out starts at a multiple of this many bytes."""


CompileAhead = Callable[[Sequence[str], str], None]
"""Told names of kernels that are missing, and for which target: may bring them into the cache of
compiled kernels, several at a time. What it leaves is compiled one by one."""


class Arena(Protocol):
    """One allocation; owner of its bytes until `close`."""

    @property
    def name(self) -> str:
        """What the arena is for, as printed in the memory account."""

    @property
    def nbytes(self) -> int:
        """Size of the allocation in bytes."""

    @property
    def used_bytes(self) -> int:
        """Bytes handed out so far, alignment included."""

    def take(self, shape: Shape, dtype: DType) -> Tensor:
        """Hand out the next aligned view; its bytes are not initialised.

        Raises:
            InvariantError: the arena is closed or full.
        """

    def close(self) -> None:
        """Free the bytes; idempotent. Views of it are dead afterwards."""


class Event(Protocol):
    """A point in a stream's order."""

    def synchronize(self) -> None:
        """Wait until everything before the point has finished."""

    def elapsed_ms(self, start: Self) -> float:
        """Time from an earlier, recent point of the stream to this one; both are reached."""


class Graph(Protocol):
    """Recorded work with fixed addresses."""

    def launch(self, stream: "Stream") -> None:
        """Enqueue one replay."""

    def close(self) -> None:
        """Drop the recording; idempotent."""


class Stream(Protocol):
    """Work in order. Copies and fills take tensors of equal size in bytes."""

    def upload(self, destination: Tensor, source: Tensor) -> None:
        """Copy pinned host memory to device memory."""

    def download(self, destination: Tensor, source: Tensor) -> None:
        """Copy device memory to pinned host memory."""

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy device memory to device memory; the ranges do not overlap."""

    def clear(self, destination: Tensor) -> None:
        """Fill device memory with zero bytes."""

    def record(self) -> Event:
        """Mark the present end of the stream."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has finished.

        Raises:
            InvariantError: the device reported a fault.
        """

    def rehearse(self, sequence: Callable[[], None], ahead: CompileAhead | None = None) -> None:
        """Bring what a sequence of ops needs into place, running nothing of it.

        Args:
            sequence: enqueues the ops, but no copy to or from the host and no mark; may be called
                more than once.
            ahead: asked first where many kernels have to be compiled.
        """

    def begin_capture(self) -> None:
        """Record instead of running from here on."""

    def end_capture(self) -> Graph:
        """Stop recording and return what was recorded."""


@runtime_checkable
class Device(Protocol):
    """One place where memory lives and ops run."""

    @property
    def kind(self) -> str:
        """``"host"`` or ``"cuda"``; selects the kernel table."""

    @property
    def name(self) -> str:
        """Name for people."""

    @property
    def driver_version(self) -> str:
        """Version of what runs the device, for people."""

    @property
    def activation_dtype(self) -> DType:
        """Element type of the residual stream and of projections."""

    @property
    def prefill_columns(self) -> int:
        """Columns of one call from which on more make a prefill no faster."""

    def free_bytes(self) -> int:
        """Memory that could be allocated now, in bytes."""

    def arena(self, name: str, nbytes: int) -> Arena:
        """Allocate device memory.

        Raises:
            OutOfDeviceMemory: the device cannot give that many bytes.
        """

    def pinned_arena(self, name: str, nbytes: int) -> Arena:
        """Allocate host memory that the device can copy from and to."""

    def stream(self) -> Stream:
        """Create a stream, owned by the device."""

    def close(self) -> None:
        """Release streams and context; idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def host_array(tensor: Tensor) -> npt.NDArray[Any]:
    """View host memory (pinned, or any memory of the host device) as a NumPy array.

    bf16 comes as uint16 words. The array does not keep the owning arena alive.
    """
    if tensor.size == 0:
        return np.empty(tensor.shape, np.dtype(tensor.dtype.value))
    raw = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.address)
    return np.frombuffer(memoryview(raw), np.dtype(tensor.dtype.value)).reshape(tensor.shape)
