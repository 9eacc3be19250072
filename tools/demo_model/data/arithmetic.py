"""Addition, subtraction and multiplication, worked digit by digit from the right.

Every step of the working needs only digits that stand before it, and the result grows by one digit
a step, so that a small model can follow it:

    347+285
    ones: 7+5=12, carry 1, so 2
    tens: 4+8+1=13, carry 1, so 32
    hundreds: 3+2+1=6, so 632
"""

from random import Random
from typing import Final

from tools.demo_model.data.conversation import Exercise, Expected, Rule, exercise
from tools.demo_model.data.wording import ask

_PLACES: Final = ("ones", "tens", "hundreds", "thousands", "ten thousands")
_SUM: Final = (
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a}+{b}",
    "{a}+{b}=?",
    "{a} + {b} =",
    "Calculate {a} + {b}.",
    "How much is {a} plus {b}?",
    "What is {a} plus {b}?",
    "Add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "What's {a}+{b}?",
    "Compute {a} + {b}.",
    "Solve {a} + {b}.",
)
_DIFFERENCE: Final = (
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a}-{b}",
    "{a}-{b}=?",
    "{a} - {b} =",
    "Calculate {a} - {b}.",
    "How much is {a} minus {b}?",
    "What is {a} minus {b}?",
    "Subtract {b} from {a}.",
    "What is the difference of {a} and {b}?",
    "What's {a}-{b}?",
    "Compute {a} - {b}.",
    "Solve {a} - {b}.",
)
_PRODUCT: Final = (
    "What is {a} * {b}?",
    "{a} * {b}",
    "{a}*{b}",
    "{a}*{b}=?",
    "{a} x {b}",
    "{a} \u00d7 {b}",
    "Calculate {a} * {b}.",
    "How much is {a} times {b}?",
    "What is {a} times {b}?",
    "Multiply {a} by {b}.",
    "What is the product of {a} and {b}?",
    "What's {a}*{b}?",
    "What is {a} x {b}?",
    "Compute {a} * {b}.",
)
_STORY_SUM: Final = (
    "I have {a} {thing} and buy {b} more. How many {thing} do I have now?",
    "There are {a} {thing} on the table and {b} in the box. How many {thing} are there?",
    "Anna has {a} {thing} and Tom has {b}. How many {thing} do they have together?",
)
_STORY_DIFFERENCE: Final = (
    "I have {a} {thing} and give away {b}. How many {thing} are left?",
    "There are {a} {thing} in a box. I take {b} out. How many {thing} stay in the box?",
    "Tom had {a} {thing} and lost {b}. How many {thing} does he have now?",
)
_STORY_PRODUCT: Final = (
    "There are {a} boxes with {b} {thing} each. How many {thing} are there?",
    "I buy {a} bags with {b} {thing} in each. How many {thing} do I have?",
)
_THINGS: Final = (
    "apples",
    "books",
    "pens",
    "cards",
    "eggs",
    "coins",
    "cookies",
    "balls",
    "stamps",
    "oranges",
    "flowers",
    "stones",
    "marbles",
    "stickers",
)


def _digits(number: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number))]


def sum_steps(a: int, b: int) -> str:
    """Work out a sum of two non-negative numbers."""
    left, right = _digits(a), _digits(b)
    lines = [f"{a}+{b}"]
    carry, result = 0, ""
    for place in range(max(len(left), len(right))):
        terms = [part[place] for part in (left, right) if place < len(part)]
        terms += [carry] if carry else []
        total = sum(terms)
        is_last = place + 1 == max(len(left), len(right))
        carry, digit = divmod(total, 10)
        result = f"{total if is_last else digit}{result}"
        carried = f", carry {carry}" if carry and not is_last else ""
        work = "+".join(map(str, terms)) + (f"={total}" if len(terms) > 1 else "")
        lines.append(f"{_PLACES[place]}: {work}{carried}, so {result}")
    return "\n".join(lines)


def difference_steps(a: int, b: int) -> str:
    """Work out ``a - b`` for non-negative numbers; a negative result swaps them first."""
    if a < b:
        return f"{a} is less than {b}, so minus\n{difference_steps(b, a)}\nso -{b - a}"
    left, right = _digits(a), _digits(b)
    lines = [f"{a}-{b}"]
    borrow, result = 0, ""
    for place, top in enumerate(left):
        terms = [right[place]] if place < len(right) else []
        terms += [borrow] if borrow else []
        work = "-".join(map(str, [top, *terms]))
        value = top - sum(terms)
        borrow = int(value < 0)
        if borrow:
            work = f"{work} is too small, borrow, 1{top}" + "".join(f"-{term}" for term in terms)
            value += 10
        result = f"{value}{result}"
        solved = f"{work}={value}" if terms else work
        lines.append(f"{_PLACES[place]}: {solved}, so {result}")
    if result != str(a - b):
        lines.append(f"without zeros {a - b}")
    return "\n".join(lines)


def _row_steps(a: int, digit: int) -> list[str]:
    carry, result = 0, ""
    places = _digits(a)
    lines = []
    for place, value in enumerate(places):
        product = value * digit
        total = product + carry
        work = f"{value}*{digit}={product}" + (f", +{carry}={total}" if carry else "")
        is_last = place + 1 == len(places)
        carry, low = divmod(total, 10)
        result = f"{total if is_last else low}{result}"
        carried = f", carry {carry}" if carry and not is_last else ""
        lines.append(f"{_PLACES[place]}: {work}{carried}, so {result}")
    return lines


