"""How many tokens a text has at least, told from its length: a refusal before the work.

    bytes of the text <= NFC_SHRINK * bytes of the longest token * number of tokens

Encoding takes seconds for a text of some megabytes; one that is far over the context needs none of
it. The bound holds where every byte of the text ends up in a token, as in byte-level BPE, and where
nothing but NFC changes the text before. Does not know templates or contexts. Source: Unicode
Standard Annex 15; the pipeline of ``tokenizer.json``.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ninfer.errors import ContextLengthExceeded

NFC_SHRINK: Final = 4
"""NFC leaves at least a quarter of a text's UTF-8 bytes; the worst case is 7 bytes to 2, of an iota
(U+1FBE) with dialytika and tonos."""

_NUM_BYTES: Final = 256
_KEEPING_BEHAVIORS: Final = frozenset(
    {"Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"}
)


@dataclass(frozen=True, slots=True)
class TokenBound:
    """The bound of one tokenizer.

    Attributes:
        token_bytes: most bytes a token stands for; None where nothing can be told.
    """

    token_bytes: int | None

    @classmethod
    def of(cls, model: Mapping[str, Any], pieces: Sequence[bytes]) -> "TokenBound":
        """Find the bound.

        Args:
            model: ``tokenizer.json``.
            pieces: bytes of every token, added ones included.
        """
        has_all_bytes = len({piece for piece in pieces if len(piece) == 1}) == _NUM_BYTES
        normalizer = model.get("normalizer")
        keeps_text = normalizer is None or normalizer == {"type": "NFC"}
        if not (has_all_bytes and keeps_text and _keeps_bytes(model.get("pre_tokenizer"))):
            return cls(None)
        return cls(max(map(len, pieces)))

    def least_tokens(self, text: str) -> int:
        """Number of tokens that ``text`` has at least; 0 where nothing can be told."""
        if self.token_bytes is None:
            return 0
        if text.isascii():
            num_bytes, shrink = len(text), 1
        else:
            num_bytes = len(text.encode("utf-8", "replace"))
            shrink = 1 if unicodedata.is_normalized("NFC", text) else NFC_SHRINK
        return -(-num_bytes // (shrink * self.token_bytes))


def check_length(num_tokens: int, max_tokens: int | None, *, is_bound: bool = False) -> None:
    """Refuse a prompt of more tokens than the context has.

    Args:
        num_tokens: of the prompt.
        max_tokens: of the context; None is unlimited.
        is_bound: whether the prompt may have more than ``num_tokens``.

    Raises:
        ContextLengthExceeded: it is too long.
    """
    if max_tokens is None or num_tokens <= max_tokens:
        return
    at_least = " (at least; it is too long to be counted)" if is_bound else ""
    raise ContextLengthExceeded(
        f"prompt is too long: {num_tokens} tokens > {max_tokens} maximum{at_least}",
        field="messages",
    )


def _keeps_bytes(step: Any) -> bool:
    """Whether a pre-tokenizer drops nothing and ends in the byte-level alphabet."""
    if not isinstance(step, Mapping):
        return False
    if step.get("type") == "ByteLevel":
        return True
    steps = step.get("pretokenizers")
    if step.get("type") != "Sequence" or not isinstance(steps, list) or not steps:
        return False
    *splits, last = steps
    return _keeps_bytes(last) and all(
        isinstance(split, Mapping)
        and split.get("type") == "Split"
        and split.get("behavior") in _KEEPING_BEHAVIORS
        for split in splits
    )
