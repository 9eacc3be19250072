"""A histogram with fixed buckets, and its Prometheus form.

Own counts instead of the client library's metric objects: those keep process-wide registries and
add time stamps that say nothing. Not locked: whoever observes holds a lock. Source: the Prometheus
text format 0.0.4.
"""

from collections.abc import Sequence
from typing import Final

from prometheus_client.core import HistogramMetricFamily

SECONDS_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
TOKEN_BUCKETS: Final = (1, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


class Histogram:
    """Counts of observations by upper bound."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help_text = help_text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        index = next((i for i, bound in enumerate(self._bounds) if value <= bound), -1)
        self._counts[index] += 1
        self._sum += value

    def family(self) -> HistogramMetricFamily:
        """The counts so far, cumulative as the format wants them."""
        return histogram_family(self._name, self._help_text, self._bounds, self._counts, self._sum)


def histogram_family(
    name: str, help_text: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> HistogramMetricFamily:
    """Spell counts the way the format wants them.

    Args:
        name: of the family.
        help_text: one line about it.
        bounds: upper bounds of all counts but the last, ascending.
        counts: observations up to each bound and above the one before it.
        total: sum of all observations.
    """
    so_far = 0
    buckets = []
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        so_far += count
        buckets.append((_spelled(bound), so_far))
    family = HistogramMetricFamily(name, help_text)
    family.add_metric([], buckets, total)
    return family


def _spelled(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(float(bound))
