"""Short stories from templates with wide variation.

A story is a chain of sentences; each has several forms, and hero, place, thing, weather, helper and
ending vary independently.
"""

from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import ask

_ABOUT: Final = (
    "Tell me a story about a {h}.",
    "Write a short story about a {h}.",
    "Write a story about a {h}.",
    "Tell a story with a {h}.",
    "I want a story about a {h}.",
    "Can you tell me a story about a {h}?",
    "Please make up a story about a {h}.",
    "story about a {h}",
)
_NAMED: Final = (
    "Tell me a story about a {h} named {n}.",
    "Write a short story about {n} the {h}.",
    "Write a story about a {h} called {n}.",
    "I want a story about a {h} with the name {n}.",
)
_ANY: Final = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "Write me a short story.",
    "Can you tell a story?",
    "I want to hear a story.",
    "A bedtime story, please.",
    "Do you know a story?",
)
_MOODS: Final = (
    "small",
    "brave",
    "curious",
    "lonely",
    "clever",
    "friendly",
    "shy",
    "old",
    "cheerful",
    "quiet",
)
_PLACES: Final = (
    ("forest", "in a deep forest", "under an old tree"),
    ("village", "in a small village", "behind the church"),
    ("mountain", "on a high mountain", "beside a cold stream"),
    ("island", "on a green island", "at the beach"),
    ("castle", "near an old castle", "in the empty tower"),
    ("town", "in a busy town", "on the market square"),
    ("river", "by a wide river", "below the bridge"),
    ("garden", "in a wild garden", "between the roses"),
    ("desert", "at the edge of a desert", "next to a dry well"),
    ("harbor", "close to a harbor", "in a wooden boat"),
)
_WEATHER: Final = (
    "The sun was shining",
    "A soft rain was falling",
    "The wind was blowing",
    "The snow lay deep",
    "Fog covered the land",
    "The stars were bright",
    "It was a warm evening",
    "Dark clouds came up",
)
_THINGS: Final = (
    "a golden key",
    "a broken lamp",
    "an old map",
    "a tiny bell",
    "a blue stone",
    "a lost letter",
    "a silver ring",
    "a wooden box",
    "a strange egg",
    "a red feather",
    "a music box",
    "a glass ball",
)
_FEELINGS: Final = (
    "wondered who had lost it",
    "had never seen anything like it",
    "picked it up with care",
    "felt that it was important",
    "looked at it for a long time",
    "was a little afraid of it",
)
_HELPERS: Final = (
    "a wise owl",
    "an old woman",
    "a friendly fisherman",
    "a tired traveler",
    "a little girl",
    "a talking frog",
    "a kind baker",
    "a grey donkey",
)
_WORDS: Final = (
    "Follow the path to the end.",
    "It belongs to someone who misses it.",
    "Only a good heart can use it.",
    "Take it home before night comes.",
    "Ask the moon and you will know.",
    "You are not alone.",
    "Be patient and you will see.",
)
_DEEDS: Final = (
    "walked all day and all night",
    "climbed over three hills",
    "crossed the cold water",
    "asked everybody on the way",
    "waited until the morning came",
    "followed a trail of light",
    "sang a song to stay awake",
)
_ENDINGS: Final = (
    "In the end the owner was found and they became friends",
    "At last everything was in its place again",
    "From that day on nobody was lonely any more",
    "When the morning came, the whole valley was full of flowers",
    "Everyone came to celebrate and there was cake for all",
    "That night the two of them shared bread and stories",
)
_LAST: Final = (
    "And {n} slept well that night.",
    "{n} never forgot that day.",
    "And so {n} was happy.",
    "Since then {n} smiles at everyone.",
    "{n} still tells this story today.",
)


def story(rng: Random) -> Exercise:
    """A story of six or seven sentences about a hero."""
    hero = rng.choice(words.animals() if rng.random() < 0.7 else _heroes())
    name = rng.choice(words.first_names())
    kind = rng.random()
    phrasings = _ABOUT if kind < 0.5 else _NAMED if kind < 0.8 else _ANY
    question = ask(rng, phrasings, can_lower=kind < 0.5, h=hero, n=name)
    place, where, there = rng.choice(_PLACES)
    told = _told(rng, hero, name, where, there)
    thinking = f"hero: {name} the {hero}, place: {place}"
    required = {_ABOUT: hero, _NAMED: f"{hero}|{name}", _ANY: "the"}[phrasings]
    expected = Expected(Rule.STORY, required)
    return exercise(f"{hero}:{name}:{kind < 0.5}", question, told, thinking, expected)


def _heroes() -> tuple[str, ...]:
    return ("knight", "dragon", "robot", "pirate", "princess", "king", "wizard", "farmer", "sailor")


def _told(rng: Random, hero: str, name: str, where: str, there: str) -> str:
    mood, thing = rng.choice(_MOODS), rng.choice(_THINGS)
    bare = thing.split(" ", 1)[1]
    article = "an" if mood[0] in "aeiou" else "a"
    opening = rng.choice(
        (
            f"Once upon a time there was {article} {mood} {hero} named {name}, who lived {where}.",
            f"{name} was {article} {mood} {hero} and lived {where}.",
            f"Long ago, {where}, there lived {article} {mood} {hero} called {name}.",
        )
    )
    found = rng.choice(
        (
            f"{rng.choice(_WEATHER)} when {name} found {thing} {there}.",
            f"{rng.choice(_WEATHER)}. One day {name} saw {thing} {there}.",
        )
    )
    felt = f"{name} {rng.choice(_FEELINGS)}."
    helper = rng.choice(_HELPERS)
    said = rng.choice(
        (
            f'Then {helper} came by and said: "{rng.choice(_WORDS)}"',
            f'"{rng.choice(_WORDS)}" said {helper}, who had watched everything.',
        )
    )
    did = f"So {name} took the {bare} and {rng.choice(_DEEDS)}."
    last = rng.choice(_LAST).format(n=name)
    parts = [opening, found, felt, said, did, f"{rng.choice(_ENDINGS)}.", last]
    return " ".join(parts)