def product_steps(a: int, b: int) -> str:
    """Work out a product: one row for each digit of ``b``, then their sum."""
    tens, ones = divmod(b, 10)
    if not tens:
        return "\n".join([f"{a}*{b}", *_row_steps(a, b)])
    lines = [f"{a}*{b}", f"{a}*{ones}", *_row_steps(a, ones)]
    lines += [f"{a}*{tens}", *_row_steps(a, tens), f"with 0: {a * tens * 10}"]
    return "\n".join([*lines, sum_steps(a * tens * 10, a * ones)])


def _number(rng: Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def _finish(
    rng: Random, sign: str, a: int, b: int, question: str, steps: str, is_worked: bool
) -> Exercise:
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    key = f"{a}{sign}{b}"
    answer = f"{a} {sign} {b} = {value}"
    expected = Expected(Rule.NUMBER, str(value))
    return exercise(key, question, answer, steps, expected, is_worked=is_worked)


def addition(rng: Random) -> Exercise:
    """Sums of two- and three-digit numbers."""
    a, b = _number(rng, rng.choice((2, 2, 3, 3, 3))), _number(rng, rng.choice((2, 2, 3, 3, 3)))
    return _finish(rng, "+", a, b, ask(rng, _SUM, a=a, b=b), sum_steps(a, b), max(a, b) > 99)


def subtraction(rng: Random) -> Exercise:
    """Differences of two- and three-digit numbers, seldom negative."""
    a, b = _number(rng, rng.choice((2, 2, 3, 3, 3))), _number(rng, rng.choice((2, 2, 3, 3)))
    if a < b and rng.random() < 0.8:
        a, b = b, a
    question = ask(rng, _DIFFERENCE, a=a, b=b)
    return _finish(rng, "-", a, b, question, difference_steps(a, b), True)


def multiplication(rng: Random) -> Exercise:
    """Products of a two-digit number with one or two digits."""
    a = _number(rng, 2)
    b = rng.randrange(2, 10) if rng.random() < 0.4 else _number(rng, 2)
    question = ask(rng, _PRODUCT, a=a, b=b)
    return _finish(rng, "*", a, b, question, product_steps(a, b), True)


def small_sums(rng: Random) -> Exercise:
    """Sums, differences and products of small numbers, answered at once."""
    sign = rng.choice("+-*")
    a, b = rng.randrange(0, 13 if sign == "*" else 21), rng.randrange(0, 11)
    if sign == "-" and a < b and rng.random() < 0.8:
        a, b = b, a
    phrasings = {"+": _SUM, "-": _DIFFERENCE, "*": _PRODUCT}[sign]
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    index = rng.randrange(len(phrasings))
    question = ask(rng, phrasings[index : index + 1], a=a, b=b)
    key = f"{index}:{a}{sign}{b}"
    answer = f"{a} {sign} {b} = {value}"
    return exercise(key, question, answer, f"{a}{sign}{b}", Expected(Rule.NUMBER, str(value)))


def word_problems(rng: Random) -> Exercise:
    """Short stories with one operation."""
    sign = rng.choice("+-*")
    thing = rng.choice(_THINGS)
    a, b = rng.randrange(2, 60), rng.randrange(2, 40)
    if sign == "-" and a < b:
        a, b = b, a
    if sign == "*":
        a, b = rng.randrange(2, 20), rng.randrange(2, 10)
    phrasings = {"+": _STORY_SUM, "-": _STORY_DIFFERENCE, "*": _STORY_PRODUCT}[sign]
    question = ask(rng, phrasings, a=a, b=b, thing=thing, can_lower=False)
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    steps = {"+": sum_steps, "-": difference_steps, "*": product_steps}[sign](a, b)
    answer = f"{a} {sign} {b} = {value}, so {value} {thing}."
    expected = Expected(Rule.CONTAINS, f"{value} {thing}")
    return exercise(f"{a}{sign}{b}", question, answer, steps, expected, is_worked=True)


def comparison(rng: Random) -> Exercise:
    """Which of two numbers is larger or smaller."""
    digits = rng.choice((1, 2, 2, 3, 3))
    a, b = _number(rng, digits), _number(rng, max(1, digits - (rng.random() < 0.2)))
    if a == b:
        b += 1
    wants_large = rng.random() < 0.6
    words = ("larger", "bigger", "greater") if wants_large else ("smaller", "less")
    word = rng.choice(words)
    phrasings = (
        "Which is {w}, {a} or {b}?",
        "Which number is {w}: {a} or {b}?",
        "What is {w}, {a} or {b}?",
        "{a} or {b}: which one is {w}?",
    )
    value = max(a, b) if wants_large else min(a, b)
    other = a + b - value
    steps = f"{a} {'>' if a > b else '<'} {b}"
    answer = f"{value} is {word} than {other}."
    expected = Expected(Rule.EXACT, answer)
    return exercise(f"{a}?{b}", ask(rng, phrasings, w=word, a=a, b=b), answer, steps, expected)
