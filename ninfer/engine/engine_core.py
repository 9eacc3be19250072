"""The worker: one boundary, nine steps, in order.

    submit/cancel (any thread) -> intake, flags      run_boundary (worker) -> events, status

Only the thread that calls `run_boundary` changes records, scheduler, resources and Program. A test
calls it directly; `ninfer.engine.engine_worker` gives it a thread. Scheduling, cache policy and row
decisions live in their own files; this one says what happens when.
Source: system design, section 5.
"""

import enum
import logging
import threading
import time
from collections.abc import Callable, Iterable

from ninfer.engine.admission import Admission, NotNow, Refused, Started
from ninfer.engine.checkpoint_catalog import CheckpointCatalog
from ninfer.engine.engine_status import EngineStatus
from ninfer.engine.intake import EngineState, Intake
from ninfer.engine.lanes import LaneId
from ninfer.engine.request import (
    Ending,
    RequestMove,
    RequestOrder,
    RequestRecord,
    RequestState,
    StopCause,
    stop_outcome,
)
from ninfer.engine.request_book import RequestBook
from ninfer.engine.resource_manager import Adopted, ResourceManager, TransitionKind
from ninfer.engine.resource_planner import Planner, RootOnlyPlanner
from ninfer.engine.response_channel import CapacityGate, GenerationHandle
from ninfer.engine.scheduler import (
    AdmissionSnapshot,
    NoUnit,
    Scheduler,
    UnitSnapshot,
    WaitingView,
    choose_attempt,
    choose_unit,
)
from ninfer.engine.unit_execution import Ended, UnitExecution
from ninfer.errors import EngineClosed, InvariantError, NinferError
from ninfer.generation import FinishReason, GenerationRequest, GenerationStart
from ninfer.program.contract import Program

_logger = logging.getLogger(__name__)


class Boundary(enum.Enum):
    """What a boundary leaves to do."""

    BUSY = enum.auto()  # call again
    IDLE = enum.auto()  # call again after the next submission, cancellation or drain
    OVER = enum.auto()  # stopped or failed; never call again


