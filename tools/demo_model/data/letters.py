"""Spelling, reversing and counting letters.

Models see words as tokens, not as letters, so every task first spells the word with numbered
letters; capitals are one token each. Reversing reads the numbers downwards, counting marks hits:

    1 C 2 A 3 T            3 T 2 A 1 C            C no, A 1, T no
"""

from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import ask

_SPELL: Final = (
    'Spell the word "{w}".',
    "Spell {w}.",
    "How do you spell {w}?",
    'How is "{w}" spelled?',
    "Can you spell {w}?",
    "What are the letters of the word {w}?",
    'Write "{w}" letter by letter.',
    "Spell out {w}.",
)
_REVERSE: Final = (
    'Reverse the word "{w}".',
    "Reverse {w}.",
    "Write {w} backwards.",
    'What is "{w}" backwards?',
    "Spell {w} backwards.",
    'How do you write "{w}" in reverse?',
    "What is {w} reversed?",
    "Turn the word {w} around.",
)
_LETTERS: Final = (
    'How many letters does the word "{w}" have?',
    "How many letters are in {w}?",
    'How many letters are in the word "{w}"?',
    "How long is the word {w}?",
    "Count the letters in {w}.",
    "What is the number of letters in {w}?",
)
_ONE_LETTER: Final = (
    'How many {c}s are in "{w}"?',
    "How many {c}'s are in {w}?",
    'How often does the letter {c} occur in "{w}"?',
    "How many times does {c} appear in {w}?",
    "Count the letter {c} in {w}.",
    'How many times is the letter "{c}" in the word "{w}"?',
    "How many letters {c} does {w} have?",
)
_FIRST: Final = (
    "What is the first letter of {w}?",
    'Which letter does "{w}" start with?',
    "{w} starts with which letter?",
)
_LAST: Final = (
    "What is the last letter of {w}?",
    'Which letter does "{w}" end with?',
    "{w} ends with which letter?",
)


def _numbered(word: str) -> str:
    return " ".join(f"{place} {letter}" for place, letter in enumerate(word.upper(), 1))


def spelling(rng: Random) -> Exercise:
    """Spell a word."""
    word = words.any_word(rng)
    answer = "-".join(word.upper())
    index = rng.randrange(len(_SPELL))
    question = ask(rng, _SPELL[index : index + 1], w=word)
    key = f"{index}:{word}"
    return exercise(key, question, answer, _numbered(word), Expected(Rule.EXACT, answer))


def reversing(rng: Random) -> Exercise:
    """Write a word backwards."""
    word = words.any_word(rng)
    letters = word.upper()
    backwards = letters[::-1]
    numbered = [f"{place} {letter}" for place, letter in enumerate(letters, 1)]
    steps = f"{' '.join(numbered)}\nbackwards {' '.join(reversed(numbered))}"
    question = ask(rng, _REVERSE, w=word)
    answer = f"{word} backwards is {backwards}."
    expected = Expected(Rule.ENDS, backwards)
    return exercise(word.lower(), question, answer, steps, expected, is_worked=True)


def letter_count(rng: Random) -> Exercise:
    """How many letters a word has."""
    word = words.any_word(rng)
    question = ask(rng, _LETTERS, w=word)
    count = len(word)
    answer = f"{word} has {count} letters."
    expected = Expected(Rule.NUMBER, str(count))
    return exercise(word.lower(), question, answer, _numbered(word), expected, is_worked=True)


def one_letter_count(rng: Random) -> Exercise:
    """How often one letter occurs in a word."""
    word = words.any_word(rng)
    present = rng.random() < 0.85
    letter = rng.choice(word.lower() if present else "abcdefghilmnoprstu")
    steps = []
    count = 0
    for found in word.upper():
        is_hit = found == letter.upper()
        count += is_hit
        steps.append(f"{found} {count if is_hit else 'no'}")
    question = ask(rng, _ONE_LETTER, w=word, c=letter)
    plural = "time" if count == 1 else "times"
    answer = f"The letter {letter.upper()} occurs {count} {plural}."
    expected = Expected(Rule.NUMBER, str(count))
    key = f"{letter}:{word.lower()}"
    working = f"letter {letter.upper()}: {', '.join(steps)}"
    return exercise(key, question, answer, working, expected, is_worked=True)


def end_letters(rng: Random) -> Exercise:
    """First or last letter of a word."""
    word = words.any_word(rng)
    is_first = rng.random() < 0.5
    letter = word.upper()[0 if is_first else -1]
    phrasings = _FIRST if is_first else _LAST
    index = rng.randrange(len(phrasings))
    question = ask(rng, phrasings[index : index + 1], w=word)
    answer = f"The {'first' if is_first else 'last'} letter is {letter}."
    key = f"{index}{is_first}:{word.lower()}"
    return exercise(key, question, answer, _numbered(word), Expected(Rule.ENDS, letter))
