"""The endless stream of training conversations, and the held-out ones.

Conversation ``i`` of a seed depends on the seed and on ``i`` alone, so that any part of the stream
can be made anywhere. An exercise whose key falls into the held-out twentieth is never trained on;
the held-out stream has nothing else. Knows no tokens beyond `conversations`.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final

from tools.demo_model.data.conversation import Conversation, Exercise, Speaker, Turn
from tools.demo_model.data.encoding import encode_all
from tools.demo_model.data.mixture import draw, draw_skill, history
from tools.demo_model.data.partition import is_held_out

LONG_HISTORY_SHARE: Final = 0.12
"""Part of the conversations with a history in which it is a long one."""
LONGEST_HISTORY: Final = 24
_BATCH: Final = 256
_SYSTEMS: Final = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a helpful AI assistant.",
    "You are a small and honest assistant.",
    "You are ninfer, a helpful assistant.",
    "Be helpful.",
    "Answer the questions of the user.",
    "You answer briefly and correctly.",
)


def training_conversation(seed: int, index: int) -> Conversation:
    """Conversation ``index`` of the training stream."""
    rng = Random((seed << 64) | (index << 1))
    skill = draw_skill(rng)
    return _finish(rng, skill, _drawn(rng, skill, is_wanted=False))


def held_out(skill: str, count: int, seed: int) -> Iterator[Conversation]:
    """Conversations of one skill whose exercises are never trained on."""
    for index in range(count):
        rng = Random((seed << 64) | (index << 1) | 1)
        yield _finish(rng, skill, _drawn(rng, skill, is_wanted=True))


def samples(seed: int, start: int, count: int) -> Iterator[Conversation]:
    """Part of the training stream."""
    for index in range(start, start + count):
        yield training_conversation(seed, index)


def conversations(seed: int, start: int, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Part of the training stream as tokens.

    Yields:
        For each conversation its token ids, ending with the end-of-document token, and a mask of
        equal length: 1 where the token is one the model itself has to write.
    """
    for first in range(start, start + count, _BATCH):
        size = min(_BATCH, start + count - first)
        yield from encode_all(list(samples(seed, first, size)))


def _drawn(rng: Random, skill: str, *, is_wanted: bool) -> Exercise:
    while True:
        found = draw(rng, skill)
        if is_held_out(found.key) == is_wanted:
            return found


def _finish(rng: Random, skill: str, found: Exercise) -> Conversation:
    is_thinking = rng.random() < 0.5
    turns = found.turns
    before: tuple[Turn, ...] = ()
    if skill not in ("recall", "instruction", "tool_call", "tool_result") and rng.random() < 0.25:
        before = history(rng, _history_length(rng))
    system = found.system
    if system is None and rng.random() < 0.2:
        system = rng.choice(_SYSTEMS)
    opening = () if system is None else (Turn(Speaker.SYSTEM, system),)
    written = [_written(turn, is_thinking) for turn in (*before, *turns)]
    return Conversation(skill, (*opening, *written), found.tools, is_thinking, found.expected)


def _history_length(rng: Random) -> int:
    """Earlier exchanges: mostly few, sometimes many, so that late positions are practised too."""
    if rng.random() < LONG_HISTORY_SHARE:
        return rng.randint(3, LONGEST_HISTORY)
    return rng.choice((1, 1, 2))


def _written(turn: Turn, is_thinking: bool) -> Turn:
    """Move the steps of a hard task into its answer where nothing else shows them."""
    if turn.is_worked and not is_thinking:
        return replace(turn, text=f"{turn.thinking}\n\n{turn.text}", thinking="")
    return turn if is_thinking else replace(turn, thinking="")
