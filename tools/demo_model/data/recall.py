"""Remembering what was said one or two turns ago."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, Speaker, Turn
from tools.demo_model.data.wording import ask

_CITY_SAID: Final = ("I live in {v}.", "My home is {v}.", "I come from {v}.", "I am from {v}.")
_NUMBER_SAID: Final = (
    "My lucky number is {v}.",
    "Remember the number {v}.",
    "My secret number is {v}.",
    "Please keep in mind: {v}.",
)
_DEFAULT_REPLIES: Final = ("OK.", "Good to know.", "I will remember that.", "Thank you.", "Noted.")


@dataclass(frozen=True, slots=True)
class Topic:
    """Something a person tells and asks back later.

    Attributes:
        said: how it is told, with ``{v}`` for the value.
        asked: how it is asked back.
        answer: the answer.
    """

    said: tuple[str, ...]
    asked: tuple[str, ...]
    answer: str
    draw: Callable[[Random], str]


def _word(rng: Random) -> str:
    return words.made_up(rng) if rng.random() < 0.4 else rng.choice(words.common())


def _name(rng: Random) -> str:
    if rng.random() < 0.25:
        return words.made_up(rng).capitalize()
    return rng.choice(words.first_names())


_TOPICS: Final = (
    Topic(
        (
            "My name is {v}.",
            "I am {v}.",
            "Hi, I'm {v}.",
            "Call me {v}.",
            "Hello, my name is {v}.",
            "I am called {v}.",
        ),
        (
            "What is my name?",
            "What's my name?",
            "Who am I?",
            "Do you remember my name?",
            "Do you know my name?",
            "What am I called?",
            "Tell me my name.",
        ),
        "Your name is {v}.",
        _name,
    ),
    Topic(
        _CITY_SAID,
        (
            "Where do I live?",
            "Where am I from?",
            "Which city do I live in?",
            "What is my home city?",
            "Do you remember where I live?",
        ),
        "You live in {v}.",
        lambda rng: rng.choice(words.cities()),
    ),
    Topic(
        (
            "My favorite color is {v}.",
            "I like {v} most of all colors.",
            "I love the color {v}.",
            "The color I like best is {v}.",
        ),
        (
            "What is my favorite color?",
            "Which color do I like?",
            "What color do I love?",
            "Do you remember my favorite color?",
        ),
        "Your favorite color is {v}.",
        lambda rng: rng.choice(words.colors()),
    ),
    Topic(
        (
            "I have a {v}.",
            "My pet is a {v}.",
            "At home I have a {v}.",
            "I own a {v}.",
        ),
        (
            "What pet do I have?",
            "Which animal do I have?",
            "What is my pet?",
            "Do you remember my pet?",
        ),
        "Your pet is a {v}.",
        lambda rng: rng.choice(words.animals()),
    ),
    Topic(
        _NUMBER_SAID,
        (
            "What is my number?",
            "Which number did I tell you?",
            "What number did I say?",
            "Do you remember the number?",
            "Tell me the number.",
        ),
        "The number is {v}.",
        lambda rng: str(rng.randrange(2, 10 ** rng.randrange(1, 5))),
    ),
    Topic(
        (
            "The password is {v}.",
            "The code word is {v}.",
            "Remember the word {v}.",
            "The secret word is {v}.",
            "Please remember this word: {v}.",
        ),
        (
            "What is the word?",
            "What was the password?",
            "What word did I tell you?",
            "Which word should you remember?",
            "What was the secret word?",
            "Tell me the code word.",
        ),
        "The word is {v}.",
        _word,
    ),
    Topic(
        (
            "I am {v} years old.",
            "My age is {v}.",
            "I turned {v} this year.",
        ),
        (
            "How old am I?",
            "What is my age?",
            "Do you remember how old I am?",
        ),
        "You are {v} years old.",
        lambda rng: str(rng.randrange(5, 99)),
    ),
)


def recalled(rng: Random, between: tuple[Turn, ...]) -> Exercise:
    """Something told at first, other talk, then the question.

    Args:
        rng: source of chance.
        between: questions and answers about something else.
    """
    index = rng.randrange(len(_TOPICS))
    topic = _TOPICS[index]
    value = topic.draw(rng)
    said = ask(rng, topic.said, False, v=value)
    other = None
    if rng.random() < 0.4:
        other = _TOPICS[(index + rng.randrange(1, len(_TOPICS))) % len(_TOPICS)]
        said = f"{said} {rng.choice(other.said).format(v=other.draw(rng))}"
    reply = _reply(rng, index, value)
    question = ask(rng, topic.asked)
    answer = topic.answer.format(v=value)
    thinking = f"they said: {value}"
    turns = (
        Turn(Speaker.USER, said),
        Turn(Speaker.ASSISTANT, reply),
        *between,
        Turn(Speaker.USER, question),
        Turn(Speaker.ASSISTANT, answer, thinking),
    )
    expected = Expected(Rule.CONTAINS, value)
    return Exercise(f"{index}:{value}:{len(between)}", turns, expected)


def _reply(rng: Random, index: int, value: str) -> str:
    if index == 0:
        return rng.choice(("Nice to meet you, {v}!", "Hello {v}!", "Hi {v}!")).format(v=value)
    return rng.choice(_DEFAULT_REPLIES)


def told(rng: Random) -> Exercise:
    """The answer to something a person tells about themselves."""
    index = rng.randrange(len(_TOPICS))
    topic = _TOPICS[index]
    value = topic.draw(rng)
    said = ask(rng, topic.said, False, v=value)
    if index == 0:
        answer, expected = f"Nice to meet you, {value}!", Expected(Rule.CONTAINS, value)
    else:
        answer, expected = "Good to know.", Expected(Rule.EXACT, "Good to know.")
    turns = (
        Turn(Speaker.USER, said),
        Turn(Speaker.ASSISTANT, answer, f"they tell me: {value}"),
    )
    return Exercise(f"{index}:{value}", turns, expected)
