"""Resource transitions: project, seal, start, run stage by stage, then commit or abort.

    project(target) -> Projection          nothing changes
    seal(target)    -> ResourcePlan        bound to the revision
    start(plan)     -> RunningTransaction  None when the plan is stale
       advance ... advance                 at most one stage each
       commit | abort -> ResourceResult    exactly one, the complete end state

Stages, as far as a target has them: first delete the checkpoints its actions name, then reserve
and copy (`transition_work`). The source of a fork or move stays valid until the end. `abort` puts
everything back exactly, except deleted checkpoints: those are the safe degradations that a result
reports. Host placement and shortening raise `UnsupportedFeature` until host replicas exist.

Deciding which target is worth having is not done here (design, section 6).
"""

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ninfer.errors import IllegalMove, InvariantError, StaleHandle
from ninfer.program.contract import (
    BackfillProof,
    CheckpointSummary,
    Demand,
    Outcome,
    Projection,
    ResourcePlan,
    ResourceResult,
    RunningTransaction,
    SequenceHandle,
    Target,
    Tier,
    Verdict,
)
from ninfer.program.physical_stores import PhysicalCopies, PhysicalStores
from ninfer.program.resource_projection import CopySizes, project, room_for_head
from ninfer.program.transition_work import TransitionEnd, TransitionWork, plan_work


class _Life(enum.Enum):
    RUNNING = enum.auto()  # between stages; stages or the end are left
    STAGING = enum.auto()  # inside a stage; stays here when the stage fails
    COMMITTED = enum.auto()
    ABORTED = enum.auto()


class _Event(enum.Enum):
    ENTER_STAGE = enum.auto()
    LEAVE_STAGE = enum.auto()
    COMMIT = enum.auto()
    ABORT = enum.auto()


_NEXT: Final = {
    (_Life.RUNNING, _Event.ENTER_STAGE): _Life.STAGING,
    (_Life.STAGING, _Event.LEAVE_STAGE): _Life.RUNNING,
    (_Life.RUNNING, _Event.COMMIT): _Life.COMMITTED,
    (_Life.RUNNING, _Event.ABORT): _Life.ABORTED,
    (_Life.STAGING, _Event.ABORT): _Life.ABORTED,
}


class ResourceTransitions:
    """Owner of the one global transition and of the resource revision.

    Args:
        stores: what transitions change.
        copies: device work that goes with it.
        sizes: bytes of the copies, for projections.
    """

    def __init__(self, stores: PhysicalStores, copies: PhysicalCopies, sizes: CopySizes) -> None:
        self._stores: Final = stores
        self._copies: Final = copies
        self._sizes: Final = sizes
        self._revision = 0
        self._next_plan = 0
        self._sealed: dict[int, ResourcePlan] = {}
        self._running: _Transition | None = None

    @property
    def resource_revision(self) -> int:
        """Moves with topology, inactive placement and free amounts; not with an active's growth."""
        return self._revision

    @property
    def is_running(self) -> bool:
        """Whether a transition is unsettled."""
        return self._running is not None

    def project(self, target: Target) -> Projection:
        """See `resource_projection.project`."""
        return project(self._stores, target, self._sizes)

    def seal(self, target: Target) -> ResourcePlan:
        """Bind a feasible target to the present revision.

        Raises:
            InvariantError: it is not feasible now.
        """
        projection = self.project(target)
        if projection.verdict not in (Verdict.READY, Verdict.NEEDS_TRANSFER):
            raise InvariantError(f"a target that is {projection.verdict.name} cannot be sealed")
        plan = ResourcePlan(self._next_plan, self._revision, target)
        self._next_plan += 1
        self._sealed[plan.plan_id] = plan
        return plan

    def start(self, plan: ResourcePlan) -> RunningTransaction | None:
        """Begin a plan; None, without side effect, when it is stale or was started before.

        Raises:
            InvariantError: another transition is unsettled.
        """
        if self._running is not None:
            raise InvariantError("another resource transition is unsettled")
        if plan.revision != self._revision or self._sealed.get(plan.plan_id) != plan:
            return None
        if not self._is_feasible(plan.target):
            return None
        del self._sealed[plan.plan_id]
        work, stages = plan_work(self._stores, self._copies, plan.target)
        self._running = _Transition(plan, work, stages, self._moved, self._ended)
        return self._running

    def prove_backfill(
        self, head: Demand, donors: frozenset[SequenceHandle], borrower: Demand
    ) -> BackfillProof | None:
        """Prove that admitting ``borrower`` cannot keep ``head`` waiting beyond ``donors``.

        No proof is given while a transition is unsettled.
        """
        if self._running is None and room_for_head(self._stores, head, donors, borrower):
            return BackfillProof(self._revision, donors)
        return None

    def abandon(self) -> None:
        """Abort what is unsettled and release every active sequence; idempotent."""
        if self._running is not None:
            self._running.abort()
        active = [record.handle for record in self._stores.sequences]
        for handle in active:
            self._stores.release_sequence(handle)
        if active:
            self._moved()

    def _is_feasible(self, target: Target) -> bool:
        """Active sequences move without a revision, so a sealed plan is projected once more."""
        try:
            return self.project(target).verdict in (Verdict.READY, Verdict.NEEDS_TRANSFER)
        except StaleHandle:
            return False

    def _moved(self) -> None:
        self._revision += 1
        self._sealed.clear()

    def _ended(self, plan: ResourcePlan, outcome: Outcome, end: TransitionEnd) -> ResourceResult:
        self._running = None
        device = frozenset({Tier.DEVICE})
        return ResourceResult(
            plan.plan_id,
            outcome,
            self._revision,
            end.sequence,
            end.reused_tokens,
            end.published,
            end.released,
            tuple(
                CheckpointSummary(record.handle, record.identity.length, device)
                for record in self._stores.checkpoints
            ),
            self._stores.free(),
        )


class _Transition:
    """The running transition: stages left, and the work that knows its end."""

    def __init__(
        self,
        plan: ResourcePlan,
        work: TransitionWork,
        stages: Sequence[Callable[[], None]],
        moved: Callable[[], None],
        ended: Callable[[ResourcePlan, Outcome, TransitionEnd], ResourceResult],
    ) -> None:
        self._plan: Final = plan
        self._work: Final = work
        self._stages = deque(stages)
        self._moved: Final = moved
        self._ended: Final = ended
        self._life = _Life.RUNNING

    def advance(self) -> bool:
        """Run at most one stage; True when only the end is left to choose."""
        following = self._after(_Event.ENTER_STAGE)
        if self._stages:
            stage = self._stages.popleft()
            self._life = following
            stage()
            self._life = self._after(_Event.LEAVE_STAGE)
            self._moved()
        return not self._stages

    def commit(self) -> ResourceResult:
        """Publish the target.

        Raises:
            InvariantError: stages are left, or the transaction has ended; it goes on as it is.
        """
        following = self._after(_Event.COMMIT)
        if self._stages:
            raise IllegalMove(f"{len(self._stages)} stages are left")
        end = self._work.publish()
        self._life = following
        self._moved()
        return self._ended(self._plan, Outcome.COMMITTED, end)

    def abort(self) -> ResourceResult:
        """Give the target up and return the end state, safe degradations included."""
        self._life = self._after(_Event.ABORT)
        if self._work.give_up():
            self._moved()
        return self._ended(self._plan, Outcome.ABORTED, TransitionEnd())

    def _after(self, event: _Event) -> _Life:
        following = _NEXT.get((self._life, event))
        if following is None:
            raise IllegalMove(f"a transaction that is {self._life.name} cannot {event.name}")
        return following
