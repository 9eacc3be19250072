"""Natural variation of questions: phrasings, politeness, careless typing.

Every skill writes its questions through `ask`, so that a model meets each of them in many forms.
Knows no skill.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

_BEFORE: Final = (
    "Please tell me: ",
    "Hi! ",
    "Hey, ",
    "Hello! ",
    "Quick question: ",
    "I have a question. ",
    "Can you help me? ",
    "Next question: ",
    "And now: ",
    "OK, ",
    "Question: ",
    "Tell me, ",
    "Now ",
)
_BEHIND: Final = (" Please.", " Thanks!", " Thank you.", " Can you tell me?", " I need to know.")


def pick(rng: Random, phrasings: Sequence[str]) -> tuple[int, str]:
    """Choose a phrasing; its index is for the key of the exercise."""
    index = rng.randrange(len(phrasings))
    return index, phrasings[index]


def roughen(rng: Random, text: str, *, can_lower: bool = True) -> str:
    """Vary how a question is typed.

    Args:
        rng: source of chance.
        text: the question in its tidy form.
        can_lower: whether the text still means the same in lower case.
    """
    chance = rng.random()
    if chance < 0.55:
        return text
    if chance < 0.65:
        return text.rstrip("?.")
    if chance < 0.75 and can_lower:
        return text.lower()
    if chance < 0.83 and can_lower:
        return text.lower().rstrip("?.")
    if chance < 0.92:
        before = rng.choice(_BEFORE)
        return before + (_lowered(text) if before[-2] in ":," or before == "Now " else text)
    if chance < 0.97:
        return text + rng.choice(_BEHIND) if text[-1] in "?.!" else text
    return text.rstrip("?.") + rng.choice(("??", " ?", "!", "..."))


def _lowered(text: str) -> str:
    """Lower the first letter, unless the word is one letter or spelled in capitals."""
    if len(text) < 2 or not text[1].islower():
        return text
    return text[0].lower() + text[1:]


def ask(rng: Random, phrasings: Sequence[str], can_lower: bool = True, **values: object) -> str:
    """Choose a phrasing, fill it and vary how it is typed."""
    return roughen(rng, rng.choice(phrasings).format(**values), can_lower=can_lower)
