"""Our variant of waitress' connection: JSON for its own errors, stalled readers, keep-alive.

waitress answers malformed HTTP by itself, in plain text and before any application runs; here it
says the same in the shape of its path's protocol. A connection whose output has not moved for a
while is closed, which ends the request behind it. Source: waitress 3.0; the serving contract,
sections 1.1, 3.1 and 11.
"""

import json
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from waitress.channel import HTTPChannel
from waitress.task import ErrorTask, WSGITask

from ninfer.gateway.error_responses import ErrorReply
from ninfer.gateway.request_context import family_of, new_request_id
from ninfer.gateway.server_state import ServerLife, ServerState

KEEP_ALIVE_IDLE_S: Final = 15
KEEP_ALIVE_PROBES: Final = 3
_CODES: Final = {
    400: "invalid_http",
    413: "request_too_large",
    431: "header_too_large",
    500: "internal_error",
    501: "unsupported_transfer_encoding",
}


def channel_class(life: ServerLife, stall_client_s: float) -> type[HTTPChannel]:
    """Build the connection class of one server.

    Args:
        life: while it drains, every reply closes its connection.
        stall_client_s: time without progress of waiting output after which a client is dropped.
    """

    class Task(WSGITask):  # type: ignore[misc]  # waitress is untyped
        """A request that reached the application."""

        def build_response_header(self) -> bytes:
            if life.state in (ServerState.DRAINING, ServerState.STOPPED):
                self.set_close_on_finish()
            header: bytes = super().build_response_header()
            return header

    class Channel(HTTPChannel):  # type: ignore[misc]  # waitress is untyped
        """One connection."""

        task_class = Task
        error_task_class = JsonErrorTask
        _blocked_since: float | None = None

        def __init__(
            self, server: Any, sock: socket.socket, addr: Any, adj: Any, map: Any = None
        ) -> None:
            _keep_alive(sock)
            super().__init__(server, sock, addr, adj, map=map)

        def readable(self) -> bool:
            """Asked by the loop first each time round, which makes it the place for the check."""
            self._drop_if_stalled(time.time())
            return self.connected and bool(super().readable())

        def _drop_if_stalled(self, now: float) -> None:
            if not self.total_outbufs_len:
                self._blocked_since = None
            elif self._blocked_since is None or self.last_activity > self._blocked_since:
                self._blocked_since = now
            elif now - self._blocked_since > stall_client_s:
                self.logger.info("a client stopped reading; its connection is closed")
                # Marking it would not do: the loop acts on marks once the socket can be written.
                self.handle_close()

    return Channel


class JsonErrorTask(ErrorTask):  # type: ignore[misc]  # waitress is untyped
    """Reply to a request that waitress itself refuses."""

    def execute(self) -> None:
        """Write the reply and close the connection."""
        error = self.request.error
        request_id = new_request_id()
        code = _CODES.get(error.code, "invalid_http")
        message = request_id if code == "internal_error" else _message(error)
        family = family_of(getattr(self.request, "path", ""))
        reply = ErrorReply(code, message)
        body = json.dumps(reply.body(family, request_id)).encode()
        self.status = f"{reply.status(family)} {error.reason}"
        self.response_headers.extend(_headers(request_id).items())
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


def _headers(request_id: str) -> Mapping[str, str]:
    return {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "x-request-id": request_id,
    }


def _message(error: Any) -> str:
    return f"{error.reason}: {error.body}"[:200]


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
