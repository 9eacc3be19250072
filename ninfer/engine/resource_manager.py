"""Lanes, catalog and the one resource transition: chosen by the planner, executed by Program.

    question -> target -> Program seals a plan -> transaction -> result -> adoption

At most one transition is unsettled at any time. A result is checked completely before anything is
adopted, so that adoption either happens as a whole or not at all, and a lane changes only with it.
There is no mirror of bytes, pages or free space here. Source: system design, sections 2 and 6.
"""

import enum
from dataclasses import dataclass

from ninfer.engine.checkpoint_catalog import CheckpointCatalog, Publication, ReservationId
from ninfer.engine.lanes import LaneId, LaneTable
from ninfer.engine.resource_planner import (
    AdmissionAnswer,
    AdmissionQuestion,
    Planner,
    TerminalQuestion,
)
from ninfer.errors import InvariantError
from ninfer.program.contract import (
    BackfillProof,
    CheckpointHandle,
    Demand,
    FromCheckpoint,
    Materialize,
    Outcome,
    Program,
    Release,
    ResourcePlan,
    ResourceResult,
    ResourceVector,
    Retain,
    RunningTransaction,
    SequenceHandle,
)

MAX_STALE_STARTS = 8
"""Plans in a row that may turn out stale; only the worker moves the revision, so one is odd."""


class TransitionKind(enum.Enum):
    """What a running transition is for."""

    MATERIALIZE = enum.auto()
    SETTLE = enum.auto()


@dataclass(frozen=True, slots=True)
class Adopted:
    """A transition that ended and whose result was adopted."""

    kind: TransitionKind
    lane: LaneId
    result: ResourceResult


@dataclass(frozen=True, slots=True)
class _Running:
    kind: TransitionKind
    lane: LaneId
    plan: ResourcePlan
    transaction: RunningTransaction
    publication: Publication | None = None


