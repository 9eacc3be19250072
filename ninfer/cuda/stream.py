"""A CUDA stream: ordered work, its events, its captures and what happens after a fault.

Faults behave as on the host device: the call that the driver refuses poisons the stream, later work
is dropped, and the next `synchronize` reports it. A fault that loses the context poisons every
stream of the device. While capturing, work is recorded and nothing runs. Knows kernels only by
their handles.
"""

import ctypes
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Self

from ninfer.cuda import driver
from ninfer.cuda.graph import CudaGraph
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream_owner import StreamOwner
from ninfer.device import CompileAhead
from ninfer.errors import InvariantError, NinferError, ShapeError
from ninfer.stream_life import StreamEvent, StreamState, moved
from ninfer.tensor import DType, Tensor

NUM_EVENTS: Final = 64
"""Driver events a stream goes round in; an older point is reached when its successor is."""

NO_COUNTERS: Final = Tensor(0, DType.U32, (0,))

Argument = int | float


_CTYPES: Final[dict[Param, Callable[[Any], Any]]] = {
    Param.ADDRESS: ctypes.c_uint64,
    Param.U64: ctypes.c_uint64,
    Param.I32: ctypes.c_int32,
    Param.U32: ctypes.c_uint32,
    Param.F32: ctypes.c_float,
}


class CudaEvent:
    """A point in a stream's order."""

    def __init__(self, stream: "CudaStream", turn: int) -> None:
        self._stream: Final = stream
        self.turn: Final = turn

    def synchronize(self) -> None:
        """Wait until everything before the point has finished.

        Raises:
            InvariantError: the device reported a fault, or the stream is closed.
        """
        self._stream.wait(self.turn)

    def elapsed_ms(self, start: Self) -> float:
        """Time since an earlier point of the same stream; both are reached and recent."""
        return self._stream.elapsed_ms(start.turn, self.turn)


