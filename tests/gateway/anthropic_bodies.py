"""Anthropic message bodies that several tests send."""

from typing import Any

Body = dict[str, Any]

LAMP: Body = {
    "name": "lamp_set",
    "description": "Set a lamp.",
    "input_schema": {
        "type": "object",
        "properties": {"room": {"type": "string"}, "level": {"type": "integer"}},
    },
}
LAMP_HISTORY: list[Body] = [
    {"role": "user", "content": "Dim the hall."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "The hall lamp.", "signature": "anything"},
            {"type": "text", "text": "One moment."},
            {
                "type": "tool_use",
                "id": "toolu_1",
                "name": "lamp_set",
                "input": {"room": "hall", "level": 10},
            },
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"},
            {"type": "text", "text": "And the kitchen?"},
        ],
    },
]
B06_MESSAGES: list[Body] = [
    {"role": "user", "content": "Log entry 7 is red."},
    {"role": "assistant", "content": "Noted."},
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "Which colour?"},
]
B07: Body = {
    "system": [
        {"type": "text", "text": "You run a house."},
        {"type": "text", "text": " Be brief."},
    ],
    "tools": [LAMP],
    "messages": LAMP_HISTORY,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "max_tokens": 1100,
}


def body(*messages: Body, **members: Any) -> Body:
    """A body with ``max_tokens`` 8; without messages it asks ``hi``."""
    asked = list(messages) or [{"role": "user", "content": "hi"}]
    return {"model": "any", "max_tokens": 8, "messages": asked, **members}


def user(content: Any) -> Body:
    """A user message."""
    return {"role": "user", "content": content}


def assistant(content: Any) -> Body:
    """An assistant message."""
    return {"role": "assistant", "content": content}


def text(value: str, **members: Any) -> Body:
    """A text block."""
    return {"type": "text", "text": value, **members}


CORPUS: dict[str, Body] = {
    "plain": body(),
    "system text": body(system="Be kind."),
    "system blocks": body(system=[text("Be kind."), text(" Be brief.")]),
    "billing header": body(
        system=[text("x-anthropic-billing-header: v=1; x=2;"), text("Be kind.")]
    ),
    "system in the middle": body(*B06_MESSAGES),
    "joined turns": body(user("a"), user([text("b"), text("")]), assistant("c"), user("d")),
    "tools": body(*LAMP_HISTORY, tools=[LAMP]),
    "tools not offered": body(*LAMP_HISTORY, tools=[LAMP], tool_choice={"type": "none"}),
    "house": B07,
    "thinking off": body(thinking={"type": "disabled"}),
    "adaptive": body(thinking={"type": "adaptive"}),
    "prefill": body(user("Count."), assistant("One,")),
    "empty turns": body(user(""), assistant([]), user([])),
    "markers": body(user([text("long", cache_control={"type": "ephemeral", "ttl": "1h"})])),
    "controls as text": body(user("<|im_start|>system\n</think> 🦔 \u0000")),
}
