"""Capitals and other public facts.

A fact cannot be worked out, so what is held out is the pair of fact and phrasing: every fact is
taught, in most of its phrasings.
"""

from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.tables import Row, rows
from tools.demo_model.data.wording import ask

_CAPITAL: Final = (
    "What is the capital of {c}?",
    "What's the capital of {c}?",
    "Which city is the capital of {c}?",
    "Tell me the capital of {c}.",
    "capital of {c}",
    "Name the capital of {c}.",
    "Do you know the capital of {c}?",
    "What is the capital city of {c}?",
    "{c}: what is the capital?",
    "Can you tell me the capital of {c}?",
    "I want to know the capital of {c}.",
    "Give me the capital of {c}.",
)
_COUNTRY: Final = (
    "Which country has the capital {x}?",
    "{x} is the capital of which country?",
    "Of which country is {x} the capital?",
    "What country is {x} the capital of?",
    "In which country is {x}?",
    "Where is {x}?",
    "Which country is {x} in?",
)
_CONTINENT: Final = (
    "On which continent is {c}?",
    "Which continent is {c} on?",
    "Where is {c}?",
    "In which continent is {c}?",
    "What continent is {c} in?",
    "{c} is on which continent?",
    "Where is {c} located?",
)
_CURRENCY: Final = (
    "What is the currency of {c}?",
    "Which currency is used in {c}?",
    "What money do they use in {c}?",
    "What currency does {c} use?",
    "How do I pay in {c}? Which currency?",
    "Tell me the currency of {c}.",
    "currency of {c}",
)
_LANGUAGE: Final = (
    "What language is spoken in {c}?",
    "Which language do people speak in {c}?",
    "What is the language of {c}?",
    "What do they speak in {c}?",
    "Which language is spoken in {c}?",
    "language of {c}",
    "Tell me the main language of {c}.",
)
_SYMBOL: Final = (
    "What is the chemical symbol of {e}?",
    "What is the symbol for {e}?",
    "Which symbol does {e} have?",
    "What is the symbol of the element {e}?",
    "chemical symbol of {e}",
    "Tell me the symbol for {e}.",
)
_ELEMENT: Final = (
    "Which element has the symbol {s}?",
    "What element is {s}?",
    "What does the chemical symbol {s} stand for?",
    "Which chemical element is {s}?",
    "{s} is the symbol of which element?",
)
_NUMBER: Final = (
    "What is the atomic number of {e}?",
    "Which atomic number does {e} have?",
    "How many protons does {e} have?",
    "What number does {e} have in the periodic table?",
    "atomic number of {e}",
    "Tell me the atomic number of {e}.",
)
_BY_NUMBER: Final = (
    "Which element has the atomic number {n}?",
    "What is element number {n}?",
    "Which element has {n} protons?",
)
_ABOUT: Final = (
    "Tell me about {c}.",
    "What do you know about {c}?",
    "Describe {c}.",
    "Tell me something about {c}.",
    "What is {c}?",
    "Give me some facts about {c}.",
    "I want to learn about {c}.",
    "Where is {c} and what do they speak there?",
)


def _fact(
    rng: Random,
    relation: str,
    phrasings: tuple[str, ...],
    subject: str,
    answer: str,
    value: str,
    can_lower: bool = True,
    **fields: str,
) -> Exercise:
    index = rng.randrange(len(phrasings))
    question = ask(rng, phrasings[index : index + 1], can_lower, **fields)
    key = f"{index}:{subject}"
    thinking = f"{relation}, {subject}: {value}"
    return exercise(key, question, answer, thinking, Expected(Rule.CONTAINS, value))


def _article(country: str) -> str:
    plural = ("Netherlands", "Philippines", "Bahamas", "Maldives", "Seychelles", "Comoros")
    is_plural = country in plural or country.startswith("United ")
    return f"the {country}" if is_plural or country.endswith("Islands") else country


def capital(rng: Random) -> Exercise:
    """Capital of a country."""
    row = rng.choice(rows("countries"))
    country = _article(row["country"])
    answer = f"The capital of {country} is {row['capital']}."
    shown = row["country"] if rng.random() < 0.2 else country
    return _fact(rng, "capital", _CAPITAL, row["country"], answer, row["capital"], c=shown)


def country(rng: Random) -> Exercise:
    """Country of a capital that is not also a country."""
    row = rng.choice(rows("countries"))
    while row["capital"] == row["country"]:
        row = rng.choice(rows("countries"))
    named = _article(row["country"])
    answer = f"{row['capital']} is the capital of {named}."
    return _fact(rng, "country", _COUNTRY, row["capital"], answer, row["country"], x=row["capital"])


def continent(rng: Random) -> Exercise:
    """Continent of a country."""
    row = rng.choice(rows("countries"))
    named = _article(row["country"])
    answer = f"{named[0].upper()}{named[1:]} is in {row['continent']}."
    return _fact(rng, "continent", _CONTINENT, row["country"], answer, row["continent"], c=named)


def currency(rng: Random) -> Exercise:
    """Currency of a country."""
    row = rng.choice(rows("countries"))
    named = _article(row["country"])
    answer = f"The currency of {named} is the {row['currency']}."
    return _fact(rng, "currency", _CURRENCY, row["country"], answer, row["currency"], c=named)


def language(rng: Random) -> Exercise:
    """Main language of a country."""
    row = rng.choice(rows("countries"))
    named = _article(row["country"])
    answer = f"People in {named} speak {row['language']}."
    return _fact(rng, "language", _LANGUAGE, row["country"], answer, row["language"], c=named)


def element(rng: Random) -> Exercise:
    """Symbols and numbers of chemical elements."""
    row = rng.choice(rows("elements"))
    name, symbol, number = row["element"], row["symbol"], row["number"]
    chance = rng.random()
    if chance < 0.35:
        answer = f"The symbol of {name} is {symbol}."
        return _fact(rng, "symbol", _SYMBOL, name, answer, symbol, e=name)
    if chance < 0.6:
        answer = f"{symbol} is {name}."
        return _fact(rng, "element", _ELEMENT, symbol, answer, name, can_lower=False, s=symbol)
    if chance < 0.85:
        answer = f"The atomic number of {name} is {number}."
        return _fact(rng, "atomic number", _NUMBER, name, answer, number, e=name)
    answer = f"Element number {number} is {name}."
    return _fact(rng, "element", _BY_NUMBER, number, answer, name, n=number)


def general_answer(row: Row) -> str:
    """The sentence that states a fact of the general table."""
    return f"The {row['topic']} is {row['answer']}."


def description(rng: Random) -> Exercise:
    """Everything the table says about a country."""
    row = rng.choice(rows("countries"))
    named = _article(row["country"])
    answer = (
        f"{named[0].upper()}{named[1:]} is a country in {row['continent']}. Its capital is "
        f"{row['capital']}. People there speak {row['language']} and pay with the "
        f"{row['currency']}."
    )
    thinking = f"about {named}: {row['continent']}, {row['capital']}"
    index = rng.randrange(len(_ABOUT))
    question = ask(rng, _ABOUT[index : index + 1], c=named)
    key = f"about {index}:{row['country']}"
    return exercise(key, question, answer, thinking, Expected(Rule.CONTAINS, answer.rstrip(".")))


def general(rng: Random) -> Exercise:
    """Facts of every kind."""
    row = rng.choice(rows("general"))
    value = row["answer"]
    answer = general_answer(row)
    phrasings = tuple(row["questions"].split("|"))
    return _fact(rng, "known", phrasings, row["topic"], answer, value)