class CudaStream:
    """Owner of a driver stream, its events and its scratch memory until `close`.

    Used by one thread at a time.

    Args:
        owner: the device.
        scratch: device memory that one op may use between its own kernels.
        counters: words that are zero between kernels, for blocks that wait for no other.
    """

    def __init__(self, owner: StreamOwner, scratch: Tensor, counters: Tensor = NO_COUNTERS) -> None:
        self._owner: Final = owner
        self.scratch: Final = scratch
        self.counters: Final = counters
        self._handle: Final = driver.create_stream()
        self._events: Final[list[driver.Handle]] = []
        self._num_recorded = 0
        self._state = StreamState.RUNNING
        self._fault: NinferError | None = None
        self._rehearsed: dict[Kernel, None] | None = None
        self._is_guessing = False

    @property
    def state(self) -> StreamState:
        """Where in its life cycle the stream is."""
        return self._state

    @property
    def is_rehearsing(self) -> bool:
        """Whether kernels are noted instead of launched."""
        return self._rehearsed is not None

    @property
    def has_warpgroups(self) -> bool:
        """Whether kernels may use warpgroup instructions."""
        return self._owner.has_warpgroups

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can start in clusters."""
        return self._owner.has_clusters

    @property
    def num_multiprocessors(self) -> int:
        """Multiprocessors of the device."""
        return self._owner.num_multiprocessors

    def num_clusters(self, kernel: Kernel) -> int:
        """Clusters of a kernel that run at once where a block fills a multiprocessor.

        The driver knows when it has the kernel. A rehearsal guesses until that is compiled.
        """
        if self._rehearsed is None or self._owner.is_at_hand(kernel):
            return self._owner.num_clusters(kernel)
        self._rehearsed[kernel] = None
        self._is_guessing = True
        return self._owner.num_multiprocessors // kernel.cluster_blocks

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a block."""
        return self._owner.shared_bytes

    def launch(
        self,
        kernel: Kernel,
        grid: driver.Extent,
        args: Sequence[Argument],
        *,
        threads: int | None = None,
        shared_bytes: int | None = None,
    ) -> None:
        """Enqueue a kernel; one without blocks is nothing.

        Every kernel of ours waits for its predecessor by itself, so that it may be launched early.

        Args:
            kernel: what runs.
            grid: blocks of each axis.
            args: values in the order of the kernel's parameters.
            threads: of a block; the kernel's maximum when None.
            shared_bytes: dynamic, of a block; what the kernel needs when None.
        """
        if 0 in grid:
            return
        if len(args) != len(kernel.params):
            raise ShapeError(f"{kernel.name}: {len(args)} arguments for {len(kernel.params)}")
        if self._rehearsed is not None:
            self._rehearsed[kernel] = None
            return
        values = [_CTYPES[param](arg) for param, arg in zip(kernel.params, args, strict=True)]
        block = (kernel.threads if threads is None else threads, 1, 1)
        dynamic = kernel.dynamic_shared_bytes if shared_bytes is None else shared_bytes

        def enqueue() -> None:
            driver.launch(
                self._handle,
                self._owner.function(kernel),
                grid,
                block,
                dynamic,
                values,
                programmatic=self._owner.has_programmatic_launch,
                cluster_blocks=kernel.cluster_blocks,
            )

        self._enqueue(enqueue)

    def upload(self, destination: Tensor, source: Tensor) -> None:
        """Copy pinned memory to device memory of equal size in bytes."""
        self._copy(driver.copy_to_device, destination, source)

    def download(self, destination: Tensor, source: Tensor) -> None:
        """Copy device memory to pinned memory of equal size in bytes."""
        self._copy(driver.copy_to_host, destination, source)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy between ranges of device memory that do not overlap."""
        self._copy(driver.copy_on_device, destination, source)

    def clear(self, destination: Tensor) -> None:
        """Fill with zero bytes."""
        if destination.nbytes:
            self._enqueue(
                lambda: driver.fill_bytes(self._handle, destination.address, 0, destination.nbytes)
            )

    def record(self) -> CudaEvent:
        """Mark the present end.

        Raises:
            InvariantError: the stream is capturing or closed.
        """
        self._expect_not_capturing("record")
        turn = self._num_recorded
        self._num_recorded += 1

        def enqueue() -> None:
            if turn < NUM_EVENTS:
                self._events.append(driver.create_event())
            driver.record_event(self._events[turn % NUM_EVENTS], self._handle)

        self._enqueue(enqueue)
        return CudaEvent(self, turn)

    def wait(self, turn: int) -> None:
        """Wait for a recorded point."""
        self._expect_not_capturing("wait")
        self._enqueue(lambda: driver.synchronize_event(self._events[turn % NUM_EVENTS]))
        self._report()

    def elapsed_ms(self, start: int, end: int) -> float:
        """Time between two recorded points among the last `NUM_EVENTS`."""
        if self._num_recorded - min(start, end) > NUM_EVENTS:
            raise InvariantError("the event has been recorded again since")
        self._report()
        self._owner.bind()
        return driver.elapsed_ms(self._events[start % NUM_EVENTS], self._events[end % NUM_EVENTS])

    def synchronize(self) -> None:
        """Wait until everything enqueued has finished.

        Raises:
            InvariantError: a call failed, or the stream is capturing or closed.
        """
        self._expect_not_capturing("synchronize")
        self._enqueue(lambda: driver.synchronize_stream(self._handle))
        self._report()

    def rehearse(self, sequence: Callable[[], None], ahead: CompileAhead | None = None) -> None:
        """Compile and load every kernel that a sequence launches, running nothing of it.

        Raises:
            InvariantError: the stream is capturing, faulted or closed; a kernel does not compile.
            DeviceUnavailable: a kernel would have to be compiled and cannot be.
        """
        self._report()
        self._expect_not_capturing("a rehearsal")
        self._is_guessing = False
        self._owner.make_ready(self._noted(sequence), ahead)
        if self._is_guessing:
            # What was asked about is there now: what is launched may be other kernels.
            self._owner.make_ready(self._noted(sequence), ahead)

    def begin_capture(self) -> None:
        """Record instead of running from here on.

        Raises:
            IllegalMove: the stream is capturing, faulted or closed.
        """
        self._report()
        self._move(StreamEvent.BEGIN_CAPTURE)
        self._enqueue(lambda: driver.begin_capture(self._handle))

    def end_capture(self) -> CudaGraph:
        """Stop recording and return what was recorded, ready to launch.

        Raises:
            IllegalMove: the stream is not capturing.
            InvariantError: a recorded call was refused.
        """
        self._report()
        self._move(StreamEvent.END_CAPTURE)
        made: list[driver.Handle] = []

        def enqueue() -> None:
            template = driver.end_capture(self._handle)
            try:
                made.append(driver.instantiate_graph(template))
            finally:
                driver.destroy_graph(template)
            driver.upload_graph(made[0], self._handle)

        self._enqueue(enqueue)
        self._report()
        return CudaGraph(made[0], self)

    def enqueue_graph(self, executable: driver.Handle) -> None:
        """Enqueue one replay of an executable graph.

        Raises:
            InvariantError: the stream is capturing or closed.
        """
        self._expect_not_capturing("a graph launch")
        self._enqueue(lambda: driver.launch_graph(executable, self._handle))

    def release_graph(self, executable: driver.Handle) -> None:
        """Destroy an executable graph; after a loss of the context it is gone already."""
        if self._owner.fault is None and self._state is not StreamState.CLOSED:
            self._owner.bind()
            driver.destroy_executable(executable)

    def close(self) -> None:
        """Wait, then destroy events and stream; idempotent."""
        if self._state is StreamState.CLOSED:
            return
        if self._state is StreamState.RUNNING:
            self._enqueue(lambda: driver.synchronize_stream(self._handle))
        self._move(StreamEvent.CLOSE)
        if self._owner.fault is not None:
            return
        self._owner.bind()
        while self._events:
            driver.destroy_event(self._events.pop())
        driver.destroy_stream(self._handle)

    def _copy(
        self,
        call: Callable[[driver.Handle, int, int, int], None],
        destination: Tensor,
        source: Tensor,
    ) -> None:
        if destination.nbytes != source.nbytes:
            raise ShapeError(f"a copy of {source.nbytes} bytes to {destination.nbytes}")
        if source.nbytes:
            self._enqueue(
                lambda: call(self._handle, destination.address, source.address, source.nbytes)
            )

    def _noted(self, sequence: Callable[[], None]) -> Collection[Kernel]:
        """Kernels that a sequence launches, none of which is."""
        self._rehearsed = {}
        try:
            sequence()
            return self._rehearsed
        finally:
            self._rehearsed = None

    def _enqueue(self, call: Callable[[], None]) -> None:
        """Make a driver call, unless the stream is faulted; keep its failure."""
        if self._state is StreamState.CLOSED:
            raise InvariantError("work was given to a closed stream")
        if self._state is StreamState.FAULTED or self._rehearsed is not None:
            return
        if self._owner.fault is not None:
            self._become_faulty(self._owner.fault)
            return
        try:
            self._owner.bind()
            call()
        except NinferError as error:
            if isinstance(error, driver.CudaError) and error.is_sticky:
                self._owner.lose(error)
            self._become_faulty(error)

    def _become_faulty(self, fault: NinferError) -> None:
        self._fault = fault
        self._move(StreamEvent.FAULT)

    def _report(self) -> None:
        fault = self._fault or self._owner.fault
        if fault is not None:
            raise InvariantError(f"the device failed: {fault}") from fault

    def _expect_not_capturing(self, what: str) -> None:
        if self._state in (StreamState.CAPTURING, StreamState.CLOSED):
            raise InvariantError(f"{what} on a stream that is {self._state.name.lower()}")

    def _move(self, event: StreamEvent) -> None:
        self._state = moved(self._state, event, "CUDA")
