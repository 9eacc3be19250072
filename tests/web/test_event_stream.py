"""The stream parser of the page, run in the browser."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.browser import Page

pytestmark = pytest.mark.browser

PARSE = """const {EventStreamParser} = await import("/web/event_stream.js");
const parse = (pieces) => {
  const parser = new EventStreamParser();
  return pieces.flatMap((piece) => parser.push(Uint8Array.from(piece)));
};
"""
CASES: dict[str, tuple[bytes, list[Any]]] = {
    "one event": (b"data: a\n\n", [("message", "a")]),
    "a comment between events": (b"data: a\n\n: keep-alive\n\ndata: b\n\n", ["a", "b"]),
    "no space after the colon": (b"data:a\n\n", ["a"]),
    "only one space is taken": (b"data:  a\n\n", [" a"]),
    "several data lines": (b"data: a\ndata\ndata: b\n\n", ["a\n\nb"]),
    "a named event": (b"event: error\ndata: {}\n\ndata: x\n\n", [("error", "{}"), "x"]),
    "carriage returns": (b"data: a\rdata: b\r\rdata: c\r\n\r\n", ["a\nb", "c"]),
    "unknown fields": (b"id: 4\nretry: 10\nwhat\ndata: a\n\n", ["a"]),
    "an event without data": (b"event: ping\n\ndata: a\n\n", ["a"]),
    "an event without its blank line": (b"data: a\n\ndata: b\n", ["a"]),
    "a byte-order mark": (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
    "wide characters": ("data: \u00e4\u4f60\U0001f600\n\n".encode(), ["\u00e4\u4f60\U0001f600"]),
    "bytes that are no characters": (b"data: \xff\n\n", ["\ufffd"]),
}


def expected_events(events: list[Any]) -> list[dict[str, str]]:
    pairs = [("message", event) if isinstance(event, str) else event for event in events]
    return [{"name": name, "data": data} for name, data in pairs]


@pytest.mark.parametrize("case", CASES)
def test_every_cut_of_the_bytes_gives_the_same_events(modules: Page, case: str) -> None:
    data, events = CASES[case]

    results = modules.run(
        PARSE + "const [bytes] = args;"
        "const cuts = bytes.map((_, at) => parse([bytes.slice(0, at), bytes.slice(at)]));"
        "const all = [...cuts, parse([bytes]), parse(bytes.map((byte) => [byte]))];"
        "return [...new Set(all.map((events) => JSON.stringify(events)))]",
        list(data),
    )

    assert [json.loads(result) for result in results] == [expected_events(events)]


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=6),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=8),
)
def test_events_with_any_text_come_back_whole(
    modules: Page, texts: list[str], sizes: list[int]
) -> None:
    wanted = [json.dumps(text, ensure_ascii=False) for text in texts]
    stream = b"".join(f": beat\n\ndata: {text}\n\n".encode() for text in wanted)
    pieces: list[list[int]] = []
    rest = stream
    while rest:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(list(rest[:size]))
        rest = rest[size:]

    events = modules.run(PARSE + "return parse(args[0])", pieces)

    assert [event["data"] for event in events] == wanted
