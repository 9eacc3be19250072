"""Our variant of waitress' connection: JSON for its own errors, slow peers, keep-alive.

waitress answers malformed HTTP by itself, in plain text and before any application runs; here it
says the same in the shape of its path's protocol. A connection whose output has not moved for a
while is closed, which ends the request behind it; one whose request does not arrive is refused; one
that was refused in the middle of its body may finish sending, or the reply would be lost. Source:
waitress 3.0; RFC 9112, section 9.6; the serving contract, sections 1.1, 3.1 and 11.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from waitress.channel import HTTPChannel
from waitress.task import ErrorTask, WSGITask

from ninfer.gateway.error_responses import ErrorReply, Family, body_too_large
from ninfer.gateway.event_stream import compact_json
from ninfer.gateway.gateway import Gateway
from ninfer.gateway.http_intake import BodyBudget, IntakeLimits, RequestParser, TooSlow
from ninfer.gateway.request_context import family_of, new_request_id
from ninfer.gateway.request_facts import endpoint_of
from ninfer.gateway.request_slots import UNKNOWN_RETRY_S
from ninfer.gateway.server_state import ServerState

KEEP_ALIVE_IDLE_S: Final = 15
KEEP_ALIVE_PROBES: Final = 3
_CODES: Final = {
    400: "invalid_http",
    408: "request_incomplete",
    413: "request_too_large",
    431: "header_too_large",
    500: "internal_error",
    501: "unsupported_transfer_encoding",
    503: "server_overloaded",
}
_DISCARDED_BYTES: Final = 1 << 18


def channel_class(gateway: Gateway, limits: IntakeLimits) -> type[HTTPChannel]:
    """Build the connection class of one server.

    Args:
        gateway: while it drains, every reply closes its connection; hears of what is refused here.
        limits: of what connections send.
    """
    life = gateway.life
    stall_client_s = gateway.settings.stall_client_s
    budget = BodyBudget(limits.held_bytes)

    class Task(WSGITask):  # type: ignore[misc]  # waitress is untyped
        """A request that reached the application."""

        def build_response_header(self) -> bytes:
            if life.state in (ServerState.DRAINING, ServerState.STOPPED):
                self.set_close_on_finish()
            # The application has read the body: who gets this reply may send the next one.
            self.request.close()
            header: bytes = super().build_response_header()
            return header

    class OurErrorTask(JsonErrorTask):
        """A request that did not."""

        def note(self, request_id: str, code: str) -> None:
            endpoint = endpoint_of(
                getattr(self.request, "command", ""), getattr(self.request, "path", "")
            )
            if endpoint is not None:
                gateway.note_rejected(endpoint, request_id, code)

    class OurChannel(Channel):
        """A connection of this server."""

        task_class = Task
        error_task_class = OurErrorTask

        def __init__(
            self, server: Any, sock: socket.socket, addr: Any, adj: Any, map: Any = None
        ) -> None:
            self.parser_class = lambda adj: RequestParser(adj, limits, budget)
            self.limits = limits
            self.stall_client_s = stall_client_s
            super().__init__(server, sock, addr, adj, map)

    return OurChannel


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress is untyped
    """One connection; `channel_class` makes the variant of a server.

    Attributes:
        lingers: a refusal was written before the request had arrived.
        limits: of what the client sends.
        stall_client_s: time without progress of waiting output after which a client is dropped.
    """

    lingers = False
    limits: IntakeLimits
    stall_client_s: float
    parser_class: Callable[[Any], RequestParser]
    request: RequestParser | None
    close_when_flushed: bool
    will_close: bool
    _blocked_since: float | None = None
    _linger_until: float | None = None

    def __init__(
        self, server: Any, sock: socket.socket, addr: Any, adj: Any, map: Any = None
    ) -> None:
        _keep_alive(sock)
        super().__init__(server, sock, addr, adj, map=map)

    def readable(self) -> bool:
        """Asked by the loop first each time round, which makes it the place for the checks."""
        is_crowded = bool(self.server.in_connection_overflow)
        if self._linger_until is not None:
            if is_crowded or time.monotonic() > self._linger_until:
                self.handle_close()
            return bool(self.connected)
        self._drop_if_stalled(time.time())
        self._refuse_if_late(time.monotonic(), is_crowded)
        if is_crowded and time.time() - self.last_activity > self.limits.crowded_s:
            self._make_room()
        return self.connected and bool(super().readable())

    def handle_read(self) -> None:
        """Take what has arrived, or throw it away once the request is refused."""
        if self._linger_until is None:
            super().handle_read()
            return
        with suppress(OSError):
            self.recv(_DISCARDED_BYTES)  # Closes at the end of what the client sends.

    def handle_write(self) -> None:
        """Send what waits; behind a refusal close our side only."""
        if not (self.lingers and self.close_when_flushed) or self.will_close:
            super().handle_write()
            return
        _, is_broken = self._flush_exception(self._flush_some)
        if is_broken:
            self.handle_close()
        elif not self.total_outbufs_len:
            self.close_when_flushed = False
            self._linger_until = time.monotonic() + self.limits.linger_s
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    def handle_close(self) -> None:
        """Close, and drop what has arrived of a request."""
        super().handle_close()
        request = self.request
        if request is not None:
            request.close()

    def _drop_if_stalled(self, now: float) -> None:
        if not self.total_outbufs_len:
            self._blocked_since = None
        elif self._blocked_since is None or self.last_activity > self._blocked_since:
            self._blocked_since = now
        elif now - self._blocked_since > self.stall_client_s:
            self.logger.info("a client stopped reading; its connection is closed")
            # Marking it would not do: the loop acts on marks once the socket can be written.
            self.handle_close()

    def _make_room(self) -> None:
        """Close the connection when nothing is going on."""
        is_begun = self.request is not None and self.request.is_begun
        if not (is_begun or self.requests or self.total_outbufs_len):
            self.handle_close()

    def _refuse_if_late(self, now: float, is_crowded: bool) -> None:
        request = self.request
        if request is None:
            return
        if self.requests:
            request.wait_again()
        elif request.is_late(now, is_crowded=is_crowded):
            with self.requests_lock:
                request.refuse(TooSlow("the rest of the request did not arrive in time"))
                self.requests.append(request)
                self.request = None
                self.server.add_task(self)


class JsonErrorTask(ErrorTask):  # type: ignore[misc]  # waitress is untyped
    """Reply to a request that waitress itself refuses."""

    def execute(self) -> None:
        """Write the reply and close the connection."""
        error = self.request.error
        request_id = new_request_id()
        code = _CODES.get(error.code, "invalid_http")
        message = request_id if code == "internal_error" else _message(error, self.channel.adj)
        family = family_of(getattr(self.request, "path", ""))
        reply = ErrorReply(code, message)
        body = compact_json(reply.body(family, request_id)).encode()
        if code == "internal_error":
            self.channel.logger.error("request %s failed: %s", request_id, error.reason)
        self.note(request_id, code)
        self.status = f"{reply.status(family)} {error.reason}"
        self.response_headers.extend(_headers(family, request_id, code))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.channel.lingers = error.code != TooSlow.code
        self.write(body)

    def note(self, request_id: str, code: str) -> None:
        """Told of every refusal."""


def _headers(family: Family, request_id: str, code: str) -> list[tuple[str, str]]:
    found = [
        ("Content-Type", "application/json"),
        ("X-Content-Type-Options", "nosniff"),
        ("x-request-id", request_id),
    ]
    if family is Family.ANTHROPIC:
        found.append(("request-id", request_id))
    if code == "server_overloaded":
        found.append(("Retry-After", str(UNKNOWN_RETRY_S)))
    return found


def _message(error: Any, adjustments: Any) -> str:
    """Say what was wrong in our words; what the client sent may hold a key and is left out."""
    match error.code:
        case 413:
            return body_too_large(adjustments.max_request_body_size - 1)  # see `HttpServer`
        case 431:
            limit = adjustments.max_request_header_size
            return f"the head of the request is too large; allowed is {limit} bytes"
        case 501:
            return "the transfer encoding is not supported; allowed is chunked"
        case 400:
            reason = str(error.body).partition(' "')[0].rstrip(".")
            return f"the request is not valid HTTP: {reason[:1].lower()}{reason[1:]}"
        case _:
            return str(error.body)


def _keep_alive(sock: socket.socket) -> None:
    """Let the kernel find out about peers that vanished without a word."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEP_ALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEP_ALIVE_IDLE_S),
        ("TCP_KEEPCNT", KEEP_ALIVE_PROBES),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
