"""What the grammar library complains of, told in our words.

The library has one error text for a bad grammar, for a limit of its parser and for a token that a
grammar forbids; only the texts tell them apart. Knows no field and no protocol. Source: the texts
of llguidance 1.9.
"""

import re
from typing import Final

from ninfer.errors import GrammarUnusable, NinferError

_LONGEST: Final = 200
_OF_THE_GRAMMAR: Final = (
    (
        re.compile(r"Current row has (\d+) items; max is (\d+)"),
        "the parser has {} possibilities to keep at once; allowed is at most {}",
    ),
    (
        re.compile(r"Too many items \(limit (\d+)"),
        "the parser has more than {} possibilities to try for one token",
    ),
    (
        re.compile(r"too many states: \d+ >= (\d+)"),
        "its expressions need more than {} states",
    ),
    (
        re.compile(r"too many expressions constructed|fuel exhausted"),
        "its expressions are too complex",
    ),
    (
        re.compile(r"NoExtension"),
        "it comes to a place where nothing can follow",
    ),
)
_FORBIDDEN_TOKEN: Final = re.compile(r"doesn't satisfy the grammar|parser stopped in consume_token")


def compile_problem(text: object) -> str:
    """Why a grammar is refused, in one line.

    Args:
        text: the library's error.
    """
    return _blamed(str(text)) or _first_line(str(text))


def matcher_failure(text: str) -> NinferError:
    """The error that ends an output whose matcher broke down.

    Args:
        text: the library's error; it may quote the output, which no log may hold.
    """
    reason = _blamed(text)
    if reason is not None:
        return GrammarUnusable(f"the grammar cannot be followed to its end: {reason}")
    if _FORBIDDEN_TOKEN.search(text):
        return NinferError(
            "the grammar could not be followed: it forbids the token that was chosen"
        )
    unquoted = re.sub(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'', "...", _first_line(text))
    return NinferError(f"the grammar could not be followed: {unquoted}")


def _blamed(text: str) -> str | None:
    """The reason, when the grammar is to blame."""
    for pattern, reason in _OF_THE_GRAMMAR:
        found = pattern.search(text)
        if found:
            return reason.format(*found.groups())
    return None


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0][:_LONGEST] if lines else "no reason is given"
