"""Acceptance point 4, OpenAI's part: the official client reads every reply, stream and error."""

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.support.call_corpus import TOOLS
from tests.support.gateway_server import RunningServer, running_server
from tests.support.scripted_engine import ScriptedEngine

ANSWERS = {
    "plain": "Hello there.",
    "think": "why\n</think>\n\nso",
    "call": (
        "Let me.\n<tool_call>\n<function=plan_route>\n<parameter=fast>\nTrue\n</parameter>\n"
        "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>"
    ),
}


def script(prompt: str) -> str:
    found = re.search(r"say (\w+)", prompt)
    return ANSWERS[found.group(1)] if found else "nothing"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with ScriptedEngine(script) as engine, running_server(engine, api_keys=(b"secret",)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as official:
        yield official


def messages(name: str) -> list[Any]:
    return [{"role": "user", "content": f"say {name}"}]


def test_blocking_reply(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny-dense", messages=messages("plain"), extra_body={"enable_thinking": False}
    )

    assert reply.choices[0].message.content == "Hello there."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_streamed_thinking(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="default",
        messages=messages("think"),
        stream=True,
        stream_options={"include_usage": True},
    )

    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "so"
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "why"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details is not None
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens


def test_accumulated_stream_of_tool_calls(client: openai.OpenAI) -> None:
    tools: Any = TOOLS
    with client.chat.completions.stream(
        model="tiny-dense",
        messages=messages("call"),
        tools=tools,
        extra_body={"enable_thinking": False},
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()

    message = final.choices[0].message
    assert message.content == "Let me."
    assert final.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    assert calls == [("plan_route", '{"fast":true}'), ("ping", "{}")]
    assert len({call.id for call in message.tool_calls}) == 2


def test_text_completion(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="tiny-dense", prompt="say plain", max_tokens=50)
    streamed = client.completions.create(
        model="tiny-dense", prompt="say plain", max_tokens=50, stream=True
    )

    assert reply.choices[0].text == "Hello there."
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello there."


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny-dense"]
    assert client.models.retrieve("tiny-dense").owned_by == "ninfer"


def test_errors_arrive_as_their_classes(client: openai.OpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny-dense", messages=messages("plain"), n=3)
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=messages("plain"))
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()

    assert (bad.value.code, bad.value.param) == ("unsupported_value", "n")
    assert missing.value.code == "model_not_found"
    assert bad.value.request_id is not None
    assert bad.value.request_id.startswith("req_")


def test_error_inside_a_stream_is_raised_by_the_client() -> None:
    with (
        ScriptedEngine(lambda prompt: "word " * 500, pace=_slow) as engine,
        running_server(engine, request_timeout_s=0.15) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(
            model="tiny-dense", messages=messages("plain"), stream=True
        )
        with pytest.raises(openai.APIError, match="whole-request limit"):
            list(stream)


def test_client_closes_a_stream_early(client: openai.OpenAI, server: RunningServer) -> None:
    stream = client.chat.completions.create(
        model="tiny-dense", messages=messages("plain"), stream=True
    )
    next(iter(stream))

    stream.close()

    assert isinstance(stream.response, httpx2.Response)
    assert server.get("/health").status == 200


def _slow(call: str) -> None:
    if call == "decode":
        time.sleep(0.005)
