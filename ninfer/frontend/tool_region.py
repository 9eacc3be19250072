"""One ``<tool_call>`` region, read as its text arrives.

    <tool_call> ws <function=NAME> ws ( <parameter=KEY> VALUE </parameter> ws )* </function> ws
    </tool_call>

A tag ends VALUE only where the structure can go on; everything else in VALUE is data. Until the
name is known to be declared and the first parameter or the end of the function is seen, nothing is
emitted and the region can still turn out to be ordinary text. What is emitted is final. Knows no
channels, ids or tokens. Source: the serving contract, sections 6.3 (rules 2 to 7, 9) and 6.4.
"""

import copy
import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from ninfer.errors import IllegalMove
from ninfer.frontend.tool_arguments import (
    UNDECLARED,
    ParameterType,
    ToolSignature,
    argument_json,
    quoted,
)

REGION_OPENER = "<tool_call>"
_REGION_END = "</tool_call>"
_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_SPACE = " \t\r\n\f\v"
_NAME = re.compile(r"[^<>\n]{0,256}")


class RegionPhase(enum.Enum):
    """What the next text of a region is."""

    HEAD = enum.auto()  # <function=NAME>
    FIRST = enum.auto()  # first parameter, or the end of the function
    KEY = enum.auto()  # KEY>
    VALUE = enum.auto()  # data and what ends it
    COMPLETE = enum.auto()  # closed; `ToolRegion.rest` is what follows
    BROKEN = enum.auto()  # no call; `ToolRegion.rest` is to be read again as text


_NEXT: Final = {
    RegionPhase.HEAD: {RegionPhase.FIRST, RegionPhase.BROKEN},
    RegionPhase.FIRST: {RegionPhase.KEY, RegionPhase.COMPLETE, RegionPhase.BROKEN},
    RegionPhase.KEY: {RegionPhase.VALUE},
    RegionPhase.VALUE: {RegionPhase.KEY, RegionPhase.COMPLETE},
    RegionPhase.COMPLETE: set(),
    RegionPhase.BROKEN: set(),
}


class _Look(enum.Enum):
    """Answer of a look ahead that found no end."""

    NO = enum.auto()
    MORE = enum.auto()  # the text so far could still become it


@dataclass(frozen=True, slots=True)
class RegionStart:
    """The call is real and has this name."""

    name: str


@dataclass(frozen=True, slots=True)
class RegionArguments:
    """Next fragment of the JSON arguments."""

    fragment: str


@dataclass(frozen=True, slots=True)
class RegionText:
    """Text of a region that is no call."""

    text: str


RegionEvent = RegionStart | RegionArguments | RegionText


