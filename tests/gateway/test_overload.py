"""Acceptance point 6: a full house refuses exactly what is too much, and stays alive."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ninfer.gateway.gateway import COUNTING_PLACES
from tests.support.gateway_clients import (
    expect_within,
    read_until,
    send_chat,
    send_post,
    wait_until,
)
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

CAPACITY = 4
HEALTH_S = 0.05


class Gate:
    """Holds the engine's worker before a model unit until it is opened."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()

    def __call__(self, call: str) -> None:
        if call in ("prefill", "decode"):
            self.is_open.wait(120)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def server(gate: Gate) -> Iterator[RunningServer]:
    engine = ScriptedEngine(max_concurrency=2, max_pending=CAPACITY - 2, pace=gate)
    with engine, running_server(engine, pending_timeout_s=30.0) as running:
        yield running
        gate.is_open.set()


@pytest.mark.parametrize("num_extra", [1, 5])
def test_exactly_the_surplus_is_refused_and_health_stays_quick(
    server: RunningServer, gate: Gate, num_extra: int
) -> None:
    gate.is_open.clear()

    def slowest_of_twenty() -> float:
        slowest = 0.0
        for _ in range(20):
            started = time.monotonic()
            assert server.get("/health").status == 200
            slowest = max(slowest, time.monotonic() - started)
        return slowest

    with ThreadPoolExecutor(CAPACITY + num_extra) as pool:
        replies = [pool.submit(server.chat) for _ in range(CAPACITY + num_extra)]
        wait_until(lambda: sum(reply.done() for reply in replies) == num_extra)
        try:
            expect_within(HEALTH_S, slowest_of_twenty)
        finally:
            gate.is_open.set()
        done = [reply.result() for reply in replies]

    refused = [reply for reply in done if reply.status != 200]
    assert len(refused) == num_extra
    assert {reply.status for reply in refused} == {429}
    assert {reply.code for reply in refused} == {"server_overloaded"}
    assert all(1 <= int(reply.headers["retry-after"]) <= 60 for reply in refused)
    assert server.gateway.slots.in_use == 0


def test_anthropic_clients_are_refused_with_their_own_status(
    server: RunningServer, gate: Gate
) -> None:
    gate.is_open.clear()
    body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    with ThreadPoolExecutor(CAPACITY) as pool:
        replies = [pool.submit(server.chat) for _ in range(CAPACITY)]
        wait_until(lambda: server.gateway.slots.in_use == CAPACITY)

        refused = server.post("/v1/messages", body)
        gate.is_open.set()

        assert [reply.result().status for reply in replies] == [200] * CAPACITY
    assert (refused.status, refused.json["error"]["type"]) == (529, "overloaded_error")
    assert "retry-after" in refused.headers


def test_a_refused_body_is_not_parsed(server: RunningServer, gate: Gate) -> None:
    gate.is_open.clear()
    with ThreadPoolExecutor(CAPACITY) as pool:
        replies = [pool.submit(server.chat) for _ in range(CAPACITY)]
        wait_until(lambda: server.gateway.slots.in_use == CAPACITY)

        refused = server.post("/v1/chat/completions", b"this is no JSON")
        gate.is_open.set()

        assert [reply.result().status for reply in replies] == [200] * CAPACITY
    assert refused.code == "server_overloaded"


def test_a_request_that_waits_too_long_gets_its_status(gate: Gate) -> None:
    engine = ScriptedEngine(max_concurrency=1, max_pending=2, pace=lambda call: time.sleep(0.005))
    with engine, running_server(engine, pending_timeout_s=0.2) as server:
        first = server.connect()
        send_chat(first, stream=True, max_tokens=1000, ignore_eos=True)
        read_until(first, b"role")

        late = server.chat()
        late_stream = server.chat(stream=True)
        first.close()

    assert (late.status, late.code) == (503, "request_queue_timeout")
    assert late.json["error"]["message"] == "the request waited longer than 0.2 s"
    assert "retry-after" in late.headers
    assert (late_stream.status, late_stream.code) == (503, "request_queue_timeout")


def test_a_stream_that_waits_too_long_behind_its_headers_gets_an_event(gate: Gate) -> None:
    engine = ScriptedEngine(max_concurrency=1, max_pending=2, pace=lambda call: time.sleep(0.005))
    with engine, running_server(engine, pending_timeout_s=0.4, heartbeat_s=0.05) as server:
        first = server.connect()
        send_chat(first, stream=True, max_tokens=1000, ignore_eos=True)
        read_until(first, b"role")

        late = server.chat(stream=True)
        first.close()

    assert late.status == 200
    assert late.body.startswith(b": keep-alive\n\n: keep-alive\n\n")
    assert late.events[0]["error"]["code"] == "request_queue_timeout"
    assert late.events[1:] == ["[DONE]"]


def test_a_request_whose_preparation_takes_too_long_is_told_so(gate: Gate) -> None:
    with ScriptedEngine() as engine, running_server(engine, pending_timeout_s=0.001) as server:
        late = server.chat("a b " * 20_000)

    assert (late.status, late.code) == (503, "request_queue_timeout")
    assert "took longer than 0.001 s" in late.json["error"]["message"]


def test_a_request_beyond_its_time_limit_ends(gate: Gate) -> None:
    engine = ScriptedEngine(pace=lambda call: time.sleep(0.005))
    with engine, running_server(engine, request_timeout_s=0.2) as server:
        blocking = server.chat(max_tokens=2000, ignore_eos=True)
        streamed = server.chat(max_tokens=2000, ignore_eos=True, stream=True)

    assert (blocking.status, blocking.code) == (504, "request_timeout")
    assert streamed.events[-2]["error"]["code"] == "request_timeout"
    assert [e for e in streamed.events[:-2] if e["choices"][0]["finish_reason"]] == []


def test_threads_for_small_requests_remain_when_bodies_trickle(server: RunningServer) -> None:
    connections = [server.connect() for _ in range(CAPACITY + 10)]
    for connection in connections:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
        )

    reply = server.get("/health")

    assert reply.status == 200
    for connection in connections:
        connection.close()


def test_pipelined_requests_are_answered_in_order(server: RunningServer) -> None:
    connection = server.connect()
    send_post(connection, "/v1/tokenize", b'{"text":"a"}')
    send_post(connection, "/v1/tokenize", b'{"text":"ab"}')

    data = read_until(connection, b'"count":2')

    assert data.index(b'"count":1') < data.index(b'"count":2')
    connection.close()


def test_clients_that_do_not_read_long_counts_leave_threads_for_health(
    server: RunningServer,
) -> None:
    connections = [server.connect() for _ in range(CAPACITY + 10)]
    body = json.dumps({"text": "a b " * 30_000, "with_pieces": True}).encode()
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        send_post(connection, "/v1/tokenize", body)
    wait_until(lambda: server.gateway.counting.in_use == COUNTING_PLACES)

    reply = server.get("/health")
    refused = server.post("/v1/messages/count_tokens", {"messages": []})
    for connection in connections:
        connection.close()

    assert (reply.status, refused.status) == (200, 529)
    wait_until(lambda: server.gateway.counting.in_use == 0)
