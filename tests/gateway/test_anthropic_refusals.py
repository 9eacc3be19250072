"""How the faults of a messages body are named."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.gateway.error_responses import Family, error_reply
from tests.gateway.anthropic_bodies import LAMP, Body, assistant, body, text, user
from tests.gateway.anthropic_reading import read
from tests.support.png_images import png_bytes
from tests.support.scripted_engine import ScriptedEngine


def image(width: int = 8, height: int = 8, **source: Any) -> Body:
    """An image block; ``source`` replaces members of its source."""
    data = base64.b64encode(png_bytes(width, height)).decode()
    whole = {"type": "base64", "media_type": "image/png", "data": data, **source}
    return {"type": "image", "source": whole}


def by_url(url: str) -> Body:
    return {"type": "image", "source": {"type": "url", "url": url}}


IMAGE = image()
TOOL_IMAGE: Body = {"type": "tool_result", "tool_use_id": "a", "content": [text("x"), IMAGE]}


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


def refusal(engine: ScriptedEngine, asked: Body) -> tuple[str, str]:
    """Code and message of the error a client sees."""
    with pytest.raises(RequestError) as caught:
        read(engine, asked)
    reply = error_reply(caught.value, retry_after_s=1, request_id="req_1")
    assert reply.status(Family.ANTHROPIC) == 400
    return reply.code, reply.body(Family.ANTHROPIC, "req_1")["error"]["message"]


TOOL_RESULT: Body = {"type": "tool_result", "tool_use_id": "toolu_9", "content": "x"}
MARKED: Body = text("x", cache_control={"type": "ephemeral"})


@pytest.mark.parametrize(
    ("asked", "code", "start"),
    [
        ({"max_tokens": 4}, "missing_field", "messages: is missing"),
        ({**body(), "messages": []}, "invalid_value", "messages: is empty"),
        ({**body(), "messages": "x"}, "invalid_type", "messages: is a string"),
        ({**body(), "messages": ["x"]}, "invalid_type", "messages.0: is a string"),
        ({**body(), "max_tokens": 0}, "invalid_value", "max_tokens: is 0"),
        ({**body(), "max_tokens": 1.0}, "invalid_type", "max_tokens: must be an integer"),
        ({**body(), "model": ""}, "invalid_value", "model: has 0 characters"),
        ({**body(), "model": 3}, "invalid_type", "model: is a number"),
        (body(temperature=1.1), "invalid_value", "temperature: is 1.1"),
        (body(temperature=True), "invalid_type", "temperature: must be a number"),
        (body(top_k=513), "invalid_value", "top_k: is 513"),
        (body(stop_sequences=["x"] * 17), "invalid_value", "stop_sequences: has 17"),
        (body(stop_sequences=[""]), "invalid_value", "stop_sequences.0: has 0"),
        (body(stop_sequences="x"), "invalid_type", "stop_sequences: is a string"),
        (body({"content": "x"}), "missing_field", "messages.0.role: is missing"),
        (body({"role": "tool", "content": "x"}), "invalid_value", "messages.0.role: is 'tool'"),
        (body({"role": "user"}), "missing_field", "messages.0.content: is missing"),
        (body(user(3)), "invalid_type", "messages.0.content: is a number"),
        (body(user([{"text": "x"}])), "missing_field", "messages.0.content.0.type"),
        (body(user([{"type": "text"}])), "missing_field", "messages.0.content.0.text"),
        (body(user([text("a"), IMAGE])), "vision_disabled", "messages.0.content.1"),
        (
            body(
                user("x"),
                assistant([{"type": "tool_use", "id": "a", "name": "f", "input": {}}]),
                user([TOOL_IMAGE]),
            ),
            "vision_disabled",
            "messages.2.content.0.content.1",
        ),
        (body(user([{"type": "image"}])), "missing_field", "messages.0.content.0.source"),
        (
            body(user([image(type="file")])),
            "unsupported_parameter",
            "messages.0.content.0.source.type: ",
        ),
        (
            body(user([image(data="?")])),
            "invalid_media",
            "messages.0.content.0.source.data: ",
        ),
        (
            body(user([image(data="AAAA", media_type="image/svg+xml")])),
            "invalid_media",
            "messages.0.content.0.source.data: ",
        ),
        (body(user([image(1, 201)])), "invalid_media", "messages.0.content.0.source.data: "),
        (
            body(user([by_url("file:///etc/hostname")])),
            "media_url_forbidden",
            "messages.0.content.0.source.url: ",
        ),
        (
            body(user([by_url("http://127.0.0.1/x.png")])),
            "media_url_forbidden",
            "messages.0.content.0.source.url: ",
        ),
        (body(user([IMAGE] * 65)), "media_budget_exceeded", "messages: has 65 images"),
        (body(user([{"type": "document"}])), "unsupported_parameter", "messages.0.content.0.type"),
        (
            body(user("x"), assistant([{"type": "server_tool_use"}]), user("y")),
            "unsupported_parameter",
            "messages.1.content.0.type: is 'server_tool_use'",
        ),
        (body(system=[IMAGE]), "unsupported_parameter", "system.0.type: is 'image'"),
        (body(system=3), "invalid_type", "system: is a number"),
        (
            body(user("a"), user([TOOL_RESULT])),
            "invalid_tool_history",
            "messages.1.content.0.tool_use_id: is 'toolu_9'",
        ),
        (
            body(user("x"), assistant([{"type": "tool_use", "id": "a", "name": "f"}]), user("y")),
            "missing_field",
            "messages.1.content.0.input",
        ),
        (body(tools=[{"name": "f"}]), "missing_field", "tools.0.input_schema: is missing"),
        (body(tools=[{**LAMP, "name": "a b"}]), "invalid_value", "tools.0.name: is 'a b'"),
        (body(tools=[{**LAMP, "name": "x" * 129}]), "invalid_value", "tools.0.name: has 129"),
        (body(tools=[LAMP, LAMP]), "invalid_value", "tools.1.name: is 'lamp_set' a second time"),
        (
            body(tools=[{**LAMP, "input_schema": {"type": "array"}}]),
            "invalid_value",
            "tools.0.input_schema.type: is 'array'",
        ),
        (
            body(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
            "unsupported_parameter",
            "tools.0.type: is 'web_search_20250305'",
        ),
        (body(tool_choice={"type": "any"}), "unsupported_parameter", "tool_choice: any"),
        (body(tool_choice={}), "missing_field", "tool_choice.type"),
        (body(thinking={"type": "enabled"}), "missing_field", "thinking.budget_tokens"),
        (
            {**body(thinking={"type": "enabled", "budget_tokens": 2000}), "max_tokens": 2000},
            "invalid_value",
            "thinking.budget_tokens: is 2000; it must be at least 1024 and less than max_tokens, "
            "which is 2000",
        ),
        (
            {**body(thinking={"type": "enabled", "budget_tokens": 1023}), "max_tokens": 2000},
            "invalid_value",
            "thinking.budget_tokens: is 1023",
        ),
        (
            {**body(thinking={"type": "enabled", "budget_tokens": 1998}), "max_tokens": 2000},
            "thinking_budget_capacity_insufficient",
            "thinking.budget_tokens: ",
        ),
        (
            body(output_config={"effort": "high"}),
            "reasoning_effort_not_supported",
            "output_config.effort: ",
        ),
        (
            body(user([MARKED] * 5)),
            "invalid_value",
            "messages.0.content.4.cache_control: is one too many",
        ),
        (
            body(user([text("x", cache_control={"type": "ephemeral", "ttl": "2h"})])),
            "invalid_value",
            "messages.0.content.0.cache_control.ttl: is '2h'",
        ),
        (body(mcp_servers=[{"url": "x"}]), "unsupported_parameter", "mcp_servers: "),
        (body(user("x"), assistant("One ")), "invalid_value", "messages.1: ends in white space"),
        (body(user("word " * 5000)), "context_length_exceeded", "prompt is too long: "),
    ],
)
def test_a_fault_is_refused_and_named(
    engine: ScriptedEngine, asked: Body, code: str, start: str
) -> None:
    found, message = refusal(engine, asked)

    assert found == code
    assert message.startswith(start)
