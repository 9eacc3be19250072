"""The record of one request and its life cycle.

    WAITING -> MATERIALIZING -> PREFILL -> DECODE_READY | CONTROL_READY
            -> TERMINAL_PENDING -> FINISHED

Only the worker changes a record, and only `RequestRecord.move` changes its state. The record knows
what was asked, how far the request got and how it will end; it knows nothing of pages, lanes of
other requests or the order of the queue. Source: the life cycle of the system design, section 4.
"""

import enum
from dataclasses import dataclass
from typing import Final, NewType

from ninfer.engine.lanes import LaneId
from ninfer.engine.response_channel import ResponseChannel
from ninfer.errors import (
    IllegalMove,
    NinferError,
    QueueTimeout,
    RequestCancelled,
    RequestTimeout,
)
from ninfer.generation import (
    FinishReason,
    GenerationRequest,
    OutputPreview,
    Timings,
    TokenMask,
    number_text,
)
from ninfer.program.contract import Demand

RequestOrder = NewType("RequestOrder", int)
"""Publication order: strictly increasing in the order of submission, never reused."""


class RequestState(enum.Enum):
    """Where a request stands."""

    WAITING = enum.auto()  # owns its prompt and output session only
    MATERIALIZING = enum.auto()  # a resource transition holds its claim
    PREFILL = enum.auto()  # active; the prompt is being processed
    DECODE_READY = enum.auto()  # active; joins the next round
    CONTROL_READY = enum.auto()  # active; the output session wants given tokens committed
    TERMINAL_PENDING = enum.auto()  # model work over; active resources not settled
    FINISHED = enum.auto()  # resources and output settled


class RequestMove(enum.Enum):
    """What can happen to a request."""

    REFUSE = enum.auto()  # ends before anything was reserved
    CLAIM = enum.auto()  # its materialization started
    ABORT = enum.auto()  # its materialization was given up, and that result adopted
    ADOPT = enum.auto()  # physical and logical result of the materialization were adopted
    DECODE = enum.auto()  # ready for a round
    CONTROL = enum.auto()  # ready for a forced suffix
    END = enum.auto()  # no model work is left
    SETTLE = enum.auto()  # the terminal resource result was adopted
    FAIL = enum.auto()  # the engine as a whole failed


_NEXT: Final = {
    (RequestState.WAITING, RequestMove.REFUSE): RequestState.FINISHED,
    (RequestState.WAITING, RequestMove.CLAIM): RequestState.MATERIALIZING,
    (RequestState.MATERIALIZING, RequestMove.ABORT): RequestState.FINISHED,
    (RequestState.MATERIALIZING, RequestMove.ADOPT): RequestState.PREFILL,
    (RequestState.PREFILL, RequestMove.DECODE): RequestState.DECODE_READY,
    (RequestState.PREFILL, RequestMove.CONTROL): RequestState.CONTROL_READY,
    (RequestState.PREFILL, RequestMove.END): RequestState.TERMINAL_PENDING,
    (RequestState.DECODE_READY, RequestMove.DECODE): RequestState.DECODE_READY,
    (RequestState.DECODE_READY, RequestMove.CONTROL): RequestState.CONTROL_READY,
    (RequestState.DECODE_READY, RequestMove.END): RequestState.TERMINAL_PENDING,
    (RequestState.CONTROL_READY, RequestMove.DECODE): RequestState.DECODE_READY,
    (RequestState.CONTROL_READY, RequestMove.CONTROL): RequestState.CONTROL_READY,
    (RequestState.CONTROL_READY, RequestMove.END): RequestState.TERMINAL_PENDING,
    (RequestState.TERMINAL_PENDING, RequestMove.SETTLE): RequestState.FINISHED,
    (RequestState.WAITING, RequestMove.FAIL): RequestState.FINISHED,
    (RequestState.MATERIALIZING, RequestMove.FAIL): RequestState.FINISHED,
    (RequestState.PREFILL, RequestMove.FAIL): RequestState.FINISHED,
    (RequestState.DECODE_READY, RequestMove.FAIL): RequestState.FINISHED,
    (RequestState.CONTROL_READY, RequestMove.FAIL): RequestState.FINISHED,
    (RequestState.TERMINAL_PENDING, RequestMove.FAIL): RequestState.FINISHED,
}


class StopCause(enum.Enum):
    """Why a request is ended from outside."""

    CANCELLED = enum.auto()  # by its owner
    TIMED_OUT = enum.auto()  # its whole-request limit passed
    SHUT_DOWN = enum.auto()  # the grace of a drain passed


Outcome = FinishReason | NinferError
"""The finish reason of a result, or the error that takes the result's place."""


def stop_outcome(cause: StopCause) -> Outcome:
    """How a request ends that was ended from outside."""
    match cause:
        case StopCause.CANCELLED:
            return FinishReason.CANCELLED
        case StopCause.TIMED_OUT:
            return RequestTimeout("the request ran longer than its whole-request limit")
        case StopCause.SHUT_DOWN:
            return RequestCancelled("the engine shut down before the request ended")


