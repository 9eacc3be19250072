"""The facade of physical execution: one model on one device, for one purpose.

Implements the `Program` protocol of `contract` by composing what the neighbouring files own:
`PhysicalStores` (who has what), `ResourceTransitions` (who gets what), `ModelUnits` (what runs),
`ScoringWindow` (the other purpose). It adds the rules between them: nothing runs on a closed
Program, no transition starts under a pending batch, and each purpose refuses the calls of the
other. How it is built is `program_builder`'s subject. Called by one thread.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from ninfer.errors import InvariantError
from ninfer.generation import TokenMask
from ninfer.program.contract import (
    BackfillProof,
    Capture,
    Demand,
    Materialize,
    PendingBatch,
    PrefillStep,
    ProgramCapacity,
    Projection,
    Rearrange,
    Release,
    ResourcePlan,
    ResourceVector,
    Retain,
    RowDecision,
    RunningTransaction,
    SequenceHandle,
    Target,
)
from ninfer.program.memory_plan import MemoryPlan
from ninfer.program.model_units import ModelUnits
from ninfer.program.physical_stores import PhysicalStores
from ninfer.program.resource_transaction import ResourceTransitions
from ninfer.program.scoring_window import ScoringWindow, WindowScores


@dataclass(frozen=True, slots=True)
class GenerationParts:
    """What a Program built for generation is made of."""

    stores: PhysicalStores
    transitions: ResourceTransitions
    units: ModelUnits


class ModelProgram:
    """Owner of everything one model has on its device, until `close`.

    Made by `build_program`.

    Args:
        parts: of the one purpose it was built for.
        memory: sizes of all arenas, for the account printed at start-up.
        backing: closes graphs and arenas in reverse order of creation.
    """

    def __init__(
        self, parts: GenerationParts | ScoringWindow, memory: MemoryPlan, backing: ExitStack
    ) -> None:
        self._parts: Final = parts
        self.memory: Final = memory
        self._backing: Final = backing
        self._is_closed = False

    @property
    def capacity(self) -> ProgramCapacity:
        """Frozen amounts."""
        return self._generation().stores.capacity

    @property
    def resource_revision(self) -> int:
        """Moves when topology, inactive placement or global free capacity change."""
        return self._generation().transitions.resource_revision

    def free(self) -> ResourceVector:
        """Free amounts now."""
        return self._generation().stores.free()

    def project(self, target: Target) -> Projection:
        """Compute a target's post-state without changing anything."""
        return self._generation().transitions.project(target)

    def seal(self, target: Target) -> ResourcePlan:
        """Bind a feasible target to the present revision."""
        return self._generation().transitions.seal(target)

    def start(self, plan: ResourcePlan) -> RunningTransaction | None:
        """Begin a plan; None, without side effect, when the plan is stale.

        Raises:
            InvariantError: another transition or a batch is unsettled.
        """
        parts = self._generation()
        if parts.units.has_pending:
            raise InvariantError("a resource transition cannot start while a batch is pending")
        match plan.target:
            case Capture(sequence=sequence) | Retain(sequence=sequence):
                if parts.units.is_spoiled(sequence):
                    raise InvariantError(f"{sequence} accepted nothing and can only be released")
                parts.units.staged.expect_whole(sequence)
                parts.units.leave_ahead(sequence)
            case Release(sequence=sequence):
                parts.units.leave_ahead(sequence)
            case Materialize() | Rearrange():
                pass
        return parts.transitions.start(plan)

    def prove_backfill(
        self, head: Demand, donors: frozenset[SequenceHandle], borrower: Demand
    ) -> BackfillProof | None:
        """Prove that admitting ``borrower`` cannot keep ``head`` waiting beyond ``donors``."""
        return self._generation().transitions.prove_backfill(head, donors, borrower)

    def prefill(self, sequence: SequenceHandle, *, is_alone: bool = True) -> PrefillStep:
        """Process and commit the next chunk of the prompt, or process a part of it."""
        return self._generation().units.prefill(sequence, is_alone=is_alone)

    def decode(
        self,
        rows: Sequence[SequenceHandle],
        masks: Sequence[TokenMask | None] = (),
        *,
        is_steady: bool = False,
    ) -> PendingBatch:
        """Run one exact-B round over rows whose prefill is complete."""
        return self._generation().units.decode(rows, masks, is_steady=is_steady)

    def control(self, sequence: SequenceHandle, tokens: Sequence[int]) -> PendingBatch:
        """Process the anchor and all but the last of ``tokens``; no sampler is involved."""
        return self._generation().units.control(sequence, tokens)

    def commit(self, batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        """Commit the whole batch, one decision per row in order."""
        self._generation().units.commit(batch, decisions)

    def abort_pending(self, batch: PendingBatch) -> None:
        """Roll the whole batch back; its sequences are as before the unit."""
        self._generation().units.abort(batch)

    def pending_logits(self, batch: PendingBatch) -> npt.NDArray[np.float32]:
        """Read back the logits of a pending decode round, [B, vocab_rows]; for diagnostics."""
        return self._generation().units.pending_logits(batch)

    @property
    def rounds(self) -> ModelUnits:
        """Measurement of decode rounds: `ModelUnits.round_times` and its neighbours.

        Only while no request is active: the worker thread uses the same.
        """
        return self._generation().units

    def score_window(self, tokens: Sequence[int]) -> WindowScores:
        """Score one window of text; only on a Program built for scoring.

        Raises:
            InvariantError: it was built for generation.
            RequestError: the window is empty, too long, or names an id out of range.
        """
        self._expect_open()
        if not isinstance(self._parts, ScoringWindow):
            raise InvariantError("a Program built for generation cannot score")
        return self._parts.score(tokens)

    def abandon(self) -> None:
        """End whatever is unsettled and release all active state; idempotent, for failures."""
        if self._is_closed or isinstance(self._parts, ScoringWindow):
            return
        self._parts.units.abandon()
        self._parts.transitions.abandon()

    def close(self) -> None:
        """Free everything; idempotent."""
        self._is_closed = True
        self._backing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _generation(self) -> GenerationParts:
        self._expect_open()
        if isinstance(self._parts, ScoringWindow):
            raise InvariantError("a Program built for scoring cannot generate")
        return self._parts

    def _expect_open(self) -> None:
        if self._is_closed:
            raise InvariantError("the Program is closed")
