"""What anybody may read of an engine at any time: a frozen snapshot, published by the worker.

Health and metrics read it without a lock that the worker holds during work. Source: serving
contract, sections 2.1 and 13.1.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field

from ninfer.engine.duration_counts import DurationCounts
from ninfer.engine.intake import EngineState
from ninfer.program.contract import ResourceVector


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine was built; they never go back.

    Attributes:
        accepted: requests that passed submission.
        ended: requests by how they ended: a finish reason's value or an error's code.
        prompt_tokens, reused_tokens: of admitted requests.
        prefill_tokens: prompt tokens really processed.
        decode_tokens: committed output tokens, forced ones included.
        reasoning_tokens: of requests that ended with a result.
        prefill_units, control_units, decode_rounds: model units.
        decode_row_rounds: rows of all rounds together.
        mask_times: how long output sessions took for the masks of constrained rows.
    """

    accepted: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    reasoning_tokens: int = 0
    prefill_units: int = 0
    control_units: int = 0
    decode_rounds: int = 0
    decode_row_rounds: int = 0
    mask_times: DurationCounts = field(default_factory=DurationCounts)

    def note_ended(self, how: str) -> None:
        """Count one end."""
        self.ended[how] = self.ended.get(how, 0) + 1

    def frozen(self) -> "EngineCounters":
        """An independent copy for a snapshot."""
        twin = copy(self)
        twin.ended = dict(self.ended)
        twin.mask_times = self.mask_times.frozen()
        return twin


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine at the worker's last look.

    Attributes:
        state: availability at the time of the question, not of the snapshot.
        active: requests that hold a lane.
        waiting: accepted requests that do not.
        prefilling: active requests that materialize or process their prompt.
        outstanding: capacity in use; includes answered requests that nobody has read yet.
        last_progress: clock reading of the worker's newest boundary.
        checkpoints: entries of the catalog.
        free, total: Program's amounts on every axis.
        active_by_state: active requests by the name of their state.
    """

    state: EngineState
    active: int
    waiting: int
    prefilling: int
    outstanding: int
    last_progress: float
    checkpoints: int
    free: ResourceVector
    total: ResourceVector
    active_by_state: Mapping[str, int]
    counters: EngineCounters

    def progress_age_s(self, now: float) -> float:
        """Seconds since the last boundary while work exists, else 0."""
        return max(0.0, now - self.last_progress) if self.active else 0.0
