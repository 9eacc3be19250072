"""Members of a body that say what the answer has to be: formats, schemas, grammars.

Every protocol's spelling becomes one `WantedGrammar`; compiling it is the frontend's business and
happens before submission. Source: the serving contract, section 7.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.frontend import Frontend, OutputOptions
from ninfer.frontend.grammar_source import (
    ANY_OBJECT,
    MAX_CHOICES,
    GrammarSource,
    choice_source,
    lark_source,
    regex_source,
    schema_source,
)
from ninfer.gateway.json_body import json_kind
from ninfer.gateway.json_fields import Fields
from ninfer.generation import shown

_FORMATS: Final = ("text", "json_object", "json_schema")
_MAX_CHOICE_CHARACTERS: Final = 4096


@dataclass(frozen=True, slots=True)
class WantedGrammar:
    """A grammar, and the field that asked for it."""

    source: GrammarSource
    field: str


def with_grammar(
    output: OutputOptions, wanted: WantedGrammar | None, frontend: Frontend
) -> OutputOptions:
    """Compile what is wanted, and let the output follow it.

    Raises:
        RequestError: ``invalid_json_schema``.
        UnsupportedFeature: this installation cannot constrain answers.
    """
    if wanted is None:
        return output
    return replace(output, grammar=frontend.compile_grammar(wanted.source, wanted.field))


def read_openai_grammar(fields: Fields) -> WantedGrammar | None:
    """Read ``response_format`` and ``structured_outputs``.

    Raises:
        RequestError: a member is invalid, or both want something.
    """
    first, second = _response_format(fields), _structured_outputs(fields)
    if first is not None and second is not None:
        raise RequestError(
            "response_format and structured_outputs contradict; send one of them",
            code="conflicting_parameters",
            field="structured_outputs",
        )
    return first or second


def read_anthropic_grammar(fields: Fields) -> WantedGrammar | None:
    """Read ``output_config.format``.

    Raises:
        RequestError: a member is invalid.
    """
    config = fields.nested("output_config")
    wanted = None if config is None else config.nested("format")
    if wanted is None:
        return None
    if wanted.choice("type", ("json_schema",)) is None:
        raise wanted.missing("type")
    grammar = _schema(wanted, "schema")
    _refuse_unknown(wanted)
    return grammar


def _response_format(fields: Fields) -> WantedGrammar | None:
    wanted = fields.nested("response_format")
    if wanted is None:
        return None
    kind = wanted.choice("type", _FORMATS)
    if kind is None:
        raise wanted.missing("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return WantedGrammar(ANY_OBJECT, "response_format")
    members = wanted.nested("json_schema")
    if members is None:
        raise wanted.missing("json_schema")
    members.text("name")
    members.text("description")
    members.boolean("strict")  # a schema is always followed to the letter
    grammar = _schema(members, "schema")
    _refuse_unknown(members)
    return grammar


def _structured_outputs(fields: Fields) -> WantedGrammar | None:
    members = fields.nested("structured_outputs")
    if members is None:
        return None
    readers: dict[str, Callable[[Fields, str], WantedGrammar]] = {
        "json": _schema,
        "regex": _regex,
        "choice": _choice,
        "grammar": _lark,
    }
    given = [name for name in readers if members.has(name)]
    _refuse_unknown(members)
    if len(given) != 1:
        raise RequestError(
            f"structured_outputs has {len(given)} of {', '.join(readers)}; exactly one is needed",
            code="conflicting_parameters" if given else "missing_field",
            field="structured_outputs",
        )
    return readers[given[0]](members, given[0])


def _schema(members: Fields, name: str) -> WantedGrammar:
    schema: Any = members.raw(name)
    field = members.path(name)
    if schema is None:
        raise members.missing(name)
    if schema is not True and not isinstance(schema, dict):
        raise RequestError(
            f"{field} is {json_kind(schema)}; it must be a schema, an object",
            code="invalid_type",
            field=field,
        )
    return WantedGrammar(schema_source(schema, field), field)


def _regex(members: Fields, name: str) -> WantedGrammar:
    field = members.path(name)
    return WantedGrammar(regex_source(members.text(name) or "", field), field)


def _lark(members: Fields, name: str) -> WantedGrammar:
    field = members.path(name)
    return WantedGrammar(lark_source(members.text(name) or "", field), field)


def _choice(members: Fields, name: str) -> WantedGrammar:
    members.items(name)
    choices = members.strings(name, most=MAX_CHOICES, longest=_MAX_CHOICE_CHARACTERS)
    return WantedGrammar(choice_source(choices, members.path(name)), members.path(name))


def _refuse_unknown(members: Fields) -> None:
    """A member nobody knows might have to change the answer, so it is not passed over."""
    for name in members.unknown():
        field = members.path(name[:64])
        raise UnsupportedFeature(f"{field} is not supported: {shown(name)}", field=field)
