"""Acceptance point 9: mutated bodies never become a 500, a traceback or a worker's exception."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from ninfer.runtime import EngineState
from tests.support.call_corpus import TOOLS
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

QUICK_COUNT, SLOW_COUNT = 400, 10_000
LEGAL_STATUSES = {200, 400, 404, 413, 415}
CHAT: dict[str, Any] = {
    "model": "default",
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ],
    "tools": TOOLS,
    "tool_choice": "auto",
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "stop": ["x", "y"],
    "seed": 7,
    "stream": True,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": True},
    "thinking_budget": 0,
    "response_format": {"type": "text"},
    "logit_bias": {"1": 0},
    "metadata": {"k": "v"},
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 3,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "ping", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "a", "content": "ok"}],
        },
    ],
    "tools": [{"name": "ping", "input_schema": {"type": "object", "properties": {}}}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "thinking": {"type": "disabled"},
    "metadata": {"user_id": "u"},
    "stream": True,
}
COMPLETION: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 2, "stop": "a", "top_k": 1}
TOKENIZE: dict[str, Any] = {"messages": CHAT["messages"], "tools": TOOLS, "with_pieces": True}
TARGETS = (
    ("/v1/chat/completions", CHAT),
    ("/v1/messages", MESSAGES),
    ("/v1/messages/count_tokens", MESSAGES),
    ("/v1/completions", COMPLETION),
    ("/v1/tokenize", TOKENIZE),
    ("/v1/detokenize", {"tokens": [1, 2]}),
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, 10**30, "", "x", "\ud83d", "\x00", "auto", [], {}, [[]], [{}],
    {"type": "text"}, {"a": {"b": []}}, ["a", 1, None], "y" * 5000, {"type": None}, -0.0, 1e308,
)  # fmt: skip


def mutated(chance: random.Random, value: Any) -> Any:
    """Change one place of a JSON value."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if kind < 0.2:
            return {**value, chance.choice(["x", "type", "name", ""]): chance.choice(VALUES)}
        return {**value, key: mutated(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        index = chance.randrange(len(value))
        kind = chance.random()
        if kind < 0.2:
            return value[:index] + value[index + 1 :]
        if kind < 0.4:
            return value[:index] + [value[index]] * 2 + value[index + 1 :]
        return [*value[:index], mutated(chance, value[index]), *value[index + 1 :]]
    return chance.choice(VALUES)


def damaged(chance: random.Random, body: Any) -> bytes:
    """Mutate a body as JSON, and sometimes its bytes."""
    for _ in range(chance.randint(1, 3)):
        body = mutated(chance, body)
    data = bytearray(json.dumps(body).encode())
    if chance.random() < 0.2 and data:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ScriptedEngine() as engine, running_server(engine) as running:
        yield running


def fuzz(server: RunningServer, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        path, body = chance.choice(TARGETS)
        sent = damaged(chance, body)
        reply = server.post(path, sent)
        assert reply.status in LEGAL_STATUSES, (path, sent, reply.status, reply.body)
        assert b"Traceback" not in reply.body
        assert b"internal_error" not in reply.body, (path, sent)
        assert b"engine_failed" not in reply.body, (path, sent)
    assert server.engine.status().state is EngineState.READY
    assert server.gateway.slots.in_use == 0
    assert server.chat().status == 200


def test_mutated_bodies_are_answered_or_refused(server: RunningServer) -> None:
    fuzz(server, QUICK_COUNT, seed=1)


@pytest.mark.slow
def test_ten_thousand_mutated_bodies(server: RunningServer) -> None:
    fuzz(server, SLOW_COUNT, seed=2)
