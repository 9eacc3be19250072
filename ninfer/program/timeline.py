"""How long the steps of a start took, one after another. Knows no step by itself."""

import time


class Timeline:
    """A stopwatch that runs from its making on; each note ends a step and begins the next."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._steps: dict[str, float] = {}

    def note(self, step: str) -> None:
        """End a step; the same name twice adds up."""
        now = time.perf_counter()
        self._steps[step] = self._steps.get(step, 0.0) + now - self._last
        self._last = now

    @property
    def seconds(self) -> dict[str, float]:
        """Steps in order, with their durations."""
        return dict(self._steps)
