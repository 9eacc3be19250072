"""JSON that keeps digits, against the standard library."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.frontend.template_json import parse_json, write_json
from tests.support.quick_examples import QUICK

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@QUICK
@given(VALUES, st.sampled_from([None, 0, 2, "\t"]), st.booleans(), st.booleans())
def test_writing_equals_the_standard_library(
    value: Any, indent: int | str | None, ensure_ascii: bool, sort_keys: bool
) -> None:
    written = write_json(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)

    expected = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)
    assert written == expected


@pytest.mark.parametrize(
    "text", ['{"b": 1.10, "a": [2.50, 1e5, -0.0]}', "12345678901234567890", '{"x": 1.0E+2}']
)
def test_digits_and_key_order_survive_a_round_trip(text: str) -> None:
    assert write_json(parse_json(text)) == text


def test_a_fraction_prints_as_it_was_read() -> None:
    assert str(parse_json("1.10")) == "1.10"
    assert parse_json("1.10") == pytest.approx(1.1)


@pytest.mark.parametrize(
    "text", ["", "NaN", "-Infinity", "1e999", "9" * 401, "1." + "0" * 400, "[" * 100_000, "{'a':1}"]
)
def test_what_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


@pytest.mark.parametrize("value", [object(), {1: 2}, {"a": {3}}])
def test_what_json_cannot_hold_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        write_json(value)


def test_separators_and_unicode_follow_the_published_filter() -> None:
    assert write_json({"ö": "<&'>"}, separators=(",", ":")) == '{"ö":"<&\'>"}'
