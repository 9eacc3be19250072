"""Anthropic messages, system text and tools as a conversation.

    turns of the body, neighbours of one role joined
      user:      text, image -> a user message    tool_result -> a tool message, at its place
      assistant: thinking, text, tool_use -> one assistant message
      system:    text -> a system message where it stands

`Origins` remembers where everything came from, so that an error found behind this page names the
field of the body. Source: the serving contract, sections 6, 8 and 9.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ninfer.errors import RequestError, UnsupportedFeature
from ninfer.frontend.conversation import (
    Conversation,
    MediaKind,
    MediaPart,
    Message,
    Part,
    Role,
    TextPart,
    ToolCallRequest,
    ToolChoice,
)
from ninfer.gateway.anthropic_fields import ReadingNotes, ToolUse
from ninfer.gateway.anthropic_tools import read_tools
from ninfer.gateway.json_body import json_kind
from ninfer.gateway.json_fields import Fields
from ninfer.generation import shown

_ROLES: Final = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.content\[(\d+)\])?(.*)", re.DOTALL)
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*(?:\n|\Z)")
_ERROR_MARK: Final = "Error: "


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message of the conversation came from: its own path, and those of its parts."""

    path: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageReference:
    """Where an image of the body is to be had: base64 text, or a URL."""

    path: str
    text: str
    is_url: bool


@dataclass(frozen=True, slots=True)
class AnthropicConversation:
    """What a body wants continued.

    Attributes:
        is_prefill: the last message is the beginning of the answer.
        origins: one for each message.
        ignored: paths of what was accepted without effect.
        images: what the media parts show, in their order.
    """

    conversation: Conversation
    is_prefill: bool
    origins: tuple[Origin, ...]
    ignored: tuple[str, ...]
    images: tuple[ImageReference, ...]

    def path_of(self, path: str) -> str:
        """Path in the body of a path in the conversation."""
        match = _MESSAGE.fullmatch(path)
        if match is None or int(match[1]) >= len(self.origins):
            return path
        origin = self.origins[int(match[1])]
        if match[2] is not None and int(match[2]) < len(origin.parts):
            return origin.parts[int(match[2])]
        return origin.path + match[3].replace("tool_call_id", "tool_use_id")


@dataclass(slots=True)
class _Turn:
    """Blocks of neighbouring messages of one role, with their paths."""

    role: Role
    path: str
    blocks: list[tuple[str, Any]] = field(default_factory=list)


def read_anthropic_conversation(
    fields: Fields, choice: ToolUse, *, keeps_billing_header: bool
) -> AnthropicConversation:
    """Read ``system``, ``messages`` and ``tools``.

    Raises:
        RequestError: with the path of the offending field.
        UnsupportedFeature: a block that this server does not offer.
    """
    reader = _ConversationReader()
    reader.read_system(fields, keeps_billing_header=keeps_billing_header)
    reader.notes.note_marker(fields)
    tools = read_tools(fields, reader.notes)
    turns = _turns(fields, reader.notes)
    for turn in turns:
        reader.read_turn(turn)
    last = turns[-1]
    is_prefill = last.role is Role.ASSISTANT and not reader.messages[-1].tool_calls
    if is_prefill:
        _check_prefill(reader.messages[-1], last.path)
    conversation = Conversation(
        tuple(reader.messages), tools, ToolChoice.AUTO if choice.is_offered else ToolChoice.NONE
    )
    return AnthropicConversation(
        conversation,
        is_prefill,
        tuple(reader.origins),
        tuple(reader.notes.ignored),
        tuple(reader.images),
    )