class ResourceManager:
    """Owner of lanes, checkpoint catalog and the running transition; worker thread only."""

    def __init__(self, program: Program, planner: Planner, catalog: CheckpointCatalog) -> None:
        self._program = program
        self._planner = planner
        self._catalog = catalog
        self._lanes = LaneTable(program.capacity.max_concurrency)
        self._reservations: dict[LaneId, ReservationId] = {}
        self._running: _Running | None = None
        self._num_stale = 0

    @property
    def num_free_lanes(self) -> int:
        """Lanes a new request could take."""
        return self._lanes.num_free

    @property
    def num_checkpoints(self) -> int:
        """Checkpoints in the catalog."""
        return len(self._catalog.entries())

    @property
    def revision(self) -> int:
        """Program's revision: moves when an admission's answer can have changed."""
        return self._program.resource_revision

    @property
    def has_transition(self) -> bool:
        """Whether a transition is unsettled."""
        return self._running is not None

    @property
    def transition_lane(self) -> LaneId | None:
        """Lane of the unsettled transition."""
        return None if self._running is None else self._running.lane

    def free(self) -> ResourceVector:
        """Program's free amounts now, for observation."""
        return self._program.free()

    def sequence(self, lane: LaneId) -> SequenceHandle:
        """The active sequence of a lane."""
        return self._lanes.sequence(lane)

    def plan_admission(self, question: AdmissionQuestion) -> AdmissionAnswer:
        """Ask the policy how a request could become active now.

        Raises:
            RequestError: Program cannot represent the request.
        """
        return self._planner.plan_admission(self._program, self._catalog, question)

    def prove_backfill(
        self, head: Demand, donors: frozenset[LaneId], borrower: Demand
    ) -> BackfillProof | None:
        """Ask Program for the proof that a later request cannot hold the head back.

        Raises:
            InvariantError: the proof is for another revision or other donors.
        """
        sequences = frozenset(self._lanes.sequence(lane) for lane in donors)
        proof = self._program.prove_backfill(head, sequences, borrower)
        if proof is not None and (proof.revision, proof.donors) != (self.revision, sequences):
            raise InvariantError("a backfill proof is bound to something else than was asked")
        return proof

    def start_admission(self, target: Materialize, *, may_publish: bool) -> LaneId | None:
        """Claim a lane, and a catalog place if wanted, and start; None when the plan was stale."""
        lane = self._lanes.claim()
        reservation = self._catalog.reserve() if may_publish else None
        plan = self._program.seal(target)
        transaction = self._start(plan, _checkpoints_of(target))
        if transaction is None:
            self._lanes.abort(lane)
            if reservation is not None:
                self._catalog.cancel(reservation)
            return None
        if reservation is not None:
            self._reservations[lane] = reservation
        self._running = _Running(TransitionKind.MATERIALIZE, lane, plan, transaction)
        return lane

    def end(self, lane: LaneId) -> None:
        """Note that a lane's model work is over; it keeps owning its sequence."""
        self._lanes.end(lane)

    def start_settlement(
        self, lane: LaneId, *, is_success: bool, publication_order: int, session_key: str | None
    ) -> bool:
        """Start keeping or releasing the sequence of a TERMINAL_PENDING lane.

        Returns:
            False, without side effect, when the plan was stale.
        """
        question = TerminalQuestion(
            sequence=self._lanes.sequence(lane),
            may_retain=is_success and lane in self._reservations,
            session_key=session_key,
        )
        choice = self._planner.plan_terminal(self._program, self._catalog, question)
        publication = None
        if isinstance(choice.target, Retain):
            if not question.may_retain:
                raise InvariantError("the policy wants to keep a state that must be released")
            publication = Publication(choice.kind, choice.retention, publication_order, session_key)
        plan = self._program.seal(choice.target)
        transaction = self._start(plan, _checkpoints_of(choice.target))
        if transaction is None:
            return False
        self._running = _Running(TransitionKind.SETTLE, lane, plan, transaction, publication)
        return True

    def advance(self) -> bool:
        """Run at most one stage of the transition; True when it can be committed."""
        return self._current().transaction.advance()

    def commit(self) -> Adopted:
        """Commit the transition and adopt its result.

        Raises:
            InvariantError: the result contradicts what was asked; nothing was adopted.
        """
        running = self._current()
        result = running.transaction.commit()
        self._check(running, result, Outcome.COMMITTED)
        return self._adopt(running, result)

    def abort(self) -> Adopted:
        """Give a materialization up and adopt its complete result."""
        running = self._current()
        result = running.transaction.abort()
        self._check(running, result, Outcome.ABORTED)
        return self._adopt(running, result)

    def clear(self) -> None:
        """Forget everything, after Program abandoned it in a failure."""
        self._running = None
        self._reservations.clear()
        self._lanes.clear()
        self._catalog.clear()

    def _current(self) -> _Running:
        if self._running is None:
            raise InvariantError("no resource transition is running")
        return self._running

    def _start(
        self, plan: ResourcePlan, claimed: frozenset[CheckpointHandle]
    ) -> RunningTransaction | None:
        if self._running is not None:
            raise InvariantError("a resource transition is unsettled")
        self._catalog.claim(claimed)
        transaction = self._program.start(plan)
        if transaction is not None:
            self._num_stale = 0
            return transaction
        self._catalog.unclaim()
        self._num_stale += 1
        if self._num_stale >= MAX_STALE_STARTS:
            raise InvariantError(f"{self._num_stale} fresh plans in a row were stale at once")
        return None

    def _check(self, running: _Running, result: ResourceResult, outcome: Outcome) -> None:
        if (result.plan_id, result.outcome) != (running.plan.plan_id, outcome):
            raise InvariantError("a resource result belongs to another plan or outcome")
        if result.revision != self._program.resource_revision:
            raise InvariantError("a resource result is not of the present revision")
        is_committed = outcome is Outcome.COMMITTED
        target = running.plan.target
        wants_sequence = is_committed and isinstance(target, Materialize)
        wants_publication = is_committed and isinstance(target, Retain)
        ended = target.sequence if is_committed and isinstance(target, Retain | Release) else None
        if (result.sequence is not None) != wants_sequence:
            raise InvariantError("a resource result has a sequence too many, or lacks one")
        if isinstance(target, Materialize):
            num_tokens = len(target.demand.prompt.token_ids)
            if not 0 <= result.reused_tokens < num_tokens:
                raise InvariantError(f"{result.reused_tokens} of {num_tokens} tokens are reused")
        if result.sequence in self._lanes.sequences():
            raise InvariantError("a new sequence is already owned by another lane")
        if (result.published is not None) != wants_publication or result.released != ended:
            raise InvariantError("a resource result does not say what became of its sequence")
        self._catalog.check(result.checkpoints, result.published)

    def _adopt(self, running: _Running, result: ResourceResult) -> Adopted:
        lane = running.lane
        is_lane_kept = result.sequence is not None
        reservation = None if is_lane_kept else self._reservations.pop(lane, None)
        self._catalog.unclaim()
        self._catalog.adopt(result.checkpoints, result.published, reservation, running.publication)
        if running.kind is TransitionKind.SETTLE:
            self._lanes.settle(lane)
        elif result.sequence is None:
            self._lanes.abort(lane)
        else:
            self._lanes.adopt(lane, result.sequence)
        self._running = None
        return Adopted(running.kind, lane, result)


def _checkpoints_of(target: Materialize | Retain | Release) -> frozenset[CheckpointHandle]:
    match target:
        case Materialize(source=source, actions=actions):
            named = {action.checkpoint for action in actions}
            if isinstance(source, FromCheckpoint):
                named.add(source.checkpoint)
            return frozenset(named)
        case Retain(actions=actions):
            return frozenset(action.checkpoint for action in actions)
        case Release():
            return frozenset()
