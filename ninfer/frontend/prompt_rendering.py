r"""From a checked conversation to the rendered prompt.

Adds what templates of the family do not do themselves: a system message that is not the first one
becomes a system block at its place. The template is given a placeholder there, a user message that
looks like a tool response (so that it never counts as the user's question), and the block it
renders for it is replaced:

    <|im_start|>user\n<tool_response>PLACE</tool_response><|im_end|>\n
    <|im_start|>system\nTEXT<|im_end|>\n

Rejected: moving such messages to the front (changes the order the client chose) and editing the
template (must stay the published one). Does not know tokens. Source: the serving contract, 6.1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer.errors import InvalidPrompt, RequestError
from ninfer.frontend.chat_template import ChatTemplate
from ninfer.frontend.conversation import (
    Conversation,
    Message,
    Role,
    ToolCallRequest,
    conversation_strings,
)
from ninfer.frontend.marked_text import MarkedText, join_marked
from ninfer.frontend.prompt_identity import TURN_END, TURN_OPENER

_CLOSING = TURN_END + "\n"
_NEXT_TURN = (Message(Role.ASSISTANT, "x"), Message(Role.USER, "x"))


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """The prompt, and the same conversation one answer and one question later if it renders."""

    prompt: MarkedText
    next_turn: MarkedText | None


def render_conversation(
    template: ChatTemplate,
    conversation: Conversation,
    variables: Mapping[str, Any],
    *,
    continues_final: bool,
) -> RenderedConversation:
    """Render a conversation.

    Args:
        template: the model's template.
        conversation: checked messages and tools.
        variables: further template variables.
        continues_final: leave the last message, an assistant's, open instead of opening a new one.

    Raises:
        InvalidPrompt: the template cannot represent the conversation.
        RequestError: the last message cannot be continued.
    """
    if continues_final:
        _check_final(conversation.messages[-1], len(conversation.messages) - 1)
    prompt = _render(template, conversation, conversation.messages, variables, not continues_final)
    if continues_final:
        if not prompt.endswith(_CLOSING):
            raise InvalidPrompt(
                "the chat template does not end the last message openly", field="messages"
            )
        prompt = _marked(prompt[: -len(_CLOSING)])
    try:
        following = (*conversation.messages, *_NEXT_TURN)
        next_turn = _render(template, conversation, following, variables, True)
    except InvalidPrompt:
        return RenderedConversation(prompt, None)
    return RenderedConversation(prompt, next_turn)


def _check_final(message: Message, index: int) -> None:
    if message.role is not Role.ASSISTANT or message.tool_calls:
        raise RequestError(
            f"messages[{index}] cannot be continued; it must be an assistant message without calls",
            field=f"messages[{index}]",
        )


def _render(
    template: ChatTemplate,
    conversation: Conversation,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    opens_turn: bool,
) -> MarkedText:
    prefix = _unused_text(conversation)
    inserted: dict[str, str] = {}
    values: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if index and message.role is Role.SYSTEM:
            place = f"{prefix}{index}."
            inserted[place] = message.text
            content = f"<tool_response>{place}</tool_response>"
            values.append({"role": "user", "content": content})
        else:
            values.append(_template_value(message))
    rendered = template.render(
        values,
        tools=[tool.definition for tool in conversation.offered_tools] or None,
        add_generation_prompt=opens_turn,
        variables=variables,
    )
    return _with_system_blocks(rendered, inserted)


def _template_value(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role.value, "content": message.text}
    if message.reasoning is not None:
        value["reasoning_content"] = message.reasoning
    if message.tool_calls:
        value["tool_calls"] = [_call_value(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        value["tool_call_id"] = message.tool_call_id
    return value


def _call_value(call: ToolCallRequest) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "function"}
    if call.call_id is not None:
        value["id"] = call.call_id
    return value | {"function": {"name": call.name, "arguments": call.arguments}}


def _unused_text(conversation: Conversation) -> str:
    """Find a text that no string of the client contains."""
    texts = [text for _, text in conversation_strings(conversation)]
    number = 0
    while any(f"\ue000{number}." in text for text in texts):
        number += 1
    return f"\ue000{number}."


def _with_system_blocks(rendered: MarkedText, inserted: Mapping[str, str]) -> MarkedText:
    """Replace the block around each placeholder, in their order."""
    parts: list[str] = []
    done = 0
    for place, text in inserted.items():
        at = rendered.find(place, done)
        start = _marked_before(rendered, TURN_OPENER, at)
        end = _marked_behind(rendered, _CLOSING, at)
        if start is None or end is None or start < done:
            raise InvalidPrompt(
                "the chat template leaves no place for a later system message", field="messages"
            )
        opening = MarkedText(f"{TURN_OPENER}system\n")
        parts += [rendered[done:start], opening, text.strip(), MarkedText(_CLOSING)]
        done = end
    return _marked(join_marked([*parts, rendered[done:]]))


def _marked_before(text: MarkedText, spelling: str, place: int) -> int | None:
    found = text.rfind(spelling, 0, max(place, 0))  # nothing stands before a place not found
    while found >= 0 and not text.is_marked(found, found + len(spelling)):
        found = text.rfind(spelling, 0, found + len(spelling) - 1)
    return None if found < 0 else found


def _marked_behind(text: MarkedText, spelling: str, place: int) -> int | None:
    found = text.find(spelling, place)
    while found >= 0 and not text.is_marked(found, found + len(spelling)):
        found = text.find(spelling, found + 1)
    return None if found < 0 else found + len(spelling)


def _marked(text: str) -> MarkedText:
    return text if isinstance(text, MarkedText) else MarkedText(text, ())
