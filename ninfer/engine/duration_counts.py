"""Counts of short durations by upper bound, as a histogram wants them.

Source: the serving contract, section 13.1.
"""

from dataclasses import dataclass, field
from typing import Final

BOUNDS_S: Final = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1)


@dataclass(slots=True)
class DurationCounts:
    """See the module.

    Attributes:
        counts: durations up to each of `BOUNDS_S` and above the one before it, then longer ones.
        total_s: seconds of all together.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    @property
    def bounds_s(self) -> tuple[float, ...]:
        """Upper bounds of all counts but the last."""
        return BOUNDS_S

    def note(self, duration_s: float) -> None:
        """Count one duration."""
        index = next((i for i, bound in enumerate(BOUNDS_S) if duration_s <= bound), len(BOUNDS_S))
        self.counts[index] += 1
        self.total_s += duration_s

    def frozen(self) -> "DurationCounts":
        """An independent copy for a snapshot."""
        return DurationCounts(list(self.counts), self.total_s)
