"""Acceptance point 8: every way to count the tokens of a conversation gives the same number."""

from typing import Any

import pytest

from tests.support.call_corpus import TOOLS
from tests.support.gateway_server import RunningServer

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "plan_route", "arguments": '{"note": "1.10", "fast": true}'},
}
B06 = [
    {"role": "user", "content": "Log entry 7 is red."},
    {"role": "assistant", "content": "Noted."},
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Which colour?"},
]
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "single": {"messages": [{"role": "user", "content": "hi 🦔"}]},
    "system": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}]
    },
    "middle_system": {"messages": B06},
    "parts": {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ]
    },
    "thinking_off": {"messages": [{"role": "user", "content": "x"}], "enable_thinking": False},
    "history": {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a", "reasoning_content": "because"},
            {"role": "user", "content": "again"},
        ]
    },
    "preserved": {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a", "reasoning_content": "because"},
            {"role": "user", "content": "again"},
        ],
        "preserve_thinking": True,
    },
    "tools": {"messages": [{"role": "user", "content": "go"}], "tools": TOOLS},
    "tools_none": {
        "messages": [{"role": "user", "content": "go"}],
        "tools": TOOLS,
        "tool_choice": "none",
    },
    "tool_history": {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "there"},
        ],
        "tools": TOOLS,
    },
    "special_spelling": {"messages": [{"role": "user", "content": "<|im_end|><think>"}]},
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_tokenize_counts_what_a_request_reports(scripted_server: RunningServer, name: str) -> None:
    conversation = CONVERSATIONS[name]

    counted = scripted_server.post("/v1/tokenize", conversation)
    blocking = scripted_server.post("/v1/chat/completions", {**conversation, "max_tokens": 2})
    streamed = scripted_server.post(
        "/v1/chat/completions",
        {
            **conversation,
            "max_tokens": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )

    assert counted.status == 200, counted.body
    assert counted.json["count"] == len(counted.json["tokens"])
    assert blocking.json["usage"]["prompt_tokens"] == counted.json["count"]
    assert streamed.events[-2]["usage"] == blocking.json["usage"]


@pytest.mark.parametrize("name", ["single", "system", "middle_system", "parts", "history"])
def test_anthropic_count_is_the_same(scripted_server: RunningServer, name: str) -> None:
    messages = CONVERSATIONS[name]["messages"]
    system = [m["content"] for m in messages[:1] if m["role"] == "system"]
    rest = [{"role": m["role"], "content": m["content"]} for m in messages[len(system) :]]
    body: dict[str, Any] = {"model": "m", "messages": rest}
    if system:
        body["system"] = system[0]

    counted = scripted_server.post("/v1/messages/count_tokens", body).json["input_tokens"]
    used = scripted_server.post("/v1/messages", {**body, "max_tokens": 2}).json["usage"]

    expected = scripted_server.post("/v1/tokenize", {"messages": CONVERSATIONS[name]["messages"]})
    if name != "history":  # Its thinking has no signature in this shape.
        assert counted == expected.json["count"]
    assert counted == used["input_tokens"] + used["cache_read_input_tokens"]


def test_system_message_in_the_middle_stays_there(scripted_server: RunningServer) -> None:
    prompt = scripted_server.post("/v1/tokenize", {"messages": B06, "return_prompt": True}).json[
        "prompt"
    ]

    places = [prompt.index(text) for text in ("red.", "Noted.", "one word.", "colour?")]
    assert places == sorted(places)


def test_tokens_of_a_text_and_back(scripted_server: RunningServer) -> None:
    text = "Hej 🦔\n€ <|im_end|>"

    told = scripted_server.post("/v1/tokenize", {"text": text, "with_pieces": True}).json
    back = scripted_server.post("/detokenize", {"tokens": told["tokens"]}).json

    assert back["text"] == text
    assert b"".join(bytes(piece["bytes"]) for piece in told["pieces"]) == text.encode()
    assert [piece["id"] for piece in told["pieces"]] == told["tokens"]


def test_half_a_character_comes_back_as_bytes(scripted_server: RunningServer) -> None:
    tokens = scripted_server.post("/tokenize", {"text": "€"}).json["tokens"]

    half = scripted_server.post("/v1/detokenize", {"tokens": tokens[:1]}).json

    assert half["text"] == "\ufffd"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "missing_field", "text"),
        ({"text": "a", "messages": []}, "conflicting_parameters", "text"),
        ({"text": 1}, "invalid_type", "text"),
        ({"messages": []}, "invalid_value", "messages"),
    ],
)
def test_bad_tokenize_bodies(
    scripted_server: RunningServer, body: dict[str, Any], code: str, field: str
) -> None:
    error = scripted_server.post("/v1/tokenize", body).json["error"]

    assert (error["code"], error["param"]) == (code, field)


def test_ids_that_are_no_integers_are_refused(scripted_server: RunningServer) -> None:
    reply = scripted_server.post("/v1/detokenize", {"tokens": ["a"]})

    assert (reply.status, reply.code) == (400, "invalid_type")
    assert reply.json["error"]["message"] == "tokens[0] must be an integer, not 'a'"


@pytest.mark.parametrize("tokens", [[-1], [10**6]])
def test_ids_outside_the_vocabulary_are_refused(
    scripted_server: RunningServer, tokens: list[Any]
) -> None:
    reply = scripted_server.post("/v1/detokenize", {"tokens": tokens})

    assert (reply.status, reply.code) == (400, "invalid_token_id")
