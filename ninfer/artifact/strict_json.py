"""JSON text to Python values, stricter than the standard parser and never failing otherwise.

UTF-8 only, no member twice in one object, no NaN or Infinity, bounded integers and nesting. Source:
artifact page, section 4; RFC 8259.
"""

import json
from typing import Final, NoReturn, TypeAlias

from ninfer.artifact.format import ArtifactCode, ArtifactError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = dict[str, JsonValue]

_MAX_DIGITS: Final = 4300  # the standard parser's own default limit
_EXACT_DIGITS: Final = 20  # of 2^64
_BEYOND_U64: Final = 1 << 64


def parse_json(text: bytes) -> JsonValue:
    """Parse exactly one JSON value, with JSON whitespace around it.

    Integers of more digits than 64 bits need come back as plus or minus 2^64: out of every range,
    without the cost of converting them.

    Raises:
        ArtifactError: not UTF-8, not JSON, a member twice, or nested too deep.
    """
    try:
        decoded = text.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"the directory is not UTF-8 at byte {error.start}", code=ArtifactCode.JSON_ENCODING
        ) from error
    try:
        value: JsonValue = json.loads(
            decoded,
            object_pairs_hook=_unique_members,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise _syntax(f"{error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise _syntax("nested too deep") from error
    return value


def _unique_members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Build one object; also called for inner objects."""
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ArtifactError(
                    f"member {name[:80]!a} appears twice in one object",
                    code=ArtifactCode.JSON_DUPLICATE_MEMBER,
                )
            seen.add(name)
    return members


def _integer(text: str) -> int:
    """Convert an integer whose text is already valid JSON."""
    num_digits = len(text.removeprefix("-"))
    if num_digits > _MAX_DIGITS:
        raise _syntax(f"an integer of {num_digits} digits")
    if num_digits <= _EXACT_DIGITS:
        return int(text)
    return -_BEYOND_U64 if text.startswith("-") else _BEYOND_U64


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN, Infinity and -Infinity, which the standard parser takes."""
    raise _syntax(f"{name} is not JSON")


def _syntax(what: str) -> ArtifactError:
    return ArtifactError(
        f"the directory is not one JSON value: {what}", code=ArtifactCode.JSON_SYNTAX
    )
