"""Conversations as tokens, with the tokenizer of this package.

Every piece of `rendering.render` is encoded on its own: pieces meet at control tokens and line
ends that never merge across, so the tokens are those of the whole text (a test proves it).
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from tools.demo_model.data.conversation import Conversation
from tools.demo_model.data.rendering import render

TOKENIZER_FOLDER: Final = Path(__file__).parents[1] / "tokenizer"


@functools.cache
def tokenizer() -> Tokenizer:
    """The tokenizer, read once."""
    return Tokenizer.from_file(str(TOKENIZER_FOLDER / "tokenizer.json"))


def encode_all(found: Sequence[Conversation]) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids and mask of each conversation."""
    rendered = [render(conversation) for conversation in found]
    texts = [text for pieces in rendered for text, _ in pieces]
    encoded = iter(tokenizer().encode_batch_fast(texts, add_special_tokens=False))
    for pieces in rendered:
        token_ids: list[int] = []
        mask: list[int] = []
        for _, is_learned in pieces:
            ids = next(encoded).ids
            token_ids += ids
            mask += [int(is_learned)] * len(ids)
        yield token_ids, mask
