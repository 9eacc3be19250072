"""Messages and tools in the shape of OpenAI's chat API, as frozen values.

One reader for everything that brings such JSON: HTTP bodies, message files of the command line,
library callers. Unknown members of a message are ignored; known ones of a wrong type are refused
with their path. Rules that do not depend on the JSON shape are in `conversation`. Source: the
serving contract, sections 3.3, 6.1 and 6.2.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.conversation import (
    MediaKind,
    MediaPart,
    Message,
    Part,
    Role,
    TextPart,
    ToolCallRequest,
    ToolDefinition,
)
from ninfer.frontend.template_json import parse_json
from ninfer.frontend.tokenizer import check_unicode

MAX_TOOL_BYTES = 256 << 10
MAX_NAME_CHARACTERS = 64
_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}
_MEDIA = {
    "image_url": MediaKind.IMAGE,
    "image": MediaKind.IMAGE,
    "video_url": MediaKind.VIDEO,
    "video": MediaKind.VIDEO,
}


def parse_messages(value: object, path: str = "messages") -> tuple[Message, ...]:
    """Read a list of messages.

    Raises:
        RequestError: with the dotted path of the offending field.
    """
    if not isinstance(value, list):
        _wrong_type(path, value, "a list")
    if not value:
        raise RequestError(f"{path} is empty", field=path)
    return tuple(_message(item, f"{path}[{index}]") for index, item in enumerate(value))


def parse_tools(
    value: object, path: str = "tools", *, longest_name: int = MAX_NAME_CHARACTERS
) -> tuple[ToolDefinition, ...]:
    """Read a list of tool definitions; None means none.

    Args:
        value: the list.
        path: where it stands.
        longest_name: characters that the protocol allows in the name of a function.

    Raises:
        RequestError: with the dotted path of the offending field.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        _wrong_type(path, value, "a list")
    tools = tuple(_tool(item, f"{path}[{index}]", longest_name) for index, item in enumerate(value))
    size = len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))
    if size > MAX_TOOL_BYTES:
        raise RequestError(
            f"{path} has {size} bytes; allowed is at most {MAX_TOOL_BYTES}", field=path
        )
    return tools


