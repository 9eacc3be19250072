"""Values of a training conversation: turns, tools, and the rule that judges an answer.

A skill builds an `Exercise`; the stream decides about thinking, history and a system message and
makes a `Conversation` of it. Knows no template, no tokens and no skill.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Value = str | int | float | bool


class Speaker(enum.Enum):
    """Who speaks; the value is the template's spelling."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; arguments in the order in which they are written."""

    name: str
    arguments: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message.

    Attributes:
        thinking: steps of an assistant turn, shown in its thinking block.
        is_worked: with thinking off the steps are written into the answer, because the task is
            too hard for a direct answer.
    """

    speaker: Speaker
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    is_worked: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call.

    Attributes:
        line: the definition as one line of JSON, as the chat template writes it.
    """

    name: str
    line: str

    @property
    def definition(self) -> Mapping[str, Any]:
        """The definition as a client sends it."""
        value: Mapping[str, Any] = json.loads(self.line)
        return value

    @classmethod
    def of(cls, name: str, description: str, parameters: Mapping[str, str]) -> "Tool":
        """Describe a tool by the JSON types of its parameters, all of them required."""
        schema = {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in parameters.items()},
            "required": list(parameters),
        }
        function = {"name": name, "description": description, "parameters": schema}
        return cls(name, json.dumps({"type": "function", "function": function}, ensure_ascii=False))


class Rule(enum.Enum):
    """How an answer is judged against the expected value."""

    NUMBER = enum.auto()  # the last number of the text
    CONTAINS = enum.auto()  # the value as whole words, whatever the case
    EXACT = enum.auto()  # the whole text, but for spaces and a final full stop
    ENDS = enum.auto()  # the last line ends with the value
    LIST = enum.auto()  # the last line ends with the items, separated by ", "
    JSON = enum.auto()  # the text is this JSON value
    CODE = enum.auto()  # the text is this code, fenced or not
    ONE_OF = enum.auto()  # the text is one of the alternatives, separated by blank lines
    CALL = enum.auto()  # exactly these calls
    UPPER = enum.auto()  # contains the value and has no lower-case letter
    LOWER = enum.auto()  # contains the value and has no upper-case letter
    STORY = enum.auto()  # names every word of the value and has at least four sentences


@dataclass(frozen=True, slots=True)
class Expected:
    """What a right answer is."""

    rule: Rule
    value: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Exercise:
    """A task of one skill.

    Attributes:
        key: decides whether the task is held out; two tasks of equal key teach the same thing.
        turns: the conversation, ending with the assistant turn that is judged.
        tools: functions on offer.
        system: system message that belongs to the task.
    """

    key: str
    turns: tuple[Turn, ...]
    expected: Expected
    tools: tuple[Tool, ...] = ()
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """An exercise in its final form."""

    skill: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    is_thinking: bool
    expected: Expected

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """Everything before the answer that is judged."""
        return self.turns[:-1]


def exercise(
    key: str,
    question: str,
    answer: str,
    thinking: str,
    expected: Expected,
    *,
    is_worked: bool = False,
) -> Exercise:
    """Build the usual task: one question, one answer."""
    answered = Turn(Speaker.ASSISTANT, answer, thinking, is_worked=is_worked)
    return Exercise(key, (Turn(Speaker.USER, question), answered), expected)
