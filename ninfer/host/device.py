"""The host device: process memory and the CPU behind the device protocols.

A real device, not a mock: memory comes from arenas, work goes to streams, and captured work is
replayed from a graph. A stream runs each call before `enqueue` returns. Faults nevertheless behave
as on a GPU: a failing call poisons its stream, later work is dropped, and the next `synchronize`
reports it. What the calls compute is the kernels' business.
"""

import ctypes
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from ninfer.arena import AllocatedArena
from ninfer.device import ALIGNMENT, CompileAhead
from ninfer.errors import InvariantError, OutOfDeviceMemory, ShapeError
from ninfer.host.ahead import Progress
from ninfer.host.bands import BandPool
from ninfer.host.graph import HostGraph, Operation
from ninfer.stream_life import StreamEvent, StreamState, moved
from ninfer.tensor import DType, Tensor


def host_arena(name: str, nbytes: int) -> AllocatedArena:
    """Allocate process memory.

    Raises:
        OutOfDeviceMemory: the process cannot have that many bytes.
    """
    if nbytes < 0:
        raise InvariantError(f"arena {name!r}: {nbytes} bytes")
    try:
        buffer = np.empty(nbytes + ALIGNMENT - 1, np.uint8)
    except (MemoryError, ValueError) as error:
        raise OutOfDeviceMemory(f"arena {name!r}: no room for {nbytes} bytes") from error
    held = [buffer]  # the only reference, which the arena drops
    base = -(-buffer.ctypes.data // ALIGNMENT) * ALIGNMENT
    return AllocatedArena(name, nbytes, base, lambda _: held.clear())


class HostEvent:
    """A point in a host stream's order; reached as soon as it exists."""

    def __init__(self, stream: "HostStream") -> None:
        self._stream: Final = stream
        self._reached_at: Final = time.perf_counter()

    def elapsed_ms(self, start: Self) -> float:
        """Time since an earlier point."""
        return (self._reached_at - start._reached_at) * 1e3

    def synchronize(self) -> None:
        """Report a fault of the stream, if there is one.

        Raises:
            InvariantError: a call of the stream failed, or the stream is capturing or closed.
        """
        self._stream.synchronize()


class HostStream:
    """Work in order: each call runs before `enqueue` returns, or is recorded while capturing.

    Used by one thread at a time.
    """

    def __init__(self, pool: BandPool, compiling: Progress | None = None) -> None:
        self._pool: Final = pool
        self._compiling: Final = compiling
        self._state = StreamState.RUNNING
        self._recorded: list[Operation] = []
        self._fault: Exception | None = None

    @property
    def state(self) -> StreamState:
        """Where in its life cycle the stream is."""
        return self._state

    def enqueue(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)`` now, or record it while capturing.

        A failing call poisons the stream: later calls are dropped and `synchronize` raises.

        Raises:
            InvariantError: the stream is closed.
        """
        match self._state:
            case StreamState.RUNNING:
                try:
                    function(*args)
                except Exception as error:  # noqa: BLE001 - kept, and raised by synchronize
                    self._fault = error
                    self._move(StreamEvent.FAULT)
            case StreamState.CAPTURING:
                self._recorded.append(Operation(function, args))
            case StreamState.FAULTED:
                return
            case StreamState.CLOSED:
                raise InvariantError("work was given to a closed stream")

    def enqueue_bands(
        self, kernel: Callable[..., object], num_rows: int, min_rows: int, *args: Any
    ) -> None:
        """Enqueue ``kernel(first, stop, *args)`` over bands that cover ``[0, num_rows)`` once.

        Bands may run on several threads at the same time; the call counts as one.

        Args:
            kernel: writes only what belongs to the rows ``[first, stop)``.
            num_rows: rows in all.
            min_rows: smallest band worth a thread.
            args: passed on unchanged.
        """
        self.enqueue(self._pool.run, kernel, num_rows, min_rows, args)

    def upload(self, destination: Tensor, source: Tensor) -> None:
        """Copy pinned memory to device memory of equal size in bytes."""
        self.copy(destination, source)

    def download(self, destination: Tensor, source: Tensor) -> None:
        """Copy device memory to pinned memory of equal size in bytes."""
        self.copy(destination, source)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy between ranges of equal size in bytes that do not overlap.

        Raises:
            ShapeError: the sizes differ.
        """
        if destination.nbytes != source.nbytes:
            raise ShapeError(f"a copy of {source.nbytes} bytes to {destination.nbytes}")
        self.enqueue(ctypes.memmove, destination.address, source.address, source.nbytes)

    def clear(self, destination: Tensor) -> None:
        """Fill with zero bytes."""
        self.enqueue(ctypes.memset, destination.address, 0, destination.nbytes)

    def record(self) -> HostEvent:
        """Mark the present end.

        Raises:
            InvariantError: the stream is capturing or closed.
        """
        self._expect_not_capturing("record")
        return HostEvent(self)

    def synchronize(self) -> None:
        """Report a fault; everything enqueued has finished already.

        Raises:
            InvariantError: a call failed, or the stream is capturing or closed.
        """
        self._expect_not_capturing("synchronize")
        if self._fault is not None:
            raise InvariantError(f"a kernel failed: {self._fault!r}") from self._fault

    def rehearse(self, sequence: Callable[[], None], ahead: CompileAhead | None = None) -> None:
        """Compile every kernel that a sequence calls; ``ahead`` is for devices with a driver.

        Raises:
            IllegalMove: the stream is capturing, faulted or closed.
        """
        self.begin_capture()
        try:
            sequence()
        finally:
            recorded = self.end_capture()
        recorded.prepare(self._compiling)

    def begin_capture(self) -> None:
        """Record instead of running from here on.

        Raises:
            IllegalMove: the stream is capturing, faulted or closed.
        """
        self._move(StreamEvent.BEGIN_CAPTURE)

    def end_capture(self) -> HostGraph:
        """Stop recording and return what was recorded.

        Raises:
            IllegalMove: the stream is not capturing.
        """
        self._move(StreamEvent.END_CAPTURE)
        graph = HostGraph(tuple(self._recorded))
        self._recorded = []
        return graph

    def close(self) -> None:
        """Accept nothing any more; idempotent."""
        self._move(StreamEvent.CLOSE)
        self._recorded = []

    def _expect_not_capturing(self, what: str) -> None:
        if self._state in (StreamState.CAPTURING, StreamState.CLOSED):
            raise InvariantError(f"{what} on a stream that is {self._state.name.lower()}")

    def _move(self, event: StreamEvent) -> None:
        self._state = moved(self._state, event, "host")


class HostDevice:
    """The CPU and process memory as a device; owner of its streams and threads.

    Args:
        num_threads: threads that share large row-wise work; None takes every CPU of the process.
        compiling: told (kernels compiled, kernels in all) while a rehearsal compiles.
    """

    def __init__(
        self, num_threads: int | None = None, *, compiling: Progress | None = None
    ) -> None:
        if num_threads is None:
            num_threads = len(os.sched_getaffinity(0))
        if num_threads < 1:
            raise InvariantError(f"a host device with {num_threads} threads")
        self._pool: Final = BandPool(num_threads)
        self._compiling: Final = compiling
        self._streams: Final[list[HostStream]] = []
        self._is_closed = False

    @property
    def kind(self) -> str:
        """Always ``"host"``."""
        return "host"

    @property
    def name(self) -> str:
        """Name for people."""
        return f"host CPU ({self._pool.num_threads} threads)"

    @property
    def num_threads(self) -> int:
        """Threads that share large row-wise work."""
        return self._pool.num_threads

    @property
    def driver_version(self) -> str:
        """The operating system."""
        return platform.platform()

    @property
    def activation_dtype(self) -> DType:
        """Single precision."""
        return DType.F32

    @property
    def prefill_columns(self) -> int:
        """Each column costs the same long before; more would only delay the progress."""
        return 1024

    def free_bytes(self) -> int:
        """Memory the process could still use: of the machine, or of its control group if less."""
        available = _meminfo_available_bytes(Path("/proc/meminfo"))
        limited = _cgroup_free_bytes(Path("/sys/fs/cgroup"))
        return available if limited is None else min(available, limited)

    def arena(self, name: str, nbytes: int) -> AllocatedArena:
        """Allocate.

        Raises:
            OutOfDeviceMemory: less than ``nbytes`` are free.
            InvariantError: the device is closed.
        """
        if self._is_closed:
            raise InvariantError("memory was asked of a closed device")
        free = self.free_bytes()
        if nbytes > free:
            raise OutOfDeviceMemory(
                f"arena {name!r} needs {nbytes} bytes, {nbytes - free} more than are free"
            )
        return host_arena(name, nbytes)

    def pinned_arena(self, name: str, nbytes: int) -> AllocatedArena:
        """Allocate; on this device all memory can be copied from and to."""
        return self.arena(name, nbytes)

    def stream(self) -> HostStream:
        """Create a stream, owned by the device."""
        if self._is_closed:
            raise InvariantError("a stream was asked of a closed device")
        stream = HostStream(self._pool, self._compiling)
        self._streams.append(stream)
        return stream

    def close(self) -> None:
        """Close the streams and join the threads; idempotent. Arenas stay their owners'."""
        self._is_closed = True
        for stream in reversed(self._streams):
            stream.close()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _meminfo_available_bytes(path: Path) -> int:
    """Read the kernel's estimate of memory that needs no swapping."""
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


def _cgroup_free_bytes(folder: Path) -> int | None:
    """Read what the control group leaves, file cache counted as free; None without a limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((folder / "memory.current").read_text())
        statistics = (folder / "memory.stat").read_text().split()
    except OSError:
        return None
    cached = int(statistics[statistics.index("inactive_file") + 1])
    return max(0, int(limit) - used + cached)
