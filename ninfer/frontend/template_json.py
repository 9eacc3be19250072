"""JSON as chat templates see it: key order and the digits of numbers survive a round trip.

A replayed tool call must render to the tokens the model produced, so ``1.10`` may not become
``1.1``. Writing follows the ``tojson`` filter of the published templates: no HTML escaping, no
ASCII escaping. Knows no templates. Source: RFC 8259.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_NUMBER_CHARACTERS = 400


class JsonNumber(float):
    """A number with a fraction or an exponent that is written back as it was read."""

    __slots__ = ("text",)

    text: str

    def __new__(cls, text: str) -> "JsonNumber":
        """Read a number; the text must be valid JSON."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


def parse_json(text: str) -> Any:
    """Read one JSON value.

    Raises:
        ValueError: not JSON, nested too deeply, NaN or infinity, or a number over the limit.
    """
    try:
        return json.loads(
            text, parse_float=_fraction, parse_int=_integer, parse_constant=_refused_constant
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def write_json(
    value: Any,
    *,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    check_size: Callable[[int], None] | None = None,
) -> str:
    """Write a value as ``json.dumps`` does, numbers with their own digits.

    Args:
        value: what to write.
        ensure_ascii: whether to escape everything beyond ASCII.
        indent: what to indent each level by, or how many spaces; None writes one line.
        separators: between members, and behind keys.
        sort_keys: whether to write members by key.
        check_size: called with the length of each array and object before it is put together.

    Raises:
        TypeError: a value is no JSON type.
    """
    if isinstance(indent, int):
        indent = " " * indent
    item, colon = separators or ("," if indent is not None else ", ", ": ")
    writer = _Writer(ensure_ascii, indent, item, colon, sort_keys, check_size)
    return "".join(writer.write(value, "\n"))


class _Writer:
    """Recursive writer; settings are those of `write_json`."""

    def __init__(
        self,
        ensure_ascii: bool,
        indent: str | None,
        item: str,
        colon: str,
        sort_keys: bool,
        check_size: Callable[[int], None] | None,
    ) -> None:
        self._ensure_ascii = ensure_ascii
        self._indent = indent
        self._item = item
        self._colon = colon
        self._sort_keys = sort_keys
        self._check_size = check_size

    def write(self, value: Any, line: str) -> Iterator[str]:
        if isinstance(value, JsonNumber):
            yield value.text
        elif value is None or isinstance(value, str | int | float):
            yield json.dumps(value, ensure_ascii=self._ensure_ascii)
        elif isinstance(value, Mapping):
            members = sorted(value.items()) if self._sort_keys else value.items()
            parts = [self._member(key, item, line) for key, item in members]
            yield from self._container("{", parts, "}", line)
        elif isinstance(value, list | tuple):
            parts = ["".join(self.write(item, self._deeper(line))) for item in value]
            yield from self._container("[", parts, "]", line)
        else:
            raise TypeError(f"a value of type {type(value).__name__} is not JSON")

    def _member(self, key: Any, value: Any, line: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"a key of type {type(key).__name__} is not JSON")
        name = json.dumps(key, ensure_ascii=self._ensure_ascii)
        return name + self._colon + "".join(self.write(value, self._deeper(line)))

    def _container(self, opening: str, parts: list[str], closing: str, line: str) -> Iterator[str]:
        yield opening
        if self._check_size is not None:
            gap = len(self._item) + (0 if self._indent is None else len(self._deeper(line)))
            self._check_size(sum(map(len, parts)) + gap * len(parts))
        if parts and self._indent is None:
            yield self._item.join(parts)
        elif parts:
            inner = self._deeper(line)
            yield inner + (self._item + inner).join(parts) + line
        yield closing

    def _deeper(self, line: str) -> str:
        return line + (self._indent or "")


def _integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ValueError("a number has too many digits")
    return int(text)


def _fraction(text: str) -> JsonNumber:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ValueError("a number has too many digits")
    number = JsonNumber(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is beyond the range of a double")
    return number


def _refused_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
