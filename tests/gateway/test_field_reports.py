"""Faults that users of other servers reported, as requests over HTTP.

What the parsers make of B03 and B04 at every split is tested beside the frontend; the whole corpus
also runs over HTTP in ``test_fold_equality``.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.gateway_server import Reply, RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

SCRIPTS = {
    "B01": "🦔 ok€",
    "B02": "kettle, spoon, fork, END-OF-LIST",
    "B05": "720 = 2^4 * 45 and so on without an end",
}
SURROGATE = "cut \udd1e here"


def script(prompt: str) -> str:
    found = re.search(r"B0\d", prompt)
    return SCRIPTS[found.group()] if found else "fine"


@pytest.fixture(scope="module", params=[1, 2, 5], ids=["single", "pairs", "fives"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with ScriptedEngine(script, width=request.param) as engine, running_server(engine) as running:
        yield running


def text_of(reply: Reply, name: str = "content") -> str:
    chunks = [chunk for chunk in reply.events[:-1] if chunk["choices"]]
    return "".join(chunk["choices"][0]["delta"].get(name, "") for chunk in chunks)


def finish_of(reply: Reply) -> str:
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in reply.events[:-1]]
    assert [finish for finish in finishes[:-1] if finish] == []
    finish: str = finishes[-1]
    return finish


def test_b01_no_delta_holds_half_a_character(server: RunningServer) -> None:
    reply = server.chat("B01", stream=True, max_tokens=50, enable_thinking=False)

    assert text_of(reply) == "🦔 ok€"
    assert "\ufffd" not in reply.body.decode()


def test_b01_cut_character_becomes_one_replacement_at_the_end(server: RunningServer) -> None:
    tokenizer = server.engine.frontend.tokenizer
    whole = tokenizer.encode("🦔 ok€", parse_special=False)
    last = len(tokenizer.encode("€", parse_special=False))
    assert last > 1

    reply = server.chat("B01", stream=True, max_tokens=len(whole) - 1, enable_thinking=False)

    assert text_of(reply) == "🦔 ok\ufffd"
    assert finish_of(reply) == "length"


def test_b02_nothing_of_a_stop_string_is_sent(server: RunningServer) -> None:
    reply = server.chat(
        "B02 Repeat: kettle, spoon, fork, END-OF-LIST",
        stop=["spoon, fo"],
        stream=True,
        temperature=0,
        max_tokens=100,
        enable_thinking=False,
    )

    assert text_of(reply) == "kettle, "
    assert finish_of(reply) == "stop"


@pytest.mark.parametrize("is_thinking", [True, False])
def test_b05_thinking_without_an_end_is_no_answer(server: RunningServer, is_thinking: bool) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "enable_thinking": is_thinking}

    streamed = server.chat("B05", stream=True, **options)
    message = server.chat("B05", **options).json["choices"][0]["message"]

    filled, empty = ("reasoning_content", "content")[:: 1 if is_thinking else -1]
    assert text_of(streamed, filled) == message[filled] != ""
    assert text_of(streamed, empty) == message.get(empty, "") == ""
    assert finish_of(streamed) == "length"


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "user_text": ("chat", {"messages": [{"role": "user", "content": SURROGATE}]}),
    "tool_description": (
        "chat",
        {
            "messages": [{"role": "user", "content": "x"}],
            "tools": [{"type": "function", "function": {"name": "f", "description": SURROGATE}}],
        },
    ),
    "tool_result": (
        "chat",
        {"messages": [{"role": "tool", "tool_call_id": "a", "content": SURROGATE}]},
    ),
    "stop": ("chat", {"messages": [{"role": "user", "content": "x"}], "stop": SURROGATE}),
    "metadata": (
        "chat",
        {"messages": [{"role": "user", "content": "x"}], "metadata": {"k": SURROGATE}},
    ),
    "system_block": (
        "messages",
        {
            "model": "m",
            "max_tokens": 5,
            "system": [{"type": "text", "text": SURROGATE}],
            "messages": [{"role": "user", "content": "x"}],
        },
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_b10_lone_surrogate_is_the_clients_fault(server: RunningServer, name: str) -> None:
    kind, body = BODIES[name]
    path = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}[kind]

    reply = server.post(path, body)

    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert "lone surrogate at character 4" in reply.json["error"]["message"]
    assert server.chat().status == 200


def test_b10_pair_is_one_character(server: RunningServer) -> None:
    sent = b'{"text":"\\ud83d\\ude00"}'

    tokens = server.post("/v1/tokenize", sent).json["tokens"]

    assert server.post("/v1/detokenize", {"tokens": tokens}).json["text"] == "😀"
