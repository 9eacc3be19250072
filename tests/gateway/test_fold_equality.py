"""Acceptance point 2: the fold of a streamed reply is the blocking reply, for the whole corpus.

The fold is written here again, from the contract, and the values of the corpus are written by hand.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.call_corpus import CALLS_IN_THINKING, CALLS_OF_RULES, TOOLS
from tests.support.gateway_server import Reply, RunningServer, running_server
from tests.support.output_corpus import PLAIN, STOPS, THINKING
from tests.support.scripted_engine import ScriptedEngine

CORPUS = (*PLAIN, *STOPS, *THINKING, *CALLS_OF_RULES, *CALLS_IN_THINKING)
CASES = [pytest.param(index, id=f"{index}-{case.name}") for index, case in enumerate(CORPUS)]
VARYING = ("id", "created", "timings", "ninfer")


def script(prompt: str) -> str:
    found = re.search(r"case (\d+)\.", prompt)
    assert found
    return CORPUS[int(found.group(1))].text


@contextlib.contextmanager
def corpus_server(width: int) -> Iterator[RunningServer]:
    with ScriptedEngine(script, width=width) as engine, running_server(engine) as server:
        yield server


@pytest.fixture(scope="module", params=[1, 3], ids=["single", "grouped"])
def server(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with corpus_server(request.param) as running:
        yield running


def ask(server: RunningServer, index: int, **members: object) -> Reply:
    case = CORPUS[index]
    tokenizer = server.engine.frontend.tokenizer
    length = len(tokenizer.encode(case.text, parse_special=True))
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"case {index}."}],
        "enable_thinking": case.is_thinking,
        "max_tokens": length if case.is_budget else 2000,
        "temperature": 0,
        **{name: list(v) if isinstance(v, tuple) else v for name, v in case.options.items()},
        **members,
    }
    if case.has_tools:
        body["tools"] = TOOLS
    return server.post("/v1/chat/completions", body)


def folded(events: list[Any]) -> dict[str, Any]:
    """Fold stream events as a client would."""
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    text = {"content": "", "reasoning_content": ""}
    calls: list[dict[str, Any]] = []
    finish = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text = {name: so_far + delta.get(name, "") for name, so_far in text.items()}
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"id": call["id"], "name": call["function"]["name"], "text": ""})
                calls[call["index"]]["text"] += call["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return {
        **text,
        "calls": [(call["name"], call["text"]) for call in calls],
        "finish": finish,
        "usage": chunks[-1]["usage"],
    }


def spread(reply: dict[str, Any]) -> dict[str, Any]:
    """The same members out of a blocking reply."""
    message = reply["choices"][0]["message"]
    calls = message.get("tool_calls", [])
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "calls": [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        "finish": reply["choices"][0]["finish_reason"],
        "usage": reply["usage"],
    }


@pytest.mark.parametrize("index", CASES)
def test_folded_stream_is_the_blocking_reply(server: RunningServer, index: int) -> None:
    case = CORPUS[index]

    blocking = ask(server, index).json
    streamed = ask(server, index, stream=True, stream_options={"include_usage": True})

    assert folded(streamed.events) == spread(blocking)
    assert spread(blocking) | {"usage": None} == {
        "content": case.content,
        "reasoning_content": case.reasoning,
        "calls": list(case.calls),
        "finish": case.finish.value,
        "usage": None,
    }


def test_stream_has_its_order_and_its_headers(server: RunningServer) -> None:
    index = next(i for i, case in enumerate(CORPUS) if case.reasoning and case.content)

    reply = ask(server, index, stream=True, stream_options={"include_usage": True})

    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache, no-transform"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers
    chunks = reply.events[:-1]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-2]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"] == []
    assert "timings" in chunks[-1]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    kinds = [name for chunk in chunks[1:-2] for name in chunk["choices"][0]["delta"]]
    assert kinds == sorted(kinds, key=["reasoning_content", "content"].index)


def test_stream_without_usage_has_none(server: RunningServer) -> None:
    chunks = ask(server, 0, stream=True).events[:-1]

    assert [chunk for chunk in chunks if "usage" in chunk] == []
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert "timings" in chunks[-1]


def test_text_completion_stream_folds_to_its_blocking_reply(server: RunningServer) -> None:
    body = {"prompt": "case 0.", "max_tokens": 50, "seed": 3}

    blocking = server.post("/v1/completions", body).json
    events = server.post(
        "/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}}
    ).events

    choices = [chunk["choices"][0] for chunk in events[:-1] if chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == "Hello there."
    assert blocking["choices"][0]["text"] == "Hello there."
    assert choices[-1]["finish_reason"] == blocking["choices"][0]["finish_reason"] == "stop"
    assert events[-2]["usage"] == blocking["usage"]
    assert blocking["object"] == "text_completion"
    assert blocking["ninfer"]["seed"] == 3
