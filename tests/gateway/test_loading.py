"""A server that loads: what it answers meanwhile, and what a signal or a failure then does."""

import socket
import threading
import time
from typing import Any

import pytest

from ninfer.frontend.grammar_compiler import GrammarCompiler
from ninfer.gateway import server as server_module
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.server import ServeEnd, ServePlan, serve
from ninfer.runtime import Engine, Progress
from tests.support.gateway_clients import PATIENCE_S, wait_until
from tests.support.gateway_server import RemoteServer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.server_drill import CONFIG, Drill, terminate


def test_everything_but_health_waits_for_the_model() -> None:
    may_load = threading.Event()

    def load(progress: Progress, compiling: Progress) -> Engine:
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


def wait_for_progress(server: RemoteServer, wanted: float) -> Any:
    """The body of a server that loads, once it is so far."""
    wait_until(lambda: server.get("/health/ready").json["progress"] == wanted)
    return server.get("/health/ready").json


def test_each_phase_of_loading_has_its_name_and_progress() -> None:
    may_go_on = [threading.Event() for _ in range(3)]

    def load(progress: Progress, compiling: Progress) -> Engine:
        progress(99, 100)
        may_go_on[0].wait(PATIENCE_S)
        progress(100, 100)
        may_go_on[1].wait(PATIENCE_S)
        compiling(3, 4)
        may_go_on[2].wait(PATIENCE_S)
        return ScriptedEngine(max_concurrency=1)

    drill = Drill(load)
    seen: list[tuple[str, float]] = []

    def client(server: RemoteServer) -> None:
        for wanted, event in zip((0.99, 0.0, 0.75), may_go_on, strict=True):
            body = wait_for_progress(server, wanted)
            seen.append((body["phase"], body["progress"]))
            event.set()
        drill.wait_ready()
        terminate()

    drill.run(client)

    assert seen == [("weights", 0.99), ("kernels", 0.0), ("kernels", 0.75)]


def test_log_says_once_that_kernels_are_compiled_and_nothing_when_none_is() -> None:
    said: dict[int, list[str]] = {}
    for reports in (0, 3):

        def load(progress: Progress, compiling: Progress, reports: int = reports) -> Engine:
            for done in range(reports):
                compiling(done, 12)
            return ScriptedEngine(max_concurrency=1)

        drill = Drill(load)

        def client(server: RemoteServer, drill: Drill = drill) -> None:
            drill.wait_ready()
            terminate()

        drill.run(client)
        said[reports] = [line for line in drill.lines if "compiling" in line]

    line = "compiling kernels, 12 in all: the first start on a machine does, once"
    assert said == {0: [], 3: [line]}


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

    def load(progress: Progress, compiling: Progress) -> Engine:
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
    def load(progress: Progress, compiling: Progress) -> Engine:
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
        ServePlan(GatewaySettings(port=0), CONFIG, lambda *_: ScriptedEngine(), (), lines.append)
    )

    assert (end, lines) == (ServeEnd.DRAINED, ["stopped while loading"])


def test_signal_whose_exception_was_replaced_while_loading_ends_the_server() -> None:
    lines: list[str] = []

    def load(progress: Progress, compiling: Progress) -> Engine:
        try:
            terminate()
            time.sleep(PATIENCE_S)
        except BaseException:  # noqa: BLE001 - as extension modules do
            raise ImportError("no good reason") from None
        return ScriptedEngine()

    end = serve(ServePlan(GatewaySettings(port=0), CONFIG, load, (), lines.append))

    assert (end, lines[1:]) == (ServeEnd.DRAINED, ["stopped while loading"])


def test_failure_while_loading_is_no_stop() -> None:
    def load(progress: Progress, compiling: Progress) -> Engine:
        raise ImportError("a good reason")

    with pytest.raises(ImportError, match="a good reason"):
        serve(ServePlan(GatewaySettings(port=0), CONFIG, load))


def test_port_clash_shows_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = GatewaySettings(port=taken.getsockname()[1])
        loads: list[Progress] = []

        def load(progress: Progress, compiling: Progress) -> Engine:
            loads.append(progress)
            return ScriptedEngine()

        with pytest.raises(OSError, match="in use"):
            serve(ServePlan(settings, CONFIG, load))

    assert loads == []
