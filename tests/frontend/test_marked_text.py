"""Provenance of characters through every operation a template may use.

Letters carry their expected mark in their case: upper case is marked, lower case is not. Other
characters (separators, white space) may be marked or not, and the operations use only those, so the
expected marks of a result can be read off its letters.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.frontend.marked_text import MarkedText, join_marked, plain_text, replace_marked
from tests.support.quick_examples import QUICK

PIECES = st.lists(
    st.text("ABC ,\n", max_size=4).map(MarkedText) | st.text("abc ,\n", max_size=4), max_size=6
)
SEPARATORS = st.sampled_from([",", " ", "\n", ", ", MarkedText(","), MarkedText("\n")])


def marked(pieces: list[str]) -> MarkedText:
    """A text of marked and plain pieces."""
    text = join_marked(pieces)
    return text if isinstance(text, MarkedText) else MarkedText(text, ())


def has_right_marks(text: str) -> bool:
    """Whether exactly the upper-case letters are marked."""
    spans = text.spans if isinstance(text, MarkedText) else ()
    at = {index for first, last in spans for index in range(first, last)}
    letters = [index for index, char in enumerate(plain_text(text)) if char.isalpha()]
    return all((index in at) is plain_text(text)[index].isupper() for index in letters)


@QUICK
@given(PIECES, PIECES)
def test_adding_keeps_marks(first: list[str], second: list[str]) -> None:
    left, right = marked(first), marked(second)

    for text in (left + right, left + plain_text(right).lower(), plain_text(left).lower() + right):
        assert has_right_marks(text)
    assert plain_text(left + right) == plain_text(left) + plain_text(right)


@QUICK
@given(PIECES, st.integers(-12, 12) | st.none(), st.integers(-12, 12) | st.none())
def test_slices_keep_marks(pieces: list[str], start: int | None, stop: int | None) -> None:
    text = marked(pieces)

    cut = text[start:stop]

    assert plain_text(cut) == plain_text(text)[start:stop]
    assert has_right_marks(cut)


@QUICK
@given(PIECES)
def test_single_characters_and_iteration_keep_marks(pieces: list[str]) -> None:
    text = marked(pieces)

    characters = list(text)

    assert characters == [text[index] for index in range(len(text))]
    assert "".join(map(plain_text, characters)) == plain_text(text)
    assert all(map(has_right_marks, characters))


@QUICK
@given(PIECES, st.sampled_from([None, "\n", " ,\n", ""]))
def test_stripping_keeps_marks(pieces: list[str], chars: str | None) -> None:
    text = marked(pieces)
    plain = plain_text(text)

    stripped = [text.strip(chars), text.lstrip(chars), text.rstrip(chars)]

    assert stripped == [plain.strip(chars), plain.lstrip(chars), plain.rstrip(chars)]
    assert all(map(has_right_marks, stripped))


@QUICK
@given(PIECES, SEPARATORS | st.none(), st.integers(-1, 3))
def test_splitting_keeps_marks(pieces: list[str], separator: str | None, maximum: int) -> None:
    text = marked(pieces)
    plain = plain_text(text)

    left, right = text.split(separator, maximum), text.rsplit(separator, maximum)

    assert left == plain.split(separator, maximum)
    assert right == plain.rsplit(separator, maximum)
    assert all(map(has_right_marks, [*left, *right]))


@QUICK
@given(PIECES, SEPARATORS)
def test_partitions_and_lines_keep_marks(pieces: list[str], separator: str) -> None:
    text = marked(pieces)
    plain = plain_text(text)

    parts = [*text.partition(separator), *text.rpartition(separator), *text.splitlines()]
    parts += text.splitlines(keepends=True)

    expected = [*plain.partition(separator), *plain.rpartition(separator), *plain.splitlines()]
    assert parts == [*expected, *plain.splitlines(keepends=True)]
    assert all(map(has_right_marks, parts))


@QUICK
@given(PIECES, SEPARATORS, PIECES, st.integers(-1, 2))
def test_replacing_keeps_marks_of_both(
    pieces: list[str], old: str, new: list[str], count: int
) -> None:
    text, inserted = marked(pieces), marked(new)

    replaced = text.replace(old, inserted, count)

    assert plain_text(replaced) == plain_text(text).replace(old, plain_text(inserted), count)
    assert has_right_marks(replaced)
    assert replace_marked(text, old, inserted, count) == replaced


@QUICK
@given(PIECES, PIECES)
def test_joining_keeps_marks(pieces: list[str], separator: list[str]) -> None:
    glue = marked(separator)

    joined = glue.join(pieces)

    assert plain_text(joined) == plain_text(glue).join(map(plain_text, pieces))
    assert has_right_marks(joined)


@QUICK
@given(PIECES, st.integers(-1, 3))
def test_repeating_and_trimming_ends_keep_marks(pieces: list[str], count: int) -> None:
    text = marked(pieces)

    results = [text * count, count * text, text.removeprefix(","), text.removesuffix("\n")]

    plain = plain_text(text)
    assert results == [
        plain * count,
        plain * count,
        plain.removeprefix(","),
        plain.removesuffix("\n"),
    ]
    assert all(map(has_right_marks, results))


def test_neighbouring_marks_become_one() -> None:
    text = MarkedText("<") + MarkedText("think>")

    assert isinstance(text, MarkedText)
    assert text.is_marked(0, 7)


def test_a_mixed_spelling_is_not_marked() -> None:
    text = MarkedText("<") + "think" + MarkedText(">")

    assert isinstance(text, MarkedText)
    assert not text.is_marked(0, 7)


@pytest.mark.parametrize("lost", [MarkedText("ab").upper(), MarkedText("ab")[::-1]])
def test_operations_that_lose_marks_lose_them_completely(lost: str) -> None:
    assert not isinstance(lost, MarkedText)
