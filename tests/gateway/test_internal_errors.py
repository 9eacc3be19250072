"""Bugs of ours: the client gets the request id, the log gets the rest, and the server goes on."""

from collections.abc import Iterator

import pytest

from ninfer.errors import InvariantError, NinferError, ShapeError
from ninfer.frontend.frontend import Frontend
from ninfer.gateway.openai_reply import ChatStream
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

MESSAGES = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with ScriptedEngine() as engine, running_server(engine) as running:
        yield running


def broken(*unused: object, **unused_too: object) -> None:
    raise ZeroDivisionError("at /home/secret")


def test_bug_before_submission_is_500_with_the_id_only(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Frontend, "prepare", broken)
        openai = server.chat()
        anthropic = server.post("/v1/messages", MESSAGES)

    request_id = openai.headers["x-request-id"]
    assert (openai.status, openai.code) == (500, "internal_error")
    assert openai.json["error"]["message"] == request_id
    assert (anthropic.status, anthropic.json["error"]["type"]) == (500, "api_error")
    assert b"secret" not in openai.body + anthropic.body
    assert "ZeroDivisionError" in caplog.text
    assert server.gateway.slots.in_use == 0
    assert server.chat().status == 200


def test_bug_inside_a_stream_is_an_event(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ChatStream, "_delta", broken)
        reply = server.chat(stream=True, max_tokens=20, enable_thinking=False)

    assert reply.status == 200
    assert reply.events[-2]["error"]["code"] == "internal_error"
    assert reply.events[-2]["error"]["message"] == reply.headers["x-request-id"]
    assert reply.events[-1] == "[DONE]"
    assert b"secret" not in reply.body
    assert f"request {reply.headers['x-request-id']} failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert server.gateway.slots.in_use == 0


@pytest.mark.parametrize("error", [NinferError, InvariantError, ShapeError])
def test_an_error_of_ours_is_logged_with_its_cause(
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[NinferError],
) -> None:
    def failing(*unused: object, **unused_too: object) -> None:
        raise error("row 7 is in two places")

    monkeypatch.setattr(Frontend, "prepare", failing)

    reply = server.chat()

    assert f"request {reply.headers['x-request-id']} failed" in caplog.text
    assert "row 7 is in two places" in caplog.text
    assert "row 7" not in reply.json["error"]["message"]


def test_bug_in_a_blocking_reply_frees_its_place(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ChatStream, "_delta", broken)
        reply = server.chat(max_tokens=20, enable_thinking=False)

    assert (reply.status, reply.code) == (500, "internal_error")
    assert server.gateway.slots.in_use == 0
    assert b'outcome="error"} 1.0' in server.get("/metrics").body
    assert server.chat().status == 200
