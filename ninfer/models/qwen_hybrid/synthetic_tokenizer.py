"""Frontend resources of a synthetic model: a made-up byte-pair vocabulary and a plain template.

    256 bytes | pairs of bytes | triples, in ascending order | two control tokens

Every entry beyond the bytes is a merge of two earlier ones, so that loading costs what a published
tokenizer of that size costs. The text it makes means nothing.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Final

from ninfer.errors import ConfigurationError

_NUM_BYTES: Final = 256
_CONTROL: Final = ("<|endoftext|>", "<|im_end|>")
_BYTE_LEVEL: Final = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def synthetic_resources(num_tokens: int) -> Mapping[str, bytes]:
    """Return the text resources of a vocabulary of ``num_tokens`` ids.

    Raises:
        ConfigurationError: fewer ids than bytes and control tokens.
    """
    num_merges = num_tokens - _NUM_BYTES - len(_CONTROL)
    if num_merges < 0:
        raise ConfigurationError(f"{num_tokens} ids hold no byte-level vocabulary", field="model")
    alphabet = _alphabet()
    merges = list(itertools.islice(_merges(alphabet), num_merges))
    pieces = [*alphabet, *(left + right for left, right in merges)]
    first = len(pieces)
    added = [
        {"id": first + index, "content": text, "special": True}
        for index, text in enumerate(_CONTROL)
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", **_BYTE_LEVEL},
        "decoder": {"type": "ByteLevel", **_BYTE_LEVEL},
        "model": {
            "type": "BPE",
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": merges,
        },
    }
    config = {
        "eos_token": _CONTROL[1],
        "pad_token": _CONTROL[0],
        "added_tokens_decoder": {str(entry["id"]): entry for entry in added},
    }
    generation = {"do_sample": False, "eos_token_id": [first, first + 1]}
    return {
        "frontend/tokenizer.json": json.dumps(tokenizer).encode(),
        "frontend/tokenizer_config.json": json.dumps(config).encode(),
        "frontend/chat_template.jinja": _TEMPLATE.encode(),
        "frontend/generation_config.json": json.dumps(generation).encode(),
    }


def _merges(alphabet: list[str]) -> Iterator[tuple[str, str]]:
    """All pairs of bytes, then all pairs with a byte behind them."""
    pairs = list(itertools.product(alphabet, alphabet))
    yield from pairs
    for left, right in pairs:
        for last in alphabet:
            yield left + right, last


def _alphabet() -> list[str]:
    """Characters of the byte-level alphabet, in the order of the bytes they stand for."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(_NUM_BYTES)
    return [chr(byte if byte in shown else next(others)) for byte in range(_NUM_BYTES)]
