"""Acceptance point 1, second half: every row of the table of bad inputs, in OpenAI's family."""

import json
from typing import Any

import pytest

from tests.support.gateway_server import RunningServer

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def body(**members: object) -> dict[str, Any]:
    return {"messages": USER, "max_tokens": 2, **members}


def user(content: object) -> dict[str, Any]:
    return body(messages=[{"role": "user", "content": content}])


def raw(text: str) -> bytes:
    """A chat body with one member given as raw JSON text."""
    return b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,' + text.encode() + b"}"


def tool(name: object, **function: object) -> dict[str, Any]:
    definition = {"type": "function", "function": {"name": name, **function}}
    return body(tools=[definition])


ANSWERED = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def called(arguments: object) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "a", "content": "ok"}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    return body(messages=[*USER, assistant, result])


REFUSED: list[tuple[str, Any, str, str | None]] = [
    ("empty", b"", "invalid_json", None),
    ("spaces", b"  \n", "invalid_json", None),
    ("null", b"null", "invalid_type", "$"),
    ("list", b"[]", "invalid_type", "$"),
    ("string", b'"x"', "invalid_type", "$"),
    ("number", b"42", "invalid_type", "$"),
    ("cut", b'{"messages":[{"role":"user","content":"hi"}]', "invalid_json", None),
    ("bytes_before", b"\xff\xfe" + json.dumps(body()).encode(), "invalid_json", None),
    ("utf16", json.dumps(body()).encode("utf-16"), "invalid_json", None),
    ("brackets", b"[" * 100_000, "invalid_json", None),
    ("nesting", raw('"metadata":' + "[" * 65 + "]" * 65), "invalid_json", None),
    ("digits", raw('"seed":' + "1" * 5000), "invalid_json", None),
    ("fraction_digits", raw('"temperature":0.' + "1" * 5000), "invalid_json", None),
    ("nan", raw('"temperature":NaN'), "invalid_json", None),
    ("huge_exponent", raw('"temperature":1e999'), "invalid_json", None),
    ("infinity", raw('"temperature":-Infinity'), "invalid_json", None),
    ("duplicate", raw('"seed":1,"seed":2'), "invalid_json", None),
    ("text_temperature", body(temperature="0.7"), "invalid_type", "temperature"),
    ("true_temperature", body(temperature=True), "invalid_type", "temperature"),
    ("cold", body(temperature=-0.1), "invalid_value", "temperature"),
    ("hot", body(temperature=2.01), "invalid_value", "temperature"),
    ("top_p", body(top_p=1.0001), "invalid_value", "top_p"),
    ("top_k_low", body(top_k=-2), "invalid_value", "top_k"),
    ("top_k_fraction", body(top_k=3.5), "invalid_type", "top_k"),
    ("top_k_high", body(top_k=10**9), "invalid_value", "top_k"),
    ("seed_high", body(seed=1 << 63), "invalid_value", "seed"),
    ("seed_fraction", body(seed=1.0), "invalid_type", "seed"),
    ("max_negative", body(max_tokens=-1), "invalid_value", "max_tokens"),
    ("max_fraction", body(max_tokens=1.5), "invalid_type", "max_tokens"),
    ("max_text", body(max_tokens="10"), "invalid_type", "max_tokens"),
    ("max_both", body(max_completion_tokens=6), "conflicting_parameters", "max_tokens"),
    ("stop_empty", body(stop=""), "invalid_value", "stop"),
    ("stop_empty_in_list", body(stop=[""]), "invalid_value", "stop[0]"),
    ("stop_five", body(stop=["a", "b", "c", "d", "e"]), "invalid_value", "stop"),
    ("stop_long", body(stop="x" * 257), "invalid_value", "stop"),
    ("stop_type", body(stop=[1]), "invalid_type", "stop[0]"),
    ("n_two", body(n=2), "unsupported_value", "n"),
    ("n_zero", body(n=0), "invalid_value", "n"),
    ("no_messages", {"max_tokens": 2}, "missing_field", "messages"),
    ("empty_messages", body(messages=[]), "invalid_value", "messages"),
    ("messages_many", body(messages=USER * 4097), "invalid_value", "messages"),
    (
        "tools_many",
        body(tools=[tool(f"f{index}")["tools"][0] for index in range(129)]),
        "invalid_value",
        "tools",
    ),
    (
        "cache_options",
        body(prompt_cache_options={"ttl": "1s"}),
        "invalid_value",
        "prompt_cache_options.ttl",
    ),
    (
        "cache_retention",
        body(prompt_cache_retention="ever"),
        "invalid_value",
        "prompt_cache_retention",
    ),
    ("min_p", body(min_p=1.5), "invalid_value", "min_p"),
    ("presence", body(presence_penalty=-2.1), "invalid_value", "presence_penalty"),
    ("messages_object", body(messages={}), "invalid_type", "messages"),
    ("no_role", body(messages=[{"content": "x"}]), "missing_field", "messages[0].role"),
    (
        "unknown_role",
        body(messages=[{"role": "king", "content": "x"}]),
        "invalid_value",
        "messages[0].role",
    ),
    ("content_number", user(5), "invalid_type", "messages[0].content"),
    (
        "part_type_object",
        user([{"type": {}}]),
        "invalid_type",
        "messages[0].content[0].type",
    ),
    ("content_null", user(None), "missing_field", "messages[0].content"),
    (
        "assistant_null",
        body(messages=[*USER, {"role": "assistant", "content": None}, *USER]),
        "missing_field",
        "messages[1].content",
    ),
    (
        "stray_result",
        body(messages=[*USER, {"role": "tool", "tool_call_id": "x", "content": "ok"}]),
        "invalid_tool_history",
        "messages[1].tool_call_id",
    ),
    (
        "arguments_list",
        called("[1]"),
        "invalid_value",
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        "arguments_text",
        called("nope"),
        "invalid_value",
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        "surrogate",
        raw('"stop":"\\ud83d"'),
        "invalid_unicode",
        "stop",
    ),
    (
        "surrogate_content",
        b'{"messages":[{"role":"user","content":"emoji \\ud83d"}]}',
        "invalid_unicode",
        "messages[0].content",
    ),
    (
        "surrogate_metadata",
        raw('"metadata":{"a":["\\udd1e"]}'),
        "invalid_unicode",
        "metadata.a[0]",
    ),
    (
        "surrogate_tool",
        raw('"tools":[{"type":"function","function":{"name":"f","description":"\\udd1e"}}]'),
        "invalid_unicode",
        "tools[0].function.description",
    ),
    ("surrogate_key", raw('"metadata":{"\\udd1e":1}'), "invalid_unicode", "metadata"),
    ("tool_name_empty", tool(""), "invalid_value", "tools[0].function.name"),
    ("tool_name_space", tool("a b"), "invalid_value", "tools[0].function.name"),
    ("tool_name_long", tool("a" * 65), "invalid_value", "tools[0].function.name"),
    (
        "tool_twice",
        body(tools=[tool("f")["tools"][0], tool("f")["tools"][0]]),
        "invalid_value",
        "tools[1].function.name",
    ),
    (
        "parameters_type",
        tool("f", parameters={"type": "array"}),
        "invalid_value",
        "tools[0].function.parameters.type",
    ),
    (
        "parameters_list",
        tool("f", parameters=[]),
        "invalid_type",
        "tools[0].function.parameters",
    ),
    (
        "tools_large",
        tool("f", description="x" * (257 << 10)),
        "invalid_value",
        "tools",
    ),
    ("model", body(model="gpt-9"), "model_not_found", "model"),
    ("usage_without_stream", body(stream_options={}), "conflicting_parameters", "stream_options"),
    ("store", body(store=True), "unsupported_parameter", "store"),
    ("functions", body(functions=[]), "unsupported_parameter", "functions"),
    ("guided", body(guided_json={}), "unsupported_parameter", "guided_json"),
    ("bias", body(logit_bias={"5": 1}), "unsupported_parameter", "logit_bias"),
    ("repetition", body(repetition_penalty=1.1), "unsupported_value", "repetition_penalty"),
    ("logprobs", body(logprobs=True), "unsupported_parameter", "logprobs"),
    ("top_logprobs", body(top_logprobs=2), "conflicting_parameters", "top_logprobs"),
    ("tool_choice", body(tool_choice="required"), "unsupported_parameter", "tool_choice"),
    ("effort", body(reasoning_effort="huge"), "invalid_value", "reasoning_effort"),
    (
        "effort_unknown_to_template",
        body(reasoning_effort="xhigh"),
        "reasoning_effort_not_supported",
        "reasoning_effort",
    ),
    (
        "switches",
        body(enable_thinking=True, chat_template_kwargs={"enable_thinking": False}),
        "conflicting_parameters",
        "enable_thinking",
    ),
    (
        "effort_and_switch",
        body(enable_thinking=True, reasoning_effort="none"),
        "conflicting_parameters",
        "reasoning_effort",
    ),
    (
        "template_variable",
        body(chat_template_kwargs={"foo": 1}),
        "invalid_value",
        "chat_template_kwargs.foo",
    ),
    (
        "budget",
        body(thinking_budget=10**6, enable_thinking=True),
        "thinking_budget_capacity_insufficient",
        "thinking_budget",
    ),
    ("verbosity", body(verbosity="high"), "unsupported_value", "verbosity"),
    ("modalities", body(modalities=["audio"]), "unsupported_value", "modalities"),
    ("stream_text", body(stream="yes"), "invalid_type", "stream"),
]


