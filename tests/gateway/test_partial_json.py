"""What is left of an object whose text was cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.gateway.partial_json import complete_members
from tests.support.quick_examples import QUICK

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", {}),
        ("{", {}),
        ('{"a"', {}),
        ('{"a":1', {}),
        ('{"a":1,', {"a": 1}),
        ('{"a":"x"', {"a": "x"}),
        ('{"a":"x\\"', {}),
        ('{"a":[1,2],"b":[3', {"a": [1, 2]}),
        ('{"a":{"b":"c"}', {"a": {"b": "c"}}),
    ],
)
def test_only_finished_members_are_kept(text: str, kept: dict[str, Any]) -> None:
    assert complete_members(text) == kept


@QUICK
@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.data())
def test_every_cut_keeps_a_beginning_of_the_members(
    members: dict[str, Any], data: st.DataObject
) -> None:
    whole = json.dumps(members)
    cut = data.draw(st.integers(0, len(whole) - 1))

    kept = complete_members(whole[:cut])

    assert list(kept.items()) == list(members.items())[: len(kept)]
    finished = [
        key
        for count, key in enumerate(members, 1)
        if cut >= len(json.dumps(dict(list(members.items())[:count])))
    ]
    assert list(kept)[: len(finished)] == finished
