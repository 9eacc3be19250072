"""Finding stop strings in a stream of text, holding back exactly what may still become one.

Does not know channels or tokens. Source: the serving contract, section 4.3.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class StopScan:
    """What a piece of text did: text that is free to go, and the stop string it completed."""

    released: str
    matched: str | None
    next: "StopMatcher"


@dataclass(frozen=True, slots=True)
class StopMatcher:
    """Matcher for one stream of text; a value, so a preview simply drops it.

    Attributes:
        stops: non-empty strings.
        held: longest suffix so far that is a proper prefix of a stop string.
    """

    stops: tuple[str, ...]
    held: str = field(default="", kw_only=True)

    def feed(self, text: str) -> StopScan:
        """Scan the next text. The match that ends first wins, and of those the longest."""
        if not self.stops:
            return StopScan(text, None, self)
        seen = self.held + text
        found = [(seen.find(stop), stop) for stop in self.stops]
        matches = [(at + len(stop), at, stop) for at, stop in found if at >= 0]
        if matches:
            _, at, stop = min(matches)
            return StopScan(seen[:at], stop, replace(self, held=""))
        keep = max(_overlap(seen, stop) for stop in self.stops)
        cut = len(seen) - keep
        return StopScan(seen[:cut], None, replace(self, held=seen[cut:]))

    def flush(self) -> tuple[str, "StopMatcher"]:
        """Release what is held: nothing can complete it any more."""
        return self.held, replace(self, held="")


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
