"""Graphs of decode rounds: one for each exact number of rows, captured at start-up.

The recorded sequence is given as a function of B that enqueues ops on fixed addresses; without
graphs the very same function runs eagerly in each round. What the sequence computes is known to
`decode_round`.
"""

from collections.abc import Callable
from typing import Final

from ninfer.device import Graph, Stream
from ninfer.errors import InvariantError


class DecodeGraphs:
    """Owner of the captured graphs until `close`.

    Args:
        stream: where rounds are captured and launched.
        enqueue: enqueues the round of exactly that many rows.
        max_rows: largest B; 1..max_rows are captured.
        use_graphs: False captures nothing and enqueues each round eagerly.
    """

    def __init__(
        self, stream: Stream, enqueue: Callable[[int], None], max_rows: int, *, use_graphs: bool
    ) -> None:
        self._stream: Final = stream
        self._enqueue: Final = enqueue
        self._graphs: Final[list[Graph]] = []
        self._use_graphs: Final = use_graphs
        try:
            for rows in range(1, max_rows + 1 if use_graphs else 1):
                stream.begin_capture()
                enqueue(rows)
                self._graphs.append(stream.end_capture())
        except BaseException:
            self.close()
            raise

    def launch(self, num_rows: int) -> None:
        """Enqueue the round of exactly ``num_rows`` rows.

        Raises:
            InvariantError: there is no graph for that many, or none any more.
        """
        if not self._use_graphs:
            self._enqueue(num_rows)
        elif 1 <= num_rows <= len(self._graphs):
            self._graphs[num_rows - 1].launch(self._stream)
        else:
            raise InvariantError(f"no graph for {num_rows} rows")

    def close(self) -> None:
        """Drop the graphs, newest first; idempotent."""
        while self._graphs:
            self._graphs.pop().close()
