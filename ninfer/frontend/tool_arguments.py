"""From the text of a call's parameter to its JSON value, by the tool's own schema.

The schema only decides between text and JSON; it never repairs or rejects a value, that is the
tool's business. Does not know the markup of calls. Source: the serving contract, section 6.3,
rules 6 and 9.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ninfer.frontend.template_json import parse_json


class JsonKind(enum.Enum):
    """Types of JSON Schema; ``number`` and ``integer`` are one here."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    OBJECT = "object"
    ARRAY = "array"


_NAMES = {kind.value: kind for kind in JsonKind} | {"integer": JsonKind.NUMBER}
_ALL = frozenset(JsonKind)
_STRUCTURES = frozenset({JsonKind.OBJECT, JsonKind.ARRAY})
_WORDS = {
    (JsonKind.BOOLEAN, "True"): "true",
    (JsonKind.BOOLEAN, "False"): "false",
    (JsonKind.NULL, "None"): "null",
    (JsonKind.NULL, ""): "null",
}


@dataclass(frozen=True, slots=True)
class ParameterType:
    """What a parameter may be; ``is_declared`` is false when the schema says nothing."""

    kinds: frozenset[JsonKind] = _ALL
    is_declared: bool = False

    @property
    def is_text(self) -> bool:
        """Whether every value is the raw text, so that it can be streamed as it comes."""
        allows_text = JsonKind.STRING in self.kinds
        return self.is_declared and allows_text and not self.kinds & _STRUCTURES


UNDECLARED = ParameterType()


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """Name and parameter types of a declared tool."""

    name: str
    parameters: Mapping[str, ParameterType]

    @classmethod
    def of(cls, name: str, schema: Mapping[str, Any]) -> "ToolSignature":
        """Read the signature out of an object schema."""
        properties = schema.get("properties")
        members = properties if isinstance(properties, Mapping) else {}
        return cls(name, {key: _parameter_type(item, schema) for key, item in members.items()})

    def type_of(self, key: str) -> ParameterType:
        """Type of a parameter, declared or not."""
        return self.parameters.get(key, UNDECLARED)


def argument_json(text: str, parameter: ParameterType) -> str:
    """JSON text of a complete value; digits and inner spelling are kept."""
    kinds = parameter.kinds
    if not parameter.is_declared:
        return _json_of(text, _ALL - {JsonKind.STRING}) or quoted(text)
    if JsonKind.STRING in kinds:
        return _json_of(text, kinds & _STRUCTURES) or quoted(text)
    for (kind, word), value in _WORDS.items():
        if kind in kinds and text.strip() == word:
            return value
    return _json_of(text, _ALL) or quoted(text)


def quoted(text: str) -> str:
    """JSON string of a text, not escaped to ASCII."""
    return json.dumps(text, ensure_ascii=False)


def _json_of(text: str, kinds: frozenset[JsonKind]) -> str | None:
    """Return the text itself when it is JSON of one of these kinds."""
    if not kinds:
        return None
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return text.strip(" \t\r\n") if _kind_of(value) in kinds else None


def _kind_of(value: object) -> JsonKind:
    match value:
        case None:
            return JsonKind.NULL
        case bool():
            return JsonKind.BOOLEAN
        case str():
            return JsonKind.STRING
        case dict():
            return JsonKind.OBJECT
        case list():
            return JsonKind.ARRAY
        case _:
            return JsonKind.NUMBER


def _parameter_type(schema: object, root: Mapping[str, Any]) -> ParameterType:
    kinds = _kinds(schema, root, frozenset())
    return UNDECLARED if kinds is None else ParameterType(kinds, is_declared=True)


def _kinds(
    schema: object, root: Mapping[str, Any], seen: frozenset[str]
) -> frozenset[JsonKind] | None:
    """Kinds a schema allows, or None when it does not say."""
    if not isinstance(schema, Mapping):
        return None
    found = _named_kinds(schema.get("type"))
    for keyword in ("anyOf", "oneOf"):
        found = _narrowed(found, _union(schema.get(keyword), root, seen))
    for part in _list(schema.get("allOf")):
        found = _narrowed(found, _kinds(part, root, seen))
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        target = _resolved(reference, root)
        found = _narrowed(found, _kinds(target, root, seen | {reference}))
    if found is None:
        values = _list(schema.get("enum")) + ([schema["const"]] if "const" in schema else [])
        found = frozenset(map(_kind_of, values)) or None
    return found


def _named_kinds(names: object) -> frozenset[JsonKind] | None:
    listed = names if isinstance(names, list) else [names]
    kinds = frozenset(_NAMES[name] for name in listed if isinstance(name, str) and name in _NAMES)
    return kinds or None


def _union(
    parts: object, root: Mapping[str, Any], seen: frozenset[str]
) -> frozenset[JsonKind] | None:
    kinds: frozenset[JsonKind] = frozenset()
    for part in _list(parts):
        found = _kinds(part, root, seen)
        if found is None:
            return None
        kinds |= found
    return kinds or None


def _narrowed(
    first: frozenset[JsonKind] | None, second: frozenset[JsonKind] | None
) -> frozenset[JsonKind] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second or first


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _resolved(reference: str, root: Mapping[str, Any]) -> object:
    """Follow ``#/a/b`` inside the tool's own schema; anything else says nothing."""
    if not reference.startswith("#"):
        return None
    node: object = root
    for step in reference[1:].split("/")[1:]:
        if not isinstance(node, Mapping):
            return None
        node = node.get(step.replace("~1", "/").replace("~0", "~"))
    return node
