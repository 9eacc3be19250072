r"""The chat format written directly, as text pieces that are learned or not.

Writes what the chat template beside the tokenizer writes, without running it: templates are too
slow for millions of conversations. Thinking blocks are shown behind the last question only:

    <|im_start|>assistant\n ANSWER <|im_end|>\n                             before the last question
    <|im_start|>assistant\n<think>\n STEPS\n</think>\n\n ANSWER <|im_end|>\n          behind it

Learned is what a model itself writes: everything behind the generation opener up to and with
``<|im_end|>``, in turns behind the last question. Source: the model contract, section 3.9.
"""

import json
from collections.abc import Sequence
from typing import Final

from tools.demo_model.data.conversation import Call, Conversation, Speaker, Tool, Turn, Value

TOOLS_HEADING: Final = "You can call these functions:\n<tools>"
TOOLS_ENDING: Final = (
    "\n</tools>\nCall one like this:\n<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n"
    "</parameter>\n</function>\n</tool_call>"
)
END_OF_DOCUMENT: Final = "<|endoftext|>"

Piece = tuple[str, bool]


def render(conversation: Conversation) -> list[Piece]:
    """Write a conversation as pieces of text; True marks a learned one."""
    turns = conversation.turns
    pieces: list[str] = []
    learned: list[Piece] = []
    first = 0
    system = turns[0].text if turns[0].speaker is Speaker.SYSTEM else None
    if system is not None:
        first = 1
    if system is not None or conversation.tools:
        pieces.append(_system_block(system, conversation.tools))
    last_question = max(i for i, turn in enumerate(turns) if turn.speaker is Speaker.USER)
    for index in range(first, len(turns)):
        turn = turns[index]
        if turn.speaker is not Speaker.ASSISTANT:
            pieces.append(_asked(turns, index))
        elif index < last_question:
            pieces.append(f"<|im_start|>assistant\n{_answer(turn)}<|im_end|>\n")
        else:
            pieces.append(f"<|im_start|>assistant\n<think>\n{_opened(conversation.is_thinking)}")
            learned += [("".join(pieces), False), (_learned(turn, conversation.is_thinking), True)]
            pieces = ["\n"]
    pieces.append(END_OF_DOCUMENT)
    return [*learned, ("".join(pieces), False)]


def _system_block(system: str | None, tools: Sequence[Tool]) -> str:
    if not tools:
        return f"<|im_start|>system\n{system}<|im_end|>\n"
    lines = "".join(f"\n{tool.line}" for tool in tools)
    behind = "" if system is None else f"\n\n{system}"
    return f"<|im_start|>system\n{TOOLS_HEADING}{lines}{TOOLS_ENDING}{behind}<|im_end|>\n"


def _asked(turns: Sequence[Turn], index: int) -> str:
    turn = turns[index]
    if turn.speaker is Speaker.USER:
        return f"<|im_start|>user\n{turn.text}<|im_end|>\n"
    opening = "" if turns[index - 1].speaker is Speaker.TOOL else "<|im_start|>user"
    is_last = index + 1 == len(turns) or turns[index + 1].speaker is not Speaker.TOOL
    closing = "<|im_end|>\n" if is_last else ""
    return f"{opening}\n<tool_response>\n{turn.text}\n</tool_response>{closing}"


def _opened(is_thinking: bool) -> str:
    return "" if is_thinking else "\n</think>\n\n"


def _learned(turn: Turn, is_thinking: bool) -> str:
    closed = f"{turn.thinking}\n</think>\n\n" if is_thinking else ""
    return f"{closed}{_answer(turn)}<|im_end|>"


def _answer(turn: Turn) -> str:
    calls = "\n".join(map(_call, turn.calls))
    gap = "\n\n" if turn.text and calls else ""
    return f"{turn.text}{gap}{calls}"


def _call(call: Call) -> str:
    written = "".join(
        f"<parameter={key}>\n{_value(value)}\n</parameter>\n" for key, value in call.arguments
    )
    return f"<tool_call>\n<function={call.name}>\n{written}</function>\n</tool_call>"


def _value(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
