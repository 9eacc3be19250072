"""Rule 6: which values of a call are text and which are JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.frontend.tool_arguments import ToolSignature, argument_json
from tests.support.quick_examples import QUICK

STRING, ARRAY, OBJECT = {"type": "string"}, {"type": "array"}, {"type": "object"}
NUMBER, BOOLEAN, NULL = {"type": "number"}, {"type": "boolean"}, {"type": "null"}
MIXED = {"type": ["string", "array"]}
ROOT = {
    "$defs": {
        "ref": {"$ref": "#/$defs/list"},
        "list": ARRAY,
        "loop": {"$ref": "#/$defs/loop"},
        "a/b": BOOLEAN,
    }
}


def value(schema: Any, text: str) -> str:
    """JSON of a text under a schema of the tool's only parameter."""
    signature = ToolSignature.of("f", {**ROOT, "type": "object", "properties": {"p": schema}})
    return argument_json(text, signature.type_of("p"))


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (STRING, "42", '"42"'),
        (STRING, "null", '"null"'),
        (STRING, '{"a":1}', '"{\\"a\\":1}"'),
        (STRING, "", '""'),
        (STRING, "é\n€", '"é\\n€"'),
        ({"type": ["string", "null"]}, "null", '"null"'),
        ({"type": ["string", "number"]}, "7", '"7"'),
        ({"type": ["string", "object"]}, '{"a": 1.10}', '{"a": 1.10}'),
        ({"type": ["string", "object"]}, "[1]", '"[1]"'),
        ({"type": ["string", "array"]}, " [1]\n", "[1]"),
        ({"type": ["string", "array"]}, "[1", '"[1"'),
        ({"anyOf": [STRING, ARRAY]}, "[1]", "[1]"),
        (ARRAY, '[{"name":"Mill","km":3.50}]', '[{"name":"Mill","km":3.50}]'),
        (ARRAY, "[1,", '"[1,"'),
        (OBJECT, '{"b": 1, "a": 2}', '{"b": 1, "a": 2}'),
        (OBJECT, "{'a': 1}", "\"{'a': 1}\""),
        (NUMBER, "1.10", "1.10"),
        (NUMBER, "12345678901234567890", "12345678901234567890"),
        (NUMBER, "NaN", '"NaN"'),
        (NUMBER, "ten", '"ten"'),
        ({"type": "integer"}, "7", "7"),
        (BOOLEAN, "true", "true"),
        (BOOLEAN, "True", "true"),
        (BOOLEAN, " False\n", "false"),
        (BOOLEAN, "yes", '"yes"'),
        (NUMBER, "True", '"True"'),
        (NULL, "None", "null"),
        (NULL, "", "null"),
        ({"type": ["number", "null"]}, "None", "null"),
        ({"oneOf": [BOOLEAN, NULL]}, "True", "true"),
        ({"$ref": "#/$defs/ref"}, "[1]", "[1]"),
        ({"$ref": "#/$defs/a~1b"}, "True", "true"),
        ({"$ref": "#/$defs/loop"}, "7", "7"),
        ({"$ref": "#/nowhere"}, "7", "7"),
        ({"$ref": "https://example.org/x"}, "7", "7"),
        ({"allOf": [{"description": "x"}, STRING]}, "7", '"7"'),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": "1"}, "1", '"1"'),
        ({"enum": [1, 2]}, "1", "1"),
        ({}, "7", "7"),
        ({"description": "x"}, "True", '"True"'),
        ({"anyOf": [STRING, {}]}, "7", "7"),
        (True, "7", "7"),
        (None, '"x"', '"\\"x\\""'),
        (None, "x y", '"x y"'),
        (None, "null", "null"),
        (None, "", '""'),
    ],
)
def test_a_value_becomes_json_by_its_schema(schema: Any, text: str, expected: str) -> None:
    assert value(schema, text) == expected


def test_undeclared_keys_are_json_when_they_parse() -> None:
    signature = ToolSignature.of("f", {"properties": "broken"})

    assert argument_json("[1.10]", signature.type_of("other")) == "[1.10]"
    assert argument_json("[1.10", signature.type_of("other")) == '"[1.10"'


@QUICK
@given(
    st.sampled_from(
        [STRING, ARRAY, OBJECT, NUMBER, BOOLEAN, NULL, {}, {"type": ["string", "array"]}]
    ),
    st.text(max_size=12) | st.sampled_from(["[" * 5000, "9" * 5000, '"\\ud83d"', "1e999"]),
)
def test_every_text_becomes_some_json(schema: Any, text: str) -> None:
    json.loads(value(schema, text))


def test_only_declared_text_can_be_streamed() -> None:
    properties = {"a": STRING, "b": {"type": ["string", "array"]}, "c": NUMBER, "d": {}}
    signature = ToolSignature.of("f", {"properties": properties})

    streamed = [key for key in "abcde" if signature.type_of(key).is_text]

    assert streamed == ["a"]
