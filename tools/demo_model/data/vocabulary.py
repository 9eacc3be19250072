"""Words in other languages, opposites, plurals."""

from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.tables import rows
from tools.demo_model.data.wording import ask

_TRANSLATE: Final = (
    'What is "{w}" in {l}?',
    "What is {w} in {l}?",
    "What is the {l} word for {w}?",
    'How do you say "{w}" in {l}?',
    "How do you say {w} in {l}?",
    'Translate "{w}" into {l}.',
    "Translate {w} to {l}.",
    "{w} in {l}",
)
_MEANING: Final = (
    'What does the {l} word "{w}" mean?',
    'What does "{w}" mean in English?',
    'Translate "{w}" from {l} to English.',
    "What is {w} in English?",
)
_OPPOSITE: Final = (
    "What is the opposite of {w}?",
    'What is the opposite of "{w}"?',
    "Opposite of {w}?",
    "Tell me the opposite of {w}.",
    "Which word is the opposite of {w}?",
    "What's the opposite of {w}?",
)
_PLURAL: Final = (
    "What is the plural of {w}?",
    'What is the plural of "{w}"?',
    "Plural of {w}?",
    "Write the plural of {w}.",
    "How do you write more than one {w}?",
)
_LANGUAGES: Final = ("german", "french", "spanish")
_IRREGULAR: Final = {"mouse": "mice", "sheep": "sheep", "goose": "geese", "wolf": "wolves"}


def translation(rng: Random) -> Exercise:
    """A word into another language or back."""
    row = rng.choice(rows("words"))
    column = rng.choice(_LANGUAGES)
    named, english, foreign = column.capitalize(), row["english"], row[column]
    is_back = rng.random() < 0.25
    phrasings = _MEANING if is_back else _TRANSLATE
    index = rng.randrange(len(phrasings))
    word, value = (foreign, english) if is_back else (english, foreign)
    question = ask(rng, phrasings[index : index + 1], False, w=word, l=named)
    language = "English" if is_back else named
    answer = f'"{word}" in {language} is "{value}".'
    expected = Expected(Rule.CONTAINS, f'is "{value}"')
    key = f"{index}:{is_back}:{column}:{english}"
    return exercise(key, question, answer, f"{language}, {word}: {value}", expected)


def opposite(rng: Random) -> Exercise:
    """The opposite of a word."""
    row = rng.choice(rows("opposites"))
    pair = (row["first"], row["second"])
    word, value = pair if rng.random() < 0.5 else pair[::-1]
    index = rng.randrange(len(_OPPOSITE))
    question = ask(rng, _OPPOSITE[index : index + 1], w=word)
    answer = f"The opposite of {word} is {value}."
    expected = Expected(Rule.CONTAINS, f"is {value}")
    return exercise(f"{index}:opposite:{word}", question, answer, f"{word} - {value}", expected)


def plural(rng: Random) -> Exercise:
    """The plural of a noun."""
    word = rng.choice(words.animals() + words.fruits() + ("house", "tree", "book", "city", "baby"))
    value = _plural(word)
    index = rng.randrange(len(_PLURAL))
    question = ask(rng, _PLURAL[index : index + 1], w=word)
    answer = f"The plural of {word} is {value}."
    expected = Expected(Rule.CONTAINS, f"is {value}")
    return exercise(f"{index}:plural:{word}", question, answer, f"more than one {word}", expected)


def _plural(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word[-1] == "y" and word[-2] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("ch", "sh", "x", "s")) or word == "mango" else f"{word}s"
