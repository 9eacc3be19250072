"""What connections send: too much together, too slowly, or in a form that breaks the parser."""

import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waitress.adjustments import Adjustments

from ninfer.gateway.http_intake import BodyBudget, IntakeLimits, RequestParser
from tests.support.gateway_clients import read_until, wait_until
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

MIB = 1 << 20
BIG = 600_000
QUICK = settings(max_examples=200, deadline=None)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def narrow(engine: ScriptedEngine) -> Iterator[RunningServer]:
    """A server that holds bodies of one MiB in all."""
    with running_server(engine, intake=IntakeLimits(held_bytes=MIB)) as server:
        yield server


@pytest.fixture(scope="module")
def hasty(engine: ScriptedEngine) -> Iterator[RunningServer]:
    """A server that gives a sender a third of a second."""
    limits = IntakeLimits(held_bytes=MIB, head_s=0.3, body_grace_s=0.3, linger_s=0.5)
    with running_server(engine, intake=limits) as server:
        yield server


def head(path: str, *lines: str) -> bytes:
    common = ("Host: localhost", "Content-Type: application/json", *lines)
    return "\r\n".join((f"POST {path} HTTP/1.1", *common, "", "")).encode()


def begin(server: RunningServer, path: str = "/v1/tokenize", size: int = BIG) -> socket.socket:
    """A connection that has announced a body and sent its first byte."""
    connection = server.connect()
    connection.sendall(head(path, f"Content-Length: {size}") + b"{")
    return connection


def whole(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    connection.close()
    return data


def is_refused_now(server: RunningServer, path: str) -> bool:
    """Whether a second body finds no room."""
    connection = begin(server, path)
    connection.settimeout(0.05)
    try:
        return bool(connection.recv(1))
    except TimeoutError:
        return False
    finally:
        connection.close()


def is_cut_off(connection: socket.socket) -> bool:
    """Whether sending on fails."""
    try:
        connection.sendall(b"x" * 1000)
    except OSError:
        return True
    return False


def test_bodies_share_one_budget_and_return_it(narrow: RunningServer) -> None:
    first = begin(narrow)
    wait_until(lambda: is_refused_now(narrow, "/v1/tokenize"), what="the first body is counted")

    openai = whole(begin(narrow, "/v1/chat/completions"))
    anthropic = whole(begin(narrow, "/v1/messages"))
    small = narrow.post("/v1/tokenize", {"text": "a"})
    first.close()
    wait_until(lambda: not is_refused_now(narrow, "/v1/tokenize"), what="room after the first")

    assert openai.startswith(b"HTTP/1.1 429 Overloaded\r\n")
    assert b"server_overloaded" in openai
    assert anthropic.startswith(b"HTTP/1.1 529 ")
    assert b"Retry-After: 5\r\n" in anthropic
    assert b"\r\nrequest-id: req_" in anthropic.lower()
    assert small.status == 200


def test_answered_requests_hold_nothing(narrow: RunningServer) -> None:
    body = b'{"text":"a"}'.ljust(BIG)

    assert [narrow.post("/v1/tokenize", body).status for _ in range(10)] == [200] * 10


def test_a_body_that_is_refused_is_not_asked_for(narrow: RunningServer) -> None:
    replies = []
    for size in (MIB + 1, 1 << 40):  # More than there is room for, more than is ever allowed.
        connection = narrow.connect()
        length = f"Content-Length: {size}"
        connection.sendall(head("/v1/tokenize", length, "Expect: 100-continue"))
        replies.append(whole(connection))

    assert [reply.split(b" ")[1] for reply in replies] == [b"429", b"413"]


def test_a_body_of_unknown_length_is_counted_as_it_comes(narrow: RunningServer) -> None:
    first = narrow.connect()
    chunked = head("/v1/tokenize", "Transfer-Encoding: chunked")
    first.sendall(chunked + b"10\r\n" + b" " * 16)
    wait_until(lambda: is_refused_now(narrow, "/v1/tokenize"), what="the chunk is counted")

    second = narrow.connect()
    second.sendall(chunked + b"10\r\n")
    refused = whole(second)
    first.sendall(b"\r\nc\r\n" + b'{"text":"a"}' + b"\r\n0\r\n\r\n")

    assert b"server_overloaded" in refused
    assert b'"count":1' in read_until(first, b"}")
    first.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HT",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n",
        head("/v1/chat/completions", "Content-Length: 9") + b"{",
        head("/v1/chat/completions", "Transfer-Encoding: chunked") + b"2\r\n{",
    ],
)
def test_a_request_that_does_not_arrive_is_refused(hasty: RunningServer, sent: bytes) -> None:
    connection = hasty.connect()
    started = time.monotonic()
    connection.sendall(sent)

    reply = whole(connection)

    assert b" 408 " in reply.split(b"\r\n")[0]
    assert b"request_incomplete" in reply
    assert time.monotonic() - started < 15


