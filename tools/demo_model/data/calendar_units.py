"""Days, months, clock times and units of measure.

Weekdays are counted on one by one; units multiply or divide by a fixed number.
"""

from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import ask

_WEEKDAYS: Final = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
_MONTHS: Final = (
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
)
_MONTH_DAYS: Final = (
    "How many days does {m} have?",
    "How many days are in {m}?",
    "How many days are there in {m}?",
    "{m} has how many days?",
    "What is the number of days in {m}?",
    "How long is {m} in days?",
)
_DAY_LATER: Final = (
    "What day is it {n} days after {d}?",
    "Today is {d}. What day is it in {n} days?",
    "If today is {d}, what day will it be in {n} days?",
    "Which weekday comes {n} days after {d}?",
    "It is {d}. Which day is it {n} days later?",
)
_NEXT_DAY: Final = (
    "Which day comes after {d}?",
    "What day comes after {d}?",
    "What is the day after {d}?",
    "Which weekday follows {d}?",
)
_DAY_BEFORE: Final = (
    "Which day comes before {d}?",
    "What day comes before {d}?",
    "What is the day before {d}?",
)
_NEXT_MONTH: Final = (
    "Which month comes after {d}?",
    "What month follows {d}?",
    "What is the month after {d}?",
)
_MONTH_BEFORE: Final = ("Which month comes before {d}?", "What is the month before {d}?")
_CONVERT: Final = (
    "How many {to} are {n} {unit}?",
    "Convert {n} {unit} to {to}.",
    "What is {n} {unit} in {to}?",
    "How much is {n} {unit} in {to}?",
    "{n} {unit} in {to}",
    "How many {to} are in {n} {unit}?",
    "Change {n} {unit} into {to}.",
)
_UNITS: Final = (
    ("meters", "centimeters", 100),
    ("m", "cm", 100),
    ("kilometers", "meters", 1000),
    ("km", "m", 1000),
    ("centimeters", "millimeters", 10),
    ("cm", "mm", 10),
    ("kilograms", "grams", 1000),
    ("kg", "g", 1000),
    ("tons", "kilograms", 1000),
    ("liters", "milliliters", 1000),
    ("euros", "cents", 100),
    ("dollars", "cents", 100),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
    ("dozen", "pieces", 12),
)
_MIXED: Final = (
    "How many minutes are {h} hours and {m} minutes?",
    "Convert {h} hours and {m} minutes to minutes.",
    "{h} hours and {m} minutes in minutes",
)
_CLOCK: Final = (
    "It is {t}. What time is it in {n} minutes?",
    "What time is it {n} minutes after {t}?",
    "The train leaves at {t} and takes {n} minutes. When does it arrive?",
)


def month_days(rng: Random) -> Exercise:
    """Length of a month."""
    index = rng.randrange(len(_MONTH_DAYS))
    month, days = rng.choice(_MONTHS)
    question = ask(rng, _MONTH_DAYS[index : index + 1], m=month)
    extra = ", or 29 in a leap year" if days == 28 else ""
    answer = f"{month} has {days} days{extra}."
    expected = Expected(Rule.CONTAINS, f"{days} days")
    return exercise(f"{index}:{month}", question, answer, f"length of {month}: {days}", expected)


def weekday_later(rng: Random) -> Exercise:
    """Weekday some days later, counted on after full weeks are taken away."""
    start = rng.randrange(7)
    days = rng.randrange(1, 31)
    rest = days % 7
    result = _WEEKDAYS[(start + rest) % 7]
    weeks = days // 7
    lines = [f"{days}={weeks}*7+{rest}"] if weeks else []
    counted = [f"{step} {_WEEKDAYS[(start + step) % 7]}" for step in range(rest + 1)]
    steps = "\n".join([*lines, ", ".join(counted)])
    question = ask(rng, _DAY_LATER, n=days, d=_WEEKDAYS[start])
    answer = f"It is {result}."
    expected = Expected(Rule.CONTAINS, result)
    return exercise(f"{days}:{start}", question, answer, steps, expected, is_worked=True)


def neighbours(rng: Random) -> Exercise:
    """Day or month before or after another."""
    is_day, is_after = rng.random() < 0.5, rng.random() < 0.6
    names = _WEEKDAYS if is_day else tuple(name for name, _ in _MONTHS)
    place = rng.randrange(len(names))
    result = names[(place + (1 if is_after else -1)) % len(names)]
    phrasings: tuple[str, ...]
    if is_day:
        phrasings = _NEXT_DAY if is_after else _DAY_BEFORE
    else:
        phrasings = _NEXT_MONTH if is_after else _MONTH_BEFORE
    index = rng.randrange(len(phrasings))
    question = ask(rng, phrasings[index : index + 1], d=names[place])
    where = "after" if is_after else "before"
    answer = f"{result} comes {where} {names[place]}."
    key = f"{index}{where}:{names[place]}"
    expected = Expected(Rule.CONTAINS, f"{result} comes {where}")
    return exercise(key, question, answer, f"{where} {names[place]}: {result}", expected)


def units(rng: Random) -> Exercise:
    """From a unit to its smaller or larger neighbour."""
    large, small, factor = rng.choice(_UNITS)
    is_down = rng.random() < 0.7
    number = rng.randrange(2, 100 if factor in (10, 100, 1000) else 13)
    if is_down:
        n, unit, to, result = number, large, small, number * factor
        steps = f"1 {large}={factor} {small}, {number}*{factor}={result}"
    else:
        n, unit, to, result = number * factor, small, large, number
        steps = f"1 {large}={factor} {small}, {n}/{factor}={result}"
    question = ask(rng, _CONVERT, n=n, unit=unit, to=to)
    answer = f"{n} {unit} = {result} {to}"
    return exercise(f"{n}{unit}", question, answer, steps, Expected(Rule.ENDS, f"{result} {to}"))


def mixed_minutes(rng: Random) -> Exercise:
    """Hours and minutes in minutes."""
    hours, minutes = rng.randrange(2, 11), rng.randrange(1, 60)
    question = ask(rng, _MIXED, h=hours, m=minutes)
    total = hours * 60 + minutes
    answer = f"{hours} hours and {minutes} minutes = {total} minutes"
    steps = f"{hours}*60={hours * 60}, {hours * 60}+{minutes}={total}"
    expected = Expected(Rule.ENDS, f"{total} minutes")
    return exercise(f"{hours}:{minutes}", question, answer, steps, expected, is_worked=True)


def clock(rng: Random) -> Exercise:
    """A time some minutes later, within the day."""
    hour, minute = rng.randrange(1, 22), rng.choice((0, 5, 10, 15, 20, 25, 30, 40, 45, 50))
    later = rng.choice((5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55))
    total = minute + later
    result = f"{hour + total // 60}:{total % 60:02d}"
    start = f"{hour}:{minute:02d}"
    over = f", {total}-60={total - 60}, hour {hour + 1}" if total >= 60 else f", hour {hour}"
    question = ask(rng, _CLOCK, t=start, n=later)
    steps = f"{minute}+{later}={total}{over}"
    answer = f"At {start} plus {later} minutes it is {result}."
    expected = Expected(Rule.ENDS, result)
    return exercise(f"{start}+{later}", question, answer, steps, expected, is_worked=True)
