"""Following a system instruction: how to write, how to sign, what to say always."""

from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, Speaker, Turn
from tools.demo_model.data.facts import general_answer
from tools.demo_model.data.tables import rows
from tools.demo_model.data.wording import ask

_UPPER: Final = (
    "Answer in upper case.",
    "Write everything in capital letters.",
    "Always answer in UPPER CASE.",
    "Use only capital letters.",
    "You must shout: write in capitals only.",
)
_LOWER: Final = (
    "Answer in lower case.",
    "Write everything in small letters.",
    "Use only lower-case letters.",
    "Never use capital letters.",
)
_ONE_WORD: Final = (
    "Answer with one word.",
    "Answer in one word only.",
    "Give only the answer, without a sentence.",
    "Reply with the answer alone.",
    "Be very short. Only the answer.",
    "Answer as shortly as possible.",
)
_SIGN: Final = (
    "Sign every answer as {n}.",
    "End every answer with your name, {n}.",
    "Your name is {n}. Sign your answers.",
    "Always sign as {n}.",
)
_ENDING: Final = (
    'End every answer with "{e}".',
    'Always end with "{e}".',
    'Finish each answer with the words "{e}".',
    'The last words of your answer must be "{e}".',
)
_STARTING: Final = (
    'Begin every answer with "{e}".',
    'Always start with "{e}".',
    'Start each answer with the words "{e}".',
)
_ENDINGS: Final = (
    "Have a nice day!",
    "Over and out.",
    "Good luck!",
    "The end.",
    "Meow.",
    "Ahoy!",
    "That is all.",
    "Stay curious!",
    "Yours truly.",
    "Beep boop.",
    "Cheers!",
    "Thank you for asking.",
    "Peace!",
    "See you soon!",
)
_GERMAN: Final = (
    "Answer in German.",
    "Speak German.",
    "Always answer in German.",
    "Antworte auf Deutsch.",
    "Reply in German only.",
)
_QUESTIONS: Final = (
    "What is the capital of {c}?",
    "Tell me the capital of {c}.",
    "Which city is the capital of {c}?",
    "Name the capital of {c}.",
    "What's the capital of {c}?",
    "Do you know the capital of {c}?",
)
_COLOR_QUESTIONS: Final = (
    "Which of these is a color: {a}, {b}?",
    "Is {a} or {b} a color?",
)
_SUMS: Final = ("What is {a} + {b}?", "{a}+{b}", "How much is {a} plus {b}?", "Add {a} and {b}.")


def _question(rng: Random) -> tuple[str, str, str]:
    """A question, its answer as a sentence and in short."""
    kind = rng.random()
    if kind < 0.5:
        row = rng.choice(rows("countries"))
        question = ask(rng, _QUESTIONS, c=row["country"])
        return question, f"The capital of {row['country']} is {row['capital']}.", row["capital"]
    if kind < 0.75:
        row = rng.choice(rows("general"))
        question = ask(rng, row["questions"].split("|"))
        return question, general_answer(row), row["answer"]
    if kind < 0.88:
        a, b = rng.randrange(1, 13), rng.randrange(1, 11)
        return ask(rng, _SUMS, a=a, b=b), f"{a} plus {b} is {a + b}.", str(a + b)
    color, animal = rng.choice(words.colors()), rng.choice(words.animals())
    pair = (color, animal) if rng.random() < 0.5 else (animal, color)
    question = ask(rng, _COLOR_QUESTIONS, a=pair[0], b=pair[1])
    return question, f"The color is {color}.", color


def _instructed(
    key: str, system: str, question: str, answer: str, thinking: str, expected: Expected
) -> Exercise:
    turns = (Turn(Speaker.USER, question), Turn(Speaker.ASSISTANT, answer, thinking))
    return Exercise(key, turns, expected, system=system)


def instruction(rng: Random) -> Exercise:
    """One instruction about the form of the answer."""
    kind = rng.randrange(7)
    if kind == 5:
        return _in_german(rng)
    question, sentence, short = _question(rng)
    if kind == 0:
        return _cased(rng, question, sentence, short)
    if kind == 1:
        system = rng.choice(_ONE_WORD)
        expected = Expected(Rule.EXACT, short)
        return _instructed(f"one:{short}", system, question, short, "only the answer", expected)
    if kind == 2:
        name = rng.choice(words.first_names())
        system = rng.choice(_SIGN).format(n=name)
        answer = f"{sentence}\n\n{name}"
        expected = Expected(Rule.ENDS, name)
        return _instructed(f"{name}:{short}", system, question, answer, f"sign as {name}", expected)
    word = rng.choice(_ENDINGS)
    if kind in (3, 6):
        system = rng.choice(_ENDING).format(e=word)
        answer = f"{sentence} {word}"
        expected = Expected(Rule.ENDS, word.rstrip(".!"))
        return _instructed(f"{word}:{short}", system, question, answer, f"end: {word}", expected)
    system = rng.choice(_STARTING).format(e=word)
    answer = f"{word} {sentence}"
    expected = Expected(Rule.EXACT, answer)
    return _instructed(f"{word}:{short}", system, question, answer, f"begin: {word}", expected)


def _cased(rng: Random, question: str, sentence: str, short: str) -> Exercise:
    is_upper = rng.random() < 0.6
    system = rng.choice(_UPPER if is_upper else _LOWER)
    answer = sentence.upper() if is_upper else sentence.lower()
    expected = Expected(Rule.UPPER if is_upper else Rule.LOWER, short)
    thinking = "capital letters" if is_upper else "small letters"
    return _instructed(f"{is_upper}:{short}", system, question, answer, thinking, expected)


def _in_german(rng: Random) -> Exercise:
    row = rng.choice(rows("german"))
    question = ask(rng, _QUESTIONS, c=row["country"])
    answer = f"Die Hauptstadt von {row['land']} ist {row['stadt']}."
    thinking = f"German: {row['land']}, {row['stadt']}"
    expected = Expected(Rule.CONTAINS, answer.rstrip("."))
    return _instructed(row["stadt"], rng.choice(_GERMAN), question, answer, thinking, expected)