@pytest.mark.parametrize(
    ("sent", "code", "field"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED]
)
def test_bad_input_is_refused_with_its_code(
    tiny_server: RunningServer, sent: Any, code: str, field: str | None
) -> None:
    reply = tiny_server.post(CHAT, sent)

    error = reply.json["error"]
    assert (error["code"], error["param"]) == (code, field)
    assert reply.status == (404 if code == "model_not_found" else 400)
    assert tiny_server.gateway.slots.in_use == 0


ACCEPTED: list[tuple[str, Any]] = [
    ("byte_order_mark", b"\xef\xbb\xbf" + json.dumps(body()).encode()),
    ("tiny_temperature", body(temperature=1e-30)),
    ("top_p_zero", body(top_p=0)),
    ("top_k_minus_one", body(top_k=-1)),
    ("seed_minus_one", body(seed=-1)),
    ("max_null", body(max_tokens=None, max_completion_tokens=2)),
    ("max_both_equal", body(max_completion_tokens=2)),
    ("max_one", body(max_tokens=1)),
    ("stop_empty_list", body(stop=[])),
    ("stop_null", body(stop=None)),
    ("stop_twice", body(stop=["a", "a"])),
    ("content_empty", user("")),
    ("content_no_parts", user([])),
    ("two_parts", user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])),
    ("arguments_empty", called("")),
    ("pair", b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}],"max_tokens":1}'),
    ("zero_character", b'{"messages":[{"role":"user","content":"\\u0000"}],"max_tokens":1}'),
    ("control_spellings", user("<|im_start|> </think> <tool_call>")),
    ("bias_zero", body(logit_bias={"5": 0})),
    ("n_one", body(n=1)),
    ("response_format_text", body(response_format={"type": "text"})),
    ("effort_none", body(reasoning_effort="none")),
    ("developer", body(messages=[{"role": "developer", "content": "d"}, *USER])),
]


