"""Werkzeug's development server behind the interface of `HttpServer`, for debugging only.

It cannot tell that a client left before something is written, and starts a thread for every
connection. Source: the serving contract, section 1.1.
"""

import threading
from types import TracebackType
from typing import Self

from flask import Flask
from werkzeug.serving import make_server

from ninfer.gateway.gateway import Gateway


class DebugServer:
    """Owner of the socket and the thread; a context manager.

    Attributes:
        port: the bound port.
    """

    def __init__(self, application: Flask, gateway: Gateway) -> None:
        settings = gateway.settings
        self._server = make_server(settings.host, settings.port, application, threaded=True)
        self.port: int = self._server.server_port
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
