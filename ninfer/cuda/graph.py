"""An executable graph: made from a finished capture, launched, destroyed.

Whatever varies between launches is data at fixed addresses; a graph never changes. Knows nothing of
what was captured.
"""

from typing import Final, Protocol, runtime_checkable

from ninfer.cuda import driver
from ninfer.device import Stream
from ninfer.errors import InvariantError


@runtime_checkable
class GraphStream(Protocol):
    """A stream that takes executable graphs, as the CUDA device's does."""

    def enqueue_graph(self, executable: driver.Handle) -> None:
        """Enqueue one replay."""

    def release_graph(self, executable: driver.Handle) -> None:
        """Destroy an executable graph once nothing of it runs."""


class CudaGraph:
    """Owner of one executable graph until `close`.

    Args:
        executable: handle, instantiated and uploaded.
        stream: the stream it was captured on, which also destroys it.
    """

    def __init__(self, executable: driver.Handle, stream: GraphStream) -> None:
        self._executable: driver.Handle = executable
        self._stream: Final = stream

    def launch(self, stream: Stream) -> None:
        """Enqueue one replay.

        Raises:
            InvariantError: the graph is closed, or the stream is not a CUDA stream.
        """
        if self._executable is None:
            raise InvariantError("a closed graph was launched")
        if not isinstance(stream, GraphStream):
            raise InvariantError(f"a CUDA graph cannot run on {type(stream).__name__}")
        stream.enqueue_graph(self._executable)

    def close(self) -> None:
        """Destroy the graph; idempotent."""
        executable, self._executable = self._executable, None
        if executable is not None:
            self._stream.release_graph(executable)
