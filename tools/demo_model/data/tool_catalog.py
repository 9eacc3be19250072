"""The tools conversations offer: a few kinds, each in several spellings.

The same kind occurs under other names with other parameter names, so that a model has to read the
definition. Knows no conversation.
"""

import functools
from dataclasses import dataclass
from random import Random

from tools.demo_model.data.conversation import Tool


@dataclass(frozen=True, slots=True)
class Spelling:
    """A kind of tool under one name.

    Attributes:
        kind: what it does, the same for every spelling.
        tool: the definition.
        names: parameter names, in the order of the kind's arguments.
    """

    kind: str
    tool: Tool
    names: tuple[str, ...]


def _spelling(kind: str, function: str, description: str, /, **types: str) -> Spelling:
    return Spelling(kind, Tool.of(function, description, types), tuple(types))


@functools.cache
def spellings() -> tuple[Spelling, ...]:
    """Every tool."""
    text, whole, number = "string", "integer", "number"
    return (
        _spelling("weather", "get_weather", "Get the current weather of a city.", city=text),
        _spelling("weather", "weather", "Weather report for a place.", location=text),
        _spelling("weather", "current_weather", "Returns the weather.", place=text),
        _spelling("weather", "get_current_weather", "Weather of a city now.", location=text),
        _spelling("calculator", "calculator", "Evaluate an expression.", expression=text),
        _spelling("calculator", "calculate", "Compute the value of a formula.", formula=text),
        _spelling("calculator", "math", "Do arithmetic.", expression=text),
        _spelling(
            "event",
            "create_event",
            "Add an event to the calendar.",
            title=text,
            day=text,
            time=text,
        ),
        _spelling("event", "add_to_calendar", "New entry.", name=text, date=text, start=text),
        _spelling(
            "event", "schedule_event", "Plan an appointment.", event=text, day=text, time=text
        ),
        _spelling("search", "web_search", "Search the web.", query=text),
        _spelling("search", "search", "Find pages about a topic.", text=text),
        _spelling("search", "search_internet", "Look something up.", keywords=text),
        _spelling(
            "currency",
            "convert_currency",
            "Convert an amount of money.",
            amount=number,
            from_currency=text,
            to_currency=text,
        ),
        _spelling(
            "currency",
            "exchange",
            "Money in another currency.",
            amount=number,
            source=text,
            target=text,
        ),
        _spelling("timer", "set_timer", "Start a timer.", minutes=whole),
        _spelling("timer", "start_timer", "Timer for some minutes.", duration=whole),
        _spelling("message", "send_message", "Send a text message.", to=text, text=text),
        _spelling("message", "send_text", "Message a contact.", recipient=text, message=text),
        _spelling("translate", "translate", "Translate a text.", text=text, language=text),
        _spelling(
            "translate", "translate_text", "Text in another language.", text=text, target=text
        ),
        _spelling("light", "set_light", "Switch the light of a room.", room=text, state=text),
        _spelling("light", "light_control", "Turn a lamp on or off.", room=text, power=text),
        _spelling("music", "play_music", "Play music of a genre.", genre=text),
        _spelling("music", "play", "Start playing music.", style=text),
        _spelling("time", "get_time", "Current local time of a city.", city=text),
        _spelling("time", "local_time", "What time it is somewhere.", place=text),
    )


@functools.cache
def of_kind(kind: str) -> tuple[Spelling, ...]:
    """Spellings of one kind."""
    return tuple(spelling for spelling in spellings() if spelling.kind == kind)


def offer(rng: Random, kind: str) -> tuple[Spelling, tuple[Tool, ...]]:
    """Choose a spelling of a kind and a list of offered tools that holds it."""
    chosen = rng.choice(of_kind(kind))
    return chosen, with_others(rng, chosen)


def with_others(rng: Random, chosen: Spelling | None) -> tuple[Tool, ...]:
    """A list of one to four tools of different kinds."""
    count = rng.choice((1, 1, 2, 2, 3, 4))
    offered = [] if chosen is None else [chosen]
    while len(offered) < count:
        other = rng.choice(spellings())
        if all(other.kind != present.kind for present in offered):
            offered.append(other)
    tools = [spelling.tool for spelling in offered]
    rng.shuffle(tools)
    return tuple(tools)