class ToolRegion:
    """Parser of one region; begins behind `REGION_OPENER`.

    Attributes:
        phase: changed by `_move` only.
        name: declared name once it is known.
        is_started: whether `RegionStart` was emitted.
        is_undeclared: the name is not a declared tool's: the region is text, read to its end so
            that nothing inside it is taken for a call.
        num_duplicates: parameters dropped because their key came before.
        is_repaired: a missing tag was supplied.
    """

    def __init__(self, tools: Mapping[str, ToolSignature]) -> None:
        self.phase = RegionPhase.HEAD
        self.name: str | None = None
        self.is_started = False
        self.is_undeclared = False
        self.num_duplicates = 0
        self.is_repaired = False
        self._tools = tools
        self._head = ""  # taken, but still text should no parameter follow
        self._buffer = ""
        self._keys: frozenset[str] = frozenset()
        self._type: ParameterType = UNDECLARED
        self._is_duplicate = False
        self._is_value_open = False  # the line break behind KEY> has been looked at
        self._is_at_line_start = False
        self._value = ""  # of a type that cannot be streamed

    def copy(self) -> Self:
        """Get an independent region in the same state."""
        return copy.copy(self)  # every attribute is immutable

    @property
    def rest(self) -> str:
        """Text behind a complete region, or text of a broken one that is to be read again."""
        return self._buffer

    @property
    def unsaid(self) -> str:
        """Text of a region that is no call yet, not given out so far."""
        if self.is_started:
            return ""
        return self._buffer if self.is_undeclared else REGION_OPENER + self._head + self._buffer

    def feed(self, text: str) -> list[RegionEvent]:
        """Read the next text, as far as its meaning is certain."""
        self._buffer += text
        return self._run(is_end=False)

    def finish(self) -> list[RegionEvent]:
        """Read what is held, knowing that the turn ended behind it."""
        return self._run(is_end=True)

    def _run(self, *, is_end: bool) -> list[RegionEvent]:
        events: list[RegionEvent] = []
        while (step := _STEPS.get(self.phase)) and step(self, events, is_end):
            pass
        return events

    def _move(self, phase: RegionPhase) -> bool:
        if phase not in _NEXT[self.phase]:
            raise IllegalMove(f"a tool region cannot go from {self.phase} to {phase}")
        self.phase = phase
        return True

    def _take(self, end: int, events: list[RegionEvent]) -> str:
        taken, self._buffer = self._buffer[:end], self._buffer[end:]
        if self.is_undeclared and taken:
            events.append(RegionText(taken))
        return taken

    def _read_head(self, events: list[RegionEvent], is_end: bool) -> bool:
        tag = _match_tags(self._buffer, 0, (_FUNCTION,), is_end=is_end)
        if isinstance(tag, _Look):
            return tag is _Look.NO and self._move(RegionPhase.BROKEN)
        name = _NAME.match(self._buffer, tag)
        end = name.end() if name else tag
        if end == len(self._buffer):
            return is_end and self._move(RegionPhase.BROKEN)
        if self._buffer[end] != ">":
            return self._move(RegionPhase.BROKEN)
        spelled = self._buffer[tag:end]
        self.is_undeclared = spelled not in self._tools
        if self.is_undeclared:
            events.append(RegionText(REGION_OPENER))
            self._take(end + 1, events)
        else:
            self.name = spelled
            self._head = self._take(end + 1, events)
        return self._move(RegionPhase.FIRST)

    def _read_first(self, events: list[RegionEvent], is_end: bool) -> bool:
        parameter = _match_tags(self._buffer, 0, (_PARAMETER,), is_end=is_end)
        if isinstance(parameter, int):
            self._start(events)
            self._take(parameter, events)
            return self._move(RegionPhase.KEY)
        closing = _match_tags(self._buffer, 0, (_FUNCTION_END, _REGION_END), is_end=is_end)
        if closing is _Look.NO and is_end:
            closing = self._match_unclosed(0, (_FUNCTION_END,))
        if isinstance(closing, int):
            self._start(events)
            self._take(closing, events)
            self._emit("{}", events)
            return self._move(RegionPhase.COMPLETE)
        if _Look.MORE in (parameter, closing):
            return False
        self._head, self._buffer = "", self._head + self._buffer
        return self._move(RegionPhase.BROKEN)

    def _read_key(self, events: list[RegionEvent], is_end: bool) -> bool:
        end = self._buffer.find(">")
        if end < 0:
            return False
        key = self._take(end + 1, events)[:-1]
        self._is_duplicate = key in self._keys
        self.num_duplicates += self._is_duplicate
        if not self._is_duplicate:
            self._emit(("," if self._keys else "{") + quoted(key) + ":", events)
        self._keys |= {key}
        tool = self._tools.get(self.name or "")
        self._type = tool.type_of(key) if tool else UNDECLARED
        self._value = ""
        self._is_value_open = False
        return self._move(RegionPhase.VALUE)

    def _read_value(self, events: list[RegionEvent], is_end: bool) -> bool:
        if not self._is_value_open:
            if not self._buffer:
                return False
            self._is_value_open = True
            if self._type.is_text:
                self._emit_value('"', events)
            self._is_at_line_start = self._buffer[0] == "\n"
            if self._is_at_line_start:
                self._take(1, events)
        place = 0
        while True:
            place = self._buffer.find("<", place)
            if place < 0:
                self._pass_data(_without_break(self._buffer, len(self._buffer)), events)
                return False
            is_line_start = self._buffer[place - 1] == "\n" if place else self._is_at_line_start
            ending = self._value_end(place, is_line_start, is_end=is_end)
            if isinstance(ending, _ValueEnd):
                return self._close_value(place, ending, events)
            if ending is _Look.MORE:
                self._pass_data(_without_break(self._buffer, place), events)
                return False
            place += 1

    def _value_end(self, place: int, is_line_start: bool, *, is_end: bool) -> "_ValueEnd | _Look":
        """Whether the value ends before the tag at ``place``."""
        answers: list[_Look] = []
        for tags, phase, is_repair in _VALUE_ENDINGS:
            found = _match_tags(self._buffer, place, tags, is_end=is_end)
            if isinstance(found, int):
                self.is_repaired |= is_repair
                return _ValueEnd(found, phase)
            answers.append(found)
        if is_line_start:
            repair = self._match_known_parameter(place)
            if isinstance(repair, int):
                self.is_repaired = True
                return _ValueEnd(repair, RegionPhase.KEY)
            answers.append(repair)
        if is_end:
            unclosed = self._match_unclosed(place, (_PARAMETER_END, _FUNCTION_END))
            if isinstance(unclosed, int):
                return _ValueEnd(unclosed, RegionPhase.COMPLETE)
        return _Look.MORE if _Look.MORE in answers else _Look.NO

    def _match_known_parameter(self, place: int) -> int | _Look:
        tool = self._tools.get(self.name or "")
        if tool is None:
            return _Look.NO
        rest = self._buffer[place:]
        answer = _Look.NO
        for key in tool.parameters:
            tag = f"{_PARAMETER}{key}>"
            if rest.startswith(tag):
                return place + len(_PARAMETER)
            if tag.startswith(rest):
                answer = _Look.MORE
        return answer

    def _match_unclosed(self, place: int, tags: Sequence[str]) -> int | _Look:
        """Tags at the very end of a finished turn, where only the last closing tag is missing."""
        found = _match_tags(self._buffer, place, tags, is_end=True)
        if isinstance(found, int) and not self._buffer[found:].strip(_SPACE):
            self.is_repaired = True
            return len(self._buffer)
        return _Look.NO

    def _close_value(self, place: int, ending: "_ValueEnd", events: list[RegionEvent]) -> bool:
        data_end = _without_break(self._buffer, place)
        tail = ending.end - data_end
        self._pass_data(data_end, events)
        self._take(tail, events)
        if self._type.is_text:
            self._emit_value('"', events)
        else:
            self._emit_value(argument_json(self._value, self._type), events)
        if ending.phase is RegionPhase.COMPLETE:
            self._emit("}", events)
        return self._move(ending.phase)

    def _pass_data(self, end: int, events: list[RegionEvent]) -> None:
        data = self._take(end, events)
        self._is_at_line_start &= not data
        if not self._type.is_text:
            self._value += data
        elif data:
            self._emit_value(json.dumps(data, ensure_ascii=False)[1:-1], events)

    def _start(self, events: list[RegionEvent]) -> None:
        if self.name is not None:
            self.is_started = True
            events.append(RegionStart(self.name))

    def _emit_value(self, fragment: str, events: list[RegionEvent]) -> None:
        if not self._is_duplicate:
            self._emit(fragment, events)

    def _emit(self, fragment: str, events: list[RegionEvent]) -> None:
        if not self.is_undeclared:
            events.append(RegionArguments(fragment))


