"""Answers that follow a schema, over HTTP, on a model that recites something else."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import openai
import pytest

from ninfer.frontend import grammar_compiler
from ninfer.runtime import Engine
from tests.gateway.structured_bodies import BOX, TOO_WIDE_LATER, Json, ask, by_schema
from tests.support.gateway_server import (
    TINY_CONFIG,
    Reply,
    RunningServer,
    running_server,
    tiny_engine,
)
from tests.support.scripted_engine import ScriptedEngine, says

pytest.importorskip("llguidance", reason="needs the extra [structured]")

SCHEMAS: dict[str, Json] = {
    "box": BOX,
    "list": {"type": "array", "items": BOX, "minItems": 2, "maxItems": 2},
    "word": {"type": "string", "pattern": "^[a-z]{3,5}$"},
    "number": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    "nothing": {"type": "null"},
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine(replace(TINY_CONFIG, max_context=2048, max_concurrency=3)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[RunningServer]:
    with running_server(engine) as server:
        yield server


def answer(reply: Reply) -> tuple[str, str]:
    """Content and finish reason."""
    assert reply.status == 200, reply.body
    (choice,) = reply.json["choices"]
    return choice["message"]["content"], choice["finish_reason"]


def check_box(value: Any) -> None:
    assert list(value) == ["name", "size", "tags"]
    assert len(value["name"]) <= 6
    assert 1 <= value["size"] <= 40
    assert set(value["tags"]) <= {"red", "blue"}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_answer_parses(
    server: RunningServer, name: str, thinks: bool, temperature: float
) -> None:
    reply = ask(
        server,
        response_format=by_schema(SCHEMAS[name]),
        enable_thinking=thinks,
        thinking_budget=20 if thinks else None,
        temperature=temperature,
        seed=5,
    )

    content, finish = answer(reply)
    assert finish == "stop"
    json.loads(content)
    assert content == content.strip()


def test_an_answer_fits_its_schema(server: RunningServer) -> None:
    content, _ = answer(ask(server, response_format=by_schema(BOX)))

    check_box(json.loads(content))


def test_thinking_is_free(server: RunningServer) -> None:
    free = ask(server, enable_thinking=True, thinking_budget=30, max_tokens=200)
    bound = ask(
        server,
        enable_thinking=True,
        thinking_budget=30,
        max_tokens=200,
        response_format=by_schema(BOX),
    )

    thoughts = [
        reply.json["choices"][0]["message"].get("reasoning_content") for reply in (free, bound)
    ]
    assert thoughts[0] == thoughts[1]
    check_box(json.loads(answer(bound)[0]))


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"json": {"const": [1, "a"]}}, r'\[1,"a"\]'),
        ({"regex": "[0-9]{3}-[a-z]{2}"}, r"[0-9]{3}-[a-z]{2}"),
        ({"choice": ["red (dark)", "blue"]}, r"red \(dark\)|blue"),
        ({"grammar": 'start: "a" ("b" | "c") "d"'}, r"a[bc]d"),
    ],
)
def test_other_ways_to_say_what_is_wanted(
    server: RunningServer, wanted: Json, pattern: str
) -> None:
    reply = ask(server, structured_outputs=wanted)

    assert re.fullmatch(pattern, answer(reply)[0])


def test_any_object_starts_as_one_and_a_cut_says_length(server: RunningServer) -> None:
    content, finish = answer(ask(server, response_format={"type": "json_object"}, max_tokens=9))

    assert content.startswith("{")
    assert finish == "length"


def test_the_format_of_text_changes_nothing(server: RunningServer) -> None:
    free = answer(ask(server, max_tokens=12))

    assert answer(ask(server, max_tokens=12, response_format={"type": "text"})) == free


def test_a_stream_folds_to_the_blocking_answer(server: RunningServer) -> None:
    wanted = by_schema(BOX)
    content, finish = answer(ask(server, response_format=wanted))

    with openai.OpenAI(api_key="none", base_url=f"{server.url}/v1", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model="default",
                messages=[{"role": "user", "content": "hi"}],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": BOX},
                },
                max_tokens=300,
                temperature=0,
                stream=True,
                extra_body={"enable_thinking": False},
            )
        )

    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == content
    assert chunks[-1].choices[0].finish_reason == finish


def test_a_text_completion_can_be_constrained(server: RunningServer) -> None:
    body = {"prompt": "Colour: ", "structured_outputs": {"choice": ["red", "blue"]}}

    reply = server.post("/v1/completions", body)

    assert reply.json["choices"][0]["text"] in ("red", "blue")


def test_messages_take_a_schema_too(server: RunningServer) -> None:
    body = {
        "max_tokens": 300,
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "disabled"},
        "output_config": {"format": {"type": "json_schema", "schema": BOX}},
    }

    reply = server.post("/v1/messages", body).json

    assert reply["stop_reason"] == "end_turn"
    check_box(json.loads(reply["content"][0]["text"]))


def test_neighbours_are_the_same_with_and_without_constrained_rows(server: RunningServer) -> None:
    questions = ("one", "two", "three")
    alone = [ask(server, question, max_tokens=40).json for question in questions]

    with ThreadPoolExecutor(5) as pool:
        bound = [
            pool.submit(ask, server, question, response_format=by_schema(BOX))
            for question in ("a", "b")
        ]
        together = list(pool.map(lambda text: ask(server, text, max_tokens=40).json, questions))
        for future in bound:
            check_box(json.loads(answer(future.result())[0]))

    for before, after in zip(alone, together, strict=True):
        assert after["choices"] == before["choices"]
        assert after["usage"]["completion_tokens"] == before["usage"]["completion_tokens"]


def test_graphs_do_not_change_a_constrained_answer(server: RunningServer) -> None:
    with_graphs = answer(ask(server, response_format=by_schema(BOX)))
    config = replace(TINY_CONFIG, max_context=2048, use_graphs=False)

    with tiny_engine(config) as engine, running_server(engine) as eager:
        assert answer(ask(eager, response_format=by_schema(BOX))) == with_graphs


def test_a_client_that_leaves_a_constrained_stream_frees_its_place(server: RunningServer) -> None:
    endless = {"type": "array", "items": {"type": "string", "minLength": 900}}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": by_schema(endless),
        "stream": True,
        "max_tokens": 1800,
        "enable_thinking": False,
    }
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )

    with server.connect() as connection:
        connection.sendall(head.encode() + data)
        assert b"200 OK" in connection.recv(4096)
    deadline = threading.Event()
    while server.gateway.life.loaded_engine().status().active:
        assert not deadline.wait(0.05)

    assert answer(ask(server, response_format=by_schema(BOX)))[1] == "stop"


def test_a_wide_schema_is_followed(server: RunningServer) -> None:
    names = [f"k{number}" for number in range(900)]
    schema = {
        "type": "object",
        "properties": {name: {"enum": [1, 2]} for name in names},
        "required": [],
        "additionalProperties": False,
    }

    content, finish = answer(ask(server, response_format=by_schema(schema), max_tokens=1800))

    assert finish in ("stop", "length")
    assert content.startswith("{")


# A grammar that only turns out on the way to be over a limit: its request ends, with the reason.


REASON = "the parser has 2407 possibilities to keep at once; allowed is at most 2000"


def test_a_limit_met_on_the_way_ends_the_request_with_the_reason(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = by_schema(TOO_WIDE_LATER)

    reply = ask(server, response_format=wanted, max_tokens=900)

    assert (reply.status, reply.code) == (400, "invalid_json_schema")
    assert REASON in reply.json["error"]["message"]
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert f"{reply.headers['x-request-id']} ends with invalid_json_schema" in caplog.text
    assert REASON in caplog.text
    assert answer(ask(server, response_format=by_schema(BOX)))[1] == "stop"


def test_a_limit_met_on_the_way_is_an_event_of_a_stream(server: RunningServer) -> None:
    reply = ask(server, response_format=by_schema(TOO_WIDE_LATER), max_tokens=900, stream=True)

    error = reply.events[-2]["error"]
    assert reply.status == 200
    assert error["code"] == "invalid_json_schema"
    assert REASON in error["message"]
    assert reply.events[-1] == "[DONE]"


@pytest.mark.parametrize("streams", [False, True])
def test_a_limit_met_on_the_way_ends_a_message(server: RunningServer, streams: bool) -> None:
    body = {
        "max_tokens": 900,
        "messages": [{"role": "user", "content": "hi"}],
        "thinking": {"type": "disabled"},
        "output_config": {"format": {"type": "json_schema", "schema": TOO_WIDE_LATER}},
        "stream": streams,
    }

    reply = server.post("/v1/messages", body)

    error = (reply.events[-1] if streams else reply.json)["error"]
    assert reply.status == (200 if streams else 400)
    assert error["type"] == "invalid_request_error"
    assert REASON in error["message"]


# A scripted model says what the grammar forbids: the request fails, and nobody else.


def test_a_model_that_breaks_the_grammar_gets_an_error_and_no_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    members: Json = {
        "response_format": by_schema(BOX),
        "enable_thinking": False,
        "max_tokens": 50,
    }
    with ScriptedEngine(says("free text")) as engine, running_server(engine) as server:
        caplog.clear()
        blocking = server.chat(**members)
        stream = server.chat(stream=True, **members)
        after = server.chat("hi", enable_thinking=False, max_tokens=50)

    assert blocking.status == 500
    assert blocking.code == "internal_error"
    assert stream.events[-2]["error"]["code"] == "internal_error"
    assert "forbids the token" in caplog.text
    assert "free text" not in caplog.text
    for reply in (blocking, stream):
        assert f"request {reply.headers['x-request-id']} failed" in caplog.text
    assert after.status == 200


def test_without_the_extra_the_reply_names_it(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compiler, "_imported", lambda: None)

    reply = ask(server, response_format=by_schema(BOX))

    assert reply.status == 400
    assert reply.code == "unsupported_parameter"
    assert "pip install '.[structured]'" in reply.json["error"]["message"]
    assert ask(server, max_tokens=2).status == 200
