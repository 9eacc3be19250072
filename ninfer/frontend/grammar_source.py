"""What a client wants the answer to be, checked and reduced to one text.

Sizes and keywords are checked here; whether a grammar can be compiled is the compiler's to say.
Source: the serving contract, section 7.
"""

import enum
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ninfer.errors import RequestError
from ninfer.frontend.template_json import write_json
from ninfer.frontend.tokenizer import check_unicode

MAX_GRAMMAR_BYTES: Final = 64 << 10
MAX_SCHEMA_DEPTH: Final = 64
MAX_CHOICES: Final = 4096
_REFUSED: Final = frozenset(
    {"patternProperties", "unevaluatedProperties", "unevaluatedItems", "x-guidance"}
)
_NAMED_SCHEMAS: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")


class GrammarKind(enum.Enum):
    """How a grammar's text is read."""

    JSON_SCHEMA = enum.auto()
    REGEX = enum.auto()
    LARK = enum.auto()


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar of one kind as text."""

    kind: GrammarKind
    text: str


ANY_OBJECT: Final = GrammarSource(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
"""One JSON object, whatever it holds."""


def schema_source(schema: object, field: str) -> GrammarSource:
    """Take a JSON schema.

    Raises:
        RequestError: ``invalid_json_schema``, or a wrong type.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise RequestError(
            f"{field} is no schema; it must be an object", code="invalid_type", field=field
        )
    _check_schema(schema, field)
    return _sized(GrammarKind.JSON_SCHEMA, write_json(schema, separators=(",", ":")), field)


def regex_source(pattern: str, field: str) -> GrammarSource:
    """Take a regular expression that the whole answer has to match."""
    return _sized(GrammarKind.REGEX, pattern, field)


def choice_source(choices: Sequence[str], field: str) -> GrammarSource:
    """Take the texts that the answer may be.

    Raises:
        RequestError: there is none, or there are too many.
    """
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise RequestError(
            f"{field} has {len(choices)} choices; allowed is 1..{MAX_CHOICES}", field=field
        )
    for index, choice in enumerate(choices):
        if not choice:
            raise RequestError(f"{field}[{index}] is empty", field=f"{field}[{index}]")
    return _sized(GrammarKind.REGEX, "|".join(_literal(choice) for choice in choices), field)


def lark_source(grammar: str, field: str) -> GrammarSource:
    """Take a Lark grammar."""
    return _sized(GrammarKind.LARK, grammar, field)


def invalid_schema(field: str, problem: str) -> RequestError:
    """The error for a grammar that cannot be honoured."""
    return RequestError(f"{field} {problem}", code="invalid_json_schema", field=field)


def _sized(kind: GrammarKind, text: str, field: str) -> GrammarSource:
    check_unicode(text, field)
    size = len(text.encode("utf-8"))
    if size > MAX_GRAMMAR_BYTES:
        raise invalid_schema(field, f"has {size} bytes; allowed is at most {MAX_GRAMMAR_BYTES}")
    if not text:
        raise invalid_schema(field, "is empty")
    return GrammarSource(kind, text)


def _literal(text: str) -> str:
    """Expression that matches a text and nothing else."""
    return "".join(_META.sub(r"\\\g<0>", char) for char in text)


def _check_schema(schema: Mapping[str, Any], field: str) -> None:
    """Refuse keywords that are not proven, and nesting beyond the limit."""
    waiting: list[tuple[object, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise invalid_schema(field, f"nests deeper than {MAX_SCHEMA_DEPTH} levels")
        if isinstance(value, Mapping):
            refused = sorted(_REFUSED & value.keys())
            if refused:
                raise invalid_schema(field, f"uses {json.dumps(refused[0])}, which is not offered")
            waiting += [(inner, depth + levels) for inner, levels in _inner_schemas(value)]
        elif isinstance(value, list):
            waiting += [(item, depth + 1) for item in value]


def _inner_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[object, int]]:
    """Values below a schema that may be schemas, with the levels they lie deeper."""
    for name, value in schema.items():
        if name in _NAMED_SCHEMAS and isinstance(value, Mapping):
            yield from ((inner, 2) for inner in value.values())
        elif name not in _VALUES:
            yield value, 1
