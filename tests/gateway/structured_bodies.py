"""Requests for structured answers that several tests send."""

from typing import Any

from tests.support.gateway_server import RemoteServer, Reply

Json = dict[str, Any]
BOX: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"type": "integer", "minimum": 1, "maximum": 40},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}

# Known to be too wide only at its second item, farther than a grammar is tried when compiled.
TOO_WIDE_LATER: Json = {
    "type": "array",
    "prefixItems": [
        {"type": "string", "pattern": "^[a-z]{400}$"},
        {"type": "object", "properties": {f"k{i}": {"$ref": "#/$defs/s"} for i in range(600)}},
    ],
    "items": False,
    "minItems": 2,
    "$defs": {"s": {"type": "string"}},
}


def by_schema(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def ask(server: RemoteServer, text: str = "hi", **members: Any) -> Reply:
    defaults = {"max_tokens": 300, "temperature": 0.0, "enable_thinking": False}
    return server.chat(text, **{**defaults, **members})
