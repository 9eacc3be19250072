"""A wedged device makes the server unready; a full queue does not."""

import threading
from collections.abc import Iterator

import pytest

from tests.support.gateway_clients import read_until, send_chat, wait_until
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def server(gate: threading.Event) -> Iterator[RunningServer]:
    def hold(call: str) -> None:
        if call == "decode":
            gate.wait(120)

    engine = ScriptedEngine(max_concurrency=1, max_pending=1, pace=hold)
    with engine, running_server(engine, stall_timeout_s=0.1) as running:
        yield running
        gate.set()


def test_a_unit_that_takes_too_long_is_a_stall(
    server: RunningServer, gate: threading.Event
) -> None:
    connection = server.connect()
    send_chat(connection, max_tokens=2)
    wait_until(lambda: server.get("/health").status == 503)
    stalled = server.get("/health/ready")
    live = server.get("/health/live")
    gate.set()
    read_until(connection, b"finish_reason")
    connection.close()

    assert (stalled.status, stalled.json) == (503, {"status": "unready", "reason": "stalled"})
    assert live.status == 200
    assert server.get("/health/ready").status == 200


def test_a_stalled_server_still_takes_requests_into_its_queue(
    server: RunningServer, gate: threading.Event
) -> None:
    first, second = server.connect(), server.connect()
    send_chat(first, max_tokens=2)
    wait_until(lambda: server.get("/health").status == 503)
    send_chat(second, max_tokens=2)
    wait_until(lambda: server.gateway.slots.in_use == 2)
    gate.set()

    for connection in (first, second):
        assert b"HTTP/1.1 200" in read_until(connection, b"finish_reason")
        connection.close()


def test_a_full_queue_is_ready() -> None:
    gate = threading.Event()

    def hold(call: str) -> None:
        gate.wait(120)

    engine = ScriptedEngine(max_concurrency=1, max_pending=0, pace=hold)
    with engine, running_server(engine) as server:
        connection = server.connect()
        send_chat(connection, max_tokens=1)
        wait_until(lambda: server.gateway.slots.in_use == 1)

        assert server.get("/health").status == 200
        assert server.chat().status == 429

        gate.set()
        read_until(connection, b"finish_reason")
        connection.close()