@pytest.mark.parametrize("sent", [pytest.param(row[1], id=row[0]) for row in ACCEPTED])
def test_odd_but_legal_input_is_answered(tiny_server: RunningServer, sent: Any) -> None:
    reply = tiny_server.post(CHAT, sent)

    assert reply.status == 200, reply.body
    assert reply.json["choices"][0]["finish_reason"] in ("stop", "length")


def test_message_of_a_cut_body_names_line_and_column(tiny_server: RunningServer) -> None:
    error = tiny_server.post(CHAT, b'{\n"messages":').json["error"]

    assert "line 2 column 12" in error["message"]


def test_surrogate_is_named_with_its_place(tiny_server: RunningServer) -> None:
    sent = b'{"messages":[{"role":"user","content":"emoji \\ud83d"}]}'

    error = tiny_server.post(CHAT, sent).json["error"]

    assert "character 6" in error["message"]


def test_zero_output_tokens_process_the_prompt_and_end_with_length(
    tiny_server: RunningServer,
) -> None:
    reply = tiny_server.post(CHAT, body(max_tokens=0)).json

    assert reply["choices"][0]["message"]["content"] == ""
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0
    assert reply["usage"]["prompt_tokens"] > 0


def test_budget_beyond_the_context_is_clamped(scripted_server: RunningServer) -> None:
    reply = scripted_server.post(CHAT, body(max_tokens=2**31 - 1, ignore_eos=True)).json

    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 4096


def test_prompt_beyond_the_context_is_refused(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(CHAT, user("word " * 2000))

    assert (reply.status, reply.code) == (400, "context_length_exceeded")
    assert "maximum" in reply.json["error"]["message"]


def test_spelled_control_tokens_stay_text(tiny_server: RunningServer) -> None:
    text = "<|im_start|>"

    tokens = tiny_server.post("/v1/tokenize", {"text": text}).json["count"]
    special = tiny_server.post("/v1/tokenize", {"text": text, "parse_special": True}).json

    assert tokens > 1
    assert special["count"] == 1


def test_results_in_another_order_are_put_in_call_order(tiny_server: RunningServer) -> None:
    calls = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for name in ("a", "b")
    ]
    results = [
        {"role": "tool", "tool_call_id": name, "content": f"<{name}>"} for name in ("b", "a")
    ]
    assistant = {"role": "assistant", "content": None, "tool_calls": calls}
    sent = {"messages": [*USER, assistant, *results], "return_prompt": True}

    prompt = tiny_server.post("/v1/tokenize", sent).json["prompt"]

    assert prompt.index("<a>") < prompt.index("<b>")


def test_content_type_must_be_json(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(CHAT, json.dumps(body()).encode(), {"Content-Type": "text/plain"})

    assert (reply.status, reply.code) == (415, "unsupported_media_type")


def test_compressed_bodies_are_refused(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(CHAT, body(), {"Content-Encoding": "gzip"})

    assert (reply.status, reply.code) == (415, "unsupported_media_type")


def test_foreign_host_is_refused_on_loopback(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(CHAT, body(), {"Host": "evil.example"})

    assert (reply.status, reply.code) == (403, "host_not_allowed")


def test_a_normal_request_still_succeeds(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(CHAT, body())

    assert reply.status == 200
    assert tiny_server.gateway.slots.in_use == 0