@dataclass(frozen=True, slots=True)
class _ValueEnd:
    """A value ends; consume up to ``end`` and go on with ``phase``."""

    end: int
    phase: RegionPhase


_VALUE_ENDINGS: Final = (
    ((_PARAMETER_END, _PARAMETER), RegionPhase.KEY, False),
    ((_PARAMETER_END, _FUNCTION_END, _REGION_END), RegionPhase.COMPLETE, False),
    ((_FUNCTION_END, _REGION_END), RegionPhase.COMPLETE, True),
)

_STEPS: Final[Mapping[RegionPhase, Callable[[ToolRegion, list[RegionEvent], bool], bool]]] = {
    RegionPhase.HEAD: ToolRegion._read_head,
    RegionPhase.FIRST: ToolRegion._read_first,
    RegionPhase.KEY: ToolRegion._read_key,
    RegionPhase.VALUE: ToolRegion._read_value,
}
"""What reads on in each phase but the last ones."""


def _match_tags(text: str, place: int, tags: Sequence[str], *, is_end: bool) -> int | _Look:
    """End of these tags in this order with only white space around them, from ``place`` on."""
    for tag in tags:
        place += len(text) - place - len(text[place:].lstrip(_SPACE))
        if text.startswith(tag, place):
            place += len(tag)
        else:
            is_open = not is_end and tag.startswith(text[place:])
            return _Look.MORE if is_open else _Look.NO
    return place


def _without_break(text: str, end: int) -> int:
    """``end``, or one less when a line break that may be layout stands before it."""
    return end - 1 if end and text[end - 1] == "\n" else end
