"""Members inside chat messages that have no effect here, and those that would need one.

The frontend reads what a message means; this page looks at what is left over, so that nothing
asked for is dropped in silence. Cache boundaries are checked and listed: a prefix is found whether
marked or not. Knows no conversation. Source: the serving contract, sections 4, 6.1 and 8.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ninfer.errors import UnsupportedFeature
from ninfer.gateway.json_fields import Fields

BREAKPOINT: Final = "prompt_cache_breakpoint"
BREAKPOINT_MODES: Final = ("explicit",)
BREAKPOINT_LIFETIMES: Final = ("30m", "12h")
_MESSAGE: Final = ("role", "content", "reasoning_content", "reasoning", "tool_calls")
_CALL: Final = ("id", "type", "index", "function")
_FUNCTION: Final = ("name", "arguments")
_IMAGE: Final = ("image_url", "image")
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "refusal": ("refusal",),
    "image_url": _IMAGE,
    "image": _IMAGE,
}
_INSTEAD: Final = {
    "audio": "repeat what was said as text",
    "function_call": "use tool_calls",
}


def leftover_members(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Paths without effect, each without its indices; the messages have passed their own checks.

    Raises:
        UnsupportedFeature: a member would have to change the prompt.
        RequestError: the marker of a cache boundary is malformed.
    """
    for index, message in enumerate(messages):
        fields = Fields(message, f"messages[{index}]")
        for name, instead in _INSTEAD.items():
            if fields.has(name):
                path = fields.path(name)
                raise UnsupportedFeature(f"{path} is not supported; {instead}", field=path)
        yield from _leftover(fields, (*_MESSAGE, *_own_members(message)))
        yield from _in_parts(message.get("content"), fields.path("content"))
        for place, call in enumerate(message.get("tool_calls") or ()):
            members = Fields(call, f"{fields.path('tool_calls')}[{place}]")
            yield from _leftover(members, _CALL)
            yield from _leftover(Fields(call["function"], members.path("function")), _FUNCTION)


def _own_members(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Members that only messages of this role have."""
    if message["role"] == "tool":
        return ("tool_call_id",)
    return ("refusal",) if message["role"] == "assistant" else ()


def _in_parts(content: Any, path: str) -> Iterator[str]:
    if not isinstance(content, list):
        return
    for index, part in enumerate(content):
        members = Fields(part, f"{path}[{index}]")
        marker = members.nested(BREAKPOINT)
        if marker is not None:
            if marker.choice("mode", BREAKPOINT_MODES) is None:
                raise marker.missing("mode")
            marker.choice("ttl", BREAKPOINT_LIFETIMES)
            yield members.path(BREAKPOINT)
        yield from _leftover(members, ("type", *_PARTS.get(part["type"], ())))
        for name in _IMAGE:
            if isinstance(part.get(name), dict):
                yield from _leftover(Fields(part[name], members.path(name)), ("url", "detail"))


def _leftover(fields: Fields, known: Sequence[str]) -> Iterator[str]:
    """Members that nobody reads and that are not null."""
    for name in known:
        fields.raw(name)
    for name in fields.unknown():
        if fields.has(name):
            yield fields.path(name)
