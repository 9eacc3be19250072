"""Acceptance point 1, first half, over HTTP: situations of the table in both families.

Situations that have their own modules (signals, keys, hosts, bodies) are asked there.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ninfer.gateway.server_state import ServerMove
from tests.support.gateway_clients import read_until, send_chat
from tests.support.gateway_server import Reply, RunningServer, running_server
from tests.support.scripted_books import Faults
from tests.support.scripted_engine import ScriptedEngine

Pair = tuple[Reply, Reply]


def ask_both(server: RunningServer, text: str = "hi", **members: object) -> Pair:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **members}
    chat = server.post("/v1/chat/completions", body)
    return chat, server.post("/v1/messages", {"model": "m", **body})


def slow(call: str) -> None:
    if call == "decode":
        time.sleep(0.005)


@contextlib.contextmanager
def busy_server(**settings: Any) -> Iterator[RunningServer]:
    """A server whose only lane is taken by a long stream."""
    engine = ScriptedEngine(max_concurrency=1, max_pending=2, pace=slow)
    with engine, running_server(engine, **settings) as server:
        connection = server.connect()
        send_chat(connection, stream=True, max_tokens=3000, ignore_eos=True)
        read_until(connection, b"role")
        yield server
        connection.close()


def loading() -> Pair:
    with running_server(None) as server:
        return ask_both(server)


def draining() -> Pair:
    with ScriptedEngine() as engine, running_server(engine) as server:
        server.gateway.life.move(ServerMove.DRAIN)
        return ask_both(server)


def waiting_too_long() -> Pair:
    with busy_server(pending_timeout_s=0.1) as server:
        return ask_both(server)


def running_too_long() -> Pair:
    engine = ScriptedEngine(lambda prompt: "word " * 2000, pace=slow)
    with engine, running_server(engine, request_timeout_s=0.1) as server:
        return ask_both(server, max_tokens=2000)


def full_house() -> Pair:
    gate = threading.Event()

    def hold(call: str) -> None:
        gate.wait(120)

    engine = ScriptedEngine(max_concurrency=1, max_pending=0, pace=hold)
    with engine, running_server(engine) as server:
        connection = server.connect()
        send_chat(connection, max_tokens=1)
        while server.gateway.slots.in_use == 0:
            time.sleep(0.005)
        refused = ask_both(server)
        gate.set()
        read_until(connection, b"finish_reason")
        connection.close()
        return refused


def failing() -> Pair:
    return failing_at("/v1/chat/completions"), failing_at("/v1/messages")


def failing_at(path: str) -> Reply:
    """The reply to a request that the engine fails under."""
    body = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
    engine = ScriptedEngine(faults=Faults(at={"decode": 1}))
    with engine, running_server(engine) as server:
        return server.post(path, body)


def failed_before() -> Pair:
    faults = Faults(at={"decode": 0})
    with ScriptedEngine(faults=faults) as engine, running_server(engine) as server:
        server.chat()
        return ask_both(server)


def too_long() -> Pair:
    with ScriptedEngine(max_context=64) as engine, running_server(engine) as server:
        return ask_both(server, "word " * 100)


def infeasible() -> Pair:
    with ScriptedEngine(num_pages=8) as engine, running_server(engine) as server:
        return ask_both(server, "word " * 100)


SITUATIONS: dict[str, tuple[Callable[[], Pair], tuple[int, str, str], tuple[int, str], bool]] = {
    "loading": (
        loading,
        (503, "server_error", "model_loading"),
        (529, "overloaded_error"),
        True,
    ),
    "draining": (
        draining,
        (503, "server_error", "server_draining"),
        (529, "overloaded_error"),
        True,
    ),
    "waiting_too_long": (
        waiting_too_long,
        (503, "server_error", "request_queue_timeout"),
        (504, "timeout_error"),
        True,
    ),
    "running_too_long": (
        running_too_long,
        (504, "server_error", "request_timeout"),
        (504, "timeout_error"),
        False,
    ),
    "full_house": (
        full_house,
        (429, "rate_limit_error", "server_overloaded"),
        (529, "overloaded_error"),
        True,
    ),
    "failing": (failing, (500, "server_error", "engine_failed"), (500, "api_error"), False),
    "failed_before": (
        failed_before,
        (503, "server_error", "engine_failed"),
        (500, "api_error"),
        False,
    ),
    "too_long": (
        too_long,
        (400, "invalid_request_error", "context_length_exceeded"),
        (400, "invalid_request_error"),
        False,
    ),
    "infeasible": (
        infeasible,
        (400, "invalid_request_error", "request_infeasible"),
        (400, "invalid_request_error"),
        False,
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_situation_has_its_reply_in_both_families(name: str) -> None:
    provoke, openai, anthropic, has_retry = SITUATIONS[name]

    chat, messages = provoke()

    error = chat.json["error"]
    assert (chat.status, error["type"], error["code"]) == openai
    assert (messages.status, messages.json["error"]["type"]) == anthropic
    assert messages.json["type"] == "error"
    assert messages.json["request_id"] == messages.headers["request-id"]
    assert ["retry-after" in reply.headers for reply in (chat, messages)] == [has_retry] * 2


def test_prompt_that_is_too_long_is_told_in_the_words_clients_know() -> None:
    _, messages = too_long()

    assert messages.json["error"]["message"].startswith("prompt is too long: ")
