"""Werkzeug's development server behind the interface of `HttpServer`, for debugging only.

It cannot tell that a client left before something is written, and starts a thread for every
connection. Source: the serving contract, section 1.1.
"""

import threading
from types import TracebackType
from typing import Self

from flask import Flask
from werkzeug.serving import LISTEN_QUEUE, make_server

from ninfer.gateway.gateway import Gateway
from ninfer.gateway.listening_socket import listening_socket


class DebugServer:
    """Owner of the socket and the thread; a context manager.

    Attributes:
        port: the bound port.

    Raises:
        ConfigurationError, OSError: those of `listening_socket`.
    """

    def __init__(self, application: Flask, gateway: Gateway) -> None:
        settings = gateway.settings
        # Werkzeug ends the process where it cannot bind; it gets a socket that listens, as a copy.
        with listening_socket(settings.bound_host, settings.port, LISTEN_QUEUE) as listening:
            self._server = make_server(
                settings.bound_host, 0, application, threaded=True, fd=listening.fileno()
            )
            self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop answering. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
