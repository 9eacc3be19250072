import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.gateway.json_body import MAX_COMMAS, MAX_DEPTH, read_object
from ninfer.gateway.json_fields import Fields
from tests.support.quick_examples import QUICK

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=20,
)


def code_of(body: bytes) -> str:
    with pytest.raises(RequestError) as caught:
        read_object(body)
    return caught.value.code


def outcome_of(body: bytes) -> str:
    """Code of the refusal, or what was read."""
    try:
        read_object(body)
    except RequestError as error:
        return error.code
    return "object"


@QUICK
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON_VALUES))
def test_what_json_writes_is_read_back(value: dict[str, Any]) -> None:
    assert read_object(json.dumps(value).encode()) == value
    assert read_object(json.dumps(value, ensure_ascii=False).encode()) == value


@QUICK
@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_a_request_error(data: bytes) -> None:
    codes = {"invalid_json", "invalid_type", "invalid_unicode"}

    assert outcome_of(data) in codes | {"object"}


@pytest.mark.parametrize(("depth", "is_legal"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_depth_has_a_limit(depth: int, is_legal: bool) -> None:
    body = b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert (is_legal and bool(read_object(body))) or code_of(body) == "invalid_json"


def test_endless_values_are_refused_before_they_are_read() -> None:
    full = b'{"a":[' + b"1," * (MAX_COMMAS - 1) + b"1]}"

    assert len(read_object(full)["a"]) == MAX_COMMAS
    with pytest.raises(RequestError, match="commas") as caught:
        read_object(b'{"a":[' + b"[]," * (MAX_COMMAS + 1) + b"1]}")
    assert caught.value.code == "invalid_json"


def test_fractions_keep_their_digits() -> None:
    value = read_object(b'{"a":1.10}')["a"]

    assert (value, str(value)) == (1.1, "1.10")


@pytest.mark.parametrize("text", [b'{"a":1,"a":1}', b'{"x":{"b":[],"b":[]}}'])
def test_duplicate_keys_are_refused_at_any_depth(text: bytes) -> None:
    assert code_of(text) == "invalid_json"


@pytest.mark.parametrize("text", [b"{'a':1}", b'{"a":1,}', b"{}{}", b'{"a":01}', b'{"a":"\n"}'])
def test_lenient_json_is_refused(text: bytes) -> None:
    assert code_of(text) == "invalid_json"


def test_fields_know_what_nobody_asked_for() -> None:
    fields = Fields({"a": 1, "b": None, "c": True})

    assert fields.integer("a", 0, 5) == 1
    assert fields.boolean("b") is None
    assert fields.unknown() == ("c",)


def test_null_is_the_same_as_leaving_out() -> None:
    fields = Fields({"a": None})

    assert not fields.has("a")
    assert (fields.text("a"), fields.items("a"), fields.nested("a")) == (None, None, None)
    assert fields.strings("a", most=1, longest=1) == ()
