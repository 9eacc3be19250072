"""Counting and sorting lists, largest and smallest items.

Sorting repeats one step: write the smallest of what is left, and what is left then. Counting
numbers the items.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import ask

_COUNT: Final = (
    "How many items are in this list: {l}?",
    "Count the items: {l}.",
    "How many words are in the list {l}?",
    "How many things do I list here: {l}?",
    "Count these: {l}.",
    "What is the number of items in: {l}?",
)
_ASCENDING: Final = (
    "Sort these numbers: {l}.",
    "Sort {l}.",
    "Sort the numbers {l} in ascending order.",
    "Put these numbers in order: {l}.",
    "Order these numbers from smallest to largest: {l}.",
    "Arrange {l} from small to large.",
    "Sort: {l}",
)
_DESCENDING: Final = (
    "Sort the numbers {l} in descending order.",
    "Order these numbers from largest to smallest: {l}.",
    "Sort {l} from large to small.",
)
_ALPHABETICAL: Final = (
    "Sort these words: {l}.",
    "Sort the words {l} alphabetically.",
    "Put these words in alphabetical order: {l}.",
    "Arrange alphabetically: {l}.",
    "Sort {l} from A to Z.",
    "Order these words alphabetically: {l}.",
)
_LARGEST: Final = (
    "What is the largest number: {l}?",
    "Which number is the biggest: {l}?",
    "Find the maximum of {l}.",
    "What is the maximum of {l}?",
)
_SMALLEST: Final = (
    "What is the smallest number: {l}?",
    "Which number is the smallest: {l}?",
    "Find the minimum of {l}.",
    "What is the minimum of {l}?",
)


def _joined(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))


def item_count(rng: Random) -> Exercise:
    """How many items a list has."""
    pool = rng.choice((words.fruits(), words.animals(), words.colors(), words.common()))
    items = rng.sample(pool, rng.randrange(2, 10))
    listed = _joined(items)
    steps = " ".join(f"{place} {item}" for place, item in enumerate(items, 1))
    answer = f"There are {len(items)} items."
    expected = Expected(Rule.NUMBER, str(len(items)))
    question = ask(rng, _COUNT, l=listed)
    return exercise(listed, question, answer, steps, expected, is_worked=True)


def _selection(items: Sequence[object], ordered: Sequence[object]) -> str:
    """Take the next item out again and again."""
    left = list(items)
    lines = []
    for item in ordered[:-1]:
        left.remove(item)
        lines.append(f"{item}, left {_joined(left)}")
    return "\n".join([*lines, str(ordered[-1])])


def number_sorting(rng: Random) -> Exercise:
    """Sort numbers of one or two digits, at times of three."""
    limit = rng.choice((10, 100, 100, 1000))
    items = rng.sample(range(limit), rng.randrange(3, 7))
    is_descending = rng.random() < 0.2
    ordered = sorted(items, reverse=is_descending)
    question = ask(rng, _DESCENDING if is_descending else _ASCENDING, l=_joined(items))
    answer = _joined(ordered)
    expected = Expected(Rule.LIST, answer)
    steps = _selection(items, ordered)
    return exercise(_joined(items), question, answer, steps, expected, is_worked=True)


def word_sorting(rng: Random) -> Exercise:
    """Sort words by their letters."""
    pool = rng.choice((words.fruits(), words.animals(), words.colors(), words.common()))
    items = [word.lower() for word in rng.sample(pool, rng.randrange(3, 6))]
    ordered = sorted(items)
    first = ", ".join(f"{item} {item[:3].upper()}" for item in items)
    question = ask(rng, _ALPHABETICAL, l=_joined(items))
    answer = _joined(ordered)
    steps = f"{first}\n{_selection(items, ordered)}"
    return exercise(
        _joined(items), question, answer, steps, Expected(Rule.LIST, answer), is_worked=True
    )


def extremes(rng: Random) -> Exercise:
    """Largest or smallest of a few numbers."""
    items = rng.sample(range(rng.choice((10, 100, 1000))), rng.randrange(3, 7))
    is_largest = rng.random() < 0.6
    best = items[0]
    trail = [str(best)]
    for item in items[1:]:
        best = max(best, item) if is_largest else min(best, item)
        trail.append(f"{item}: {best}")
    question = ask(rng, _LARGEST if is_largest else _SMALLEST, l=_joined(items))
    answer = f"The {'largest' if is_largest else 'smallest'} number is {best}."
    steps = ", ".join(trail)
    expected = Expected(Rule.NUMBER, str(best))
    return exercise(_joined(items), question, answer, steps, expected, is_worked=True)
