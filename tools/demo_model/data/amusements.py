"""Jokes and poems of three lines."""

import itertools
from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import pick, roughen

_JOKES: Final = (
    "Why did the computer go to the doctor? It had a virus.",
    "Why do programmers like dark mode? Because light attracts bugs.",
    "What do you call a bear with no teeth? A gummy bear.",
    "Why was the math book sad? It had too many problems.",
    "What do you get when you cross a snowman and a dog? Frostbite.",
    "Why did the bicycle fall over? It was two-tired.",
    "What is orange and sounds like a parrot? A carrot.",
    "Why can't a leopard hide? It is always spotted.",
)
_JOKE: Final = (
    "Tell me a joke.",
    "Tell me a joke",
    "Do you know a joke?",
    "Make me laugh.",
    "Say something funny.",
    "Can you tell a joke?",
    "Another joke, please.",
    "I want to hear a joke.",
    "Joke please",
)
_HAIKU: Final = (
    "Write a haiku.",
    "Write a haiku",
    "Write me a haiku.",
    "Can you write a haiku?",
    "A haiku, please.",
    "Write a poem.",
    "Write a short poem.",
    "Can you write a poem?",
    "Make a poem for me.",
)
_HAIKU_ABOUT: Final = (
    "Write a haiku about {t}.",
    "Write a poem about {t}.",
    "A haiku about {t}, please.",
    "Can you write a short poem about {t}?",
)
_TOPICS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]]] = {
    "winter": (
        ("Snow falls on the roof", "Cold wind in the night"),
        ("the garden sleeps in white light", "the old house is warm and still"),
        ("a bird leaves its trace", "tea steams in my cup"),
    ),
    "spring": (
        ("Green leaves in the sun", "A soft rain has come"),
        ("the first bees find the flowers", "the cherry tree is in bloom"),
        ("the whole world wakes up", "children laugh outside"),
    ),
    "summer": (
        ("Warm sand on my feet", "The long day is bright"),
        ("the waves come and go all day", "the fields are golden and still"),
        ("a gull cries above", "fireflies at night"),
    ),
    "autumn": (
        ("Red leaves on the ground", "Fog over the hill"),
        ("the wind carries them away", "the apples are sweet and ripe"),
        ("the days grow shorter", "a crow calls, then flies"),
    ),
    "the sea": (
        ("Blue water, white foam", "A ship far away"),
        ("the old sailor looks for home", "the wind fills the silent sails"),
        ("the tide turns at last", "salt is in the air"),
    ),
    "the moon": (
        ("Silver light above", "Round and pale it hangs"),
        ("the lake holds a second moon", "the owl watches from a tree"),
        ("night is deep and calm", "no cloud hides its face"),
    ),
}


def joke(rng: Random) -> Exercise:
    """A joke of a few."""
    form, question = pick(rng, _JOKE)
    question = roughen(rng, question)
    expected = Expected(Rule.ONE_OF, "\n\n".join(_JOKES))
    return exercise(f"{form}:{question}", question, rng.choice(_JOKES), "a joke", expected)


def haiku(rng: Random) -> Exercise:
    """Three lines about a season, the sea or the moon."""
    topic = rng.choice(tuple(_TOPICS))
    is_about = rng.random() < 0.5
    phrasings = _HAIKU_ABOUT if is_about else _HAIKU
    form, question = pick(rng, phrasings)
    question = roughen(rng, question.format(t=topic))
    first, second, third = (rng.choice(lines) for lines in _TOPICS[topic])
    answer = f"{first},\n{second},\n{third}."
    poems = itertools.product(*_TOPICS[topic])
    expected = Expected(Rule.ONE_OF, "\n\n".join(f"{a},\n{b},\n{c}." for a, b, c in poems))
    return exercise(f"{form}:{topic}", question, answer, f"a poem about {topic}", expected)
