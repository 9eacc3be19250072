"""The bound against the tokenizer itself, and the claim about NFC against every code point."""

import json
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import ContextLengthExceeded
from ninfer.frontend.token_bound import NFC_SHRINK, TokenBound, check_length
from tests.support.frontends import CASES, frontend, resources
from tests.support.quick_examples import QUICK

TOKENIZER = frontend().tokenizer
PIECES = [bytes([value]) for value in range(256)] + [b"abcdefgh"]
BYTE_LEVEL = {"type": "ByteLevel"}
# What NFC shortens most: singletons that lose bytes, and marks and jamo that compose.
SHRINKING = ["\u1fbe\u0308\u0301", "\u1100\u1161\u11a8", "\u212a\u030c", "\u1fef", "\u2126\u0345"]
TEXTS = st.lists(
    st.sampled_from([*SHRINKING, *(token.text for token in TOKENIZER.added.values())])
    | st.text(max_size=4),
    max_size=8,
).flatmap(lambda parts: st.integers(1, 40).map(lambda count: "".join(parts) * count))


def test_every_golden_tokenizer_has_a_bound() -> None:
    bounds = {case: frontend(case).tokenizer.least_tokens("x" * 4096) for case in CASES}

    assert all(16 <= bound <= 4096 for bound in bounds.values())


@pytest.mark.parametrize("parse_special", [True, False])
@given(text=TEXTS)
@QUICK
def test_no_text_has_fewer_tokens_than_the_bound(parse_special: bool, text: str) -> None:
    assert TOKENIZER.least_tokens(text) <= len(TOKENIZER.encode(text, parse_special=parse_special))


@pytest.mark.parametrize("text", SHRINKING)
def test_text_that_nfc_shortens_is_not_counted_too_high(text: str) -> None:
    longest = unicodedata.normalize("NFC", text).encode()
    bound = TokenBound.of(
        {"normalizer": {"type": "NFC"}, "pre_tokenizer": BYTE_LEVEL}, [*PIECES, longest * 9]
    )

    assert bound.least_tokens(text * 9) <= 1


def test_nfc_leaves_at_least_a_quarter_of_the_bytes() -> None:
    everything = map(chr, range(sys.maxunicode + 1))
    parts = {
        char: unicodedata.normalize("NFD", char)
        for char in everything
        if unicodedata.decomposition(char) or "\uac00" <= char <= "\ud7a3"
    }
    parts |= {part: part for decomposed in parts.values() for part in decomposed}
    # Bytes of the longest character that a part may have come from, its other parts aside.
    dearest: dict[str, float] = {}
    for char, decomposed in parts.items():
        share = len(char.encode()) / len(decomposed)
        for part in decomposed:
            dearest[part] = max(dearest.get(part, 0.0), share)

    worst = max(
        sum(dearest[part] for part in decomposed) / len(char.encode())
        for char, decomposed in parts.items()
    )

    assert 3 < worst <= NFC_SHRINK


def test_bound_counts_bytes_and_rounds_up() -> None:
    bound = TokenBound.of({"pre_tokenizer": BYTE_LEVEL}, PIECES)

    assert [bound.least_tokens(text) for text in ("", "a", "a" * 8, "a" * 9, "é" * 8)] == [
        0,
        1,
        1,
        2,
        2,
    ]


SPLIT = {"type": "Split", "behavior": "Isolated"}


@pytest.mark.parametrize(
    "model",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, SPLIT]}},
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [SPLIT | {"behavior": "Removed"}, BYTE_LEVEL],
            }
        },
        {"pre_tokenizer": BYTE_LEVEL, "normalizer": {"type": "Strip"}},
        {"pre_tokenizer": BYTE_LEVEL, "normalizer": {"type": "NFKC"}},
    ],
)
def test_tokenizer_that_may_drop_text_has_no_bound(model: Mapping[str, Any]) -> None:
    assert TokenBound.of(model, PIECES) == TokenBound(None)
    assert TokenBound(None).least_tokens("x" * 10**6) == 0


def test_vocabulary_without_every_byte_has_no_bound() -> None:
    assert TokenBound.of({"pre_tokenizer": BYTE_LEVEL}, PIECES[1:]) == TokenBound(None)


def test_published_pipeline_has_a_bound() -> None:
    model = json.loads(resources()["frontend/tokenizer.json"])

    assert TokenBound.of(model, PIECES) == TokenBound(8)


def test_length_at_the_limit_is_accepted() -> None:
    check_length(8, 8)
    check_length(10**9, None)


def test_bound_is_told_from_a_count() -> None:
    with pytest.raises(ContextLengthExceeded, match=r"^prompt is too long: 9 tokens > 8 maximum$"):
        check_length(9, 8)
    with pytest.raises(
        ContextLengthExceeded, match=r"^prompt is .* 8 maximum \(at least;"
    ) as bound:
        check_length(9, 8, is_bound=True)

    assert bound.value.field == "messages"
