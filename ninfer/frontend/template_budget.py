"""What one rendering may use: time, size of each value, memory of all of them together.

Values of a template never change, so the size a value has when written out in full is known when
the value is made, however often its parts are shared. Results of operations are kept in a ledger
until nothing else refers to them; what is still referred to is what the rendering has allocated.
Knows no template language. Source: the serving contract, section 6.1.
"""

import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, Final

from jinja2.exceptions import TemplateError

from ninfer.frontend.marked_text import MarkedText

MAX_INTEGER_BITS: Final = 8192
_SCALAR_CHARACTERS: Final = 24
_SLOT_CHARACTERS: Final = 8
_SLOT_BYTES: Final = 128
_SPAN_BYTES: Final = 120
_CHARACTERS_PER_ITEM: Final = 32
_LEAST_ITEMS: Final = 1024
_LEAST_BYTES: Final = 1 << 20
_BYTES_PER_CHARACTER: Final = 8
_LARGE: Final = 1 << 14
_OPERATIONS_PER_TICK: Final = 256
_UNSHARED_REFERENCES: Final = 2


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """Bounds of one rendering: characters of any text it builds, and seconds it takes."""

    max_characters: int = 1 << 25
    max_seconds: float = 10.0


class RenderLimitExceeded(TemplateError):
    """A rendering passed one of its limits."""


class RenderBudget:
    """The account of one rendering; used by one thread.

    Args:
        limits: bounds of the rendering.
        clock: seconds from any fixed point, never going back; time runs from now on.
    """

    __slots__ = (
        "_bytes",
        "_clock",
        "_deadline",
        "_limits",
        "_max_bytes",
        "_objects",
        "_operations",
        "_sizes",
        "_sweep_at",
        "_weights",
        "max_items",
    )

    def __init__(self, limits: RenderLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._deadline = clock() + limits.max_seconds
        self._max_bytes = max(_LEAST_BYTES, limits.max_characters * _BYTES_PER_CHARACTER)
        self._sweep_at = self._max_bytes // 4
        self._bytes = 0
        self._operations = 0
        self._objects: dict[int, Any] = {}
        self._sizes: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self.max_items = max(_LEAST_ITEMS, limits.max_characters // _CHARACTERS_PER_ITEM)

    def tick(self) -> None:
        """End the rendering when its time has passed.

        Raises:
            RenderLimitExceeded: the time has passed.
        """
        if self._clock() > self._deadline:
            raise RenderLimitExceeded(f"it ran longer than {self._limits.max_seconds:g} s")

    def check_size(self, size: int) -> None:
        """Refuse a text of so many characters."""
        if size > self._limits.max_characters:
            raise RenderLimitExceeded(
                f"its text is longer than {self._limits.max_characters} characters"
            )

    def check_items(self, count: int) -> None:
        """Refuse so many parts of one value."""
        if count > self.max_items:
            raise RenderLimitExceeded(f"a value has more than {self.max_items} parts")

    def check_integer(self, value: int) -> None:
        """Refuse an integer that arithmetic could make slow."""
        if value.bit_length() > MAX_INTEGER_BITS:
            raise RenderLimitExceeded(f"a number has more than {MAX_INTEGER_BITS} bits")

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """Go through values, with time and count in view."""
        for count, value in enumerate(values):
            self.check_items(count + 1)
            self.tick()
            yield value

    def check_loop(self, values: Any) -> Any:
        """Refuse to go through a value of too many parts."""
        if hasattr(type(values), "__len__"):
            self.check_items(len(values))
        return values

    def text(self, value: Any) -> str:
        """``str(value)``, once it is known to be small enough."""
        if type(value) is MarkedText or type(value) is str:
            return value
        self.check_size(self.weight(value))
        text: str = self.hold(str(value))
        return text

    def weight(self, value: Any) -> int:
        """Get about how many characters a value has when it is written out in full."""
        if isinstance(value, str):
            return len(value) + _SLOT_CHARACTERS
        if isinstance(value, int):
            self.check_integer(value)
            return _SCALAR_CHARACTERS + value.bit_length() // 3
        if isinstance(value, KeysView | ValuesView | ItemsView):
            return sum(map(self.weight, self.counted(value)))
        if not isinstance(value, list | tuple | Mapping):
            return _SCALAR_CHARACTERS
        known = self._weights.get(id(value))
        if known is None:
            parts: Iterable[Any] = value
            if isinstance(value, Mapping):
                parts = (part for member in value.items() for part in member)
            known = _SCALAR_CHARACTERS
            for part in parts:
                known += _SLOT_CHARACTERS + self.weight(part)
                self.check_size(known)
            self._remember(value, 64)
            self._weights[id(value)] = known
        return known

    def hold(self, value: Any, weight: int | None = None) -> Any:
        """Take the result of an operation into account and return it.

        Args:
            value: the result.
            weight: a bound of its weight where one is known.

        Raises:
            RenderLimitExceeded: it is too large, or all results together are, or time has passed.
        """
        match value:
            case str():
                size = sys.getsizeof(value)
                self.check_size(len(value))
                if isinstance(value, MarkedText):
                    self.check_items(len(value.spans))
                    size += len(value.spans) * _SPAN_BYTES
            case list() | tuple() | dict():
                self.check_items(len(value))
                size = (len(value) + 1) * _SLOT_BYTES
                if weight is None:
                    weight = self.weight(value)
                self.check_size(weight)
            case int():
                self.check_integer(value)
                return value
            case _:
                return value
        self._operations += 1
        if size > _LARGE or self._operations % _OPERATIONS_PER_TICK == 0:
            self.tick()
        self._remember(value, size)
        if weight is not None:
            self._weights[id(value)] = weight
        if self._bytes > self._sweep_at:
            self._sweep()
        return value

    def _remember(self, value: Any, size: int) -> None:
        key = id(value)
        self._bytes += size - self._sizes.get(key, 0)
        self._objects[key] = value
        self._sizes[key] = size

    def _sweep(self) -> None:
        """Forget what only the ledger refers to: containers first, then what was in them."""
        kept: list[tuple[int, Any]] = []
        while self._objects:
            key, value = self._objects.popitem()
            if sys.getrefcount(value) > _UNSHARED_REFERENCES:
                kept.append((key, value))
                continue
            self._bytes -= self._sizes.pop(key)
            self._weights.pop(key, None)
        self._objects.update(reversed(kept))
        if self._bytes > self._max_bytes:
            raise RenderLimitExceeded(f"its values take more than {self._max_bytes} bytes")
        self._sweep_at = self._bytes + self._max_bytes // 4


class PieceBuffer(list[str]):
    """What a template or a macro has written so far.

    Args:
        budget: the account of the rendering.
    """

    __slots__ = ("_budget", "_size")

    def __init__(self, budget: RenderBudget) -> None:
        super().__init__()
        self._budget = budget
        self._size = 0

    def append(self, piece: str, /) -> None:
        """Add a piece; empty ones are left out."""
        if piece:
            self._size += len(piece)
            self._budget.check_size(self._size)
            super().append(piece)
            self._budget.check_items(len(self))

    def extend(self, pieces: Iterable[str], /) -> None:
        """Add pieces."""
        for piece in pieces:
            self.append(piece)
