"""What a client wants continued: messages, tools, and the checks every conversation must pass.

Plain frozen values in wire order. Checks raise `RequestError` with the dotted path of the field, so
that every door (HTTP, command line, library) refuses the same input in the same words. Knows no
JSON shape of a protocol and no template. Source: the serving contract, sections 3.3, 6.1 and 6.2.
"""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.tokenizer import check_unicode

MAX_MESSAGES = 4096
MAX_TOOLS = 128
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Role(enum.Enum):
    """Who speaks; the value is the template's spelling."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class MediaKind(enum.Enum):
    """What a media part holds."""

    IMAGE = "image"
    VIDEO = "video"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of a message's text; pieces are joined without a separator."""

    text: str


@dataclass(frozen=True, slots=True)
class MediaPart:
    """A picture or a video at its place in the text."""

    kind: MediaKind


Part = TextPart | MediaPart


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A call the assistant made earlier; ``arguments`` keep the order of their keys."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Attributes:
        reasoning: thinking of an assistant turn; whether it is shown is the template's rule.
        tool_calls: calls of an assistant turn.
        tool_call_id: the call a tool turn answers; None when calls carry no ids.
    """

    role: Role
    content: str | tuple[Part, ...] = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCallRequest, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All text parts together."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A function the model may call, as the client described it, in the client's key order.

    Attributes:
        definition: ``{"type": "function", "function": {"name", "description", "parameters"}}``.
    """

    definition: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the function."""
        name: str = self.definition["function"]["name"]
        return name

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments; empty when the client gave none."""
        schema: Mapping[str, Any] = self.definition["function"].get("parameters") or {}
        return schema

    @classmethod
    def of(
        cls, name: str, description: str | None = None, parameters: Mapping[str, Any] | None = None
    ) -> "ToolDefinition":
        """Build a definition in the usual key order."""
        function: dict[str, Any] = {"name": name}
        if description is not None:
            function["description"] = description
        if parameters is not None:
            function["parameters"] = parameters
        return cls({"type": "function", "function": function})


class ToolChoice(enum.Enum):
    """Whether the model may call tools."""

    AUTO = "auto"
    NONE = "none"  # no tool is rendered, no call is parsed


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything the template is given."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO

    @property
    def offered_tools(self) -> tuple[ToolDefinition, ...]:
        """Tools the model is told about."""
        return self.tools if self.tool_choice is ToolChoice.AUTO else ()


def checked_conversation(conversation: Conversation) -> Conversation:
    """Check every rule, and put tool results in the order of their calls.

    Raises:
        RequestError: with the path of the offending field.
        UnsupportedFeature: a media part, while the engine reads text only.
    """
    count = len(conversation.messages)
    if not 1 <= count <= MAX_MESSAGES:
        raise _invalid("messages", f"has {count} messages; allowed is 1..{MAX_MESSAGES}")
    for path, text in conversation_strings(conversation):
        check_unicode(text, path)
    for index, message in enumerate(conversation.messages):
        _check_message(message, f"messages[{index}]")
    _check_tools(conversation.tools)
    return replace(conversation, messages=_ordered_results(conversation.messages))


def conversation_strings(conversation: Conversation) -> Iterator[tuple[str, str]]:
    """Every string of the client, with its dotted path."""
    for index, message in enumerate(conversation.messages):
        path = f"messages[{index}]"
        if isinstance(message.content, str):
            yield f"{path}.content", message.content
        else:
            for part_index, part in enumerate(message.content):
                if isinstance(part, TextPart):
                    yield f"{path}.content[{part_index}].text", part.text
        if message.reasoning is not None:
            yield f"{path}.reasoning_content", message.reasoning
        if message.tool_call_id is not None:
            yield f"{path}.tool_call_id", message.tool_call_id
        for call_index, call in enumerate(message.tool_calls):
            call_path = f"{path}.tool_calls[{call_index}]"
            yield f"{call_path}.function.name", call.name
            yield from _strings(call.arguments, f"{call_path}.function.arguments")
            if call.call_id is not None:
                yield f"{call_path}.id", call.call_id
    for index, tool in enumerate(conversation.tools):
        yield from _strings(tool.definition, f"tools[{index}]")


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield path, str(key)
            yield from _strings(item, f"{path}.{key}")
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for index, item in enumerate(value):
            yield from _strings(item, f"{path}[{index}]")


