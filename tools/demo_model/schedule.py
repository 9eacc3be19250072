"""Learning rate and phases as functions of the share of the time that is gone.

Time, not steps, drives the rate, so that a run of any length on any machine ends annealed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """How a budget of seconds is divided.

    Attributes:
        seconds: of training in all.
        trunk: share of the trunk's phase; the rest is for the companions.
        storage: share of the trunk's phase, at its end, that runs behind the storage formats.
    """

    seconds: float
    trunk: float = 0.68
    storage: float = 0.2

    @property
    def trunk_seconds(self) -> float:
        """Length of the first phase."""
        return self.seconds * self.trunk

    @property
    def companion_seconds(self) -> float:
        """Length of the second phase."""
        return self.seconds * (1 - self.trunk)

    def is_behind_storage(self, share: float) -> bool:
        """Whether the trunk computes with stored values at a share of its phase."""
        return share >= 1 - self.storage


def rate(share: float, peak: float, warmup: float = 0.02, hold: float = 0.3) -> float:
    """Rise, hold, then fall to zero in a line.

    Args:
        share: of the phase that is gone, 0 to 1.
        peak: largest rate.
        warmup: share of the phase in which it rises.
        hold: share of the phase at which it begins to fall.
    """
    if share < warmup:
        return peak * max(share, 1e-4) / warmup
    if share < hold:
        return peak
    return peak * max(0.0, (1 - share) / (1 - hold))
