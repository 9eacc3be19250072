"""Controls, frontiers and digests of prompts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import RequestError
from ninfer.frontend.marked_text import MarkedText, join_marked
from ninfer.frontend.prompt_identity import common_prefix, encode_marked, prompt_of
from ninfer.generation import TokenType
from tests.support.frontends import frontend
from tests.support.quick_examples import QUICK

TOKENIZER = frontend().tokenizer
SPELLINGS = ["<|im_start|>", "<|im_end|>", "<think>", "<", "think>", "a", " \n", "é"]
PIECES = st.lists(
    st.sampled_from(SPELLINGS) | st.sampled_from(SPELLINGS).map(MarkedText), max_size=10
)


@QUICK
@given(PIECES)
def test_controls_are_the_marked_spellings_and_stand_at_their_frontiers(pieces: list[str]) -> None:
    text = join_marked(["u", *pieces])
    marked = text if isinstance(text, MarkedText) else MarkedText(text, ())

    encoded = encode_marked(TOKENIZER, marked)

    for control in encoded.controls:
        assert encoded.token_ids[control.frontier] == control.token_id
        assert marked.is_marked(control.start, control.end)
        before = TOKENIZER.decode(encoded.token_ids[: control.frontier]).decode()
        assert before == encoded.text[: control.start]
    added = [token for token in encoded.token_ids if token in TOKENIZER.added]
    assert added == [control.token_id for control in encoded.controls]


@QUICK
@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_common_prefix_is_the_longest(first: str, second: str) -> None:
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))

    assert common_prefix(first, second) == len(list(shared))


def test_a_prompt_owns_its_ids_types_and_digest() -> None:
    prompt = prompt_of([1, 2, 3], "raw")

    assert prompt.token_ids == (1, 2, 3)
    assert prompt.token_types == bytes([TokenType.TEXT] * 3)
    assert prompt.rope is None
    assert prompt.identity == prompt_of([1, 2, 3], "raw").identity
    assert len({prompt.identity, prompt_of([1, 2], "raw").identity}) == 2


def test_a_prompt_has_at_least_one_token() -> None:
    with pytest.raises(RequestError, match="at least one token"):
        prompt_of([], "raw")
