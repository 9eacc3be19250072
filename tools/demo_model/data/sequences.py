"""Counting up and down, even and odd numbers, well-known rows of names."""

from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import ask

_COUNT: Final = (
    "Count from {a} to {b}.",
    "Count from {a} up to {b}.",
    "Write the numbers from {a} to {b}.",
    "List all numbers from {a} to {b}.",
    "numbers {a} to {b}",
)
_COUNT_TO: Final = (
    "Count to {b}.",
    "Can you count to {b}?",
    "Count up to {b}.",
    "Please count to {b}.",
)
_DOWN: Final = (
    "Count down from {b} to {a}.",
    "Count backwards from {b} to {a}.",
    "Count down from {b} until {a}.",
)
_PARITY: Final = (
    "Is {a} even or odd?",
    "Is the number {a} even or odd?",
    "{a}: even or odd?",
    "Tell me if {a} is even or odd.",
)
_NEXT: Final = (
    "What number comes after {a}?",
    "Which number comes after {a}?",
    "What is the next number after {a}?",
)
_BEFORE: Final = ("What number comes before {a}?", "Which number comes before {a}?")
_ROWS: Final = (
    (
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday",
        (
            "What are the days of the week?",
            "List the days of the week.",
            "Name the days of the week.",
            "Tell me all weekdays.",
        ),
    ),
    (
        "January, February, March, April, May, June, July, August, September, October, November, "
        "December",
        (
            "What are the months of the year?",
            "List the months.",
            "Name all months of the year.",
            "Tell me the twelve months.",
        ),
    ),
    (
        "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune",
        (
            "What are the planets of the solar system?",
            "List the planets.",
            "Name all planets.",
            "Which planets are there?",
        ),
    ),
    (
        "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z",
        (
            "Say the alphabet.",
            "Write the alphabet.",
            "What are the letters of the alphabet?",
            "List the letters from A to Z.",
        ),
    ),
    (
        "spring, summer, autumn, winter",
        (
            "What are the four seasons?",
            "Name the seasons.",
            "List the seasons of the year.",
            "Which seasons are there?",
        ),
    ),
    (
        "red, orange, yellow, green, blue, indigo, violet",
        (
            "What are the colors of the rainbow?",
            "List the rainbow colors.",
            "Name the colors of the rainbow.",
            "Which colors are in the rainbow?",
        ),
    ),
    (
        "Africa, Antarctica, Asia, Europe, North America, Oceania, South America",
        (
            "What are the continents?",
            "List the continents.",
            "Name all continents.",
            "Which continents are there?",
        ),
    ),
)


def counting(rng: Random) -> Exercise:
    """Numbers in a row, upwards or downwards."""
    kind = rng.randrange(4)
    first = 1 if kind == 1 else rng.randrange(0, 60)
    last = first + rng.randrange(2, 13)
    numbers = [str(number) for number in range(first, last + 1)]
    if kind == 3:
        numbers.reverse()
    phrasings = (_COUNT, _COUNT_TO, _COUNT, _DOWN)[kind]
    question = ask(rng, phrasings, a=first, b=last)
    answer = ", ".join(numbers)
    thinking = f"from {numbers[0]} to {numbers[-1]}"
    expected = Expected(Rule.EXACT, answer)
    return exercise(f"{kind}:{first}-{last}", question, answer, thinking, expected)


def parity(rng: Random) -> Exercise:
    """Even or odd, and the numbers next to a number."""
    number = rng.randrange(1, 10 ** rng.randrange(1, 4))
    chance = rng.random()
    if chance < 0.5:
        value = "odd" if number % 2 else "even"
        question, answer = ask(rng, _PARITY, a=number), f"{number} is {value}."
        thinking, kind = f"last digit {number % 10}: {value}", "parity"
        expected = Expected(Rule.CONTAINS, f"is {value}")
    elif chance < 0.8:
        question, answer = ask(rng, _NEXT, a=number), f"{number + 1} comes after {number}."
        thinking, kind = f"after {number}", "after"
        expected = Expected(Rule.EXACT, answer)
    else:
        question, answer = ask(rng, _BEFORE, a=number), f"{number - 1} comes before {number}."
        thinking, kind = f"before {number}", "before"
        expected = Expected(Rule.EXACT, answer)
    return exercise(f"{kind}:{number}", question, answer, thinking, expected)


def well_known(rng: Random) -> Exercise:
    """Days, months, planets and the like, one after the other."""
    index = rng.randrange(len(_ROWS))
    answer, phrasings = _ROWS[index]
    form = rng.randrange(len(phrasings))
    question = ask(rng, phrasings[form : form + 1])
    expected = Expected(Rule.EXACT, answer)
    first = answer.split(",", 1)[0]
    return exercise(f"row {index}:{form}:{question}", question, answer, f"from {first}", expected)
