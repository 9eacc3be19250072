"""Bad messages and tools: every one a typed refusal with the path of the field."""

import json
from typing import Any

import pytest

from ninfer.errors import RequestError
from ninfer.frontend.conversation import Conversation, Message, Role, ToolDefinition
from ninfer.frontend.message_json import parse_messages, parse_tools
from tests.support.frontends import frontend

USER = {"role": "user", "content": "Hi"}
LONE = "\udd1e"


def call(arguments: Any = "{}", call_id: str | None = "a", name: Any = "f") -> dict[str, Any]:
    """One tool call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    """An assistant message that calls."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: Any, text: Any = "r") -> dict[str, Any]:
    """A tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def tool(**function: Any) -> dict[str, Any]:
    """A tool definition."""
    return {"type": "function", "function": {"name": "f", **function}}


def prepare(messages: Any, tools: Any = None) -> None:
    """Read and check everything, up to tokens."""
    frontend().prepare(Conversation(parse_messages(messages), parse_tools(tools)))


BAD_MESSAGES: list[tuple[Any, str, str]] = [
    (None, "invalid_type", "messages"),
    ({}, "invalid_type", "messages"),
    ([], "invalid_value", "messages"),
    ([USER] * 4097, "invalid_value", "messages"),
    ([1], "invalid_type", "messages[0]"),
    ([{"content": "x"}], "missing_field", "messages[0].role"),
    ([{"role": 1, "content": "x"}], "invalid_type", "messages[0].role"),
    ([{"role": "boss", "content": "x"}], "invalid_value", "messages[0].role"),
    ([{"role": "user"}], "missing_field", "messages[0].content"),
    ([{"role": "user", "content": None}], "missing_field", "messages[0].content"),
    ([{"role": "user", "content": 3}], "invalid_type", "messages[0].content"),
    ([USER, {"role": "assistant", "content": None}], "missing_field", "messages[1].content"),
    ([{"role": "user", "content": ["x"]}], "invalid_type", "messages[0].content[0]"),
    ([{"role": "user", "content": [{}]}], "missing_field", "messages[0].content[0].type"),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        "missing_field",
        "messages[0].content[0].text",
    ),
    (
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        "invalid_type",
        "messages[0].content[0].text",
    ),
    (
        [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}],
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        [{"role": "system", "content": [{"type": "image_url"}]}],
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        [{"role": "user", "content": [{"type": "image_url"}]}],
        "vision_disabled",
        "messages[0].content[0]",
    ),
    ([{**USER, "name": "Ann"}], "unsupported_parameter", "messages[0].name"),
    ([{**USER, "reasoning_content": "x"}], "invalid_value", "messages[0].reasoning_content"),
    ([{**USER, "tool_calls": [call()]}], "invalid_value", "messages[0].tool_calls"),
    ([{**USER, "tool_call_id": "a"}], "invalid_value", "messages[0].tool_call_id"),
    (
        [USER, {"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}],
        "conflicting_parameters",
        "messages[1].reasoning",
    ),
    ([USER, calling(call("[]"))], "invalid_value", "messages[1].tool_calls[0].function.arguments"),
    ([USER, calling(call("{x"))], "invalid_value", "messages[1].tool_calls[0].function.arguments"),
    (
        [USER, calling(call('{"a": NaN}'))],
        "invalid_value",
        "messages[1].tool_calls[0].function.arguments",
    ),
    ([USER, calling(call(7))], "invalid_type", "messages[1].tool_calls[0].function.arguments"),
    ([USER, calling(call(None))], "missing_field", "messages[1].tool_calls[0].function.arguments"),
    ([USER, calling(call(name=""))], "invalid_value", "messages[1].tool_calls[0].function.name"),
    ([USER, calling(call(name=2))], "invalid_type", "messages[1].tool_calls[0].function.name"),
    ([USER, calling({"id": "a"})], "missing_field", "messages[1].tool_calls[0].function"),
    ([USER, {**calling(), "tool_calls": 3}], "invalid_type", "messages[1].tool_calls"),
    ([USER, result("a")], "invalid_tool_history", "messages[1].tool_call_id"),
    ([USER, calling(call()), result("b")], "invalid_tool_history", "messages[2].tool_call_id"),
    ([USER, calling(call()), result(None)], "missing_field", "messages[2].tool_call_id"),
    (
        [USER, calling(call()), result("a"), result("a")],
        "invalid_tool_history",
        "messages[3].tool_call_id",
    ),
]


@pytest.mark.parametrize(("messages", "code", "field"), BAD_MESSAGES)
def test_bad_messages_are_refused_with_code_and_path(messages: Any, code: str, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepare(messages)

    assert (caught.value.code, caught.value.field) == (code, field)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "messages is a string; it must be a list"),
        ({}, "messages is an object; it must be a list"),
        ((USER,), "messages is a tuple; it must be a list"),
        ([None], "messages[0] is null; it must be an object"),
        ([{"role": True, "content": "x"}], "messages[0].role is a boolean; it must be a string"),
        ([result(None)], "messages[0] answers a call; no call comes before it"),
        (
            [USER, result("a")],
            "messages[1].tool_call_id is 'a', which no unanswered call before it has",
        ),
    ],
)
def test_refusal_speaks_of_json_and_not_of_python(messages: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepare(messages)

    assert str(caught.value) == message


BAD_TOOLS: list[tuple[Any, str, str]] = [
    ({}, "invalid_type", "tools"),
    ([1], "invalid_type", "tools[0]"),
    ([{"type": "web"}], "unsupported_value", "tools[0].type"),
    ([{"type": "function"}], "missing_field", "tools[0].function"),
    ([{"type": "function", "function": {}}], "missing_field", "tools[0].function.name"),
    ([tool(name="")], "invalid_value", "tools[0].function.name"),
    ([tool(name="a b")], "invalid_value", "tools[0].function.name"),
    ([tool(name="x" * 65)], "invalid_value", "tools[0].function.name"),
    ([tool(), tool()], "invalid_value", "tools[1].function.name"),
    ([tool(description=4)], "invalid_type", "tools[0].function.description"),
    ([tool(strict=True)], "unsupported_parameter", "tools[0].function.strict"),
    ([tool(parameters=[])], "invalid_type", "tools[0].function.parameters"),
    ([tool(parameters={"type": "array"})], "invalid_value", "tools[0].function.parameters.type"),
    (
        [tool(parameters={"type": "object", "properties": 3})],
        "invalid_type",
        "tools[0].function.parameters.properties",
    ),
    ([tool(name=f"f{i}") for i in range(129)], "invalid_value", "tools"),
    ([tool(description="x" * (256 << 10))], "invalid_value", "tools"),
]


@pytest.mark.parametrize(("tools", "code", "field"), BAD_TOOLS)
def test_bad_tools_are_refused_with_code_and_path(tools: Any, code: str, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        prepare([USER], tools)

    assert (caught.value.code, caught.value.field) == (code, field)


@pytest.mark.parametrize(
    ("messages", "tools", "field"),
    [
        ([{"role": "user", "content": LONE}], None, "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a" + LONE}]}],
            None,
            "messages[0].content[0].text",
        ),
        ([{"role": "system", "content": LONE}, USER], None, "messages[0].content"),
        ([USER, calling(call()), result("a", LONE)], None, "messages[2].content"),
        (
            [USER, calling(call(json.dumps({"k": ["x", LONE]})))],
            None,
            "messages[1].tool_calls[0].function.arguments.k[1]",
        ),
        ([USER, calling(call(name=LONE))], None, "messages[1].tool_calls[0].function.name"),
        ([USER], [tool(description="x" + LONE)], "tools[0].function.description"),
        (
            [USER],
            [tool(parameters={"properties": {"a": {"enum": [LONE]}}})],
            "tools[0].function.parameters.properties.a.enum[0]",
        ),
    ],
)
def test_b10_a_lone_surrogate_is_refused_where_it_stands(
    messages: Any, tools: Any, field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        prepare(messages, tools)

    assert (caught.value.code, caught.value.field) == ("invalid_unicode", field)


def test_b10_a_correct_pair_is_one_character() -> None:
    prepare(json.loads('[{"role":"user","content":"emoji \\ud83d\\ude00"}]'))


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": "\0"}],
        [{"role": "user", "content": "<|im_start|></think><tool_call>"}],
        [USER, USER],
        [{"role": "developer", "content": "x"}, USER],
        [USER, calling(call(""))],
        [USER, calling(call({"a": 1}))],
        [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
        [USER, calling(call()), {**result("a"), "name": "f"}],
        [USER, calling(call(call_id=None)), result(None), result(None)],
    ],
)
def test_unusual_but_legal_messages_are_accepted(messages: Any) -> None:
    prepare(messages)


def test_tool_results_are_put_in_the_order_of_their_calls() -> None:
    messages = [USER, calling(call(), call(call_id="b")), result("b", "two"), result("a", "one")]

    text = frontend().prepare(Conversation(parse_messages(messages))).text or ""

    assert text.index("one") < text.index("two")


def test_messages_keep_what_the_client_said() -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning": "r"}

    (message,) = parse_messages([said])

    assert (message.role, message.text, message.reasoning) == (Role.ASSISTANT, "x", "r")


def test_definitions_keep_the_clients_key_order() -> None:
    given = {"function": {"parameters": {}, "name": "f"}, "type": "function"}

    (parsed,) = parse_tools([given])

    assert json.dumps(parsed.definition) == json.dumps(given)
    assert parse_tools(None) == ()


def test_a_definition_can_be_built_from_its_parts() -> None:
    built = ToolDefinition.of("f", "does", {"type": "object"})

    assert parse_tools([built.definition]) == (built,)
    assert (built.name, built.parameters) == ("f", {"type": "object"})


def test_library_callers_are_checked_like_clients() -> None:
    conversation = Conversation((Message(Role.USER, "x"),), (ToolDefinition.of("a b"),))

    with pytest.raises(RequestError) as caught:
        frontend().prepare(conversation)

    assert caught.value.field == "tools[0].function.name"