def test_a_connection_without_a_request_may_wait(hasty: RunningServer) -> None:
    connection = hasty.connect()
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n")
    read_until(connection, b"ok")
    time.sleep(1)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert b"200 OK" in read_until(connection, b"ok")
    connection.close()


def test_a_sender_that_is_refused_early_still_reads_why(engine: ScriptedEngine) -> None:
    with running_server(engine, max_request_bytes=MIB) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        body = json.dumps({"text": "x" * (20 * MIB)})
        connection.request("POST", "/v1/tokenize", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        code = json.loads(reply.read())["error"]["code"]
        connection.close()

    assert (reply.status, code) == (413, "request_too_large")


def test_a_refused_sender_cannot_go_on_for_ever(hasty: RunningServer) -> None:
    connection = hasty.connect()
    connection.sendall(head("/v1/tokenize", f"Content-Length: {1 << 40}"))
    read_until(connection, b"request_too_large")

    wait_until(lambda: is_cut_off(connection), 60.0, "the connection is closed")
    connection.close()


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /health HT"])
def test_connections_without_a_request_make_room_for_others(
    engine: ScriptedEngine, sent: bytes
) -> None:
    limits = IntakeLimits(held_bytes=MIB, crowded_s=0.3)
    with running_server(engine, intake=limits, connection_limit=10) as server:
        idle = [server.connect() for _ in range(20)]
        for connection in idle:
            connection.sendall(sent)
        status = server.get("/health").status
        for connection in idle:
            connection.close()

    assert status == 200


@pytest.mark.parametrize(
    "sent",
    [
        head("/v1/tokenize", "Content-Length: " + "9" * 5000),
        head("/v1/tokenize", "Content-Length: 3", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head("/v1/tokenize", "Transfer-Encoding: chunked") + b"1" * 5000,
        head("/v1/tokenize", "Transfer-Encoding: chunked") + b"0\r\n" + b"x" * 70_000,
    ],
)
def test_ambiguous_and_endless_heads_and_bodies_are_malformed(
    hasty: RunningServer, sent: bytes
) -> None:
    connection = hasty.connect()
    connection.sendall(sent)

    reply = whole(connection)

    assert b" 400 " in reply.split(b"\r\n")[0]
    assert b"invalid_http" in reply


PIECES = st.sampled_from(
    [
        *(b"GET ", b"POST /v1/messages HTTP/1.1\r\n", b"/x", b" HTTP/1.1\r\n", b"\r\n", b"\n"),
        *(b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"7", b"9" * 5000, b"-1", b":"),
        *(
            b"http://[::1",
            b"%zz",
            b"\0",
            b"\xff",
            b"a\r\n",
            b"0\r\n\r\n",
            b"Host: \xc3\xa9\r\n",
            b";x",
        ),
    ]
)


@QUICK
@given(st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=12))
def test_any_bytes_are_a_request_a_refusal_or_a_beginning(pieces: list[bytes]) -> None:
    budget = BodyBudget(10 * MIB)
    data = b"".join(pieces)
    while data:
        parser = RequestParser(Adjustments(), IntakeLimits(held_bytes=0), budget)
        consumed = parser.received(data)
        assert 0 <= consumed <= len(data)
        parser.close()
        parser.close()
        data = data[consumed:] if parser.completed and consumed else b""

    assert budget.free == 10 * MIB


def test_a_long_body_may_take_longer() -> None:
    limits = IntakeLimits(held_bytes=MIB, body_grace_s=30, body_bytes_per_s=1000)
    parser = RequestParser(Adjustments(), limits, BodyBudget(MIB))
    now = time.monotonic()
    parser.received(head("/v1/tokenize", "Content-Length: 100000"))
    parser.received(b"x" * 50_000)

    assert not parser.is_late(now + 79)
    assert parser.is_late(now + 81)
