"""The door of the engine: availability, submission, and the inbox that the worker empties.

Its one lock makes "is the engine open" and "append to the inbox" a single step, so that a request
is either refused at once or seen by the worker, whatever else happens at that moment. The worker
holds the lock for an inbox swap only, never during model work. Source: system design sections 4
and 5; the states are those of the serving contract, section 1.2.
"""

import enum
import threading
from collections.abc import Callable
from typing import Final

from ninfer.engine.request import RequestOrder, RequestRecord
from ninfer.engine.response_channel import CapacityGate, GenerationHandle, ResponseChannel
from ninfer.errors import (
    ContextLengthExceeded,
    EngineClosed,
    EngineFailed,
    IllegalMove,
    InvalidPrompt,
    RequestError,
)
from ninfer.generation import GenerationRequest


class EngineState(enum.Enum):
    """Availability of an engine; the value is the spelling of the serving contract."""

    STARTING = "starting"  # built, not yet open
    READY = "ready"
    DRAINING = "draining"  # nothing new; what is active may end
    STOPPED = "stopped"  # nothing is left
    FAILED = "failed"  # every request of it ended with an error


class EngineMove(enum.Enum):
    """What can happen to an engine."""

    OPEN = enum.auto()
    DRAIN = enum.auto()
    STOP = enum.auto()
    FAIL = enum.auto()


_NEXT: Final = {
    (EngineState.STARTING, EngineMove.OPEN): EngineState.READY,
    (EngineState.STARTING, EngineMove.DRAIN): EngineState.DRAINING,
    (EngineState.STARTING, EngineMove.FAIL): EngineState.FAILED,
    (EngineState.READY, EngineMove.DRAIN): EngineState.DRAINING,
    (EngineState.READY, EngineMove.FAIL): EngineState.FAILED,
    (EngineState.DRAINING, EngineMove.DRAIN): EngineState.DRAINING,
    (EngineState.DRAINING, EngineMove.STOP): EngineState.STOPPED,
    (EngineState.DRAINING, EngineMove.FAIL): EngineState.FAILED,
}


class Intake:
    """Accepts or refuses requests from any thread and hands them to the worker in order."""

    def __init__(
        self,
        *,
        capacity: CapacityGate,
        max_context: int,
        clock: Callable[[], float],
        wake_worker: Callable[[], None],
    ) -> None:
        self._capacity = capacity
        self._max_context = max_context
        self._clock = clock
        self._wake_worker = wake_worker
        self._lock = threading.Lock()
        self._state = EngineState.STARTING
        self._inbox: list[RequestRecord] = []
        self._next_order = 0
        self._drain_deadline: float | None = None

    @property
    def state(self) -> EngineState:
        """Availability now."""
        return self._state

    @property
    def drain_deadline(self) -> float | None:
        """Clock reading at which active requests are cancelled; None while not draining."""
        return self._drain_deadline

    @property
    def num_unseen(self) -> int:
        """Requests the worker has not taken yet."""
        return len(self._inbox)

    def submit(self, request: GenerationRequest) -> GenerationHandle:
        """Accept a request, or refuse it at once.

        Raises:
            RequestError: it is outside the public context contract.
            EngineOverloaded: active plus waiting capacity is full.
            EngineClosed: the engine is not open yet, or no longer.
            EngineFailed: the engine has failed.
        """
        self._check_request(request)
        with self._lock:
            self._check_open()
            channel = ResponseChannel(self._capacity.acquire(), self._wake_worker)
            order = RequestOrder(self._next_order)
            self._next_order += 1
            self._inbox.append(RequestRecord(order, request, channel, self._clock()))
        self._wake_worker()
        return GenerationHandle(order, channel)

    def take(self) -> list[RequestRecord]:
        """Hand everything accepted since the last call to the worker, oldest first."""
        with self._lock:
            taken, self._inbox = self._inbox, []
        return taken

    def open(self) -> None:
        """Start accepting."""
        with self._lock:
            self._move(EngineMove.OPEN)

    def drain(self, deadline: float) -> None:
        """Stop accepting; a further call can only bring the deadline forward."""
        with self._lock:
            if self._state in (EngineState.STOPPED, EngineState.FAILED):
                return
            self._move(EngineMove.DRAIN)
            earlier = self._drain_deadline
            self._drain_deadline = deadline if earlier is None else min(earlier, deadline)
        self._wake_worker()

    def stop_if_drained(self) -> bool:
        """Stop a draining engine whose worker has nothing left, unless the inbox still has.

        One step under the lock: a request accepted just before the drain must not be left behind.
        """
        with self._lock:
            is_drained = self._state is EngineState.DRAINING and not self._inbox
            if is_drained:
                self._move(EngineMove.STOP)
        return is_drained

    def fail(self) -> list[RequestRecord]:
        """Refuse everything from now on; returns what nobody has seen yet."""
        with self._lock:
            self._move(EngineMove.FAIL)
            taken, self._inbox = self._inbox, []
        return taken

    def _move(self, move: EngineMove) -> None:
        target = _NEXT.get((self._state, move))
        if target is None:
            raise IllegalMove(f"engine: {move.name} is illegal in {self._state.name}")
        self._state = target

    def _check_open(self) -> None:
        match self._state:
            case EngineState.READY:
                return
            case EngineState.STARTING:
                raise EngineClosed("the engine is still loading", code="model_loading")
            case EngineState.DRAINING | EngineState.STOPPED:
                raise EngineClosed("the engine is shutting down")
            case EngineState.FAILED:
                raise EngineFailed("the engine has failed; start a new one")

    def _check_request(self, request: GenerationRequest) -> None:
        num_tokens = len(request.prompt.token_ids)
        if num_tokens == 0:
            raise InvalidPrompt("the prompt has no tokens; at least 1 is needed", field="prompt")
        if num_tokens > self._max_context:
            raise ContextLengthExceeded(
                f"the prompt has {num_tokens} tokens; the context holds {self._max_context}",
                field="prompt",
            )
        room = self._max_context - num_tokens
        if not 0 <= request.max_new_tokens <= room:
            raise RequestError(
                f"max_new_tokens is {request.max_new_tokens}; allowed is 0..{room} after a prompt "
                f"of {num_tokens} tokens",
                field="max_new_tokens",
            )
