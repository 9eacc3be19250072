"""A grammar matcher that follows one given sequence of tokens, and can be made to break down."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ninfer.errors import NinferError
from ninfer.frontend.output_constraint import CompiledGrammar, MaskVocabulary, bits_of
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.generation import TokenMask


@dataclass
class ScriptedMatcher:
    """Allows ``tokens`` in their order, and is complete behind the last of them.

    Attributes:
        breaks_at: number of the mask that fails.
    """

    tokens: Sequence[int]
    breaks_at: int | None = None
    accepted: list[int] = field(default_factory=list)
    num_masks: int = 0

    @property
    def may_stop(self) -> bool:
        return len(self.accepted) == len(self.tokens)

    def mask(self) -> TokenMask:
        self.num_masks += 1
        if self.num_masks - 1 == self.breaks_at:
            raise NinferError("the matcher broke")
        following = self.tokens[len(self.accepted) : len(self.accepted) + 1]
        return bits_of(following).to_bytes(256, "little")

    def accept(self, token_id: int) -> None:
        if self.may_stop or token_id != self.tokens[len(self.accepted)]:
            raise NinferError("the grammar does not allow this token")
        self.accepted.append(token_id)


def scripted_grammar(
    tokenizer: Tokenizer, stop_ids: Sequence[int], matcher: ScriptedMatcher
) -> CompiledGrammar:
    """A grammar for one request, whose matcher the test keeps."""
    return CompiledGrammar(lambda: matcher, MaskVocabulary.of(tokenizer, stop_ids))


def allowed_by(mask: TokenMask) -> set[int]:
    """Tokens of a mask."""
    bits = int.from_bytes(mask, "little")
    return {token for token in range(bits.bit_length()) if bits >> token & 1}
