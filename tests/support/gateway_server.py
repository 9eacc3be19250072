"""A real gateway on a free port, with an engine of a test's choice."""

import contextlib
import dataclasses
import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from ninfer.config import EngineConfig
from ninfer.gateway.gateway import Gateway, build_gateway
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.health import unready_reason
from ninfer.gateway.http_app import create_app
from ninfer.gateway.http_intake import IntakeLimits
from ninfer.gateway.http_server import CONNECTION_LIMIT, HttpServer
from ninfer.gateway.metrics import Metrics
from ninfer.gateway.request_facts import RequestObserver
from ninfer.runtime import Engine
from tests.support.tiny_model import artifact_path

TINY_CONFIG = EngineConfig(
    device="host", max_concurrency=2, max_pending=2, max_context=512, shrinks_context=True
)
READ_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Code of an error in the OpenAI shape."""
        code: str = self.json["error"]["code"]
        return code

    @property
    def events(self) -> list[Any]:
        """Data of the stream's events; ``[DONE]`` as text."""
        return [data for _, data in self.named_events]

    @property
    def named_events(self) -> list[tuple[str | None, Any]]:
        """Names and data of the stream's events."""
        found: list[tuple[str | None, Any]] = []
        for block in self.body.decode().split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            if not lines:
                continue
            members = dict(line.split(": ", 1) for line in lines)
            data = members["data"]
            found.append((members.get("event"), data if data == "[DONE]" else json.loads(data)))
        return found


class RemoteServer:
    """A server that answers on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=READ_TIMEOUT_S)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send one request; a body that is no bytes is sent as JSON."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=READ_TIMEOUT_S)
        with contextlib.closing(connection):
            sent = {} if body is None else {"Content-Type": "application/json"}
            sent |= headers or {}
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, sent)
            response: HTTPResponse = connection.getresponse()
            lowered = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, lowered, response.read())

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, headers)

    def chat(self, text: str = "hi", **members: object) -> Reply:
        """One chat completion."""
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **members}
        return self.post("/v1/chat/completions", body)


class RunningServer(RemoteServer):
    """A server of this process; see `running_server`."""

    def __init__(self, gateway: Gateway, server: HttpServer) -> None:
        super().__init__(server.port)
        self.gateway = gateway
        self.server = server

    @property
    def engine(self) -> Engine:
        """The engine behind it."""
        engine = self.gateway.life.engine
        assert engine is not None
        return engine


@contextlib.contextmanager
def running_server(
    engine: Engine | None = None,
    *,
    observers: tuple[RequestObserver, ...] = (),
    config: EngineConfig = TINY_CONFIG,
    intake: IntakeLimits | None = None,
    connection_limit: int = CONNECTION_LIMIT,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serve an engine on a free port; without one the server stays in its loading state."""
    chosen = dataclasses.replace(GatewaySettings(host="127.0.0.1", port=0), **settings)
    metrics = Metrics()
    gateway = build_gateway(
        chosen,
        config if engine is None else engine.config,
        observers=(metrics, *observers),
    )
    metrics.attach(gateway.life, lambda: unready_reason(gateway))
    if engine is not None:
        gateway.life.note_loaded(engine)
    app = create_app(gateway, metrics)
    with HttpServer(app, gateway, intake, connection_limit) as server:
        yield RunningServer(gateway, server)


def tiny_engine(config: EngineConfig = TINY_CONFIG) -> Engine:
    """The tiny dense model on the host device; close it."""
    return Engine(artifact_path("tiny-dense", "bf16"), config=config)
