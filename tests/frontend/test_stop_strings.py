"""Stop strings against a brute-force search."""

from hypothesis import given
from hypothesis import strategies as st

from ninfer.frontend.stop_strings import StopMatcher
from tests.support.quick_examples import QUICK

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple)
CHUNKS = st.lists(st.text("abc", max_size=4), max_size=8)


def earliest(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Start and stop of the match that ends first, the longest of several."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return end - len(stop), stop
    return None


@QUICK
@given(STOPS, CHUNKS)
def test_streaming_finds_what_brute_force_finds(stops: tuple[str, ...], chunks: list[str]) -> None:
    matcher, released, matched = StopMatcher(stops), "", None
    for chunk in chunks:
        scan = matcher.feed(chunk)
        matcher, released, matched = scan.next, released + scan.released, scan.matched
        if matched is not None:
            break

    expected = earliest("".join(chunks), stops)
    whole = "".join(chunks) if expected is None else "".join(chunks)[: expected[0]]
    assert matched == (None if expected is None else expected[1])
    assert released + matcher.flush()[0] == whole


@QUICK
@given(STOPS, CHUNKS)
def test_exactly_the_longest_proper_prefix_is_held(
    stops: tuple[str, ...], chunks: list[str]
) -> None:
    matcher = StopMatcher(stops)
    text = ""
    for chunk in chunks:
        if earliest(text + chunk, stops):
            break
        matcher, text = matcher.feed(chunk).next, text + chunk

    prefixes = {stop[:size] for stop in stops for size in range(len(stop))}
    assert matcher.held == max((p for p in prefixes if text.endswith(p)), key=len)


def test_without_stop_strings_nothing_is_held() -> None:
    scan = StopMatcher(()).feed("abc")

    assert (scan.released, scan.matched, scan.next.held) == ("abc", None, "")


def test_feeding_does_not_change_the_matcher() -> None:
    matcher = StopMatcher(("ab",))

    matcher.feed("a")

    assert matcher.held == ""
