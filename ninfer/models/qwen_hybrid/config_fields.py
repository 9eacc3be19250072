"""Typed reading of one object of a checkpoint's ``config.json``.

Every refusal names the field, the value found and what is allowed. Knows nothing of any model.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ninfer.errors import CheckpointError

# Positive normal binary32: what kernels compute with; anything else becomes 0 or infinity there.
SMALLEST_NUMBER: Final = 2.0**-126
LARGEST_NUMBER: Final = 2.0**128 - 2.0**104
_SPELLED_CHARACTERS: Final = 200


class ConfigFields:
    """One JSON object and its dotted path; reads are checked, nothing is changed."""

    def __init__(self, values: Mapping[str, object], path: str = "") -> None:
        self._values = values
        self._path = path

    def __contains__(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self._values.get(name) is not None

    def section(self, name: str) -> "ConfigFields":
        """Read a nested object."""
        value = self._values.get(name)
        if not isinstance(value, Mapping):
            raise self.refusal(name, "an object")
        return ConfigFields(value, f"{self._path}{name}.")

    def integer(self, name: str, *, low: int = 1, high: int = 1 << 31) -> int:
        """Read an integer in ``[low, high]``."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refusal(name, f"an integer in {low}..{high}")
        return value

    def number(
        self, name: str, *, low: float = SMALLEST_NUMBER, high: float = LARGEST_NUMBER
    ) -> float:
        """Read a number in ``[low, high]``."""
        value = self._values.get(name)
        # Integers of any size compare exactly; only those in range are converted.
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self.refusal(name, f"a number in {low:g}..{high:g}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Read a truth value; absent or null gives ``default``."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(name, "true or false")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """Read an array of integers."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.refusal(name, "an array of integers")
        return tuple(value)

    def strings(self, name: str) -> tuple[str, ...]:
        """Read an array of strings."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(name, "an array of strings")
        return tuple(value)

    def require(self, name: str, allowed: Sequence[object], *, default: object = None) -> object:
        """Read a field that may only have one of a few values; absent gives ``default``."""
        value = self._values.get(name)
        if value is None:
            value = default
        # 1 == True in Python; JSON keeps them apart.
        if not any(value == item and type(value) is type(item) for item in allowed):
            raise self.refusal(name, " or ".join(repr(item) for item in allowed))
        return value

    def refusal(self, name: str, allowed: str) -> CheckpointError:
        """Build the error for one field; the caller raises it."""
        field = f"{self._path}{name}"
        found = _spelled(self._values[name]) if name in self._values else "missing"
        return CheckpointError(
            f"config field {field} is {found}; allowed is {allowed}", field=field
        )


def _spelled(value: object) -> str:
    """Spell any value in a message's worth of characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Integers of thousands of digits, endless nesting.
        return f"a value of type {type(value).__name__} that is too long to spell"
    if len(text) <= _SPELLED_CHARACTERS:
        return text
    return f"{text[:_SPELLED_CHARACTERS]}... ({len(text)} characters)"
