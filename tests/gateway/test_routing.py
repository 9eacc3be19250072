"""Paths, methods, models, health and the page."""

from typing import Any

import pytest

from tests.support.gateway_server import RunningServer


@pytest.mark.parametrize("path", ["/nope", "/v1/models/", "/v1/chat/completions/", "/web/../x"])
def test_unknown_path_is_404_and_never_redirected(
    scripted_server: RunningServer, path: str
) -> None:
    reply = scripted_server.get(path)

    assert (reply.status, reply.code) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
        ("PUT", "/v1/tokenize", "POST"),
    ],
)
def test_wrong_method_names_the_right_ones(
    scripted_server: RunningServer, method: str, path: str, allowed: str
) -> None:
    reply = scripted_server.request(method, path)

    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.headers["allow"] == allowed


def test_responses_api_points_at_chat(scripted_server: RunningServer) -> None:
    for path in ("/v1/responses", "/v1/responses/r1/cancel"):
        reply = scripted_server.post(path, {})
        assert (reply.status, reply.code) == (404, "unsupported_endpoint")
        assert "/v1/chat/completions" in reply.json["error"]["message"]


def test_models_are_the_one_model(scripted_server: RunningServer) -> None:
    listed = scripted_server.get("/v1/models").json["data"]
    single = scripted_server.get("/v1/models/tiny-dense").json

    assert listed == [single]
    assert single["max_model_len"] == 4096
    assert single["capabilities"]["vision"] is False
    assert single["sampling_defaults"]["non_thinking"]["presence_penalty"] == 1.5


def test_unknown_model_is_404(scripted_server: RunningServer) -> None:
    reply = scripted_server.get("/v1/models/org/other")

    assert (reply.status, reply.code) == (404, "model_not_found")


def test_ready_health_says_how_busy_it_is(scripted_server: RunningServer) -> None:
    assert scripted_server.get("/health").json == {"status": "ok"}
    assert scripted_server.get("/health/ready").json == {
        "status": "ready",
        "model": "tiny-dense",
        "active": 0,
        "waiting": 0,
        "last_progress_ms": 0,
    }
    live = scripted_server.get("/health/live").json
    assert live.keys() == {"status", "uptime_s"}


def test_ignored_fields_are_listed(scripted_server: RunningServer) -> None:
    reply = scripted_server.chat(
        user="me", store=False, made_up=1, metadata={"a": "b"}, prompt_cache_key="k"
    )

    assert reply.status == 200
    names = set(reply.headers["x-ninfer-ignored"].split(", "))
    assert names == {"user", "store", "made_up", "metadata", "prompt_cache_key"}


def test_members_inside_messages_without_effect_are_listed(scripted_server: RunningServer) -> None:
    marked = {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}", "x": 1}}
    messages = [
        {"role": "user", "content": [marked, {**marked, "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{**called, "extra_content": {"k": 1}}],
            "annotations": [],
            "audio": None,
            "refusal": None,
        },
        {"role": "tool", "tool_call_id": "c", "content": "ok", "name": "f"},
    ]

    reply = scripted_server.chat(messages=messages)

    assert reply.status == 200
    assert reply.headers["x-ninfer-ignored"].split(", ") == [
        "messages[].content[].prompt_cache_breakpoint",
        "messages[].content[].cache_control",
        "messages[].annotations",
        "messages[].tool_calls[].extra_content",
        "messages[].tool_calls[].function.x",
        "messages[].name",
    ]


def test_endless_ignored_fields_do_not_make_an_endless_header(
    scripted_server: RunningServer,
) -> None:
    members: dict[str, Any] = {f"field_{index}_{'x' * 80}": 1 for index in range(1000)}

    reply = scripted_server.chat("hi", **members)

    assert reply.status == 200
    assert len(reply.headers["x-ninfer-ignored"]) < 4096
    assert reply.headers["x-ninfer-ignored"].endswith(", +968")


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        ({"audio": {"id": "a"}}, "unsupported_parameter", "messages[1].audio"),
        ({"function_call": {"name": "f"}}, "unsupported_parameter", "messages[1].function_call"),
        ({"refusal": "no"}, "conflicting_parameters", "messages[1].refusal"),
        (
            {"content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {}}]},
            "missing_field",
            "messages[1].content[0].prompt_cache_breakpoint.mode",
        ),
        (
            {"content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": 1}]},
            "invalid_type",
            "messages[1].content[0].prompt_cache_breakpoint",
        ),
    ],
)
def test_members_of_a_message_that_would_change_the_prompt_are_refused(
    scripted_server: RunningServer, message: dict[str, object], code: str, field: str
) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", **message},
        {"role": "user", "content": "c"},
    ]

    reply = scripted_server.chat(messages=messages)

    assert (reply.status, reply.code, reply.json["error"]["param"]) == (400, code, field)


def test_a_refusal_of_earlier_turns_is_what_the_assistant_said(
    scripted_server: RunningServer,
) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "user", "content": "c"},
    ]

    asked = {"messages": messages, "return_prompt": True}
    reply = scripted_server.post("/v1/tokenize", asked)

    assert "I will not." in reply.json["prompt"]