def json_kind(value: object) -> str:
    """Name of a JSON value's type, for messages; Python's own for what is no JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def _message(value: object, path: str) -> Message:
    if not isinstance(value, dict):
        _wrong_type(path, value, "an object")
    role = _role(value, path)
    if value.get("name") is not None and role is not Role.TOOL:
        raise UnsupportedFeature(f"{path}.name is not supported", field=f"{path}.name")
    calls = _tool_calls(value.get("tool_calls"), f"{path}.tool_calls")
    return Message(
        role,
        _content(value, role, path, has_calls=bool(calls)),
        reasoning=_reasoning(value, path),
        tool_calls=calls,
        tool_call_id=_optional_text(value, "tool_call_id", path),
    )


def _role(value: Mapping[str, Any], path: str) -> Role:
    if "role" not in value:
        _missing(f"{path}.role")
    name = value["role"]
    if not isinstance(name, str):
        _wrong_type(f"{path}.role", name, "a string")
    if name not in _ROLES:
        raise RequestError(
            f"{path}.role is {name[:64]!r}; allowed is {', '.join(_ROLES)}", field=f"{path}.role"
        )
    return _ROLES[name]


def _content(
    value: Mapping[str, Any], role: Role, path: str, *, has_calls: bool
) -> str | tuple[Part, ...]:
    content = value.get("content")
    field = f"{path}.content"
    refusal = _optional_text(value, "refusal", path) if role is Role.ASSISTANT else None
    if refusal:
        if content:
            raise RequestError(
                f"{path}.refusal and {field} are both given",
                code="conflicting_parameters",
                field=f"{path}.refusal",
            )
        return refusal
    if content is None:
        if role is Role.ASSISTANT and has_calls:
            return ""
        _missing(field)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _wrong_type(field, content, "a string or a list of parts")
    return tuple(_part(part, role, f"{field}[{index}]") for index, part in enumerate(content))


def _part(value: object, role: Role, path: str) -> Part:
    if not isinstance(value, dict):
        _wrong_type(path, value, "an object")
    kind = _optional_text(value, "type", path)
    if kind == "text":
        return TextPart(_text(value, "text", path))
    if kind == "refusal" and role is Role.ASSISTANT:
        return TextPart(_text(value, "refusal", path))
    if kind in _MEDIA and role in (Role.USER, Role.TOOL):
        return MediaPart(_MEDIA[kind])
    if kind is None:
        _missing(f"{path}.type")
    raise RequestError(
        f"{path}.type is {str(kind)[:64]!r}, which a {role.value} message cannot hold",
        field=f"{path}.type",
    )


def _reasoning(value: Mapping[str, Any], path: str) -> str | None:
    first = _optional_text(value, "reasoning_content", path)
    second = _optional_text(value, "reasoning", path)
    if first is not None and second is not None and first != second:
        raise RequestError(
            f"{path}.reasoning and {path}.reasoning_content differ",
            code="conflicting_parameters",
            field=f"{path}.reasoning",
        )
    return second if first is None else first


def _tool_calls(value: object, path: str) -> tuple[ToolCallRequest, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        _wrong_type(path, value, "a list")
    return tuple(_tool_call(item, f"{path}[{index}]") for index, item in enumerate(value))


def _tool_call(value: object, path: str) -> ToolCallRequest:
    if not isinstance(value, dict):
        _wrong_type(path, value, "an object")
    function = value.get("function")
    if function is None:
        _missing(f"{path}.function")
    if not isinstance(function, dict):
        _wrong_type(f"{path}.function", function, "an object")
    return ToolCallRequest(
        _text(function, "name", f"{path}.function"),
        _arguments(function.get("arguments"), f"{path}.function.arguments"),
        _optional_text(value, "id", path),
    )


def _arguments(value: object, path: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    if value is None:
        _missing(path)
    if not isinstance(value, str):
        _wrong_type(path, value, "JSON text of an object")
    check_unicode(value, path)
    try:
        arguments = parse_json(value) if value.strip() else {}
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}", field=path) from error
    if not isinstance(arguments, dict):
        raise RequestError(f"{path} is JSON, but not an object", field=path)
    return arguments


def _tool(value: object, path: str, longest_name: int) -> ToolDefinition:
    if not isinstance(value, dict):
        _wrong_type(path, value, "an object")
    if value.get("type", "function") != "function":
        raise UnsupportedFeature(
            f"{path}.type is {str(value['type'])[:64]!r}; allowed is function",
            code="unsupported_value",
            field=f"{path}.type",
        )
    function = value.get("function")
    if function is None:
        _missing(f"{path}.function")
    if not isinstance(function, dict):
        _wrong_type(f"{path}.function", function, "an object")
    name = _text(function, "name", f"{path}.function")
    if len(name) > longest_name:
        raise RequestError(
            f"{path}.function.name has {len(name)} characters; allowed is {longest_name}",
            field=f"{path}.function.name",
        )
    _optional_text(function, "description", f"{path}.function")
    if function.get("strict"):
        raise UnsupportedFeature(
            f"{path}.function.strict is not supported", field=f"{path}.function.strict"
        )
    _check_parameters(function.get("parameters"), f"{path}.function.parameters")
    return ToolDefinition(value)


def _check_parameters(value: object, path: str) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        _wrong_type(path, value, "an object schema")
    if value.get("type", "object") != "object":
        raise RequestError(
            f"{path}.type is {str(value['type'])[:64]!r}; allowed is object", field=f"{path}.type"
        )
    if not isinstance(value.get("properties", {}), dict):
        _wrong_type(f"{path}.properties", value["properties"], "an object")


def _text(value: Mapping[str, Any], key: str, path: str) -> str:
    text = _optional_text(value, key, path)
    if text is None:
        _missing(f"{path}.{key}")
    return text


def _optional_text(value: Mapping[str, Any], key: str, path: str) -> str | None:
    text = value.get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        _wrong_type(f"{path}.{key}", text, "a string")
    check_unicode(text, f"{path}.{key}")
    return text


def _missing(field: str) -> NoReturn:
    raise RequestError(f"{field} is missing", code="missing_field", field=field)


def _wrong_type(field: str, value: object, wanted: str) -> NoReturn:
    raise RequestError(
        f"{field} is {json_kind(value)}; it must be {wanted}", code="invalid_type", field=field
    )