def _check_message(message: Message, path: str) -> None:
    if not isinstance(message.content, str):
        for index, part in enumerate(message.content):
            if isinstance(part, MediaPart):
                raise UnsupportedFeature(
                    f"{path}.content[{index}] is {part.kind.value}; this engine reads text only",
                    code="vision_disabled",
                    field=f"{path}.content[{index}]",
                )
    if message.role is not Role.ASSISTANT and (message.tool_calls or message.reasoning is not None):
        field = f"{path}.tool_calls" if message.tool_calls else f"{path}.reasoning_content"
        raise _invalid(field, f"belongs to an assistant message, not to {message.role.value}")
    if message.role is not Role.TOOL and message.tool_call_id is not None:
        raise _invalid(f"{path}.tool_call_id", "belongs to a tool message")
    for index, call in enumerate(message.tool_calls):
        if not call.name:
            raise _invalid(f"{path}.tool_calls[{index}].function.name", "is empty")


def _check_tools(tools: Sequence[ToolDefinition]) -> None:
    if len(tools) > MAX_TOOLS:
        raise _invalid("tools", f"has {len(tools)} tools; allowed is at most {MAX_TOOLS}")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        field = f"tools[{index}].function.name"
        if not _TOOL_NAME.fullmatch(tool.name):
            raise _invalid(field, f"is {tool.name[:64]!r}; allowed is {_TOOL_NAME.pattern}")
        if tool.name in seen:
            raise _invalid(field, f"is {tool.name!r} a second time")
        seen.add(tool.name)


def _ordered_results(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Put each run of tool messages in the order of the calls it answers."""
    ordered: list[Message] = []
    calls: tuple[ToolCallRequest, ...] = ()
    answered: set[str] = set()
    run: list[tuple[int, Message]] = []
    for index, message in enumerate(messages):
        if message.role is Role.TOOL:
            run.append((_answered_call(message, calls, answered, f"messages[{index}]"), message))
            continue
        ordered += _in_call_order(run)
        run = []
        if message.role is not Role.SYSTEM:
            calls, answered = message.tool_calls, set()
        ordered.append(message)
    return tuple(ordered + _in_call_order(run))


def _in_call_order(run: list[tuple[int, Message]]) -> list[Message]:
    return [result for _, result in sorted(run, key=lambda entry: entry[0])]


def _answered_call(
    message: Message, calls: Sequence[ToolCallRequest], answered: set[str], path: str
) -> int:
    """Index of the call a result answers; results of calls without ids stay where they are."""
    wanted = message.tool_call_id
    if wanted is None and any(call.call_id is not None for call in calls):
        raise RequestError(
            f"{path}.tool_call_id is missing, while the calls before it have ids",
            code="missing_field",
            field=f"{path}.tool_call_id",
        )
    if wanted is None and calls:
        return len(calls)
    if wanted is None:
        raise RequestError(
            f"{path} answers a call; no call comes before it",
            code="invalid_tool_history",
            field=f"{path}.tool_call_id",
        )
    for index, call in enumerate(calls):
        if call.call_id == wanted and wanted not in answered:
            answered.add(wanted)
            return index
    raise RequestError(
        f"{path}.tool_call_id is {wanted[:64]!r}, which no unanswered call before it has",
        code="invalid_tool_history",
        field=f"{path}.tool_call_id",
    )


def _invalid(field: str, problem: str) -> RequestError:
    return RequestError(f"{field} {problem}", field=field)
