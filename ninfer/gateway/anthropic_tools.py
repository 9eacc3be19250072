"""Anthropic tool definitions as those the chat template knows.

The rules of a definition are the frontend's; here only the shape and the paths differ. Source: the
serving contract, sections 6.2 and 9.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.conversation import ToolDefinition
from ninfer.frontend.message_json import parse_tools
from ninfer.gateway.anthropic_fields import ReadingNotes
from ninfer.gateway.json_body import json_kind
from ninfer.gateway.json_fields import Fields
from ninfer.generation import shown

MAX_NAME_CHARACTERS: Final = 128
_FUNCTION_PATH = re.compile(r"(tools\[\d+\])\.function(?:\.parameters)?")


def read_tools(fields: Fields, notes: ReadingNotes) -> tuple[ToolDefinition, ...]:
    """Read ``tools``.

    Raises:
        RequestError: with the path of the offending field.
        UnsupportedFeature: a tool that a server would have to execute.
    """
    tools = fields.items("tools")
    if tools is None:
        return ()
    functions = [_function(tool, f"tools[{index}]", notes) for index, tool in enumerate(tools)]
    try:
        return parse_tools(functions, longest_name=MAX_NAME_CHARACTERS)
    except RequestError as error:
        raise renamed(error, tool_path) from error


def tool_path(path: str) -> str:
    """Path in the body of a path in the definitions."""
    return _FUNCTION_PATH.sub(
        lambda match: match[1] + (".input_schema" if "parameters" in match[0] else ""), path
    )


def renamed(error: RequestError, path_of: Callable[[str], str]) -> RequestError:
    """The same error about the field of the body."""
    if error.field is None:
        return error
    path, message = path_of(error.field), str(error)
    if message.startswith(error.field):
        message = path + message.removeprefix(error.field)
    return RequestError(message, code=error.code, field=path)


def _function(tool: Any, path: str, notes: ReadingNotes) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise RequestError(
            f"{path} is {json_kind(tool)}; it must be an object", code="invalid_type", field=path
        )
    members = Fields(tool, path)
    kind = members.text("type")
    if kind not in (None, "custom"):
        raise UnsupportedFeature(
            f"{path}.type is {shown(kind)}; this server executes no tools, describe a function",
            field=f"{path}.type",
        )
    if members.boolean("strict"):
        raise UnsupportedFeature(f"{path}.strict is not supported yet", field=f"{path}.strict")
    notes.note_marker(members)
    name = members.text("name")
    if name is None:
        raise members.missing("name")
    if members.nested("input_schema") is None:
        raise members.missing("input_schema")
    function: dict[str, Any] = {"name": name}
    description = members.text("description")
    if description is not None:
        function["description"] = description
    function["parameters"] = members.raw("input_schema")
    notes.note_leftover(members)
    return {"type": "function", "function": function}
