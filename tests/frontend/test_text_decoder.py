"""Incremental UTF-8."""

from hypothesis import given
from hypothesis import strategies as st

from ninfer.frontend.text_decoder import decode_bytes
from tests.support.quick_examples import QUICK


def decoded(chunks: list[bytes]) -> str:
    """Text of a whole stream."""
    text, held = "", b""
    for chunk in chunks:
        more, held = decode_bytes(held, chunk)
        text += more
    return text + decode_bytes(held, b"", is_end=True)[0]


@QUICK
@given(st.lists(st.binary(max_size=5), max_size=12))
def test_any_split_of_any_bytes_gives_the_text_of_the_whole(chunks: list[bytes]) -> None:
    assert decoded(chunks) == b"".join(chunks).decode("utf-8", "replace")


@QUICK
@given(st.text(), st.data())
def test_valid_text_never_shows_a_replacement_on_the_way(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cut = data.draw(st.integers(0, len(raw)))

    first, held = decode_bytes(b"", raw[:cut])
    second, rest = decode_bytes(held, raw[cut:])

    assert first + second == text
    assert rest == b""
    assert text.startswith(first)


def test_at_most_three_bytes_are_held() -> None:
    text, held = decode_bytes(b"", b"ok\xf0\x9f\xa6")

    assert (text, held) == ("ok", b"\xf0\x9f\xa6")


def test_bytes_that_cannot_become_valid_are_replaced_at_once() -> None:
    text, held = decode_bytes(b"", b"\xed\xa0")

    assert set(text) == {"�"}
    assert held == b""
