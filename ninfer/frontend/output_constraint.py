r"""The constraint of one output: which tokens may come next, from channel and grammar.

    WAITING --closing token--> LAYOUT --its last line break, or other text--> ACTIVE

While the thinking block is open everything is allowed: a constraint could keep the model from
closing it. Behind the block come line breaks of the template's layout, which are not part of the
constrained text; then the grammar alone decides. End tokens are allowed exactly when the grammar
may stop; other added tokens (controls and markup) never, since their spellings can be written with
ordinary tokens. Places are values, so that a preview can follow tokens without touching the
matcher. Source: the serving contract, section 7.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ninfer.errors import GrammarDeadEnd, IllegalMove
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.generation import GrammarMatcher, TokenMask

LAYOUT_BREAKS: Final = 2
"""Line breaks the template puts behind the closing token."""


class ConstraintPhase(enum.Enum):
    """What decides about the next token."""

    WAITING = enum.auto()  # nothing: the thinking block is open
    LAYOUT = enum.auto()  # the grammar, or line breaks of the layout
    ACTIVE = enum.auto()  # the grammar


_NEXT: Final = {
    ConstraintPhase.WAITING: {ConstraintPhase.LAYOUT},
    ConstraintPhase.LAYOUT: {ConstraintPhase.LAYOUT, ConstraintPhase.ACTIVE},
    ConstraintPhase.ACTIVE: {ConstraintPhase.ACTIVE},
}


@dataclass(frozen=True, slots=True)
class ConstraintPlace:
    """How far an output is.

    Attributes:
        breaks_left: line breaks the layout may still have.
        unread: tokens the matcher has not followed yet.
    """

    phase: ConstraintPhase
    breaks_left: int = 0
    unread: tuple[int, ...] = ()

    def closed(self) -> "ConstraintPlace":
        """The place behind the closing token of the thinking block."""
        return self._moved(ConstraintPhase.LAYOUT, LAYOUT_BREAKS, ())

    def behind(self, token_id: int, breaks: Mapping[int, int]) -> "ConstraintPlace":
        """The place behind a token of the content.

        Args:
            token_id: the token.
            breaks: number of line breaks of each token that is nothing else.
        """
        count = breaks.get(token_id, 0)
        if self.phase is ConstraintPhase.LAYOUT and 0 < count <= self.breaks_left:
            left = self.breaks_left - count
            return self._moved(ConstraintPhase.LAYOUT if left else ConstraintPhase.ACTIVE, left, ())
        return self._moved(ConstraintPhase.ACTIVE, 0, (*self.unread, token_id))

    def read(self) -> "ConstraintPlace":
        """The same place once the matcher has followed."""
        return ConstraintPlace(self.phase, self.breaks_left)

    def _moved(
        self, phase: ConstraintPhase, breaks_left: int, unread: tuple[int, ...]
    ) -> "ConstraintPlace":
        if phase not in _NEXT[self.phase]:
            raise IllegalMove(f"a constraint cannot go from {self.phase} to {phase}")
        return ConstraintPlace(phase, breaks_left, unread)


@dataclass(frozen=True, slots=True)
class MaskVocabulary:
    """Sets of tokens as bits of one integer; bit i is token i.

    Attributes:
        num_words: 32-bit words of a mask.
        ordinary: tokens of text, without controls and markup.
        ends: tokens that end the turn.
        break_openers: tokens that begin with a line break.
        breaks: number of line breaks of each token that is nothing else, up to `LAYOUT_BREAKS`.
    """

    num_words: int
    ordinary: int
    ends: int
    break_openers: int
    breaks: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Tokenizer, stop_ids: Iterable[int]) -> "MaskVocabulary":
        """Sort the tokens of a tokenizer."""
        pieces = {
            token_id: tokenizer.piece(token_id)
            for token_id in range(tokenizer.addressable)
            if token_id not in tokenizer.added
        }
        layout = {b"\n" * count: count for count in range(1, LAYOUT_BREAKS + 1)}
        return cls(
            num_words=-(-tokenizer.addressable // 32),
            ordinary=bits_of(pieces),
            ends=bits_of(stop_ids),
            break_openers=bits_of(i for i, piece in pieces.items() if piece.startswith(b"\n")),
            breaks={i: layout[piece] for i, piece in pieces.items() if piece in layout},
        )

    def layout(self, breaks_left: int) -> int:
        """Tokens that are at most so many line breaks."""
        return bits_of(i for i, count in self.breaks.items() if count <= breaks_left)


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar that is known to be usable.

    Attributes:
        new_matcher: makes a matcher that has used up nothing; safe to call from any thread.
        vocabulary: the tokens it speaks of.
    """

    new_matcher: Callable[[], GrammarMatcher]
    vocabulary: MaskVocabulary


class OutputConstraint:
    """Owner of one output's matcher, which follows committed tokens only."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._matcher = grammar.new_matcher()
        self._vocabulary = grammar.vocabulary

    def commit(self, place: ConstraintPlace) -> ConstraintPlace:
        """Let the matcher follow what a place has not given it yet.

        Raises:
            NinferError: the grammar does not allow it, or the matcher broke down.
        """
        for token_id in place.unread:
            self._matcher.accept(token_id)
        return place.read()

    def mask(self, place: ConstraintPlace) -> TokenMask | None:
        """Tokens allowed at a committed place; None allows all.

        Raises:
            GrammarDeadEnd: there is none.
            NinferError: the matcher broke down.
        """
        if place.phase is ConstraintPhase.WAITING:
            return None
        tokens = self._vocabulary
        allowed = int.from_bytes(self._matcher.mask(), "little") & tokens.ordinary
        if place.phase is ConstraintPhase.LAYOUT:
            # A token that opens with a break would be layout in part; what is left of the layout
            # is offered whole, and text of the grammar begins behind it.
            allowed = (allowed & ~tokens.break_openers) | tokens.layout(place.breaks_left)
        if self._matcher.may_stop:
            allowed |= tokens.ends
        if not allowed:
            raise GrammarDeadEnd("the grammar comes to a place where it allows no token")
        return allowed.to_bytes(4 * tokens.num_words, "little")


def bits_of(token_ids: Iterable[int]) -> int:
    """Set of tokens as bits."""
    data = bytearray()
    for token_id in token_ids:
        byte = token_id // 8
        if byte >= len(data):
            data.extend(bytes(byte + 1 - len(data)))
        data[byte] |= 1 << token_id % 8
    return int.from_bytes(data, "little")
