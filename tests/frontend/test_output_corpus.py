"""Every rule of channels, stops and calls, for every way the text can arrive.

The same text comes as the tokenizer's own tokens, as single bytes, split at every place, and
grouped as speculation groups it; deltas, their fold and the summary must always mean the same.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.frontend.tokenizer import Tokenizer
from ninfer.generation import ToolCallArguments, ToolCallStart
from tests.support.call_corpus import CALLS_IN_THINKING, CALLS_OF_RULES, TOOLS
from tests.support.frontends import Folded, fold, frontend, open_session, run_groups
from tests.support.output_corpus import PLAIN, STOPS, THINKING, Output
from tests.support.quick_examples import QUICK

CORPUS = (*PLAIN, *STOPS, *THINKING, *CALLS_OF_RULES, *CALLS_IN_THINKING)
CASES = [pytest.param(case, id=f"{index}-{case.name}") for index, case in enumerate(CORPUS)]
TOKENIZER = frontend().tokenizer


def byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Byte -> id of the token that is this byte alone."""
    singles = ((tokenizer.piece(token), token) for token in range(tokenizer.addressable))
    return {piece[0]: token for piece, token in singles if len(piece) == 1}


BYTES = byte_ids(TOKENIZER)


def units(text: str) -> list[str]:
    """Characters, but added tokens whole."""
    found: list[str] = []
    done = 0
    for start, end, _ in TOKENIZER.added_spans(text, 0, len(text)):
        found += [*text[done:start], text[start:end]]
        done = end
    return [*found, *text[done:]]


def finest(text: str) -> list[int]:
    """Tokens of one byte each, added tokens whole."""
    ids: list[int] = []
    for unit in units(text):
        added = TOKENIZER.find_added(unit)
        ids += [BYTES[byte] for byte in unit.encode()] if added is None else [added]
    return ids


def spelled(text: str) -> list[int]:
    """Tokens of one byte each, call markup spelled out by ordinary ones."""
    ids: list[int] = []
    for unit in units(text):
        added = None if "tool_call" in unit else TOKENIZER.find_added(unit)
        ids += [BYTES[byte] for byte in unit.encode()] if added is None else [added]
    return ids


def run(case: Output, groups: list[list[int]]) -> Folded:
    """Drive a fresh session of a case."""
    session = open_session(tools=TOOLS if case.has_tools else (), start=case.start, **case.options)
    return run_groups(session, groups, is_budget=case.is_budget)


def check(case: Output, folded: Folded) -> None:
    """Compare with what the case means."""
    content, reasoning, calls = fold(folded.deltas)
    assert content == case.content
    assert reasoning == case.reasoning
    assert tuple((call.name, call.arguments) for call in calls) == case.calls
    assert folded.finish is case.finish
    summary = folded.summary
    assert (summary.content, summary.reasoning, summary.tool_calls) == (content, reasoning, calls)


@pytest.mark.parametrize("case", CASES)
def test_tokens_one_by_one(case: Output) -> None:
    ids = TOKENIZER.encode(case.text, parse_special=True)

    check(case, run(case, [[token] for token in ids]))


@pytest.mark.parametrize("case", CASES)
def test_everything_in_one_round(case: Output) -> None:
    check(case, run(case, [TOKENIZER.encode(case.text, parse_special=True)]))


@pytest.mark.parametrize("case", CASES)
def test_single_bytes(case: Output) -> None:
    check(case, run(case, [[token] for token in finest(case.text)]))


@pytest.mark.parametrize("case", CASES)
def test_call_markup_spelled_by_ordinary_tokens(case: Output) -> None:
    check(case, run(case, [[token] for token in spelled(case.text)]))


@pytest.mark.parametrize("case", CASES)
def test_every_split_into_two_rounds(case: Output) -> None:
    ids = finest(case.text)

    for cut in range(len(ids) + 1):
        check(case, run(case, [ids[:cut], ids[cut:]]))


@pytest.mark.parametrize("case", CASES)
@settings(QUICK, max_examples=6)
@given(data=st.data())
def test_any_tokens_in_any_rounds(case: Output, data: st.DataObject) -> None:
    parts = units(case.text)
    cuts = data.draw(st.sets(st.integers(0, len(parts)), max_size=8))
    places = [0, *sorted(cuts), len(parts)]
    texts = ["".join(parts[a:b]) for a, b in itertools.pairwise(places)]
    ids = [token for text in texts for token in TOKENIZER.encode(text, parse_special=True)]
    breaks = data.draw(st.sets(st.integers(0, len(ids)), max_size=8))
    edges = [0, *sorted(breaks), len(ids)]

    check(case, run(case, [ids[a:b] for a, b in itertools.pairwise(edges)]))


@pytest.mark.parametrize("case", CASES)
def test_calls_start_once_and_in_order_before_their_arguments(case: Output) -> None:
    folded = run(case, [[token] for token in finest(case.text)])

    events = [d for d in folded.deltas if isinstance(d, ToolCallStart | ToolCallArguments)]
    started = [event.index for event in events if isinstance(event, ToolCallStart)]
    assert started == list(range(len(case.calls)))
    assert [event.index for event in events] == sorted(event.index for event in events)
    assert len({event.call_id for event in events if isinstance(event, ToolCallStart)}) == len(
        started
    )


@pytest.mark.parametrize("case", CASES)
def test_no_delta_is_empty_or_splits_an_escape(case: Output) -> None:
    folded = run(case, [[token] for token in finest(case.text)])

    pieces = [
        delta.fragment if isinstance(delta, ToolCallArguments) else getattr(delta, "text", "name")
        for delta in folded.deltas
    ]
    assert all(pieces)
    assert all((len(piece) - len(piece.rstrip("\\"))) % 2 == 0 for piece in pieces)
