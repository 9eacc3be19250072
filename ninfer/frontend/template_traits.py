"""What a chat template can do, found out by asking it.

Clients may only ask for what the template honours, and templates declare nothing: so a few fixed
conversations are rendered once, when a model is opened. The same renderings prove that the origin
of control tokens can be followed through this template; one that hides it is refused then, not
silently mistokenized later. Source: the serving contract, sections 2.2, 4 and 6.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ninfer.errors import CheckpointError, InvalidPrompt
from ninfer.frontend.chat_template import ChatTemplate
from ninfer.frontend.marked_text import MarkedText, plain_text
from ninfer.frontend.tokenizer import Tokenizer

REASONING_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")
_REASONING = "probe reasoning"
_USER: Final = {"role": "user", "content": "probe question"}
_CALL: Final = {
    "id": "probe",
    "type": "function",
    "function": {"name": "probe", "arguments": {"text": "value", "count": 1}},
}
_TOOL: Final = {
    "type": "function",
    "function": {"name": "probe", "parameters": {"type": "object", "properties": {}}},
}
_CLOSED_TURN: Final = (
    _USER,
    {"role": "assistant", "content": "probe answer", "reasoning_content": _REASONING},
    _USER,
)
_WITH_TOOLS: Final = (
    {"role": "system", "content": "probe system"},
    _USER,
    {"role": "assistant", "content": "", "reasoning_content": _REASONING, "tool_calls": [_CALL]},
    {"role": "tool", "content": "probe result", "tool_call_id": "probe"},
)


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """Defaults and abilities of a template.

    Attributes:
        opens_thinking: whether the generation prompt opens a thinking block by default.
        keeps_closed_reasoning: whether thinking of closed turns is rendered by default.
        reasoning_efforts: efforts it accepts; empty when it has no such switch.
    """

    opens_thinking: bool
    keeps_closed_reasoning: bool
    reasoning_efforts: tuple[str, ...]


def probe_template(
    template: ChatTemplate, tokenizer: Tokenizer, variables: Mapping[str, Any]
) -> TemplateTraits:
    """Render the fixed conversations.

    Args:
        template: the template.
        tokenizer: knows the spellings of control tokens.
        variables: variables every rendering gets.

    Raises:
        CheckpointError: it cannot render a plain question, or builds control tokens in a way that
            cannot be told from text of the caller.
    """
    try:
        question = template.render([_USER], variables=variables)
    except InvalidPrompt as error:
        raise CheckpointError(f"not usable: {error}", field="chat_template.jinja") from error
    closed = _rendered(template, _CLOSED_TURN, variables)
    _check_marks(tokenizer, [question, closed, _rendered(template, _WITH_TOOLS, variables, _TOOL)])
    return TemplateTraits(
        opens_thinking=ends_in_thinking(question),
        keeps_closed_reasoning=closed is not None and _REASONING in closed,
        reasoning_efforts=_efforts(template, variables),
    )


def ends_in_thinking(rendered: MarkedText) -> bool:
    """Whether the block the template opened last is still open at the end."""
    opened = _last_marked(rendered, "<think>")
    return (
        opened >= 0
        and opened > _last_marked(rendered, "</think>")
        and (opened > _last_marked(rendered, "<|im_start|>"))
    )


def _last_marked(text: MarkedText, spelling: str) -> int:
    place = text.rfind(spelling)
    while place >= 0 and not text.is_marked(place, place + len(spelling)):
        place = text.rfind(spelling, 0, place + len(spelling) - 1)
    return place


def _efforts(template: ChatTemplate, variables: Mapping[str, Any]) -> tuple[str, ...]:
    if "reasoning_effort" not in template.variables:
        return ()
    return tuple(
        effort
        for effort in REASONING_EFFORTS
        if _rendered(template, (_USER,), {**variables, "reasoning_effort": effort}) is not None
    )


def _rendered(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    *tools: Mapping[str, Any],
) -> MarkedText | None:
    try:
        return template.render(messages, tools=tools or None, variables=variables)
    except InvalidPrompt:
        return None


def _check_marks(tokenizer: Tokenizer, renderings: Sequence[MarkedText | None]) -> None:
    for text in renderings:
        if text is None:
            continue
        for start, end, _ in tokenizer.added_spans(plain_text(text), 0, len(text)):
            if not text.is_marked(start, end):
                raise CheckpointError(
                    f"the template builds {plain_text(text)[start:end]!r} in a way that cannot be "
                    "told from text of a message",
                    field="chat_template.jinja",
                )
