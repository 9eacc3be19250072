"""waitress, embedded: one listening socket, one loop thread, a fixed pool of request threads.

`HttpServer` binds in its constructor, so that a port clash shows before anything is loaded. Knows
no engine. Source: waitress 3.0; the settings and their measurements are in the serving contract,
section 1.1.
"""

import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from waitress import wasyncore
from waitress.server import create_server

from ninfer.gateway.gateway import Gateway
from ninfer.gateway.gateway_settings import EXTRA_THREADS, HEADER_LIMIT_BYTES
from ninfer.gateway.http_channel import channel_class
from ninfer.gateway.http_intake import IntakeLimits
from ninfer.gateway.listening_socket import listening_socket

CHANNEL_TIMEOUT_S: Final = 120
CONNECTION_LIMIT: Final = 512
OUTPUT_WATERMARK_BYTES: Final = 65536
"""Unsent bytes of one client beyond which its request thread waits, and not our memory."""

LOOP_INTERVAL_S: Final = 0.25
FLUSH_S: Final = 2.0
BACKLOG: Final = 1024

WsgiApplication = Callable[..., Any]


class HttpServer:
    """Owner of the socket, the loop thread and the request threads; a context manager.

    Attributes:
        port: the bound port.

    Raises:
        ConfigurationError, OSError: those of `listening_socket`.
    """

    def __init__(
        self,
        application: WsgiApplication,
        gateway: Gateway,
        intake: IntakeLimits | None = None,
        connection_limit: int = CONNECTION_LIMIT,
    ) -> None:
        """Bind; see the class.

        Args:
            application: answers the requests.
            gateway: state and settings.
            intake: None holds one body of the longest kind for each request thread.
            connection_limit: connections that may be open at a time.
        """
        settings = gateway.settings
        threads = gateway.slots.limit + EXTRA_THREADS
        intake = intake or IntakeLimits(held_bytes=threads * settings.max_request_bytes)
        self._socket = listening_socket(settings.bound_host, settings.port, BACKLOG)
        self.host = settings.host
        self.port: int = self._socket.getsockname()[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._server = create_server(
                application,
                sockets=[self._socket],
                threads=threads,
                channel_request_lookahead=1,
                outbuf_high_watermark=OUTPUT_WATERMARK_BYTES,
                # waitress refuses a body of exactly its limit; ours is still accepted.
                max_request_body_size=settings.max_request_bytes + 1,
                max_request_header_size=HEADER_LIMIT_BYTES,
                channel_timeout=CHANNEL_TIMEOUT_S,
                connection_limit=connection_limit,
                backlog=BACKLOG,
                asyncore_use_poll=True,
                clear_untrusted_proxy_headers=True,
                ident=None,
                expose_tracebacks=False,
            )
        self._server.channel_class = channel_class(gateway, intake)
        self._is_closing = threading.Event()
        self._loop = threading.Thread(target=self._run_loop, name="ninfer-http", daemon=True)
        self._is_closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start answering."""
        self._loop.start()

    def close(self, flush_s: float = FLUSH_S) -> None:
        """Let replies leave for at most ``flush_s``, then close every connection. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + flush_s
        while time.monotonic() < deadline and self._has_unsent_replies():
            time.sleep(0.01)
        self._is_closing.set()
        self._server.pull_trigger()
        if self._loop.ident is not None:
            self._loop.join()
        for channel in list(self._server.active_channels.values()):
            channel.handle_close()  # Wakes the thread that waits to write to it.
        self._server.task_dispatcher.shutdown(timeout=1)
        wasyncore.close_all(self._server._map, ignore_all=True)
        self._socket.close()

    def _has_unsent_replies(self) -> bool:
        channels = list(self._server.active_channels.values())
        return any(channel.requests or channel.total_outbufs_len for channel in channels)

    def _run_loop(self) -> None:
        while not self._is_closing.is_set():
            wasyncore.loop(timeout=LOOP_INTERVAL_S, use_poll=True, map=self._server._map, count=1)
