"""Acceptance point 7: signals end a server in order; so do failures, each with its exit."""

import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from ninfer.gateway.server import ServeEnd
from tests.support.gateway_clients import read_until, send_chat, wait_until
from tests.support.gateway_server import RemoteServer
from tests.support.scripted_books import Faults
from tests.support.scripted_engine import ScriptedEngine
from tests.support.server_drill import Drill, slow, terminate
from tests.support.tiny_model import artifact_path


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


def test_failed_engine_ends_the_server_after_its_replies() -> None:
    drill = Drill(
        lambda *_: ScriptedEngine(max_concurrency=1, faults=Faults(at={"decode": 3}), pace=slow),
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
    drill = Drill(lambda *_: ScriptedEngine(max_concurrency=1, faults=Faults(at={"decode": 3})))
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