class EngineCore:
    """Order, life cycle and publication of the requests of one Program.

    `submit`, `drain`, `status` and `wait` may be called from any thread, `run_boundary` from one
    only. The core never closes Program; whoever built that does, after the core is over.
    """

    def __init__(
        self,
        program: Program,
        *,
        max_pending: int,
        num_checkpoint_slots: int = 0,
        planner: Planner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build an engine that accepts nothing yet.

        Args:
            program: the physical executor; nobody else calls it from now on.
            max_pending: requests that may wait beside the active ones.
            num_checkpoint_slots: catalog places beyond one for each active request.
            planner: cache policy; None reuses nothing.
            clock: seconds; never goes back.
        """
        capacity = program.capacity
        self._clock = clock
        self._program = program
        self._capacity = CapacityGate(capacity.max_concurrency + max_pending)
        self._wake = threading.Event()
        self._intake = Intake(
            capacity=self._capacity,
            max_context=capacity.max_context,
            clock=clock,
            wake_worker=self._wake.set,
        )
        catalog = CheckpointCatalog(capacity.max_concurrency + num_checkpoint_slots)
        self._resources = ResourceManager(program, planner or RootOnlyPlanner(), catalog)
        self._scheduler = Scheduler()
        self._book = RequestBook()
        self._admission = Admission(self._scheduler, self._resources, self._book)
        self._units = UnitExecution(program, self._resources, self._book)
        self._now = clock()
        self._has_progressed = False
        self._free_at: int | None = None
        self._free = self._total = capacity.total
        self._published = self._snapshot()

    def open(self) -> None:
        """Start accepting requests."""
        self._intake.open()

    def submit(self, request: GenerationRequest) -> GenerationHandle:
        """Accept a request, or refuse it at once; see `Intake.submit` for the errors."""
        return self._intake.submit(request)

    def drain(self, grace_s: float) -> None:
        """Refuse new and waiting requests; cancel what is still active after the grace."""
        self._intake.drain(self._clock() + grace_s)

    def status(self) -> EngineStatus:
        """The newest snapshot, with the present availability; takes no lock."""
        published = self._published
        return EngineStatus(
            state=self._intake.state,
            active=published.active,
            waiting=published.waiting + self._intake.num_unseen,
            prefilling=published.prefilling,
            outstanding=self._capacity.outstanding,
            last_progress=published.last_progress,
            checkpoints=published.checkpoints,
            free=published.free,
            total=published.total,
            active_by_state=published.active_by_state,
            counters=published.counters,
        )

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until something was submitted, cancelled or drained since the last boundary."""
        self._wake.wait(timeout_s)

    def run_boundary(self) -> Boundary:
        """Go through the nine steps once; a failure of the engine ends every request."""
        if self._intake.state in (EngineState.STOPPED, EngineState.FAILED):
            return Boundary.OVER
        try:
            return self._run_steps()
        except BaseException as error:
            # An interrupt in the middle of a step leaves it half done, like any other failure.
            _logger.exception("the engine failed")
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return Boundary.OVER

    def _run_steps(self) -> Boundary:
        self._wake.clear()
        self._now = self._clock()
        self._has_progressed = False
        self._end_overdue_waiting()  # 1
        self._advance_transition()  # 2
        self._settle_terminal()  # 3
        stopped = self._freeze_stops()  # 4
        self._end_stopped(stopped)
        self._try_admission()  # 5
        unit = choose_unit(self._unit_snapshot())  # 6
        self._observe_free()
        self._publish()  # What is settled already does not wait for the device.
        product = self._units.run(unit)  # 7
        self._now = self._clock()
        ended = self._units.commit(unit, product, self._stop_cause, self._now)  # 8
        self._scheduler.note_unit(unit)
        self._has_progressed |= not isinstance(unit, NoUnit)
        self._end(ended)
        return self._finish_boundary()  # 9

    # Steps 1 to 4: what ended without a model unit.

    def _end_overdue_waiting(self) -> None:
        accepted = self._intake.take()
        self._book.waiting.extend(accepted)
        self._book.counters.accepted += len(accepted)
        for record in tuple(self._book.waiting):
            outcome = self._waiting_outcome(record)
            if outcome is not None:
                self._refuse(record, outcome)

    def _waiting_outcome(self, record: RequestRecord) -> FinishReason | NinferError | None:
        if record.channel.is_cancel_requested:
            return FinishReason.CANCELLED
        if self._intake.state is EngineState.DRAINING:
            return EngineClosed("the engine is shutting down")
        return record.overdue_wait(self._now)

    def _advance_transition(self) -> None:
        lane = self._resources.transition_lane
        if lane is None:
            return
        self._has_progressed = True
        record = next(r for r in self._book.active.values() if r.lane == lane)
        cause = self._stop_cause(record)
        if record.state is RequestState.MATERIALIZING and cause is not None:
            self._resources.abort()
            self._book.give_up(record, stop_outcome(cause), self._now)
        elif self._resources.advance():
            self._adopt(record, self._resources.commit())

    def _settle_terminal(self) -> None:
        for record in self._book.in_state(RequestState.TERMINAL_PENDING):
            self._settle(record)

    def _freeze_stops(self) -> tuple[tuple[RequestRecord, StopCause], ...]:
        running = (RequestState.PREFILL, RequestState.DECODE_READY, RequestState.CONTROL_READY)
        causes = ((record, self._stop_cause(record)) for record in self._book.in_state(*running))
        return tuple((record, cause) for record, cause in causes if cause is not None)

    def _end_stopped(self, stopped: tuple[tuple[RequestRecord, StopCause], ...]) -> None:
        self._end((record, Ending(stop_outcome(cause))) for record, cause in stopped)

    def _stop_cause(self, record: RequestRecord) -> StopCause | None:
        return record.stop_cause(self._now, self._intake.drain_deadline)

    def _end(self, ended: Iterable[Ended]) -> None:
        for record, ending in ended:
            record.end(ending)
            self._resources.end(self._lane(record))
            self._settle(record)

    def _settle(self, record: RequestRecord) -> None:
        """Start settling a finished request unless another transition is unsettled."""
        if self._resources.has_transition or record.ending is None:
            return
        self._has_progressed = True
        is_started = self._resources.start_settlement(
            self._lane(record),
            is_success=record.ending.is_success,
            publication_order=record.order,
            session_key=record.request.session_key,
        )
        if is_started and self._resources.advance():
            self._adopt(record, self._resources.commit())

    def _adopt(self, record: RequestRecord, adopted: Adopted) -> None:
        """Follow a transition whose result the resource manager has adopted."""
        match adopted.kind:
            case TransitionKind.MATERIALIZE:
                reused = adopted.result.reused_tokens
                record.admit(self._now, reused)
                self._book.counters.prompt_tokens += record.prompt_tokens
                self._book.counters.reused_tokens += reused
                self._book.emit(record, GenerationStart(record.prompt_tokens, reused))
                self._end(self._units.begin(record))
            case TransitionKind.SETTLE:
                record.lane = None
                self._scheduler.note_settled(record.order)
                self._book.settle(record, self._now)

    # Steps 5 and 6: who is tried, and what runs.

    def _try_admission(self) -> None:
        attempt = choose_attempt(self._admission_snapshot())
        if attempt is None:
            return
        self._has_progressed = True
        record = next(r for r in self._book.waiting if r.order == attempt.order)
        match self._admission.attempt(attempt, record):
            case Refused(error=error):
                self._refuse(record, error)
            case Started(lane=lane):
                self._activate(record, lane)
            case NotNow():
                pass

    def _activate(self, record: RequestRecord, lane: LaneId) -> None:
        """Move a request whose materialization started from the queue to its lane."""
        self._book.waiting.remove(record)
        self._scheduler.note_left_queue(record.order)
        record.move(RequestMove.CLAIM)
        record.lane = lane
        self._book.active[record.order] = record
        if self._resources.advance():
            self._adopt(record, self._resources.commit())

    def _refuse(self, record: RequestRecord, outcome: FinishReason | NinferError) -> None:
        self._has_progressed = True
        self._scheduler.note_left_queue(record.order)
        self._book.refuse(record, outcome, self._now)

    def _admission_snapshot(self) -> AdmissionSnapshot:
        return AdmissionSnapshot(
            waiting=tuple(
                WaitingView(record.order, self._scheduler.tried(record.order))
                for record in self._book.waiting
            ),
            revision=self._resources.revision,
            has_free_lane=self._resources.num_free_lanes > 0,
            has_transition=self._resources.has_transition,
            has_staged_request=self._book.staged() is not None,
            protected=self._scheduler.protected,
            donors=self._scheduler.donors,
        )

    def _unit_snapshot(self) -> UnitSnapshot:
        return UnitSnapshot(
            prefill=_first(self._book.in_state(RequestState.PREFILL)),
            control=_orders(self._book.in_state(RequestState.CONTROL_READY)),
            decode=_orders(self._book.in_state(RequestState.DECODE_READY)),
            last=self._scheduler.last_unit,
        )

    def _lane(self, record: RequestRecord) -> LaneId:
        if record.lane is None:
            raise InvariantError(f"request {record.order} is active without a lane")
        return record.lane

    # Step 9, and the end of the engine.

    def _finish_boundary(self) -> Boundary:
        self._observe_free()
        is_over = self._book.is_empty and self._intake.stop_if_drained()
        self._publish()
        if is_over:
            return Boundary.OVER
        if self._book.is_empty:
            return Boundary.IDLE
        if not self._has_progressed:
            raise InvariantError("requests are left, and nothing can bring them on")
        return Boundary.BUSY

    def _fail(self, error: BaseException) -> None:
        """Clean up in the one order: Program, resources, responses."""
        unseen = self._intake.fail()
        try:
            self._program.abandon()
        except Exception:
            # Every client still has to learn of the first failure.
            _logger.exception("the failed engine could not abandon its work")
        self._resources.clear()
        cause = str(error) if isinstance(error, NinferError) else type(error).__name__
        self._book.fail_all(unseen, f"the engine failed: {cause}")
        self._publish()

    def _publish(self) -> None:
        self._published = self._snapshot()
        self._book.flush()

    def _observe_free(self) -> None:
        """Ask for the free amounts when the revision says that they can have moved."""
        if self._free_at != self._resources.revision:
            self._free_at, self._free = self._resources.revision, self._resources.free()

    def _snapshot(self) -> EngineStatus:
        states = self._book.count_states()
        prefilling = (RequestState.MATERIALIZING, RequestState.PREFILL)
        return EngineStatus(
            state=self._intake.state,
            active=len(self._book.active),
            waiting=len(self._book.waiting),
            prefilling=sum(states.get(state.name, 0) for state in prefilling),
            outstanding=self._capacity.outstanding,
            last_progress=self._now,
            checkpoints=self._resources.num_checkpoints,
            free=self._free,
            total=self._total,
            active_by_state=states,
            counters=self._book.counters.frozen(),
        )


def _orders(records: tuple[RequestRecord, ...]) -> tuple[RequestOrder, ...]:
    return tuple(record.order for record in records)


def _first(records: tuple[RequestRecord, ...]) -> RequestOrder | None:
    return records[0].order if records else None
