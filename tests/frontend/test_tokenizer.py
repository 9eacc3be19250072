"""The tokenizer against golden ids and against the library's own handling of added tokens."""

import json
import threading
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as LibraryTokenizer

from ninfer.errors import CheckpointError, RequestError
from ninfer.frontend.tokenizer import Tokenizer
from tests.support.frontends import CASES, cases, frontend, resources
from tests.support.quick_examples import QUICK

TOKENIZER = frontend().tokenizer
SPELLINGS = [token.text for token in TOKENIZER.added.values()]
TEXTS = st.lists(
    st.sampled_from([*SPELLINGS, "<|im_", "start|>", "<", "think>", "\n", " ", "é", "a b", "12"])
    | st.text(max_size=6),
    max_size=10,
).map("".join)


def library_tokenizer() -> LibraryTokenizer:
    """The library with every added token registered, as the published code does it."""
    files = resources()
    tokenizer = LibraryTokenizer.from_str(files["frontend/tokenizer.json"].decode())
    listed = json.loads(files["frontend/tokenizer_config.json"])["added_tokens_decoder"]
    tokens = [
        AddedToken(entry["content"], normalized=False, special=entry["special"])
        for _, entry in sorted(listed.items(), key=lambda item: int(item[0]))
    ]
    tokenizer.add_tokens(tokens)
    return tokenizer


LIBRARY = library_tokenizer()


def edited(file: str, **changes: Any) -> Tokenizer:
    """Tokenizer of the golden files with members of one of them replaced."""
    files = {name.removeprefix("frontend/"): data for name, data in resources().items()}
    files[file] = json.dumps({**json.loads(files[file]), **changes}).encode()
    return Tokenizer(files["tokenizer.json"], files["tokenizer_config.json"])


@pytest.mark.parametrize("case", CASES)
def test_golden_texts_have_exactly_the_golden_ids(case: str) -> None:
    tokenizer = frontend(case).tokenizer
    golden = cases(case, "tokenizer_cases.json")

    encoded = [tokenizer.encode(entry["text"], parse_special=True) for entry in golden]

    assert encoded == [entry["ids"] for entry in golden]


@QUICK
@given(TEXTS)
def test_parsing_spellings_equals_the_library(text: str) -> None:
    expected = LIBRARY.encode(text, add_special_tokens=False).ids

    assert TOKENIZER.encode(text, parse_special=True) == expected


@QUICK
@given(TEXTS)
def test_ordinary_text_never_becomes_an_added_token(text: str) -> None:
    ids = TOKENIZER.encode(text, parse_special=False)

    assert not set(ids) & set(TOKENIZER.added)


@QUICK
@given(TEXTS, st.booleans())
def test_pieces_join_to_the_normalized_text(text: str, parse_special: bool) -> None:
    ids = TOKENIZER.encode(text, parse_special=parse_special)

    joined = unicodedata.normalize("NFC", TOKENIZER.decode(ids).decode())

    assert joined == unicodedata.normalize("NFC", text)


def test_added_tokens_are_the_union_of_both_files() -> None:
    assert TOKENIZER.find_added("<think>") == 503
    assert TOKENIZER.find_added("<|audio_pad|>") == 511  # in tokenizer_config.json only
    assert TOKENIZER.addressable == 512


def test_control_tokens_are_hidden_and_markup_is_not() -> None:
    hidden = [
        text
        for text in SPELLINGS
        if TOKENIZER.is_hidden(TOKENIZER.encode(text, parse_special=True)[0])
    ]

    assert "<|im_end|>" in hidden
    assert "<tool_call>" not in hidden
    assert not TOKENIZER.is_hidden(0)


@pytest.mark.parametrize("token_id", [True, 1.0, "1", None, [1]])
def test_ids_that_are_no_integers_are_refused(token_id: object) -> None:
    with pytest.raises(RequestError) as caught:
        TOKENIZER.check_id(token_id, "tokens[0]")

    assert (caught.value.code, caught.value.field) == ("invalid_type", "tokens[0]")
    assert str(caught.value) == f"tokens[0] must be an integer, not {token_id!r}"


@pytest.mark.parametrize("token_id", [-1, 512, 10**100])
def test_ids_outside_the_vocabulary_are_refused(token_id: object) -> None:
    with pytest.raises(RequestError) as caught:
        TOKENIZER.check_id(token_id, "tokens[0]")

    assert caught.value.code == "invalid_token_id"
    assert caught.value.field == "tokens[0]"


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    text = "a b " * 50_000
    thread = threading.Thread(
        target=TOKENIZER.encode, args=(text,), kwargs={"parse_special": False}
    )
    num_turns = 0

    thread.start()
    while thread.is_alive():
        time.sleep(0)
        num_turns += 1

    assert num_turns > 100  # A handful when encoding keeps the interpreter to itself.


def test_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(RequestError, match="character 2") as caught:
        TOKENIZER.encode("ab\ud83d", parse_special=False)

    assert caught.value.code == "invalid_unicode"


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("tokenizer.json", {"model": {"type": "WordLevel"}}, "no BPE model"),
        ("tokenizer.json", {"added_tokens": [{"id": 700, "content": "<x>"}]}, "gapless"),
        ("tokenizer.json", {"added_tokens": [{"id": 503, "content": "<x>"}]}, "elsewhere"),
        ("tokenizer.json", {"added_tokens": [{"id": 512, "content": "<think>"}]}, "one spelling"),
        (
            "tokenizer.json",
            {"added_tokens": [{"id": 512, "content": "<x>", "lstrip": True}]},
            "lstrip",
        ),
        ("tokenizer.json", {"added_tokens": [{"id": 512}]}, "no content"),
    ],
)
def test_damaged_files_are_refused(file: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        edited(file, **changes)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe"])
def test_files_that_are_no_json_object_are_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(data, b"{}")
