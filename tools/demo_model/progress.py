"""Time of a phase and lines about it."""

import time
from dataclasses import dataclass, field
from typing import Final

import torch

_SYNC_STEPS: Final = 4


@dataclass(slots=True)
class Clock:
    """Seconds of a phase that were spent training; compiling before the first steps is not.

    Attributes:
        seconds: length of the phase.
        spent: of them, at the last tick.
        steps, tokens: done.
        warm_steps: steps of this process that are not timed.
        save_every: seconds between checkpoints.
    """

    seconds: float
    spent: float = 0.0
    steps: int = 0
    tokens: int = 0
    warm_steps: int = 3
    save_every: float = 75.0
    _last: float | None = None
    _mark: tuple[float, int] = (0.0, 0)
    _saved: float = 0.0
    _own_steps: int = 0

    @property
    def share(self) -> float:
        """Share of the phase that is gone."""
        return min(1.0, self.spent / self.seconds)

    def tick(self, tokens: int) -> None:
        """Count a step."""
        self.steps += 1
        self._own_steps += 1
        self.tokens += tokens
        if self._own_steps < self.warm_steps:
            return
        if self._own_steps % _SYNC_STEPS == 0 and torch.cuda.is_available():
            # Without waiting, the host's clock would run ahead of the work it has queued.
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._last is None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.perf_counter()
            self._mark = (self.spent, self.tokens)
            self._saved = self.spent
        else:
            self.spent += now - self._last
        self._last = now

    def tokens_per_second(self) -> float:
        """Return the rate since it was last asked."""
        spent, tokens = self._mark
        self._mark = (self.spent, self.tokens)
        return (self.tokens - tokens) / max(self.spent - spent, 1e-6)

    def is_save_due(self) -> bool:
        """Whether a checkpoint is due; asking counts as making it."""
        if self.spent - self._saved < self.save_every:
            return False
        self._saved = self.spent
        return True

    def state(self) -> dict[str, float]:
        """Return what a later run goes on from."""
        return {"spent": self.spent, "steps": self.steps, "tokens": self.tokens}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from a state."""
        self.spent = state["spent"]
        self.steps, self.tokens = int(state["steps"]), int(state["tokens"])
        self._saved, self._mark = self.spent, (self.spent, self.tokens)


@dataclass(slots=True)
class Log:
    """Lines on standard output, one every few seconds."""

    every: float = 5.0
    count: int = 0
    began: float = field(default_factory=time.perf_counter)
    _last: float = 0.0

    def is_due(self, clock: Clock) -> bool:
        """Whether it is time for a line."""
        now = time.perf_counter()
        is_first = clock.steps in {1, 10}
        if not is_first and now - self._last < self.every:
            return False
        self._last = now
        return True

    def line(self, phase: str, clock: Clock, values: dict[str, float]) -> None:
        """Print one line."""
        self.count += 1
        shown = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        self.say(
            f"{phase} {100 * clock.share:.1f}% step {clock.steps}"
            f" {clock.tokens / 1e6:.1f}M at {clock.tokens_per_second() / 1e3:.0f}k/s {shown}"
        )

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"[{time.perf_counter() - self.began:6.1f}] {text}", flush=True)
