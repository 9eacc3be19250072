"""The messages endpoints over HTTP, read by the official client where it can."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest

from ninfer.gateway.anthropic_stream import fold
from ninfer.gateway.event_stream import exact_json
from ninfer.runtime import Engine
from tests.gateway.anthropic_bodies import (
    B06_MESSAGES,
    B07,
    CORPUS,
    LAMP,
    Body,
    body,
    text,
    user,
)
from tests.support.gateway_server import (
    TINY_CONFIG,
    Reply,
    RunningServer,
    running_server,
    tiny_engine,
)
from tests.support.scripted_engine import ScriptedEngine, says

IDS = re.compile(r"(?<=\")(msg|toolu)_[0-9A-Za-z]{24}(?=\")")
CALL = (
    "<tool_call>\n<function=lamp_set>\n<parameter=room>\nhall\n</parameter>\n"
    "<parameter=level>\n1.50\n</parameter>\n</function>\n</tool_call>"
)
SCRIPTS: dict[str, tuple[str, Body]] = {
    "plain": ("plain words", body(thinking={"type": "disabled"})),
    "thinking": ("I think.\n</think>\n\nDone.", {**body(), "max_tokens": 60}),
    "tools": (f"Hm.\n</think>\n\nFirst.\n\n{CALL}", {**body(tools=[LAMP]), "max_tokens": 300}),
    "cut call": (f"</think>\n\n{CALL}", {**body(tools=[LAMP]), "max_tokens": 40}),
    "stop": ("</think>\n\none two three", {**body(stop_sequences=["o th"]), "max_tokens": 60}),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine(replace(TINY_CONFIG, max_context=4096)) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[RunningServer]:
    with running_server(engine) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0) as client:
        yield client


def send(server: RunningServer, asked: Body, **members: Any) -> Reply:
    return server.post("/v1/messages", {**asked, **members})


def folded_by_the_client(server: RunningServer, asked: Body) -> Any:
    """The message that the official client makes of a stream."""
    with (
        anthropic.Anthropic(api_key="none", base_url=server.url, max_retries=0) as client,
        client.messages.stream(**asked) as stream,
    ):
        return stream.get_final_message()


def without_ids(message: Any) -> Any:
    """A reply whose random ids are gone."""
    return json.loads(IDS.sub("", json.dumps(message)))


def test_the_client_reads_a_blocking_reply(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**body(thinking={"type": "disabled"}))

    assert message.type == "message"
    assert message.model == "any"
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 8
    assert [block.type for block in message.content] == ["text"]


def test_the_client_reads_a_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**body()) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()

    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert message.stop_reason == "max_tokens"


def test_events_are_named_after_their_type_and_pings_are_sent(server: RunningServer) -> None:
    events = send(server, body(), stream=True).named_events

    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [name for name, _ in events[:2]] == ["message_start", "ping"]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("width", [1, 5])
def test_a_blocking_reply_is_the_fold_of_the_stream(name: str, width: int) -> None:
    said, asked = SCRIPTS[name]
    with ScriptedEngine(says(said), width=width) as engine, running_server(engine) as server:
        blocking = send(server, asked).json
        streamed = folded_by_the_client(server, asked)

    by_client = without_ids(streamed.to_dict())
    ours = without_ids(blocking)
    assert [block["type"] for block in by_client["content"]] == [
        block["type"] for block in ours["content"]
    ]
    for member in ("stop_reason", "stop_sequence", "model", "role"):
        assert by_client[member] == ours[member]
    for count, value in ours["usage"].items():
        assert by_client["usage"][count] == value
    for theirs, block in zip(by_client["content"], ours["content"], strict=True):
        for key in ("text", "thinking", "signature", "name"):
            assert theirs.get(key) == block.get(key)


@pytest.mark.parametrize("name", SCRIPTS)
def test_our_fold_of_the_stream_is_the_blocking_reply_byte_for_byte(name: str) -> None:
    said, asked = SCRIPTS[name]
    with ScriptedEngine(says(said), width=3) as engine, running_server(engine) as server:
        blocking = send(server, asked)
        streamed = [data for _, data in send(server, asked, stream=True).named_events]

    folded = exact_json(fold(streamed))
    assert IDS.sub("", folded) == IDS.sub("", blocking.body.decode())


def test_a_call_comes_with_its_object_and_its_digits() -> None:
    said, asked = SCRIPTS["tools"]
    with ScriptedEngine(says(said)) as engine, running_server(engine) as server:
        reply = send(server, asked)

    thinking, words, call = reply.json["content"]
    assert thinking["thinking"] == "Hm."
    assert words == {"type": "text", "text": "First."}
    assert re.fullmatch(r"toolu_[0-9A-Za-z]{24}", call["id"])
    assert call["input"] == {"room": "hall", "level": 1.5}
    assert b'"level":1.50' in reply.body
    assert reply.json["stop_reason"] == "tool_use"


def test_a_single_call_ends_the_message_when_only_one_is_wanted() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    asked = {**body(tools=[LAMP], tool_choice=choice), "max_tokens": 900}
    with (
        ScriptedEngine(says(f"</think>\n\n{CALL}\n{CALL}")) as engine,
        running_server(engine) as server,
    ):
        reply = send(server, asked).json

    assert [block["type"] for block in reply["content"]] == ["tool_use"]
    assert reply["stop_reason"] == "tool_use"


def test_the_matched_stop_sequence_is_reported() -> None:
    said, asked = SCRIPTS["stop"]
    with ScriptedEngine(says(said)) as engine, running_server(engine) as server:
        reply = send(server, asked).json

    assert reply["content"] == [{"type": "text", "text": "one tw"}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "o th")


def test_a_full_context_is_told_from_a_spent_budget() -> None:
    with (
        ScriptedEngine(says("word " * 200), max_context=64) as engine,
        running_server(engine) as server,
    ):
        reply = send(server, body(thinking={"type": "disabled"}), max_tokens=500).json

    assert reply["stop_reason"] == "model_context_window_exceeded"


def test_a_failure_after_the_headers_is_an_error_event() -> None:
    with (
        ScriptedEngine(says("word " * 50), pace=_slow_decode) as engine,
        running_server(engine, request_timeout_s=0.2) as server,
    ):
        reply = send(server, body(thinking={"type": "disabled"}), max_tokens=50, stream=True)

    assert reply.status == 200
    name, data = reply.named_events[-1]
    assert name == "error"
    assert data["error"]["type"] == "timeout_error"
    assert data["request_id"] == reply.headers["request-id"]
    assert "message_stop" not in [event for event, _ in reply.named_events]


def test_a_server_that_loads_is_overloaded_to_this_family() -> None:
    with running_server() as server:
        reply = send(server, body())

    assert reply.status == 529
    assert reply.json["error"]["type"] == "overloaded_error"
    assert reply.headers["retry-after"] == "2"


# B05: thinking without an end.


@pytest.mark.parametrize("is_stream", [False, True])
def test_thinking_that_never_ends_is_no_answer(is_stream: bool) -> None:
    said = "How many odd divisors has 720? Let me see, one by one"
    asked = {**body(user("How many odd divisors has 720? Think first.")), "max_tokens": 12}
    off = {**asked, "thinking": {"type": "disabled"}}
    ask: Callable[[RunningServer, Body], Any] = _streamed if is_stream else _blocking
    with ScriptedEngine(says(said)) as engine, running_server(engine) as server:
        thinking, content = ask(server, asked), ask(server, off)

    assert [block["type"] for block in thinking["content"]] == ["thinking"]
    assert thinking["stop_reason"] == content["stop_reason"] == "max_tokens"
    assert [block["type"] for block in content["content"]] == ["text"]
    assert content["content"][0]["text"] == thinking["content"][0]["thinking"]


# B06: a system message in the middle.


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_system_message_in_the_middle_is_answered(server: RunningServer, is_stream: bool) -> None:
    reply = send(server, body(*B06_MESSAGES), stream=is_stream)

    assert reply.status == 200


# B07: counting leaves nothing out.


@pytest.mark.parametrize("name", CORPUS)
def test_the_count_is_what_a_request_uses(server: RunningServer, name: str) -> None:
    asked = CORPUS[name]
    count = server.post("/v1/messages/count_tokens", asked)
    counted = count.json["input_tokens"]

    for temperature in ("cold", "warm"):
        usage = send(server, asked, stop_sequences=["e", "a"]).json["usage"]
        used = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert used + usage["cache_creation_input_tokens"] == counted, temperature
    assert count.status == 200


def test_system_and_tools_are_counted(server: RunningServer) -> None:
    counted = server.post("/v1/messages/count_tokens", B07).json["input_tokens"]

    bare = {"messages": [user("And the kitchen?")]}
    assert counted > server.post("/v1/messages/count_tokens", bare).json["input_tokens"] + 50


def test_the_client_counts(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="any", messages=[{"role": "user", "content": "hi"}])

    assert count.input_tokens > 0


# B10: a lone surrogate.


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("messages.0.content", '{"messages":[{"role":"user","content":"a\\udd1e"}]}'),
        (
            "tools.0.description",
            '{"messages":[{"role":"user","content":"a"}],"tools":[{"name":"f",'
            '"description":"\\udd1e","input_schema":{}}]}',
        ),
        (
            "messages.0.content.0.content",
            '{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t",'
            '"content":"\\udd1e"}]}]}',
        ),
        (
            "stop_sequences.0",
            '{"messages":[{"role":"user","content":"a"}],"stop_sequences":["\\udd1e"]}',
        ),
        (
            "system.0.text",
            '{"messages":[{"role":"user","content":"a"}],"system":[{"type":"text",'
            '"text":"\\udd1e"}]}',
        ),
        (
            "metadata.user_id",
            '{"messages":[{"role":"user","content":"a"}],"metadata":{"user_id":"\\udd1e"}}',
        ),
    ],
)
@pytest.mark.parametrize("endpoint", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_lone_surrogate_is_refused_where_it_stands(
    server: RunningServer, endpoint: str, path: str, raw: str
) -> None:
    reply = server.post(endpoint, raw.encode(), {"Content-Type": "application/json"})

    assert reply.status == 400
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert reply.json["error"]["message"].startswith(f"{path}: ")


def test_a_surrogate_pair_is_a_character(server: RunningServer) -> None:
    raw = b'{"max_tokens":1,"messages":[{"role":"user","content":"\\ud834\\udd1e"}]}'

    assert server.post("/v1/messages", raw).status == 200


def test_markers_are_listed_as_ignored(server: RunningServer) -> None:
    asked = body(user([text("x", cache_control={"type": "ephemeral"})]), metadata={"user_id": "u"})

    assert (
        send(server, asked).headers["x-ninfer-ignored"]
        == "messages[].content[].cache_control, metadata"
    )


def _slow_decode(call: str) -> None:
    """Make decoding slow enough to pass a limit of the request."""
    if call == "decode":
        threading.Event().wait(0.02)


def _blocking(server: RunningServer, asked: Body) -> Any:
    return send(server, asked).json


def _streamed(server: RunningServer, asked: Body) -> Any:
    return folded_by_the_client(server, asked).to_dict()
