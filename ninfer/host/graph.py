"""Recorded calls with fixed buffers, and their replay.

A host graph is the list of calls that a capturing stream was given. Their array arguments are views
of arena memory, so that a replay reads whatever lies at the same addresses by then. This module
does not know what the calls compute, and does not keep the arenas they point into alive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from ninfer.device import Stream
from ninfer.errors import InvariantError
from ninfer.host.ahead import Call, Progress, compile_ahead
from ninfer.host.bands import BandPool


@dataclass(frozen=True, slots=True)
class Operation:
    """One recorded call.

    Attributes:
        function: what is called; its result is dropped.
        args: positional arguments, the same objects in every replay.
    """

    function: Callable[..., object]
    args: tuple[Any, ...]


@runtime_checkable
class EnqueuingStream(Protocol):
    """A stream that takes plain calls, as the host device's does."""

    def enqueue(self, function: Callable[..., object], *args: Any) -> None:
        """Run or record ``function(*args)``."""


def _kernel_call(operation: Operation) -> Call:
    """The call that reaches the kernel, behind the bands it may be split into."""
    if getattr(operation.function, "__func__", None) is BandPool.run:
        kernel, _, _, args = operation.args
        return kernel, (0, 0, *args)
    return operation.function, operation.args


class HostGraph:
    """Owner of one recording until `close`."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._operations: Final = operations
        self._is_closed = False

    @property
    def num_operations(self) -> int:
        """Calls of one replay."""
        return len(self._operations)

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile every kernel that a launch will call, so that the first one need not.

        Args:
            progress: told (kernels compiled, kernels in all) when any is missing.
        """
        compile_ahead(map(_kernel_call, self._operations), progress)

    def launch(self, stream: Stream) -> None:
        """Enqueue every call in the recorded order.

        A capturing stream records them: the graph becomes a part of the one being captured.

        Raises:
            InvariantError: the graph is closed, or the stream is not a host stream.
        """
        if self._is_closed:
            raise InvariantError("a closed graph was launched")
        if not isinstance(stream, EnqueuingStream):
            raise InvariantError(f"a host graph cannot run on {type(stream).__name__}")
        for operation in self._operations:
            stream.enqueue(operation.function, *operation.args)

    def close(self) -> None:
        """Forbid further launches; idempotent."""
        self._is_closed = True
