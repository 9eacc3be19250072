"""How many token ids the tokenizer addresses, read from its two files.

The vocabulary matrices have more rows than the tokenizer has ids; rows past this range must never
be chosen. The last added tokens are listed in ``tokenizer_config.json`` only.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ninfer.errors import CheckpointError

_ID_LIMIT: Final = 1 << 31
_MAX_ID_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One token outside the byte-pair vocabulary."""

    content: str
    is_special: bool


def parse_object(name: str, content: bytes) -> dict[str, object]:
    """Parse a JSON resource whose root is an object.

    Raises:
        CheckpointError: not UTF-8, not JSON, or another root.
    """
    try:
        value = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not valid JSON: {error}", field=name) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is not a JSON object", field=name)
    return value


def addressable_tokens(tokenizer: bytes, tokenizer_config: bytes) -> int:
    """Largest token id of both files plus one.

    Args:
        tokenizer: bytes of ``tokenizer.json``.
        tokenizer_config: bytes of ``tokenizer_config.json``.

    Raises:
        CheckpointError: a file does not parse, or lists no usable ids.
    """
    root = parse_object("tokenizer.json", tokenizer)
    model = root.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if not isinstance(vocabulary, Mapping) or not vocabulary:
        raise CheckpointError("tokenizer.json has no model.vocab object", field="tokenizer.json")
    ids = _checked_ids("tokenizer.json", vocabulary.values())
    added = root.get("added_tokens")
    if isinstance(added, list):
        entries = [entry.get("id") if isinstance(entry, Mapping) else None for entry in added]
        ids |= _checked_ids("tokenizer.json", entries)
    ids |= set(added_tokens(tokenizer_config))
    return max(ids) + 1


def added_tokens(tokenizer_config: bytes) -> dict[int, AddedToken]:
    """Entries of ``added_tokens_decoder`` by id.

    Raises:
        CheckpointError: the file does not parse, or an entry is malformed.
    """
    name = "tokenizer_config.json"
    decoder = parse_object(name, tokenizer_config).get("added_tokens_decoder", {})
    if not isinstance(decoder, Mapping):
        raise CheckpointError(f"{name}: added_tokens_decoder is not an object", field=name)
    tokens: dict[int, AddedToken] = {}
    for key, entry in decoder.items():
        # Digits beyond any id are refused unread: converting very long ones fails.
        is_id = key.isascii() and key.isdigit() and len(key) <= _MAX_ID_DIGITS
        if not is_id or not isinstance(entry, Mapping):
            raise CheckpointError(f"{name}: added token {key!r} is malformed", field=name)
        content = entry.get("content")
        tokens[int(key)] = AddedToken(
            content if isinstance(content, str) else "", entry.get("special") is True
        )
    _checked_ids(name, tokens)
    return tokens


def _checked_ids(name: str, values: Iterable[object]) -> set[int]:
    ids: set[int] = set()
    for value in values:
        if type(value) is not int or not 0 <= value < _ID_LIMIT:
            raise CheckpointError(f"{name}: {value!r} is not a token id", field=name)
        ids.add(value)
    return ids
