"""Typed access to the members of a JSON object, remembering which were asked for.

One reader for every protocol, so that a wrong type is refused in the same words everywhere.
``null`` means the same as leaving a member out. Knows no protocol. Source: the serving contract,
section 4.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ninfer.errors import RequestError
from ninfer.gateway.json_body import json_kind
from ninfer.generation import checked_integer, checked_number, shown


class Fields:
    """Members of one object.

    Args:
        members: the object.
        path: dotted path of the object; empty for the body itself.
    """

    def __init__(self, members: Mapping[str, Any], path: str = "") -> None:
        self._members = members
        self._path = path
        self._known: set[str] = set()

    def path(self, name: str) -> str:
        """Dotted path of a member."""
        return f"{self._path}.{name}" if self._path else name

    def raw(self, name: str) -> Any:
        """The member as it is, None when it is absent."""
        self._known.add(name)
        return self._members.get(name)

    def has(self, name: str) -> bool:
        """Whether the member is there and not null."""
        return self.raw(name) is not None

    def boolean(self, name: str) -> bool | None:
        """A boolean.

        Raises:
            RequestError: it is something else.
        """
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong_type(name, value, "a boolean")

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer in a range; ``1.0`` is none.

        Raises:
            RequestError: it is something else.
        """
        value = self.raw(name)
        return None if value is None else checked_integer(self.path(name), value, low, high)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number in a range.

        Raises:
            RequestError: it is something else.
        """
        value = self.raw(name)
        return None if value is None else checked_number(self.path(name), value, low, high)

    def text(self, name: str, *, longest: int | None = None, shortest: int = 0) -> str | None:
        """A string.

        Raises:
            RequestError: it is something else, too long or too short.
        """
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong_type(name, value, "a string")
        if len(value) < shortest or (longest is not None and len(value) > longest):
            raise RequestError(
                f"{self.path(name)} has {len(value)} characters; allowed is {shortest}..{longest}",
                field=self.path(name),
            )
        return value

    def choice(self, name: str, allowed: Iterable[str]) -> str | None:
        """One of a few strings.

        Raises:
            RequestError: it is something else.
        """
        value = self.text(name)
        allowed = tuple(allowed)
        if value is not None and value not in allowed:
            raise RequestError(
                f"{self.path(name)} is {shown(value)}; allowed is {', '.join(allowed)}",
                field=self.path(name),
            )
        return value

    def items(self, name: str) -> list[Any] | None:
        """A list.

        Raises:
            RequestError: it is something else.
        """
        value = self.raw(name)
        if value is None or isinstance(value, list):
            return value
        raise self._wrong_type(name, value, "a list")

    def nested(self, name: str) -> "Fields | None":
        """An object.

        Raises:
            RequestError: it is something else.
        """
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong_type(name, value, "an object")
        return Fields(value, self.path(name))

    def strings(self, name: str, *, most: int, longest: int) -> tuple[str, ...]:
        """A string or a list of strings, none of them empty; absent is none.

        Raises:
            RequestError: it is something else.
        """
        value = self.raw(name)
        if value is None:
            return ()
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list):
            raise self._wrong_type(name, value, "a string or a list of strings")
        if len(texts) > most:
            raise RequestError(
                f"{self.path(name)} has {len(texts)} strings; allowed is at most {most}",
                field=self.path(name),
            )
        for index, text in enumerate(texts):
            field = self.path(name) if isinstance(value, str) else f"{self.path(name)}[{index}]"
            if not isinstance(text, str):
                raise RequestError(
                    f"{field} is {json_kind(text)}; it must be a string",
                    code="invalid_type",
                    field=field,
                )
            if not 1 <= len(text) <= longest:
                raise RequestError(
                    f"{field} has {len(text)} characters; allowed is 1..{longest}", field=field
                )
        return tuple(texts)

    def missing(self, name: str) -> RequestError:
        """The error for a member that has to be there."""
        field = self.path(name)
        return RequestError(f"{field} is missing", code="missing_field", field=field)

    def unknown(self) -> tuple[str, ...]:
        """Members nobody asked for, in the order of the body."""
        return tuple(name for name in self._members if name not in self._known)

    def _wrong_type(self, name: str, value: object, wanted: str) -> RequestError:
        field = self.path(name)
        return RequestError(
            f"{field} is {json_kind(value)}; it must be {wanted}", code="invalid_type", field=field
        )
