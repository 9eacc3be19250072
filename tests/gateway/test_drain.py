"""Acceptance point 7: signals end a server in order; so do failures, each with its exit."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ninfer.config import EngineConfig
from ninfer.frontend.grammar_compiler import GrammarCompiler
from ninfer.gateway import server as server_module
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.server import ServeEnd, ServePlan, serve
from ninfer.runtime import Engine, Progress
from tests.support.gateway_clients import PATIENCE_S, read_until, send_chat, wait_until
from tests.support.gateway_server import RemoteServer
from tests.support.scripted_books import Faults
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tiny_model import artifact_path

CONFIG = EngineConfig(device="host", max_concurrency=1, max_pending=4)


def slow(call: str) -> None:
    if call == "decode":
        time.sleep(0.003)


class Drill:
    """A server in the main thread, and a client beside it that ends it by signals."""

    def __init__(self, load: Callable[[Progress], Engine] | None = None, **settings: Any) -> None:
        self.lines: list[str] = []
        self.load = load or (lambda progress: ScriptedEngine(max_concurrency=1, pace=slow))
        self.settings = GatewaySettings(port=0, **settings)
        self.failure: BaseException | None = None

    def run(self, client: Callable[[RemoteServer], None]) -> ServeEnd:
        def visit() -> None:
            try:
                wait_until(lambda: bool(self.lines))
                client(RemoteServer(int(self.lines[0].rpartition(":")[2])))
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                self.failure = error
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=visit)
        thread.start()
        end = serve(ServePlan(self.settings, CONFIG, self.load, announce=self.lines.append))
        thread.join(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return end

    def wait_ready(self) -> None:
        wait_until(lambda: any(line.startswith("ready") for line in self.lines))


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def rest(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.close()
    return data


def test_the_operator_is_told_what_memory_is_for_before_the_server_is_ready() -> None:
    drill = Drill()

    def client(server: RemoteServer) -> None:
        drill.wait_ready()
        terminate()

    drill.run(client)

    assert drill.lines[0].startswith("listening on ")
    assert drill.lines[1:3] == ["arenas", "  none      0 bytes"]
    assert drill.lines[3].startswith("ready: ")


def test_active_requests_finish_and_others_are_refused() -> None:
    drill = Drill()
    seen: dict[str, Any] = {}

    def client(server: RemoteServer) -> None:
        drill.wait_ready()
        idle, active, waiting = (server.connect() for _ in range(3))
        send_chat(active, stream=True, max_tokens=300, ignore_eos=True)
        read_until(active, b"role")
        send_chat(waiting, max_tokens=4)
        wait_until(lambda: server.get("/health/ready").json.get("waiting") == 1)
        terminate()
        wait_until(lambda: server.get("/health/ready").status == 503)
        seen["health"] = server.get("/health/ready").json
        seen["live"] = server.get("/health/live").status
        seen["new"] = server.chat()
        seen["models"] = server.get("/v1/models").status
        seen["waiting"] = rest(waiting)
        seen["active"] = rest(active)
        seen["idle"] = rest(idle)

    end = drill.run(client)

    assert end is ServeEnd.DRAINED
    assert seen["health"] == {"status": "unready", "reason": "draining"}
    assert (seen["live"], seen["models"]) == (200, 200)
    assert (seen["new"].status, seen["new"].code) == (503, "server_draining")
    assert seen["new"].headers["retry-after"] == "5"
    assert seen["new"].headers["connection"] == "close"
    assert seen["waiting"].startswith(b"HTTP/1.1 503")
    assert b"server_draining" in seen["waiting"]
    assert b'"finish_reason":"length"' in seen["active"]
    assert seen["active"].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert seen["idle"] == b""


@pytest.mark.parametrize(("grace_s", "num_signals"), [(30.0, 2), (0.1, 1)])
def test_second_signal_or_the_grace_ends_active_requests_with_an_error(
    grace_s: float, num_signals: int
) -> None:
    drill = Drill(shutdown_grace_s=grace_s)
    seen: dict[str, bytes] = {}

    def client(server: RemoteServer) -> None:
        drill.wait_ready()
        active = server.connect()
        send_chat(active, stream=True, max_tokens=4000, ignore_eos=True)
        read_until(active, b"role")
        for _ in range(num_signals):
            terminate()
            time.sleep(0.15)
        seen["active"] = rest(active)

    started = time.monotonic()
    end = drill.run(client)

    assert end is ServeEnd.DRAINED
    assert time.monotonic() - started < 10
    assert b'"code":"request_cancelled"' in seen["active"]
    assert b'"finish_reason":"length"' not in seen["active"]
    assert seen["active"].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_everything_but_health_waits_for_the_model() -> None:
    may_load = threading.Event()

    def load(progress: Progress) -> Engine:
        progress(42, 100)
        may_load.wait(PATIENCE_S)
        return ScriptedEngine(max_concurrency=1)

    drill = Drill(load)
    seen: dict[str, Any] = {}

    def client(server: RemoteServer) -> None:
        wait_until(lambda: server.get("/health/ready").json.get("progress") == 0.42)
        seen["ready"] = server.get("/health/ready")
        seen["short"] = server.get("/health")
        seen["live"] = server.get("/health/live").status
        seen["refused"] = [server.get("/v1/models"), server.chat()]
        may_load.set()
        drill.wait_ready()
        seen["chat"] = server.chat().status
        terminate()

    end = drill.run(client)

    assert end is ServeEnd.DRAINED
    assert seen["ready"].json == {
        "status": "unready",
        "reason": "loading",
        "phase": "weights",
        "progress": 0.42,
    }
    assert (seen["short"].status, seen["short"].json) == (503, {"status": "unavailable"})
    assert seen["live"] == 200
    assert [(r.status, r.code, r.headers["retry-after"]) for r in seen["refused"]] == [
        (503, "model_loading", "2")
    ] * 2
    assert seen["chat"] == 200


def test_vocabulary_is_read_before_the_first_structured_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_read = threading.Event()
    read = GrammarCompiler._read_tokens
    num_readings = 0

    def slow_read(compiler: GrammarCompiler, library: Any) -> Any:
        nonlocal num_readings
        num_readings += 1
        may_read.wait(PATIENCE_S)
        return read(compiler, library)

    def load(progress: Progress) -> Engine:
        engine = ScriptedEngine(script=lambda prompt: "{}", max_concurrency=1)
        frontend = engine.frontend
        fresh = GrammarCompiler(frontend.tokenizer, frontend.stop_ids)
        monkeypatch.setattr(frontend, "_grammars", fresh)
        return engine

    monkeypatch.setattr(GrammarCompiler, "_read_tokens", slow_read)
    drill = Drill(load)
    seen: dict[str, Any] = {}

    def client(server: RemoteServer) -> None:
        wait_until(lambda: server.get("/health/ready").json.get("phase") == "grammars")
        may_read.set()
        drill.wait_ready()
        seen["chat"] = server.chat(response_format={"type": "json_object"}, enable_thinking=False)
        terminate()

    drill.run(client)

    assert seen["chat"].json["choices"][0]["message"]["content"] == "{}"
    assert num_readings == 1


def test_signal_while_loading_ends_the_server() -> None:
    def load(progress: Progress) -> Engine:
        time.sleep(PATIENCE_S)
        return ScriptedEngine()

    drill = Drill(load)

    def client(server: RemoteServer) -> None:
        wait_until(lambda: server.get("/health/live").status == 200)
        terminate()

    assert drill.run(client) is ServeEnd.DRAINED


def test_signal_before_the_server_listens_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(server_module, "create_app", lambda gateway, metrics: terminate())

    end = serve(
        ServePlan(GatewaySettings(port=0), CONFIG, lambda _: ScriptedEngine(), (), lines.append)
    )

    assert (end, lines) == (ServeEnd.DRAINED, ["stopped while loading"])


def test_signal_whose_exception_was_replaced_while_loading_ends_the_server() -> None:
    lines: list[str] = []

    def load(progress: Progress) -> Engine:
        try:
            terminate()
            time.sleep(PATIENCE_S)
        except BaseException:  # noqa: BLE001 - as extension modules do
            raise ImportError("no good reason") from None
        return ScriptedEngine()

    end = serve(ServePlan(GatewaySettings(port=0), CONFIG, load, (), lines.append))

    assert (end, lines[1:]) == (ServeEnd.DRAINED, ["stopped while loading"])


def test_failure_while_loading_is_no_stop() -> None:
    def load(progress: Progress) -> Engine:
        raise ImportError("a good reason")

    with pytest.raises(ImportError, match="a good reason"):
        serve(ServePlan(GatewaySettings(port=0), CONFIG, load))


def test_failed_engine_ends_the_server_after_its_replies() -> None:
    drill = Drill(
        lambda progress: ScriptedEngine(
            max_concurrency=1, faults=Faults(at={"decode": 3}), pace=slow
        ),
        exits_on_failure=True,
    )
    seen: dict[str, Any] = {}

    def client(server: RemoteServer) -> None:
        drill.wait_ready()
        seen["reply"] = server.chat(max_tokens=50, ignore_eos=True)

    end = drill.run(client)

    assert end is ServeEnd.FAILED
    assert (seen["reply"].status, seen["reply"].code) == (500, "engine_failed")


def test_failed_engine_without_exit_says_so_to_everybody() -> None:
    drill = Drill(
        lambda progress: ScriptedEngine(max_concurrency=1, faults=Faults(at={"decode": 3}))
    )
    seen: dict[str, Any] = {}

    def client(server: RemoteServer) -> None:
        drill.wait_ready()
        seen["stream"] = server.chat(max_tokens=50, ignore_eos=True, stream=True)
        seen["later"] = server.chat()
        seen["live"] = server.get("/health/live").status
        seen["ready"] = server.get("/health/ready").json
        terminate()

    end = drill.run(client)

    assert end is ServeEnd.FAILED
    assert seen["stream"].events[-2]["error"]["code"] == "engine_failed"
    assert (seen["later"].status, seen["later"].code) == (503, "engine_failed")
    assert "retry-after" not in seen["later"].headers
    assert seen["live"] == 503
    assert seen["ready"] == {"status": "unready", "reason": "failed"}


def test_port_clash_shows_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = GatewaySettings(port=taken.getsockname()[1])
        loads: list[Progress] = []

        def load(progress: Progress) -> Engine:
            loads.append(progress)
            return ScriptedEngine()

        with pytest.raises(OSError, match="in use"):
            serve(ServePlan(settings, CONFIG, load))

    assert loads == []


def test_debug_server_answers_and_drains_too() -> None:
    drill = Drill(http_server="werkzeug")
    seen: dict[str, Any] = {}

    def client(server: RemoteServer) -> None:
        drill.wait_ready()
        seen["blocking"] = server.chat()
        seen["stream"] = server.chat(stream=True)
        terminate()

    end = drill.run(client)

    assert end is ServeEnd.DRAINED
    assert seen["blocking"].status == 200
    assert seen["stream"].events[-1] == "[DONE]"


@pytest.mark.slow
def test_process_drains_on_sigterm_and_exits_with_0() -> None:
    artifact = artifact_path("tiny-dense", "bf16")
    command = [sys.executable, "-m", "ninfer", "serve", str(artifact), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        port = int(process.stderr.readline().rpartition(":")[2])
        server = RemoteServer(port)
        wait_until(lambda: server.get("/health").status == 200, 60)
        active = server.connect()
        send_chat(active, stream=True, max_tokens=300, ignore_eos=True)
        read_until(active, b"role")

        process.send_signal(signal.SIGTERM)

        assert b'"finish_reason":"length"' in rest(active)
        assert process.wait(20) == 0
