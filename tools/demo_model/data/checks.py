"""Whether an answer is right, by the rule its conversation carries.

Works on what a client receives: the text of the answer and its tool calls. Does not run code an
answer contains and knows no skill.
"""

import json
import re
from collections.abc import Sequence

from tools.demo_model.data.conversation import Call, Conversation, Expected, Rule

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_FENCE = re.compile(r"^```[a-z]*\n|\n?```$")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_STORY_SENTENCES = 4


def check(conversation: Conversation, text: str, calls: Sequence[Call] = ()) -> bool:
    """Judge an answer.

    Args:
        conversation: the conversation whose last turn was to be written.
        text: content of the answer, without thinking.
        calls: tool calls of the answer.
    """
    expected = conversation.expected
    if expected.rule is Rule.CALL:
        return tuple(calls) == expected.calls
    return not calls and _is_right(expected, text.strip())


def _is_right(expected: Expected, text: str) -> bool:
    value = expected.value
    match expected.rule:
        case Rule.NUMBER:
            return _NUMBER.findall(text)[-1:] == [value]
        case Rule.CONTAINS:
            return _holds(text, value)
        case Rule.EXACT:
            return _plain(text) == _plain(value)
        case Rule.ENDS | Rule.LIST:
            return text.rstrip(".!").endswith(value) and _begins_word(text.rstrip(".!"), value)
        case Rule.JSON:
            return _same_json(text, value)
        case Rule.CODE:
            return _FENCE.sub("", text).strip() == value
        case Rule.ONE_OF:
            return text in value.split("\n\n")
        case Rule.CALL:
            return False
        case Rule.UPPER:
            return _holds(text, value) and text == text.upper()
        case Rule.LOWER:
            return _holds(text, value) and text == text.lower()
        case Rule.STORY:
            is_long = len(_SENTENCE_END.findall(text)) >= _STORY_SENTENCES
            return is_long and all(_holds(text, word) for word in value.split("|"))


def _holds(text: str, value: str) -> bool:
    pattern = rf"(?<!\w){re.escape(value.lower())}(?!\w)"
    if not value.isascii():
        pattern = re.escape(value.lower())
    return re.search(pattern, text.lower()) is not None


def _begins_word(text: str, value: str) -> bool:
    before = text[: -len(value)]
    return not before or not (before[-1].isalnum() or before.endswith((", ", "-")))


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _same_json(text: str, value: str) -> bool:
    try:
        found = json.loads(_FENCE.sub("", text))
    except ValueError:
        return False
    return bool(found == json.loads(value))
