"""Calling the right tool with the right arguments, and answering with its result."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import (
    Call,
    Exercise,
    Expected,
    Rule,
    Speaker,
    Turn,
    Value,
)
from tools.demo_model.data.tool_catalog import offer, with_others
from tools.demo_model.data.wording import ask

_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TITLES: Final = (
    "Dentist",
    "Meeting",
    "Lunch",
    "Party",
    "Yoga",
    "Doctor",
    "Dinner",
    "Piano lesson",
)
_TOPICS: Final = (
    "history of chess",
    "best pizza recipe",
    "cheap flights",
    "climate change",
    "football results",
    "solar panels",
    "learning Spanish",
    "python tutorial",
    "latest news",
    "healthy breakfast",
    "how volcanoes work",
    "electric cars",
    "dog training",
    "famous castles",
    "moon landing",
    "new movies",
    "garden flowers",
    "jazz concerts",
)
_CURRENCIES: Final = ("EUR", "USD", "GBP", "JPY", "CHF", "CNY", "SEK", "INR")
_MESSAGES: Final = (
    "I am late",
    "see you soon",
    "happy birthday",
    "call me back",
    "the train is delayed",
    "dinner is ready",
    "good luck",
    "where are you",
    "I am at home",
    "thank you for the gift",
)
_PHRASES: Final = (
    "good morning",
    "thank you",
    "where is the station",
    "I am hungry",
    "how are you",
    "good night",
    "see you tomorrow",
    "I like music",
)
_LANGUAGES: Final = ("German", "French", "Spanish", "Italian", "Chinese", "Japanese", "Polish")
_ROOMS: Final = ("kitchen", "bedroom", "living room", "bathroom", "office", "garage", "hall")
_GENRES: Final = ("jazz", "rock", "pop", "classical", "blues", "techno", "folk", "reggae")
_SKIES: Final = ("sunny", "cloudy", "rainy", "snowy", "windy", "foggy", "clear", "stormy")


@dataclass(frozen=True, slots=True)
class Task:
    """A request and the arguments of its call, and what comes back.

    Attributes:
        result: content of the tool's response.
        answer: what to tell the user then.
        value: the part of the answer that has to be right.
    """

    question: str
    arguments: tuple[Value, ...]
    result: dict[str, Value]
    answer: str
    value: str


def _weather(rng: Random) -> Task:
    city = rng.choice(words.cities())
    phrasings = (
        "What is the weather in {c}?",
        "How is the weather in {c} today?",
        "Is it warm in {c}?",
        "Weather in {c}?",
        "Tell me the weather in {c}.",
        "Do I need an umbrella in {c}?",
        "What's the weather like in {c} right now?",
    )
    degrees, sky = rng.randrange(-9, 39), rng.choice(_SKIES)
    result: dict[str, Value] = {"temperature": degrees, "condition": sky}
    answer = f"It is {sky} in {city} with {degrees} degrees."
    return Task(ask(rng, phrasings, False, c=city), (city,), result, answer, answer)


def _calculator(rng: Random) -> Task:
    sign = rng.choice("+-*/")
    a, b = rng.randrange(10, 1000), rng.randrange(2, 1000)
    if sign == "/":
        b = rng.randrange(2, 50)
        a = b * rng.randrange(2, 100)
    phrasings = (
        "What is {a} {s} {b}?",
        "Calculate {a} {s} {b}.",
        "Compute {a} {s} {b} with the tool.",
        "{a}{s}{b}=?",
        "How much is {a} {s} {b}?",
    )
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]
    expression = f"{a} {sign} {b}"
    answer = f"{expression} = {value}"
    question = ask(rng, phrasings, False, a=a, b=b, s=sign)
    return Task(question, (expression,), {"result": value}, answer, answer)


def _event(rng: Random) -> Task:
    title, day = rng.choice(_TITLES), rng.choice(_DAYS)
    time = f"{rng.randrange(7, 22)}:{rng.choice(('00', '15', '30', '45'))}"
    phrasings = (
        "Add {t} on {d} at {h} to my calendar.",
        "Schedule {t} for {d}, {h}.",
        "I have {t} on {d} at {h}. Please note it.",
        "Create an event: {t}, {d}, {h}.",
        "Put {t} in my calendar on {d} at {h}.",
    )
    result: dict[str, Value] = {"status": "created"}
    answer = f"I added {title} on {day} at {time}."
    question = ask(rng, phrasings, False, t=title, d=day, h=time)
    return Task(question, (title, day, time), result, answer, answer)


def _search(rng: Random) -> Task:
    topic = rng.choice(_TOPICS)
    phrasings = (
        "Search the web for {t}.",
        "Look up {t}.",
        "Find information about {t}.",
        "Search for {t}",
        "Can you find something about {t}?",
        "Google {t}.",
    )
    site = f"{rng.choice(words.common()).lower()}.org"
    result: dict[str, Value] = {"top_result": site, "hits": rng.randrange(10, 999)}
    answer = f"I found {result['hits']} pages about {topic}. The first one is {site}."
    return Task(ask(rng, phrasings, False, t=topic), (topic,), result, answer, answer)


def _currency(rng: Random) -> Task:
    amount = rng.randrange(2, 1000)
    source, target = rng.sample(_CURRENCIES, 2)
    phrasings = (
        "Convert {n} {a} to {b}.",
        "How much is {n} {a} in {b}?",
        "What is {n} {a} in {b}?",
        "{n} {a} in {b}, please.",
        "Change {n} {a} into {b}.",
    )
    got = rng.randrange(2, 2000)
    question = ask(rng, phrasings, False, n=amount, a=source, b=target)
    answer = f"{amount} {source} are {got} {target}."
    return Task(question, (amount, source, target), {"amount": got}, answer, answer)


def _timer(rng: Random) -> Task:
    minutes = rng.randrange(1, 91)
    phrasings = (
        "Set a timer for {n} minutes.",
        "Start a timer of {n} minutes.",
        "Timer for {n} minutes",
        "Please remind me in {n} minutes.",
        "Wake me up in {n} minutes.",
    )
    answer = f"The timer is set for {minutes} minutes."
    question = ask(rng, phrasings, n=minutes)
    return Task(question, (minutes,), {"status": "started"}, answer, answer)


def _message(rng: Random) -> Task:
    name, text = rng.choice(words.first_names()), rng.choice(_MESSAGES)
    phrasings = (
        'Send {n} the message "{t}".',
        'Write to {n}: "{t}".',
        'Text {n} "{t}".',
        'Tell {n} by message: "{t}".',
        'Message {n}: "{t}"',
    )
    question = ask(rng, phrasings, False, n=name, t=text)
    answer = f"I sent the message to {name}."
    return Task(question, (name, text), {"status": "sent"}, answer, answer)


def _translate(rng: Random) -> Task:
    text, language = rng.choice(_PHRASES), rng.choice(_LANGUAGES)
    phrasings = (
        'Translate "{t}" into {l}.',
        'What is "{t}" in {l}?',
        'How do you say "{t}" in {l}?',
        'Say "{t}" in {l}.',
    )
    made = f"{words.made_up(rng)} {words.made_up(rng)}"
    question = ask(rng, phrasings, False, t=text, l=language)
    answer = f'In {language} it is "{made}".'
    return Task(question, (text, language), {"translation": made}, answer, answer)


def _light(rng: Random) -> Task:
    room, state = rng.choice(_ROOMS), rng.choice(("on", "off"))
    phrasings = (
        "Turn {s} the light in the {r}.",
        "Switch the {r} light {s}.",
        "Light {s} in the {r}, please.",
        "Can you turn the light in the {r} {s}?",
    )
    question = ask(rng, phrasings, s=state, r=room)
    answer = f"The light in the {room} is {state}."
    return Task(question, (room, state), {"status": "ok"}, answer, answer)


def _music(rng: Random) -> Task:
    genre = rng.choice(_GENRES)
    phrasings = (
        "Play some {g}.",
        "I want to hear {g}.",
        "Put on {g} music.",
        "Play {g} music, please.",
        "Can you play {g}?",
    )
    song = f"{rng.choice(words.colors())} {rng.choice(words.animals())}".title()
    answer = f'Now playing "{song}".'
    return Task(ask(rng, phrasings, g=genre), (genre,), {"song": song}, answer, answer)


def _time(rng: Random) -> Task:
    city = rng.choice(words.cities())
    phrasings = (
        "What time is it in {c}?",
        "How late is it in {c}?",
        "Tell me the local time in {c}.",
        "Current time in {c}?",
    )
    clock = f"{rng.randrange(24)}:{rng.randrange(60):02d}"
    answer = f"It is {clock} in {city}."
    return Task(ask(rng, phrasings, False, c=city), (city,), {"time": clock}, answer, answer)


_KINDS: Final[dict[str, Callable[[Random], Task]]] = {
    "weather": _weather,
    "calculator": _calculator,
    "event": _event,
    "search": _search,
    "currency": _currency,
    "timer": _timer,
    "message": _message,
    "translate": _translate,
    "light": _light,
    "music": _music,
    "time": _time,
}


def tool_call(rng: Random) -> Exercise:
    """Choose the tool and write its call."""
    kind = rng.choice(tuple(_KINDS))
    task = _KINDS[kind](rng)
    spelling, tools = offer(rng, kind)
    call = Call(spelling.tool.name, tuple(zip(spelling.names, task.arguments, strict=True)))
    thinking = _plan(call)
    turns = (
        Turn(Speaker.USER, task.question),
        Turn(Speaker.ASSISTANT, thinking=thinking, calls=(call,)),
    )
    expected = Expected(Rule.CALL, calls=(call,))
    return Exercise(f"{call.name}:{task.arguments}", turns, expected, tools)


def _plan(call: Call) -> str:
    listed = ", ".join(f"{key} {value}" for key, value in call.arguments)
    return f"call {call.name}: {listed}"


def tool_result(rng: Random) -> Exercise:
    """Answer with what a tool gave back."""
    kind = rng.choice(tuple(_KINDS))
    task = _KINDS[kind](rng)
    spelling, tools = offer(rng, kind)
    call = Call(spelling.tool.name, tuple(zip(spelling.names, task.arguments, strict=True)))
    thinking = _plan(call)
    facts = ", ".join(f"{key} {value}" for key, value in task.result.items())
    turns = (
        Turn(Speaker.USER, task.question),
        Turn(Speaker.ASSISTANT, thinking=thinking, calls=(call,)),
        Turn(Speaker.TOOL, json.dumps(task.result)),
        Turn(Speaker.ASSISTANT, task.answer, f"result: {facts}"),
    )
    expected = Expected(Rule.CONTAINS, task.value.rstrip("."))
    return Exercise(f"{task.arguments}:{task.result}", turns, expected, tools)


def unneeded_tools(rng: Random, other: Exercise) -> Exercise:
    """Another exercise, with tools on offer that have nothing to do with it."""
    tools = with_others(rng, None)
    return Exercise(f"with tools {other.key}", other.turns, other.expected, tools, other.system)
