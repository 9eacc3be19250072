"""What connections may send: how much at a time, how slowly, and in what form.

waitress takes a body whole, in memory and then in a temporary file, before anybody looks at the
request, and waits for the rest of it for as long as bytes trickle in. Here every body is counted
against one budget of all connections, heads and bodies have to arrive in time, and whatever the
parser trips over is the client's fault. Knows no application. Sources: waitress 3.0; RFC 9112,
sections 6 and 7.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest, Error

MAX_CHUNK_LINE_BYTES: Final = 1024
MAX_TRAILER_BYTES: Final = 65536
_STEP_BYTES: Final = 1 << 20
"""A body of undeclared length takes its share of the budget in steps of this size."""

_NO_REQUEST: Final = b"GET / HTTP/1.0\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """Limits of what is received.

    Attributes:
        held_bytes: bodies of all connections that may be held at a time.
        head_s: longest time from the first byte of a request to the end of its head.
        crowded_s: the same, and how long a connection may idle, when there is room for no other.
        body_grace_s: longest time of a short body.
        body_bytes_per_s: what a longer one has to arrive with on average.
        linger_s: how long a refused sender may go on before it reads why.
    """

    held_bytes: int
    head_s: float = 20.0
    crowded_s: float = 2.0
    body_grace_s: float = 30.0
    body_bytes_per_s: float = 4096.0
    linger_s: float = 10.0


class BodyBudget:
    """A counted amount of bytes; safe to share between threads."""

    def __init__(self, num_bytes: int) -> None:
        self._lock = threading.Lock()
        self._free = num_bytes

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self._free

    def take(self, num_bytes: int) -> bool:
        """Take an amount, or nothing and return False."""
        with self._lock:
            if num_bytes > self._free:
                return False
            self._free -= num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """Return an amount."""
        with self._lock:
            self._free += num_bytes


class TooBusy(Error):  # type: ignore[misc]  # waitress is untyped
    """The bodies of others leave no room."""

    code = 503
    reason = "Overloaded"


class TooSlow(Error):  # type: ignore[misc]  # waitress is untyped
    """A request that does not arrive."""

    code = 408
    reason = "Request Timeout"


class RequestParser(HTTPRequestParser):  # type: ignore[misc]  # waitress is untyped
    """One request that is being received.

    Args:
        adjustments: settings of the server.
        limits: see there.
        budget: what its body is taken from until `close`.
    """

    def __init__(self, adjustments: Any, limits: IntakeLimits, budget: BodyBudget) -> None:
        super().__init__(adjustments)
        self._limits = limits
        self._budget = budget
        self._lock = threading.Lock()
        self._held = 0
        self._is_closed = False
        self._started_at = time.monotonic()

    def received(self, data: bytes) -> int:
        """Take bytes from the connection; the number of those that belong to this request."""
        consumed: int = super().received(data)
        if self.body_rcv is not None and not self.error:
            if self._has_endless_line():
                self.refuse(BadRequest("Chunk line or trailer too long"))
            else:
                self._hold()
        if self.error:
            # A client that asks before it sends its body is told at once.
            self.expect_continue = False
        return consumed

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the head; waitress expects one kind of error."""
        try:
            super().parse_header(header_plus)
        except ValueError as error:  # For instance a number that Python does not convert.
            raise ParsingError("Malformed request head") from error
        if self.chunked and "CONTENT_LENGTH" in self.headers:
            # A proxy in front may have believed the other one.
            raise ParsingError("Both Content-Length and Transfer-Encoding")

    @property
    def is_begun(self) -> bool:
        """Whether anything of the request has arrived; an empty line after the last one is not."""
        return self.headers_finished or bool(self.header_plus.strip())

    def is_late(self, now: float, *, is_crowded: bool = False) -> bool:
        """Whether the rest of the request takes too long."""
        limits, age_s = self._limits, now - self._started_at
        if not self.headers_finished:
            return self.is_begun and age_s > (limits.crowded_s if is_crowded else limits.head_s)
        grace_s = self.body_bytes_received / self._limits.body_bytes_per_s
        return bool(age_s > self._limits.body_grace_s + grace_s)

    def wait_again(self) -> None:
        """Start the clock anew: so far it was us who did not read."""
        self._started_at = time.monotonic()

    def refuse(self, error: Error) -> None:
        """Give up on the rest of the request."""
        if not self.headers_finished:
            super().parse_header(_NO_REQUEST)
        self.error = error
        self.completed = True
        self.close()

    def close(self) -> None:
        """Drop the body and return its share of the budget. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            held, self._held = self._held, 0
        super().close()
        self._budget.give_back(held)

    def _has_endless_line(self) -> bool:
        if not self.chunked:
            return False
        line, trailer = self.body_rcv.control_line, self.body_rcv.trailer
        return len(line) > MAX_CHUNK_LINE_BYTES or len(trailer) > MAX_TRAILER_BYTES

    def _hold(self) -> None:
        """Take what the body needs: all of a declared length, an undeclared one step by step."""
        needed = self.content_length
        if self.chunked:
            needed = -(-self.body_bytes_received // _STEP_BYTES) * _STEP_BYTES
        if needed <= self._held:
            return
        if self._budget.take(needed - self._held):
            self._held = needed
        else:
            self.refuse(TooBusy("other requests hold all room for bodies"))
