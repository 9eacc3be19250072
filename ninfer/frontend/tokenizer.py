"""Byte-level BPE of the family: text to ids, ids to bytes.

Ordinary text goes through the BPE model alone. Added tokens (control tokens and markup) are found
by their exact spelling, and only where the caller says so: that is how text of a user that spells a
control token stays text. The table of added tokens is the union of ``tokenizer.json`` and
``tokenizer_config.json``. Knows no chat format. Source: the model contract, section 3.8; the
byte-level alphabet is that of GPT-2.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as BytePairModel

from ninfer.errors import CheckpointError, RequestError
from ninfer.frontend.marked_text import MarkedText
from ninfer.frontend.token_bound import TokenBound
from ninfer.generation import shown

_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_SWALLOWING_FLAGS = ("lstrip", "rstrip", "single_word")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token found by its spelling; ``is_special`` ones are never shown as text."""

    token_id: int
    text: str
    is_special: bool


class Tokenizer:
    """Immutable, and safe to share between threads."""

    def __init__(self, tokenizer_json: bytes, tokenizer_config: bytes) -> None:
        model = _json_object(tokenizer_json, "tokenizer.json")
        config = _json_object(tokenizer_config, "tokenizer_config.json")
        self.added = _union_of_added_tokens(model, config)
        self._ids = {token.text: token.token_id for token in self.added.values()}
        self._pattern = _spelling_pattern(self._ids)
        self._pieces = _pieces(_vocabulary(model), self.added)
        self._bound = TokenBound.of(model, self._pieces)
        self._model = _plain_model(model)
        self.eos_text = _token_text(config, "eos_token")
        self._named = {name: _token_text(config, name) for name in _NAMED_TOKENS}

    @property
    def addressable(self) -> int:
        """Number of ids: every id below it has a piece, no other id may leave the engine."""
        return len(self._pieces)

    @property
    def template_variables(self) -> dict[str, str]:
        """Named control tokens, as published chat templates expect them."""
        return {name: MarkedText(text) for name, text in self._named.items() if text is not None}

    def piece(self, token_id: int) -> bytes:
        """Bytes of one token; several tokens may share a character."""
        return self._pieces[token_id]

    def is_hidden(self, token_id: int) -> bool:
        """Whether the token is a control token that text never shows."""
        token = self.added.get(token_id)
        return token is not None and token.is_special

    def find_added(self, text: str) -> int | None:
        """Id of the added token of exactly this spelling, if there is one."""
        return self._ids.get(text)

    def added_spans(self, text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Find spellings of added tokens in ``text[start:end]``.

        Yields:
            Start, end and id of each one; leftmost first, the longest of several at one place.
        """
        if self._pattern is None:
            return
        for match in self._pattern.finditer(text, start, end):
            yield match.start(), match.end(), self._ids[match.group()]

    def least_tokens(self, text: str) -> int:
        """Number of tokens that a text has at least, told without encoding it."""
        return self._bound.least_tokens(text)

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Token ids of a text.

        Args:
            text: any text without lone surrogates.
            parse_special: whether spellings of added tokens become those tokens.

        Raises:
            RequestError: the text holds a lone surrogate.
        """
        spans = self.added_spans(text, 0, len(text)) if parse_special else ()
        return self.encode_spans(text, spans)

    def encode_spans(self, text: str, spans: Iterable[tuple[int, int, int]]) -> list[int]:
        """Token ids of a text in which exactly ``spans`` are added tokens.

        Args:
            text: any text without lone surrogates.
            spans: ascending, disjoint (start, end, id) as `added_spans` yields them.
        """
        check_unicode(text, "text")
        ids: list[int] = []
        done = 0
        for start, end, token_id in spans:
            ids += self._encode_plain(text[done:start])
            ids.append(token_id)
            done = end
        ids += self._encode_plain(text[done:])
        return ids

    def decode(self, token_ids: Sequence[int]) -> bytes:
        """Bytes of a sequence, control tokens spelled out.

        Raises:
            RequestError: an id is outside the vocabulary.
        """
        for index, token_id in enumerate(token_ids):
            self.check_id(token_id, f"tokens[{index}]")
        return b"".join(self._pieces[token_id] for token_id in token_ids)

    def check_id(self, token_id: object, field: str) -> None:
        """Refuse everything that is not an addressable id."""
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise RequestError(
                f"{field} must be an integer, not {shown(token_id)}",
                code="invalid_type",
                field=field,
            )
        if not 0 <= token_id < self.addressable:
            raise RequestError(
                f"{field} is {shown(token_id)}; allowed is 0..{self.addressable - 1}",
                code="invalid_token_id",
                field=field,
            )

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        # Only the form for many texts lets other threads run meanwhile.
        encoded = self._model.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded[0].ids
        return ids


def check_unicode(text: str, field: str) -> None:
    """Refuse a text that no UTF-8 can carry.

    Raises:
        RequestError: ``invalid_unicode``, with the place of the lone surrogate.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{field} has a lone surrogate at character {error.start}",
            code="invalid_unicode",
            field=field,
        ) from error


def byte_alphabet() -> dict[str, int]:
    """Character of the byte-level alphabet -> the byte it stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


def _json_object(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CheckpointError(f"{name} is not JSON: {error}", field=name) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{name} is not a JSON object", field=name)
    return value


def _union_of_added_tokens(
    model: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[int, AddedToken]:
    tokens: dict[int, AddedToken] = {}
    for entry in model.get("added_tokens") or []:
        _add(tokens, int(entry["id"]), entry, "tokenizer.json")
    for key, entry in (config.get("added_tokens_decoder") or {}).items():
        _add(tokens, int(key), entry, "tokenizer_config.json")
    if len({token.text for token in tokens.values()}) != len(tokens):
        raise CheckpointError("two added tokens have one spelling", field="added_tokens")
    return dict(sorted(tokens.items()))


def _add(
    tokens: dict[int, AddedToken], token_id: int, entry: Mapping[str, Any], source: str
) -> None:
    text = entry.get("content")
    if not isinstance(text, str) or not text:
        raise CheckpointError(f"{source}: added token {token_id} has no content", field=source)
    for flag in _SWALLOWING_FLAGS:
        if entry.get(flag):
            raise CheckpointError(
                f"{source}: added token {text!r} has {flag}, which is not supported", field=source
            )
    token = AddedToken(token_id, text, bool(entry.get("special", False)))
    if tokens.setdefault(token_id, token).text != text:
        raise CheckpointError(
            f"{source}: id {token_id} is {text!r} here and {tokens[token_id].text!r} elsewhere",
            field=source,
        )


def _vocabulary(model: Mapping[str, Any]) -> Mapping[str, int]:
    bpe = model.get("model")
    if not isinstance(bpe, dict) or bpe.get("type") != "BPE" or not bpe.get("vocab"):
        raise CheckpointError("tokenizer.json holds no BPE model", field="model")
    vocabulary: Mapping[str, int] = bpe["vocab"]
    return vocabulary


def _pieces(vocabulary: Mapping[str, int], added: Mapping[int, AddedToken]) -> tuple[bytes, ...]:
    alphabet = byte_alphabet()
    pieces: dict[int, bytes] = {}
    for text, token_id in vocabulary.items():
        if token_id not in added:
            try:
                pieces[token_id] = bytes(alphabet[char] for char in text)
            except KeyError as error:
                raise CheckpointError(
                    f"vocabulary entry {text!r} is not in the byte-level alphabet", field="vocab"
                ) from error
    pieces |= {token_id: token.text.encode("utf-8") for token_id, token in added.items()}
    missing = next((index for index in range(len(pieces)) if index not in pieces), None)
    if missing is not None:
        raise CheckpointError(f"no token has id {missing}: ids must be gapless", field="vocab")
    return tuple(pieces[index] for index in range(len(pieces)))


def _plain_model(model: Mapping[str, Any]) -> BytePairModel:
    stripped = {
        **model,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    try:
        return BytePairModel.from_str(json.dumps(stripped))
    except Exception as error:  # the library raises the bare class
        raise CheckpointError(f"tokenizer.json: {error}", field="tokenizer.json") from error


def _spelling_pattern(ids: Mapping[str, int]) -> re.Pattern[str] | None:
    if not ids:
        return None
    longest_first = sorted(ids, key=len, reverse=True)
    return re.compile("|".join(re.escape(text) for text in longest_first))


def _token_text(config: Mapping[str, Any], name: str) -> str | None:
    token = config.get(name)
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
