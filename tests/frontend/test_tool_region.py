"""One region: hostile values survive, and every phase gives out only what is certain."""

import itertools
import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ninfer.errors import IllegalMove
from ninfer.frontend.tool_arguments import ToolSignature
from ninfer.frontend.tool_region import (
    RegionArguments,
    RegionEvent,
    RegionPhase,
    RegionStart,
    RegionText,
    ToolRegion,
)
from tests.support.quick_examples import QUICK

TEXT = {"type": "string"}
TOOLS = {"f": ToolSignature.of("f", {"properties": {"a": TEXT, "b": TEXT, "n": {"type": "array"}}})}
PARTS = [
    *[
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "<parameter=z>",
    ],
    *["</parameter>", "\n", " ", "x", '"', "\\", "<", "</", "é", "{", "&lt;"],
]
VALUES = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)
# What ends a value by the rules, read off the contract independently of the parser.
ENDINGS = re.compile(
    r"</parameter>\s*<parameter=|</function>\s*</tool_call>|(?:^|\n)<parameter=[abn]>"
)


def read(text: str, *cuts: int) -> tuple[ToolRegion, list[RegionEvent]]:
    """Feed a region in pieces."""
    region, events = ToolRegion(TOOLS), []
    edges = [0, *sorted(cuts), len(text)]
    for start, end in itertools.pairwise(edges):
        events += region.feed(text[start:end])
    return region, events


def arguments(events: list[RegionEvent]) -> str:
    """Joined fragments."""
    return "".join(event.fragment for event in events if isinstance(event, RegionArguments))


@settings(QUICK, max_examples=200)
@given(VALUES, VALUES, st.sets(st.integers(0, 150), max_size=5))
def test_any_value_without_an_ending_survives_any_split(
    first: str, second: str, cuts: set[int]
) -> None:
    assume(not ENDINGS.search(first) and not ENDINGS.search(second))
    text = (
        f"\n<function=f>\n<parameter=a>\n{first}\n</parameter>\n"
        f"<parameter=b>\n{second}\n</parameter>\n</function>\n</tool_call>rest"
    )

    region, events = read(text, *(cut for cut in cuts if cut < len(text)))

    assert region.phase is RegionPhase.COMPLETE
    assert region.rest == "rest"
    assert json.loads(arguments(events)) == {"a": first, "b": second}
    assert not region.is_repaired


@settings(QUICK, max_examples=200)
@given(VALUES, st.integers(0, 60))
def test_an_undeclared_region_gives_back_exactly_its_text(value: str, cut: int) -> None:
    body = f"\n<function=g>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"

    region, events = read(body, min(cut, len(body)))

    said = "".join(event.text for event in events if isinstance(event, RegionText))
    assert said + region.unsaid == "<tool_call>" + body
    assert len([event for event in events if not isinstance(event, RegionText)]) == 0


@QUICK
@given(st.lists(st.sampled_from([*PARTS, "<function=g>"]), max_size=12).map("".join))
def test_nothing_is_lost_before_a_call_is_certain(text: str) -> None:
    region, events = read(text)

    said = "".join(event.text for event in events if isinstance(event, RegionText))
    opener = "" if region.is_undeclared else "<tool_call>"
    rest = opener + region.rest if region.phase is RegionPhase.BROKEN else region.unsaid
    assert region.is_started or said + rest == "<tool_call>" + text


@pytest.mark.parametrize(
    ("text", "is_started"),
    [
        ("\n<function=f>", False),
        ("\n<function=f>\n", False),
        ("\n<function=f>\n<parameter", False),
        ("\n<function=f>\n<parameter=", True),
        ("\n<function=f>\n</function>", False),
        ("\n<function=f>\n</function>\n</tool_call>", True),
    ],
)
def test_a_call_starts_with_its_first_parameter_or_its_end(text: str, is_started: bool) -> None:
    region, events = read(text)

    assert region.is_started is is_started
    assert (RegionStart("f") in events) is is_started


def test_a_closed_region_takes_no_more() -> None:
    region, _ = read("<function=f></function></tool_call>")

    assert region.feed("more") == []
    assert region.rest == "more"


def test_an_illegal_move_raises_and_changes_nothing() -> None:
    region = ToolRegion(TOOLS)

    with pytest.raises(IllegalMove):
        region._move(RegionPhase.VALUE)

    assert region.phase is RegionPhase.HEAD


def test_a_copy_is_independent() -> None:
    region, _ = read("<function=f><parameter=a>x")

    twin = region.copy()
    twin.feed("y</parameter></function></tool_call>")

    assert region.phase is RegionPhase.VALUE
    assert twin.phase is RegionPhase.COMPLETE
