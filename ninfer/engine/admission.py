"""One admission attempt: plan, prove if it is a backfill, start.

The scheduler has chosen whom to try, the planner chooses how; this file brings both together and
says what came of it. An attempt in vain is remembered together with the facts it depends on, so
that nothing is planned again before one of them changes. Source: system design, section 5.
"""

from dataclasses import dataclass

from ninfer.engine.lanes import LaneId
from ninfer.engine.request import RequestRecord
from ninfer.engine.request_book import RequestBook
from ninfer.engine.resource_manager import ResourceManager
from ninfer.engine.resource_planner import AdmissionQuestion, Admit, Blocked, Infeasible
from ninfer.engine.scheduler import Attempt, Scheduler
from ninfer.errors import InvariantError, RequestError, RequestInfeasible
from ninfer.generation import CacheMode
from ninfer.program.contract import Materialize


@dataclass(frozen=True, slots=True)
class Started:
    """A materialization runs on a claimed lane."""

    lane: LaneId


@dataclass(frozen=True, slots=True)
class Refused:
    """The request can never be served; nothing was reserved."""

    error: RequestError


@dataclass(frozen=True, slots=True)
class NotNow:
    """The request goes on waiting."""


AttemptResult = Started | Refused | NotNow


class Admission:
    """Carries out the attempts that the scheduler chose; worker thread only."""

    def __init__(self, scheduler: Scheduler, resources: ResourceManager, book: RequestBook) -> None:
        self._scheduler = scheduler
        self._resources = resources
        self._book = book

    def attempt(self, attempt: Attempt, record: RequestRecord) -> AttemptResult:
        """Try to start one waiting request.

        Raises:
            InvariantError: it is blocked although nothing holds what it needs.
        """
        request = record.request
        question = AdmissionQuestion(record.demand, request.cache, request.session_key)
        try:
            answer = self._resources.plan_admission(question)
        except RequestError as error:
            return Refused(error)
        match answer:
            case Infeasible(missing=missing):
                return Refused(RequestInfeasible(f"even alone the request lacks {missing}"))
            case Blocked():
                return self._note_blocked(attempt)
            case Admit(target=target):
                if attempt.is_backfill and not self._is_proved(record, attempt):
                    return self._note_blocked(attempt)
                return self._start(record, target)

    def _start(self, record: RequestRecord, target: Materialize) -> AttemptResult:
        may_publish = record.request.cache is CacheMode.READ_WRITE
        lane = self._resources.start_admission(target, may_publish=may_publish)
        return NotNow() if lane is None else Started(lane)

    def _is_proved(self, borrower: RequestRecord, attempt: Attempt) -> bool:
        lanes = {order: record.lane for order, record in self._book.active.items()}
        donors = frozenset(
            lane for order in attempt.facts.donors if (lane := lanes[order]) is not None
        )
        head = self._book.waiting[0].demand
        return self._resources.prove_backfill(head, donors, borrower.demand) is not None

    def _note_blocked(self, attempt: Attempt) -> NotNow:
        if not attempt.is_backfill:
            self._scheduler.protect(attempt.order, frozenset(self._book.active))
            if not self._scheduler.donors:
                raise InvariantError(
                    f"request {attempt.order} is blocked although nothing it waits for is active"
                )
        self._scheduler.note_tried(attempt.order, attempt.facts.head, self._resources.revision)
        return NotNow()
