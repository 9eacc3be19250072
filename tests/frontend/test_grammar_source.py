"""Limits and keywords of grammars, before anything is compiled."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.frontend.grammar_source import (
    MAX_GRAMMAR_BYTES,
    GrammarKind,
    choice_source,
    lark_source,
    regex_source,
    schema_source,
)
from ninfer.frontend.template_json import parse_json
from tests.support.quick_examples import QUICK


def refusal(schema: Any) -> str:
    with pytest.raises(RequestError) as caught:
        schema_source(schema, "f")
    assert caught.value.field == "f"
    return caught.value.code


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_a_schema_keeps_the_order_of_its_keys_and_the_digits_of_its_numbers() -> None:
    schema = parse_json('{"properties": {"b": {"const": 1.50}, "a": {}}}')

    source = schema_source(schema, "f")

    assert source.kind is GrammarKind.JSON_SCHEMA
    assert source.text == '{"properties":{"b":{"const":1.50},"a":{}}}'


def test_true_is_any_value() -> None:
    assert schema_source(True, "f").text == "{}"


@pytest.mark.parametrize("schema", [False, 3, "x", [], None])
def test_what_is_no_object_is_no_schema(schema: Any) -> None:
    assert refusal(schema) == "invalid_type"


@pytest.mark.parametrize(
    "keyword", ["patternProperties", "unevaluatedProperties", "unevaluatedItems", "x-guidance"]
)
@pytest.mark.parametrize(
    "around",
    [
        lambda schema: schema,
        lambda schema: {"properties": {"a": schema}},
        lambda schema: {"anyOf": [{}, schema]},
        lambda schema: {"$defs": {"a": {"items": schema}}},
    ],
)
def test_keywords_that_are_not_proven_are_refused_wherever_they_stand(
    keyword: str, around: Any
) -> None:
    assert refusal(around({keyword: {}})) == "invalid_json_schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"patternProperties": {"type": "string"}}},
        {"const": {"patternProperties": 1}},
        {"enum": [{"x-guidance": 1}]},
    ],
)
def test_names_and_values_of_the_client_are_no_keywords(schema: Any) -> None:
    schema_source(schema, "f")


def test_depth_is_limited() -> None:
    schema_source(nested(63), "f")

    assert refusal(nested(64)) == "invalid_json_schema"


def test_size_is_limited_for_every_kind() -> None:
    big = "a" * (MAX_GRAMMAR_BYTES + 1)

    assert refusal({"const": big}) == "invalid_json_schema"
    for take in (regex_source, lark_source):
        with pytest.raises(RequestError) as caught:
            take(big, "f")
        assert caught.value.code == "invalid_json_schema"


@pytest.mark.parametrize("choices", [[], ["a", ""]])
def test_choices_are_texts(choices: list[str]) -> None:
    with pytest.raises(RequestError):
        choice_source(choices, "f")


@QUICK
@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=1, max_size=4),
    st.text(max_size=6),
)
def test_choices_become_an_expression_of_exactly_these_texts(
    choices: list[str], other: str
) -> None:
    expression = re.compile(choice_source(choices, "f").text, re.DOTALL)

    assert all(expression.fullmatch(choice) for choice in choices)
    assert bool(expression.fullmatch(other)) is (other in choices)
