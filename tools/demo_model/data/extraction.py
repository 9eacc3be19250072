"""JSON from a sentence, into given fields or a given schema.

The sentence names more facts than are asked for; the answer has the asked fields in the asked
order.
"""

import json
from random import Random
from typing import Final

from tools.demo_model.data import words
from tools.demo_model.data.conversation import Exercise, Expected, Rule, Value, exercise

_JOBS: Final = (
    "teacher",
    "doctor",
    "baker",
    "pilot",
    "painter",
    "writer",
    "singer",
    "farmer",
    "lawyer",
    "nurse",
    "engineer",
    "waiter",
    "driver",
    "scientist",
    "cook",
)
_PERSON: Final = (
    "{name} is {age} years old, works as a {job} and lives in {city}.",
    "My friend {name} from {city} is {age} and a {job}.",
    "{name} ({age}) lives in {city} and is a {job}.",
    "In {city} I met {name}, a {job}, who is {age} years old.",
    "{name}, {age}, {job}, {city}",
    "The {job} {name} is {age} years old. The home of {name} is {city}.",
    "I am {name}, I am {age} years old, a {job}, and I live in {city}.",
)
_ORDER: Final = (
    "{name} ordered {quantity} {color} {product} for {price} euros.",
    "Order: {quantity} {color} {product}, customer {name}, total {price} euros.",
    "We sold {quantity} {color} {product} to {name}. The price was {price} euros.",
    "{name} buys {quantity} {product} in {color} and pays {price} euros.",
)
_EVENT: Final = (
    "The {event} with {name} is on {day} at {time} in {city}.",
    "On {day} at {time}, {name} has a {event} in {city}.",
    "{event} in {city}: {day}, {time}, with {name}.",
    "Please come to the {event} on {day}. {name} waits for you in {city} at {time}.",
)
_PRODUCTS: Final = (
    "chairs",
    "lamps",
    "shirts",
    "bottles",
    "tables",
    "cups",
    "bags",
    "shoes",
    "phones",
    "books",
    "pens",
    "bikes",
)
_EVENTS: Final = (
    "meeting",
    "concert",
    "party",
    "dinner",
    "workshop",
    "lunch",
    "interview",
    "class",
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ASK_FIELDS: Final = (
    "Extract {f} as JSON: {s}",
    "Extract {f} as JSON from this text: {s}",
    "Return JSON with the fields {f}. Text: {s}",
    "{s}\nExtract {f} as JSON.",
    "{s}\nGive me {f} as JSON.",
    "Convert to JSON with the keys {f}: {s}",
    'From the sentence "{s}" make a JSON object with {f}.',
    "Read the text and answer in JSON with {f}.\nText: {s}",
)
_ASK_SCHEMA: Final = (
    "Extract the data as JSON for this schema: {f}\nText: {s}",
    "{s}\nAnswer with JSON that matches the schema {f}",
    "Use this JSON schema: {f}\n{s}",
    "Fill this JSON schema from the text.\nSchema: {f}\nText: {s}",
)


def _facts(rng: Random) -> tuple[str, dict[str, Value]]:
    kind = rng.random()
    name = rng.choice(words.first_names())
    if rng.random() < 0.35:
        name = f"{name} {rng.choice(words.last_names())}"
    facts: dict[str, Value] = {"name": name}
    if kind < 0.55:
        facts |= {"age": rng.randrange(5, 95), "city": rng.choice(words.cities())}
        facts["job"] = rng.choice(_JOBS)
        return rng.choice(_PERSON), facts
    if kind < 0.8:
        facts |= {"product": rng.choice(_PRODUCTS), "color": rng.choice(words.colors())}
        facts |= {"quantity": rng.randrange(2, 40), "price": rng.randrange(5, 900)}
        return rng.choice(_ORDER), facts
    facts |= {"event": rng.choice(_EVENTS), "day": rng.choice(_DAYS)}
    time = f"{rng.randrange(8, 22)}:{rng.choice(('00', '15', '30', '45'))}"
    facts |= {"time": time, "city": rng.choice(words.cities())}
    return rng.choice(_EVENT), facts


def _listed(rng: Random, keys: list[str]) -> str:
    if len(keys) == 1:
        return keys[0]
    last = rng.choice((" and ", ", "))
    return ", ".join(keys[:-1]) + last + keys[-1]


def _schema(facts: dict[str, Value]) -> str:
    kinds = {
        key: {"type": "integer" if isinstance(value, int) else "string"}
        for key, value in facts.items()
    }
    return json.dumps({"type": "object", "properties": kinds, "required": list(facts)})


def json_extraction(rng: Random) -> Exercise:
    """Some facts of a sentence as a JSON object."""
    template, facts = _facts(rng)
    sentence = template.format(**facts)
    keys = rng.sample(list(facts), rng.randrange(1, len(facts) + 1))
    asked = {key: facts[key] for key in keys}
    if rng.random() < 0.3:
        question = rng.choice(_ASK_SCHEMA).format(f=_schema(asked), s=sentence)
    else:
        question = rng.choice(_ASK_FIELDS).format(f=_listed(rng, keys), s=sentence)
    answer = json.dumps(asked)
    thinking = ", ".join(f"{key} {value}" for key, value in asked.items())
    expected = Expected(Rule.JSON, answer)
    return exercise(f"{facts}", question, answer, thinking, expected)