@dataclass(frozen=True, slots=True)
class HeldOutput:
    """Last tokens of a request: committed by Program, not yet by the output session."""

    token_ids: tuple[int, ...]
    preview: OutputPreview


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request whose model work is over will end once its resources are settled.

    Attributes:
        outcome: finish reason, or error.
        held: output to commit before the result is formed.
    """

    outcome: Outcome
    held: HeldOutput | None = None

    @property
    def is_success(self) -> bool:
        """Whether the model ran to a regular end, so that its state may be kept."""
        return isinstance(self.outcome, FinishReason) and self.outcome is not FinishReason.CANCELLED


class RequestRecord:
    """Everything the worker knows of one request.

    Attributes:
        order: publication order.
        request: what was asked.
        channel: where its events go.
        submitted_at: clock reading at submission.
        lane: its lane, from the claim to the settlement.
        remaining_prefill: prompt tokens to process before the first round.
        reused_tokens: prompt tokens its state started with.
        token_ids: committed output.
        forced: what its output session wants committed next, in CONTROL_READY.
        token_mask: what its output session allows next, in DECODE_READY; None allows all.
        ending: set with the move to TERMINAL_PENDING.
    """

    __slots__ = (
        "_admitted_at",
        "_first_token_at",
        "_state",
        "channel",
        "ending",
        "forced",
        "lane",
        "order",
        "remaining_prefill",
        "request",
        "reused_tokens",
        "submitted_at",
        "token_ids",
        "token_mask",
    )

    def __init__(
        self,
        order: RequestOrder,
        request: GenerationRequest,
        channel: ResponseChannel,
        submitted_at: float,
    ) -> None:
        self.order = order
        self.request = request
        self.channel = channel
        self.submitted_at = submitted_at
        self.lane: LaneId | None = None
        self.remaining_prefill = 0
        self.reused_tokens = 0
        self.token_ids: list[int] = []
        self.forced: tuple[int, ...] = ()
        self.token_mask: TokenMask | None = None
        self.ending: Ending | None = None
        self._state = RequestState.WAITING
        self._admitted_at: float | None = None
        self._first_token_at: float | None = None

    @property
    def state(self) -> RequestState:
        """Where the request stands."""
        return self._state

    @property
    def demand(self) -> Demand:
        """What Program has to reserve for it."""
        request = self.request
        return Demand(request.prompt, request.sampling, request.max_new_tokens)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt.token_ids)

    @property
    def remaining_budget(self) -> int:
        """Output tokens that may still be committed."""
        return self.request.max_new_tokens - len(self.token_ids)

    @property
    def frontier(self) -> int:
        """Processed tokens after prefill: all but the anchor."""
        return self.prompt_tokens - 1 + len(self.token_ids)

    def move(self, move: RequestMove) -> None:
        """Change the state.

        Raises:
            IllegalMove: the table has no such move; nothing changed.
        """
        target = _NEXT.get((self._state, move))
        if target is None:
            raise IllegalMove(f"request {self.order}: {move.name} is illegal in {self._state.name}")
        self._state = target

    def end(self, ending: Ending) -> None:
        """Move to TERMINAL_PENDING and note how the request will end."""
        self.move(RequestMove.END)
        self.ending = ending

    def admit(self, now: float, reused_tokens: int) -> None:
        """Move to PREFILL with what its source already covers; the queue phase is over."""
        self.move(RequestMove.ADOPT)
        self.reused_tokens = reused_tokens
        self.remaining_prefill = self.prompt_tokens - 1 - reused_tokens
        self._admitted_at = now

    def note_committed(self, now: float) -> None:
        """Tokens were committed; with the first of them the prefill phase is over."""
        if self._first_token_at is None:
            self._first_token_at = now

    def timings(self, now: float) -> Timings:
        """Seconds of the phases, of a request that ends now."""
        admitted_at = now if self._admitted_at is None else self._admitted_at
        first_token_at = now if self._first_token_at is None else self._first_token_at
        return Timings(
            queue_s=admitted_at - self.submitted_at,
            prefill_s=first_token_at - admitted_at,
            decode_s=now - first_token_at,
        )

    def stop_cause(self, now: float, drain_deadline: float | None) -> StopCause | None:
        """Why the request has to end now although the model could go on."""
        limit_s = self.request.request_timeout_s
        if self.channel.is_cancel_requested:
            return StopCause.CANCELLED
        if limit_s is not None and now - self.submitted_at > limit_s:
            return StopCause.TIMED_OUT
        if drain_deadline is not None and now >= drain_deadline:
            return StopCause.SHUT_DOWN
        return None

    def overdue_wait(self, now: float) -> NinferError | None:
        """The deadline that a waiting request has passed, the earlier one if both are."""
        age_s = now - self.submitted_at
        queue_s = self.request.queue_timeout_s
        whole_s = self.request.request_timeout_s
        if queue_s is not None and age_s > queue_s and (whole_s is None or queue_s <= whole_s):
            return QueueTimeout(f"the request waited longer than {_seconds(queue_s)} s")
        if whole_s is not None and age_s > whole_s:
            return RequestTimeout(
                f"the request waited longer than its limit of {_seconds(whole_s)} s"
            )
        return None


def _seconds(value: float) -> str:
    return number_text(round(value, 3))