class _ConversationReader:
    """Collects messages and where they came from."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.origins: list[Origin] = []
        self.notes = ReadingNotes()
        self.images: list[ImageReference] = []

    def read_system(self, fields: Fields, *, keeps_billing_header: bool) -> None:
        """Read the leading system text."""
        system = fields.raw("system")
        if system is None:
            return
        parts = self._text_parts(system, "system")
        if parts and not keeps_billing_header:
            path, first = parts[0]
            parts[0] = (path, TextPart(_BILLING.sub("", first.text, count=1)))
            if not parts[0][1].text and first.text:
                del parts[0]
        if parts:
            self._add(Message(Role.SYSTEM, tuple(part for _, part in parts)), "system", parts)

    def read_turn(self, turn: _Turn) -> None:
        """Read one turn."""
        match turn.role:
            case Role.USER:
                self._read_user(turn)
            case Role.ASSISTANT:
                self._read_assistant(turn)
            case Role.SYSTEM | Role.TOOL:
                parts = [self._text_part(path, block) for path, block in turn.blocks]
                self._add(Message(Role.SYSTEM, tuple(part for _, part in parts)), turn.path, parts)

    def _read_user(self, turn: _Turn) -> None:
        parts: list[tuple[str, Part]] = []
        has_results = False
        for path, block in turn.blocks:
            kind, members = self._opened(path, block)
            if kind == "tool_result":
                if parts:
                    self._add_user(turn.path, parts)
                self._add_result(path, members)
                parts, has_results = [], True
            else:
                parts.append((path, self._user_part(kind, members)))
        if parts or not has_results:
            self._add_user(turn.path, parts)

    def _read_assistant(self, turn: _Turn) -> None:
        parts: list[tuple[str, Part]] = []
        thoughts: list[str] = []
        calls: list[ToolCallRequest] = []
        for path, block in turn.blocks:
            kind, members = self._opened(path, block)
            match kind:
                case "text":
                    parts.append((path, TextPart(_required(members, "text"))))
                case "thinking":
                    members.text("signature")
                    thoughts.append(_required(members, "thinking"))
                case "redacted_thinking":
                    members.text("data")
                case "tool_use":
                    calls.append(_call(members))
                case _:
                    raise _refused_block(members, kind, "an assistant")
            self.notes.note_leftover(members)
        message = Message(
            Role.ASSISTANT,
            tuple(part for _, part in parts),
            reasoning="".join(thoughts) or None,
            tool_calls=tuple(calls),
        )
        self._add(message, turn.path, parts)

    def _user_part(self, kind: str, members: Fields) -> Part:
        if kind == "text":
            part: Part = TextPart(_required(members, "text"))
        elif kind == "image":
            self.images.append(_image(members, self.notes))
            part = MediaPart(MediaKind.IMAGE)
        else:
            raise _refused_block(members, kind, "a user")
        self.notes.note_leftover(members)
        return part

    def _add_user(self, path: str, parts: list[tuple[str, Part]]) -> None:
        self._add(Message(Role.USER, tuple(part for _, part in parts)), path, parts)

    def _add_result(self, path: str, members: Fields) -> None:
        call_id = _required(members, "tool_use_id")
        is_error = bool(members.boolean("is_error"))
        parts: list[tuple[str, Part]] = []
        for place, block in _blocks(members.raw("content"), members.path("content")):
            kind, inner = self._opened(place, block)
            if kind not in ("text", "image"):
                raise _refused_block(inner, kind, "a tool result")
            parts.append((place, self._user_part(kind, inner)))
        if is_error:
            parts.insert(0, (members.path("is_error"), TextPart(_ERROR_MARK)))
        self.notes.note_leftover(members)
        content = tuple(part for _, part in parts)
        self._add(Message(Role.TOOL, content, tool_call_id=call_id), path, parts)

    def _add(self, message: Message, path: str, parts: Any) -> None:
        self.messages.append(message)
        self.origins.append(Origin(path, tuple(place for place, _ in parts)))

    def _opened(self, path: str, block: Any) -> tuple[str, Fields]:
        """Kind and members of a block, its cache marker checked."""
        if isinstance(block, str):
            return "text", Fields({"text": block}, path)
        if not isinstance(block, dict):
            raise RequestError(
                f"{path} is {json_kind(block)}; it must be an object",
                code="invalid_type",
                field=path,
            )
        members = Fields(block, path)
        self.notes.note_marker(members)
        return _required(members, "type"), members

    def _text_parts(self, value: Any, path: str) -> list[tuple[str, TextPart]]:
        return [self._text_part(place, block) for place, block in _blocks(value, path)]

    def _text_part(self, path: str, block: Any) -> tuple[str, TextPart]:
        kind, members = self._opened(path, block)
        if kind != "text":
            raise _refused_block(members, kind, "a system text")
        part = TextPart(_required(members, "text"))
        self.notes.note_leftover(members)
        return path, part


def _turns(fields: Fields, notes: ReadingNotes) -> list[_Turn]:
    messages = fields.items("messages")
    if messages is None:
        raise fields.missing("messages")
    if not messages:
        raise RequestError("messages is empty", field="messages")
    turns: list[_Turn] = []
    for index, value in enumerate(messages):
        path = f"messages[{index}]"
        if not isinstance(value, dict):
            raise RequestError(
                f"{path} is {json_kind(value)}; it must be an object",
                code="invalid_type",
                field=path,
            )
        members = Fields(value, path)
        name = members.choice("role", _ROLES)
        if name is None:
            raise members.missing("role")
        role = _ROLES[name]
        if not members.has("content"):
            raise members.missing("content")
        blocks = _blocks(members.raw("content"), members.path("content"))
        notes.note_leftover(members)
        is_joined = turns and role is not Role.SYSTEM and turns[-1].role is role
        if not is_joined:
            turns.append(_Turn(role, path))
        turns[-1].blocks += blocks
    return turns


def _blocks(value: Any, path: str) -> list[tuple[str, Any]]:
    """Blocks with their paths; a string is one text block, absent is none."""
    if value is None:
        return []
    if isinstance(value, str):
        return [(path, value)]
    if not isinstance(value, list):
        raise RequestError(
            f"{path} is {json_kind(value)}; it must be a string or a list of blocks",
            code="invalid_type",
            field=path,
        )
    for index, block in enumerate(value):
        if not isinstance(block, dict):
            raise RequestError(
                f"{path}[{index}] is {json_kind(block)}; it must be a block",
                code="invalid_type",
                field=f"{path}[{index}]",
            )
    return [(f"{path}[{index}]", block) for index, block in enumerate(value)]


def _image(members: Fields, notes: ReadingNotes) -> ImageReference:
    source = members.nested("source")
    if source is None:
        raise members.missing("source")
    match source.choice("type", ("base64", "url", "file")):
        case "base64" | "url" as kind:
            name = "url" if kind == "url" else "data"
            if kind == "base64":
                _required(source, "media_type")
            text = _required(source, name)
            notes.note_leftover(source)
            return ImageReference(source.path(name), text, is_url=kind == "url")
        case "file":
            raise UnsupportedFeature(
                f"{source.path('type')} is file; there is no store of files here, use base64",
                field=source.path("type"),
            )
        case _:
            raise source.missing("type")


def _call(members: Fields) -> ToolCallRequest:
    call_id, name = _required(members, "id"), _required(members, "name")
    arguments = members.raw("input")
    if arguments is None:
        raise members.missing("input")
    if not isinstance(arguments, Mapping):
        raise RequestError(
            f"{members.path('input')} is {json_kind(arguments)}; it must be an object",
            code="invalid_type",
            field=members.path("input"),
        )
    return ToolCallRequest(name, arguments, call_id)


def _check_prefill(message: Message, path: str) -> None:
    if message.text and message.text != message.text.rstrip():
        raise RequestError(
            f"{path} ends in white space, which the beginning of an answer cannot", field=path
        )


def _required(members: Fields, name: str) -> str:
    text = members.text(name)
    if text is None:
        raise members.missing(name)
    return text


def _refused_block(members: Fields, kind: str, owner: str) -> RequestError:
    path = members.path("type")
    return UnsupportedFeature(
        f"{path} is {shown(kind)}, a block that {owner} message cannot hold here", field=path
    )
