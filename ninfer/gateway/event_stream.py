"""Server-sent events: framing, and the iterator a WSGI server writes to the client.

The iterator owns its request: `close` ends it whether or not iteration ever began. While nothing
happens it sends comment lines, so that a dead connection is noticed. Knows no protocol. Source: the
server-sent events section of the HTML standard; the serving contract, sections 4.2 and 11.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from ninfer.frontend.template_json import write_json

KEEP_ALIVE: Final = b": keep-alive\n\n"
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Frame:
    """One event.

    Attributes:
        data: a JSON object, or a literal such as ``[DONE]``.
        name: the ``event`` line; None leaves it out.
    """

    data: dict[str, Any] | str
    name: str | None = None

    def encode(self) -> bytes:
        """Bytes of the event, blank line included."""
        data = self.data if isinstance(self.data, str) else compact_json(self.data)
        name = "" if self.name is None else f"event: {self.name}\n"
        return f"{name}data: {data}\n\n".encode()


def compact_json(value: object) -> str:
    """JSON on one line, characters as they are; line separators inside strings stay escaped."""
    return _on_one_line(_COMPACT.encode(value))


def exact_json(value: object) -> str:
    """Like `compact_json`, slower, and a `JsonNumber` keeps its digits."""
    return _on_one_line(write_json(value, separators=(",", ":")))


def _on_one_line(text: str) -> str:
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")


class FrameSource(Protocol):
    """What an `EventStream` writes."""

    def next_frames(self, timeout_s: float) -> Sequence[Frame] | None:
        """Frames of the next event; none when the time passed, None after the last.

        Raises:
            ClientGone: nobody reads any more.
        """

    def heartbeat(self) -> Frame | None:
        """Event sent when nothing happened for a while; None is a comment line."""

    def close(self) -> None:
        """Let go of the request. Idempotent."""


class ClientGone(Exception):
    """The client closed its connection."""


class EventStream:
    """Iterator over the bytes of one stream, and owner of what produces them.

    Args:
        source: where frames come from; closed with the stream.
        heartbeat_s: quiet time after which a heartbeat is sent.
        first: frames that are known already.
    """

    def __init__(
        self, source: FrameSource, heartbeat_s: float, first: Sequence[Frame] = ()
    ) -> None:
        self._source = source
        self._heartbeat_s = heartbeat_s
        self._waiting = deque(first)
        self._is_over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._is_over:
            raise StopIteration
        if not self._waiting:
            try:
                frames = self._source.next_frames(self._heartbeat_s)
            except ClientGone:
                frames = None
            if frames is None:
                self.close()
                raise StopIteration
            self._waiting.extend(frames)
        if not self._waiting:
            beat = self._source.heartbeat()
            return KEEP_ALIVE if beat is None else beat.encode()
        # Frames of one event leave together: one write, one packet.
        pieces = [frame.encode() for frame in self._waiting]
        self._waiting.clear()
        return b"".join(pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream and release its request. Idempotent."""
        self._is_over = True
        self._waiting.clear()
        self._source.close()
