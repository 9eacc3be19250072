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


def by_schema(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def ask(server: RemoteServer, text: str = "hi", **members: Any) -> Reply:
    defaults = {"max_tokens": 300, "temperature": 0.0, "enable_thinking": False}
    return server.chat(text, **{**defaults, **members})
