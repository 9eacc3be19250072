"""Damaged message bodies: each is answered or refused by name, never met with a bug."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.gateway.anthropic_api import MessageHeaders, count_tokens, translate_messages
from ninfer.gateway.error_responses import ERROR_TABLE, Family
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.request_context import RequestContext
from tests.gateway.anthropic_bodies import B07, CORPUS, Body
from tests.support.scripted_engine import ScriptedEngine

SETTINGS = GatewaySettings()
FULL: Body = {
    **B07,
    "stream": True,
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "cache_control": {"type": "ephemeral"},
    "output_config": {"effort": None},
}
CODES = ERROR_TABLE.keys() - {"internal_error"}
SEEDS = [FULL, *CORPUS.values()]
WORDS = ("text", "type", "user", "system", "tool_use", "tool_result", "thinking", "image", "")
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container below a value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        found.append((value, key))
        found += places(value[key])
    return found


@st.composite
def damaged(draw: st.DrawFn) -> Body:
    """A body of the corpus with a few members replaced, removed or doubled."""
    body: Body = copy.deepcopy(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 3))):
        here = places(body)
        if not here:
            break
        container, key = draw(st.sampled_from(here))
        match draw(st.sampled_from(("replace", "replace", "remove", "move"))):
            case "replace":
                container[key] = draw(JUNK)
            case "remove":
                del container[key]
            case _:
                other, place = draw(st.sampled_from(here))
                container[key] = copy.deepcopy(other[place])
    return body


def attempt(engine: ScriptedEngine, body: Body, *, counts: bool) -> int | RequestError:
    """Prompt tokens, or the refusal; anything else that is raised is a bug."""
    context = RequestContext(Family.ANTHROPIC, "req_1", None, 0.0, lambda: False)
    headers = MessageHeaders()
    try:
        if counts:
            number: int = count_tokens(body, engine, context, SETTINGS, headers)["input_tokens"]
            return number
        job = translate_messages(body, engine, context, SETTINGS, headers, str)
        return len(job.prepared.prompt.token_ids)
    except RequestError as error:
        return error


def check(engine: ScriptedEngine, body: Body) -> None:
    counted = attempt(engine, copy.deepcopy(body), counts=True)
    used = attempt(engine, body, counts=False)

    # Generating checks more than counting does; where both answer, they agree.
    assert isinstance(used, RequestError) or used == counted
    for outcome in (counted, used):
        assert isinstance(outcome, int) or (outcome.code in CODES and outcome.field)


@settings(max_examples=150, deadline=None)
@given(damaged())
def test_a_damaged_body_is_answered_or_refused(engine: ScriptedEngine, body: Body) -> None:
    check(engine, body)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(damaged())
def test_many_damaged_bodies_are_answered_or_refused(engine: ScriptedEngine, body: Body) -> None:
    check(engine, body)
