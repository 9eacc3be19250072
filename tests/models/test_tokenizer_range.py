"""Range of addressable ids from the tokenizer's two files."""

import json

import pytest

from ninfer.errors import CheckpointError
from ninfer.models.qwen_hybrid.tokenizer_range import AddedToken, added_tokens, addressable_tokens
from tests.support.golden import GOLDEN


def _tokenizer(vocab: object, added: object = None) -> bytes:
    root = {"model": {"vocab": vocab}} | ({} if added is None else {"added_tokens": added})
    return json.dumps(root).encode()


def test_golden_tokenizer_addresses_more_than_its_own_file_lists() -> None:
    folder = GOLDEN / "tiny-dense" / "checkpoint"
    tokenizer = (folder / "tokenizer.json").read_bytes()

    assert addressable_tokens(tokenizer, b"{}") == 505
    assert addressable_tokens(tokenizer, (folder / "tokenizer_config.json").read_bytes()) == 512


def test_added_tokens_of_the_tokenizer_count() -> None:
    assert addressable_tokens(_tokenizer({"a": 0}, [{"id": 7}]), b"{}") == 8


def test_special_marks_are_read() -> None:
    config = (
        b'{"added_tokens_decoder": {"5": {"content": "<a>", "special": true},'
        b' "6": {"content": "b", "special": false}, "7": {}}}'
    )

    assert added_tokens(config) == {
        5: AddedToken("<a>", True),
        6: AddedToken("b", False),
        7: AddedToken("", False),
    }


@pytest.mark.parametrize(
    "tokenizer",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"{}",
        _tokenizer({}),
        _tokenizer({"a": "0"}),
        _tokenizer({"a": True}),
        _tokenizer({"a": 1 << 31}),
        _tokenizer({"a": 0}, [{}]),
        _tokenizer({"a": 0}, ["x"]),
    ],
)
def test_unusable_tokenizer_is_refused(tokenizer: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        addressable_tokens(tokenizer, b"{}")


@pytest.mark.parametrize(
    "config",
    [
        b'{"added_tokens_decoder": []}',
        b'{"added_tokens_decoder": {"-1": {}}}',
        b'{"added_tokens_decoder": {"1": 2}}',
        b'{"added_tokens_decoder": {"' + b"9" * 5000 + b'": {}}}',
        b'{"added_tokens_decoder": {"\xc2\xb2": {}}}',
    ],
)
def test_unusable_tokenizer_config_is_refused(config: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        addressable_tokens(_tokenizer({"a": 0}), config)
