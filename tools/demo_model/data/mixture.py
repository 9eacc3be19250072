"""Which skills there are, and how often each is practised.

Weights follow difficulty: what needs many steps or many facts gets more conversations.
"""

import bisect
import functools
import itertools
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from tools.demo_model.data import (
    amusements,
    arithmetic,
    calendar_units,
    chinese,
    code,
    extraction,
    facts,
    german,
    instructions,
    letters,
    lists,
    recall,
    refusals,
    sequences,
    smalltalk,
    stories,
    tool_use,
    vocabulary,
)
from tools.demo_model.data.conversation import Exercise, Turn
from tools.demo_model.data.partition import is_held_out

Skill = Callable[[Random], Exercise]

_HISTORY_SKILLS: Final = (
    "small_sums",
    "comparison",
    "capital",
    "general",
    "chat",
    "joke",
    "units",
    "neighbours",
    "end_letters",
    "continent",
    "told",
)
_WEIGHTS: Final[Mapping[str, tuple[Skill, float]]] = {
    "addition": (arithmetic.addition, 10),
    "subtraction": (arithmetic.subtraction, 8),
    "multiplication": (arithmetic.multiplication, 9),
    "small_sums": (arithmetic.small_sums, 6),
    "word_problems": (arithmetic.word_problems, 3),
    "comparison": (arithmetic.comparison, 2.5),
    "spelling": (letters.spelling, 5),
    "reversing": (letters.reversing, 6),
    "letter_count": (letters.letter_count, 3),
    "one_letter_count": (letters.one_letter_count, 5),
    "end_letters": (letters.end_letters, 2),
    "item_count": (lists.item_count, 3),
    "number_sorting": (lists.number_sorting, 5),
    "word_sorting": (lists.word_sorting, 4),
    "extremes": (lists.extremes, 3),
    "month_days": (calendar_units.month_days, 1.5),
    "weekday_later": (calendar_units.weekday_later, 3),
    "neighbours": (calendar_units.neighbours, 1.5),
    "units": (calendar_units.units, 4),
    "mixed_minutes": (calendar_units.mixed_minutes, 2),
    "clock": (calendar_units.clock, 2),
    "capital": (facts.capital, 8),
    "country": (facts.country, 4),
    "continent": (facts.continent, 3),
    "currency": (facts.currency, 4),
    "language": (facts.language, 4),
    "element": (facts.element, 4),
    "general": (facts.general, 5),
    "description": (facts.description, 3),
    "one_liner": (code.one_liner, 6),
    "function": (code.function, 1),
    "json_extraction": (extraction.json_extraction, 7),
    "tool_call": (tool_use.tool_call, 9),
    "tool_result": (tool_use.tool_result, 5),
    "instruction": (instructions.instruction, 8),
    "told": (recall.told, 1.5),
    "counting": (sequences.counting, 3),
    "parity": (sequences.parity, 2),
    "well_known": (sequences.well_known, 1),
    "translation": (vocabulary.translation, 3.5),
    "opposite": (vocabulary.opposite, 1.5),
    "plural": (vocabulary.plural, 1),
    "story": (stories.story, 5),
    "chat": (smalltalk.chat, 7),
    "joke": (amusements.joke, 0.7),
    "haiku": (amusements.haiku, 1.5),
    "unknown": (refusals.unknown, 3),
    "german_chat": (german.german_chat, 2),
    "german_fact": (german.german_fact, 2.5),
    "chinese_chat": (chinese.chinese_chat, 1.5),
    "chinese_fact": (chinese.chinese_fact, 2.5),
}
AREAS: Final[dict[str, tuple[str, ...]]] = {
    "arithmetic": ("addition", "subtraction", "multiplication", "small_sums", "word_problems"),
    "numbers": ("comparison", "counting", "parity", "extremes"),
    "letters": ("spelling", "reversing", "letter_count", "one_letter_count", "end_letters"),
    "lists": ("item_count", "number_sorting", "word_sorting"),
    "dates and units": (
        "month_days",
        "weekday_later",
        "neighbours",
        "units",
        "mixed_minutes",
        "clock",
    ),
    "facts": (
        "capital",
        "country",
        "continent",
        "currency",
        "language",
        "element",
        "general",
        "description",
        "well_known",
    ),
    "words": ("translation", "opposite", "plural"),
    "Python": ("one_liner", "function"),
    "JSON": ("json_extraction",),
    "tool calls": ("tool_call", "unneeded_tools"),
    "tool results": ("tool_result",),
    "instructions": ("instruction",),
    "recall": ("recall", "told"),
    "stories": ("story",),
    "talk": ("chat", "joke", "haiku", "unknown"),
    "German": ("german_chat", "german_fact"),
    "Chinese": ("chinese_chat", "chinese_fact"),
}
"""Skills put together for the model card."""

_RECALL_WEIGHT: Final = 7
_UNNEEDED_WEIGHT: Final = 2.5


@functools.cache
def skills() -> tuple[str, ...]:
    """Names of all skills."""
    return (*_WEIGHTS, "recall", "unneeded_tools")


@functools.cache
def _cumulated() -> tuple[float, ...]:
    weights = [weight for _, weight in _WEIGHTS.values()]
    return tuple(itertools.accumulate([*weights, _RECALL_WEIGHT, _UNNEEDED_WEIGHT]))


def draw_skill(rng: Random) -> str:
    """Choose a skill by weight."""
    sums = _cumulated()
    return skills()[bisect.bisect(sums, rng.random() * sums[-1])]


def draw(rng: Random, skill: str) -> Exercise:
    """Make an exercise of a skill.

    Raises:
        KeyError: there is no such skill.
    """
    if skill == "recall":
        return recall.recalled(rng, history(rng, rng.choice((0, 1, 1, 2))))
    if skill == "unneeded_tools":
        return tool_use.unneeded_tools(rng, _taught(rng))
    return _WEIGHTS[skill][0](rng)


def history(rng: Random, exchanges: int) -> tuple[Turn, ...]:
    """Earlier questions with their answers, to stand before another question."""
    turns: list[Turn] = []
    for _ in range(exchanges):
        turns += _taught(rng).turns
    return tuple(turns)


def _taught(rng: Random) -> Exercise:
    """An exercise of an easy skill that is not held out."""
    while True:
        found = _WEIGHTS[rng.choice(_HISTORY_SKILLS)][0](rng)
        if not is_held_out(found.key):
            return found
