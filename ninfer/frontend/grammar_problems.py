"""What the grammar library complains of, told in our words.

The library has one error text for a bad grammar, for a limit of its parser and for a token that a
grammar forbids; only the texts tell them apart. Knows no field and no protocol. Source: the texts
of llguidance 1.9.
"""

import re
from typing import Final

from ninfer.errors import GrammarDeadEnd, GrammarUnusable, NinferError
from ninfer.generation import shown

_LONGEST: Final = 200
_DEAD_END: Final = re.compile(r"NoExtension")
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
    (_DEAD_END, "it comes to a place where nothing can follow"),
)
_POSITION: Final = re.compile(r"(?:at )?(?P<line>\d+)\(\d+\): ")
_BAD_EXPRESSION: Final = re.compile(
    r"regex parse error:\n(?:    (?P<shown>[^\n]*)\n *\^+\n)?.*^error: (?P<reason>[^\n]*)",
    re.DOTALL | re.MULTILINE,
)
_LISTING: Final = re.compile(r"; following .* are available")
_FORBIDDEN_TOKEN: Final = re.compile(r"doesn't satisfy the grammar|parser stopped in consume_token")


def compile_problem(text: object, *, has_lines: bool) -> str:
    """Why a grammar is refused, in one line.

    Args:
        text: the library's error.
        has_lines: its lines are those that the client wrote.
    """
    told = str(text)
    position = _POSITION.match(told)
    place = "" if position is None or not has_lines else f"line {position['line']}: "
    return place + (_blamed(told) or _bad_expression(told) or _first_line(told))


def is_dead_end(text: str) -> bool:
    """Whether a grammar has come to a place where nothing can follow."""
    return _DEAD_END.search(text) is not None


def matcher_failure(text: str) -> NinferError:
    """The error that ends an output whose matcher broke down.

    Args:
        text: the library's error; it may quote the output, which no log may hold.
    """
    reason = _blamed(text)
    if reason is not None:
        kind = GrammarDeadEnd if is_dead_end(text) else GrammarUnusable
        return kind(f"the grammar cannot be followed to its end: {reason}")
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


def _bad_expression(text: str) -> str | None:
    """The reason for which an expression could not be read, in the library's words."""
    found = _BAD_EXPRESSION.search(text)
    if found is None:
        return None
    which = "an expression" if found["shown"] is None else f"the expression {shown(found['shown'])}"
    return f"{which} is invalid: {found['reason'][:_LONGEST]}"


def _first_line(text: str) -> str:
    lines = _POSITION.sub("", text.strip(), count=1).splitlines()
    return _LISTING.split(lines[0])[0][:_LONGEST] if lines else "no reason is given"
