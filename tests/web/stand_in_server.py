"""A small server that serves the real page and plays scripted chat streams, step by step.

A test says what the server sends and when it goes on, so that nothing depends on time. Speaks the
model list, the chat stream and the errors of the documented HTTP API; holds no model.
"""

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Final, Self

MIME_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY: Final = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'"
MODEL: Final = {
    "id": "qwen3.6-27b",
    "object": "model",
    "max_model_len": 32768,
    "kv_dtype": "int8",
    "speculative": "none",
    "capabilities": {
        "vision": True,
        "thinking": True,
        "reasoning_efforts": ["low", "medium", "xhigh"],
    },
    "sampling_defaults": {
        "thinking": {"temperature": 1.0, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
        "non_thinking": {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0},
    },
}
USAGE: Final = {
    "prompt_tokens": 1204,
    "completion_tokens": 318,
    "prompt_tokens_details": {"cached_tokens": 1024},
    "completion_tokens_details": {"reasoning_tokens": 96},
}
TIMINGS: Final = {"cache_n": 1024, "prompt_n": 180, "predicted_per_second": 47.31}
PATIENCE_S: Final = 120.0
BEAT_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Gate:
    """The stream stands still here, sending comments, until the test opens the gate."""

    opened: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        """Let the stream go on."""
        self.opened.set()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Instead of a stream: a status and an error body."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Break:
    """The connection breaks here, in the middle of the reply."""


Step = bytes | Gate | Break


def event(value: object) -> bytes:
    """One server-sent event."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def delta(**members: Any) -> bytes:
    """A chunk with a message delta."""
    return event({"choices": [{"index": 0, "delta": members, "finish_reason": None}]})


def finish(reason: str = "stop") -> bytes:
    """Finish chunk, usage chunk and the end mark."""
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    usage = {"choices": [], "usage": USAGE, "timings": TIMINGS}
    return event(last) + event(usage) + event("[DONE]")


ROLE: Final = delta(role="assistant", content="")


class StandInServer:
    """Serves until closed; a context manager.

    Attributes:
        scripts: what the next chat requests get, first one first.
        bodies: bodies of the chat requests so far.
        keys: Authorization headers of all requests to the API.
        client_left: set when a client went away during a stream.
        api_key: when set, requests to the API need it.
        model: entry of the model list, or a refusal.
    """

    def __init__(self) -> None:
        self.scripts: list[Sequence[Step] | Refusal] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.client_left = threading.Event()
        self.api_key: str | None = None
        self.model: dict[str, Any] | Refusal = dict(MODEL)
        owner = self

        class Handler(_Handler):
            stand_in = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandInServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._models()
        else:
            self._file("index.html" if self.path == "/" else self.path.removeprefix("/web/"))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._is_allowed():
            return
        self.stand_in.bodies.append(json.loads(body))
        script = self.stand_in.scripts.pop(0)
        if isinstance(script, Refusal):
            self._refuse(script)
        else:
            self._stream(script)

    def log_message(self, *unused: object) -> None:
        """Keep quiet."""

    def _models(self) -> None:
        model = self.stand_in.model
        if not self._is_allowed():
            return
        if isinstance(model, Refusal):
            self._refuse(model)
        else:
            self._reply(200, "application/json", json.dumps({"data": [model]}).encode())

    def _is_allowed(self) -> bool:
        key = self.headers["Authorization"]
        self.stand_in.keys.append(key)
        if self.stand_in.api_key is None or key == f"Bearer {self.stand_in.api_key}":
            return True
        self._refuse(Refusal(401, "invalid_api_key", "The API key is missing or wrong."))
        return False

    def _file(self, name: str) -> None:
        path = resources.files("ninfer.web") / name
        if "/" in name or not path.is_file():
            self._reply(404, "application/json", b'{"error":{"message":"not found"}}')
        else:
            self._reply(200, MIME_TYPES[name.rpartition(".")[2]], path.read_bytes())

    def _refuse(self, refusal: Refusal) -> None:
        error = {"message": refusal.message, "type": "error", "code": refusal.code, "param": None}
        self._reply(refusal.status, "application/json", json.dumps({"error": error}).encode())

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("x-request-id", "req_0123456789abcdef01234567")
        if status == 503:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, script: Iterable[Step]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for step in script:
                if isinstance(step, Break):
                    self.close_connection = True
                    return
                self._play(step)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
            self.stand_in.client_left.set()

    def _play(self, step: bytes | Gate) -> None:
        if isinstance(step, bytes):
            self._chunk(step)
            return
        for _ in range(int(PATIENCE_S / BEAT_S)):
            if step.opened.wait(BEAT_S):
                return
            self._chunk(b": keep-alive\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
