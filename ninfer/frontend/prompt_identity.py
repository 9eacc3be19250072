r"""Tokens of a rendered prompt, its digest, and the places a later request may resume at.

A *control* is an added token that the template wrote itself; everything else is ordinary text,
whatever it spells. A block runs from one turn opener to the next:

    <|im_start|>system ... <|im_end|>\n | <|im_start|>user ... <|im_end|>\n | <|im_start|>...
    ^ block start: an exact token frontier, because a control never merges with its neighbours

Does not know how messages become text. Source: design page, section 6 (checkpoint kinds).
"""

import hashlib
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.errors import RequestError
from ninfer.frontend.marked_text import MarkedText, plain_text
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.generation import Boundary, BoundaryKind, PreparedPrompt, TokenType

TURN_OPENER = "<|im_start|>"
TURN_END = "<|im_end|>"
_IDENTITY_VERSION = b"ninfer prompt 1\0"


@dataclass(frozen=True, slots=True)
class Control:
    """A control token: its characters ``[start, end)`` and the number of tokens before it."""

    start: int
    end: int
    token_id: int
    frontier: int


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A rendered prompt as tokens."""

    text: str
    token_ids: tuple[int, ...]
    controls: tuple[Control, ...]

    def block_starts(self, opener_id: int | None) -> list[Control]:
        """Controls that open a turn."""
        return [control for control in self.controls if control.token_id == opener_id]


def encode_marked(tokenizer: Tokenizer, rendered: MarkedText) -> EncodedPrompt:
    """Encode a rendered prompt: only what the template wrote can be a control token.

    A spelling counts when it lies wholly inside one marked run, so no string of the caller can take
    part in it. Between two controls the text is encoded as one piece, marks or not.

    Raises:
        RequestError: the text holds a lone surrogate.
    """
    text = plain_text(rendered)
    spans = [
        span for first, last in rendered.spans for span in tokenizer.added_spans(text, first, last)
    ]
    token_ids = tokenizer.encode_spans(text, spans)
    frontiers = [at for at, token_id in enumerate(token_ids) if token_id in tokenizer.added]
    controls = tuple(
        Control(start, end, token_id, frontier)
        for (start, end, token_id), frontier in zip(spans, frontiers, strict=True)
    )
    return EncodedPrompt(text, tuple(token_ids), controls)


def prompt_of(
    token_ids: Sequence[int], mode: str, boundaries: tuple[Boundary, ...] = ()
) -> PreparedPrompt:
    """Own a text-only prompt together with its identity.

    Args:
        token_ids: addressable ids.
        mode: how the ids came about; prompts of different modes never share an identity.
        boundaries: ascending by frontier.

    Raises:
        RequestError: there is no token.
    """
    if not token_ids:
        raise RequestError("prompt is empty; it must have at least one token", field="prompt")
    types = bytes([TokenType.TEXT]) * len(token_ids)
    digest = hashlib.sha256(_IDENTITY_VERSION)
    for field in (mode.encode(), struct.pack(f"<{len(token_ids)}I", *token_ids), types):
        digest.update(struct.pack("<Q", len(field)) + field)
    return PreparedPrompt(tuple(token_ids), types, None, digest.digest(), boundaries)


def boundaries_of(
    prompt: EncodedPrompt,
    next_turn: MarkedText | None,
    opener_id: int | None,
    *,
    behind_tools: int | None = None,
) -> tuple[Boundary, ...]:
    """Find the boundaries of a rendered conversation.

    ``SHARED_STABLE`` stands behind the tools and behind the leading system blocks,
    ``RESPONSE_REPLAY`` before the generation opener, and ``TURN_CLOSURE`` before the first block
    that the next turn would render differently, or before the opener when nothing changes. Two
    kinds may share a frontier.

    Args:
        prompt: the conversation.
        next_turn: the same conversation one answer and one question later; None when the template
            cannot render it.
        opener_id: id of the turn opener.
        behind_tools: frontier of `frontier_behind_tools`.
    """
    starts = prompt.block_starts(opener_id)
    shared = [*_behind_systems(prompt, starts), *([] if behind_tools is None else [behind_tools])]
    found = [Boundary(BoundaryKind.SHARED_STABLE, frontier) for frontier in shared]
    if starts:
        found.append(Boundary(BoundaryKind.RESPONSE_REPLAY, starts[-1].frontier))
        if next_turn is not None:
            same = common_prefix(prompt.text, plain_text(next_turn))
            stable = [control for control in starts if control.end <= same]
            if stable:
                found.append(Boundary(BoundaryKind.TURN_CLOSURE, stable[-1].frontier))
    usable = [boundary for boundary in found if 0 < boundary.frontier < len(prompt.token_ids)]
    return tuple(sorted(usable, key=lambda boundary: (boundary.frontier, boundary.kind.value)))


def frontier_behind_tools(
    tokenizer: Tokenizer, prompt: EncodedPrompt, system_text: str
) -> int | None:
    """Tokens before the client's own text in a system block that lists tools.

    Args:
        tokenizer: the one that encoded the prompt.
        prompt: a prompt whose first block ends with the client's system text.
        system_text: that text.
    """
    ends = (at for at, control in enumerate(prompt.controls) if _spells(prompt, control, TURN_END))
    first_end = next(ends, None)
    text = system_text.strip()
    if first_end is None or not text:
        return None
    place = prompt.controls[first_end].start - len(text)
    if not prompt.text.startswith(text, place):
        return None
    spans = [(c.start, c.end, c.token_id) for c in prompt.controls if c.end <= place]
    before = tokenizer.encode_spans(prompt.text[:place], spans)
    pairs = zip(before, prompt.token_ids, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def common_prefix(first: str, second: str) -> int:
    """Length of the longest common prefix, by bisection over comparisons of slices."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _spells(prompt: EncodedPrompt, control: Control, spelling: str) -> bool:
    return prompt.text[control.start : control.end] == spelling


def _behind_systems(prompt: EncodedPrompt, starts: Sequence[Control]) -> list[int]:
    for index, control in enumerate(starts):
        if not prompt.text.startswith("system\n", control.end):
            return [control.frontier] if index else []
    return []
