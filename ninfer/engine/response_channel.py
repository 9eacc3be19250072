"""From the worker to one consumer: ordered events, one outcome, one capacity ticket.

The worker publishes and never waits; a slow reader finds its text merged. The consumer reads,
cancels or walks away; none of that reaches further than flags in here. Capacity is released by two
facts in either order, once: the worker formed the outcome, and the consumer stopped waiting for it.
The channel knows no scheduler, no Program and no protocol. Source: system design, section 4.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from ninfer.errors import EngineOverloaded, IllegalMove, NinferError, RequestCancelled
from ninfer.generation import (
    GenerationEvent,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    OutputDelta,
    PrefillProgress,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)

MAX_QUEUED_OUTPUTS = 32
"""Unread outputs that stay separate events; later ones merge into the newest of them."""

RunningEvent = GenerationStart | PrefillProgress | OutputCommitted
Outcome = GenerationResult | NinferError


class CapacityGate:
    """Counts accepted requests that are not yet both answered and let go."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._outstanding = 0
        self._lock = threading.RLock()  # A collection inside may give a place back.

    @property
    def outstanding(self) -> int:
        """Tickets that are out."""
        return self._outstanding

    def acquire(self) -> "CapacityTicket":
        """Take one place.

        Raises:
            EngineOverloaded: every place is taken.
        """
        with self._lock:
            if self._outstanding >= self._limit:
                raise EngineOverloaded(
                    f"{self._outstanding} requests are outstanding; the limit is {self._limit}"
                )
            self._outstanding += 1
        return CapacityTicket(self)

    def give_back(self) -> None:
        """Return one place; called by its ticket only."""
        with self._lock:
            self._outstanding -= 1


class CapacityTicket:
    """One place of the gate; returned when both facts hold, exactly once.

    Takes no lock: either note may come from a garbage collection in the middle of the other.
    """

    __slots__ = ("_is_consumer_released", "_is_response_done", "_places")

    def __init__(self, gate: CapacityGate) -> None:
        self._places = [gate]
        self._is_response_done = False
        self._is_consumer_released = False

    def note_response_done(self) -> None:
        """The worker formed the outcome."""
        self._is_response_done = True
        self._release_if_due()

    def note_consumer_released(self) -> None:
        """The consumer has the outcome, or does not want it."""
        self._is_consumer_released = True
        self._release_if_due()

    def _release_if_due(self) -> None:
        if not (self._is_response_done and self._is_consumer_released):
            return
        try:
            gate = self._places.pop()  # Atomic: only one caller gets the place.
        except IndexError:
            return
        gate.give_back()


class ResponseChannel:
    """Events and outcome of one request, shared by the worker and its consumer."""

    def __init__(self, ticket: CapacityTicket, wake_worker: Callable[[], None]) -> None:
        self._ticket = ticket
        self._wake_worker = wake_worker
        self._changed = threading.Condition()
        self._events: deque[RunningEvent | _Backlog] = deque()
        self._outcome: Outcome | None = None
        self._is_cancel_requested = False
        self._is_dropped = False

    @property
    def is_cancel_requested(self) -> bool:
        """Whether the consumer asked for the end; the worker looks at its boundaries."""
        return self._is_cancel_requested

    @property
    def is_done(self) -> bool:
        """Whether the outcome exists."""
        return self._outcome is not None

    def publish(self, event: RunningEvent) -> None:
        """Queue an event without ever waiting; nothing is kept for a consumer that left.

        Raises:
            IllegalMove: the outcome exists already.
        """
        with self._changed:
            if self._outcome is not None:
                raise IllegalMove("an event after the outcome of its request")
            if not self._is_dropped:
                self._append(event)
                self._changed.notify_all()

    def finish(self, outcome: Outcome) -> None:
        """Set the outcome and note that the response is done.

        Raises:
            IllegalMove: the outcome exists already.
        """
        with self._changed:
            if self._outcome is not None:
                raise IllegalMove("a request ended twice")
            self._outcome = outcome
            # Before anybody can see the outcome: who reads it may ask for the place at once.
            self._ticket.note_response_done()
            self._changed.notify_all()

    def take(self, timeout_s: float | None, *, is_final_only: bool) -> GenerationEvent | None:
        """Next event, or the outcome after the last of them; None when the time passed.

        Args:
            timeout_s: longest wait; None waits for ever.
            is_final_only: skip everything before the outcome.

        Raises:
            NinferError: the request ended with it, or the handle was closed before the end.
        """
        with self._changed:
            if is_final_only:
                self._changed.wait_for(self._is_over, timeout_s)
                self._events.clear()
            else:
                self._changed.wait_for(lambda: self._events or self._is_over(), timeout_s)
            if self._events:
                event = self._events.popleft()
                return event.fold() if isinstance(event, _Backlog) else event
            outcome = self._outcome
            is_dropped = self._is_dropped
        if outcome is None:
            if is_dropped:
                raise RequestCancelled("the handle was closed before the request ended")
            return None
        self._ticket.note_consumer_released()
        if isinstance(outcome, NinferError):
            raise outcome
        return outcome

    def cancel(self) -> None:
        """Ask the worker to end the request at its next boundary."""
        self._is_cancel_requested = True
        self._wake_worker()

    def drop(self) -> None:
        """Cancel and let go: nobody reads any more. Idempotent."""
        with self._changed:
            self._is_dropped = True
            self._events.clear()
            self._changed.notify_all()
        if self._outcome is None:
            self.cancel()
        self._ticket.note_consumer_released()

    def abandon(self) -> None:
        """Like `drop`, for a handle that was garbage collected: takes no lock, wakes nobody.

        The worker needs no waking: it is awake while a request lives, and looks at the flag.
        """
        self._is_dropped = True
        self._is_cancel_requested |= self._outcome is None
        self._ticket.note_consumer_released()

    def _is_over(self) -> bool:
        return self._outcome is not None or self._is_dropped

    def _append(self, event: RunningEvent) -> None:
        last = self._events[-1] if self._events else None
        match event:
            case PrefillProgress() if isinstance(last, PrefillProgress):
                self._events[-1] = event
            case OutputCommitted() if isinstance(last, _Backlog):
                last.add(event)
            case OutputCommitted() if len(self._events) >= MAX_QUEUED_OUTPUTS:
                backlog = _Backlog()
                backlog.add(event)
                self._events.append(backlog)
            case GenerationStart() | PrefillProgress() | OutputCommitted():
                self._events.append(event)


class GenerationHandle:
    """The consumer's side of one request; usable from any thread.

    Iterate it for the events, the last of which is the `GenerationResult`, or ask for `result`
    alone. Leaving a ``with`` block closes it, and so does losing the last reference to it.
    """

    __slots__ = ("__weakref__", "_channel", "order")

    def __init__(self, order: int, channel: ResponseChannel) -> None:
        self.order = order
        self._channel = channel
        weakref.finalize(self, channel.abandon).atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[GenerationEvent]:
        """Yield every event up to and including the result.

        Raises:
            NinferError: the request ended with it.
        """
        while True:
            event = self._channel.take(None, is_final_only=False)
            if event is not None:
                yield event
            if isinstance(event, GenerationResult):
                return

    @property
    def is_done(self) -> bool:
        """Whether the outcome exists; unread events may still be queued."""
        return self._channel.is_done

    def next_event(self, timeout_s: float | None = None) -> GenerationEvent | None:
        """Wait for the next event; None when there was none in time. The result repeats.

        Raises:
            NinferError: the request ended with it, or the handle was closed before the end.
        """
        return self._channel.take(timeout_s, is_final_only=False)

    def result(self) -> GenerationResult:
        """Wait for the result; unread events are skipped.

        Raises:
            NinferError: the request ended with it, or the handle was closed before the end.
        """
        while True:
            event = self._channel.take(None, is_final_only=True)
            if isinstance(event, GenerationResult):
                return event

    def cancel(self) -> None:
        """Ask for the end; it comes as a result with finish reason CANCELLED. Never blocks."""
        self._channel.cancel()

    def close(self) -> None:
        """Let go of the request, cancelling it when it still runs. Idempotent, never blocks."""
        self._channel.drop()


class _Backlog:
    """Outputs of several rounds folded into one event, for a reader that fell behind."""

    __slots__ = ("_deltas", "_open", "_pieces", "_token_ids")

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._deltas: list[OutputDelta] = []
        self._open: TextDelta | ToolCallArguments | None = None
        self._pieces: list[str] = []

    def add(self, event: OutputCommitted) -> None:
        """Append one round's output."""
        self._token_ids.extend(event.token_ids)
        for delta in event.deltas:
            self._add_delta(delta)

    def fold(self) -> OutputCommitted:
        """The whole as one event."""
        self._close()
        return OutputCommitted(tuple(self._token_ids), tuple(self._deltas))

    def _add_delta(self, delta: OutputDelta) -> None:
        match delta, self._open:
            case TextDelta(channel=channel, text=text), TextDelta(channel=same) if channel is same:
                self._pieces.append(text)
            case ToolCallArguments(index=index, fragment=text), ToolCallArguments(index=like) if (
                index == like
            ):
                self._pieces.append(text)
            case TextDelta(text=text) as first, _:
                self._close()
                self._open, self._pieces = first, [text]
            case ToolCallArguments(fragment=text) as first, _:
                self._close()
                self._open, self._pieces = first, [text]
            case ToolCallStart() as start, _:
                self._close()
                self._deltas.append(start)

    def _close(self) -> None:
        match self._open:
            case TextDelta(channel=channel):
                self._deltas.append(TextDelta(channel, "".join(self._pieces)))
            case ToolCallArguments(index=index):
                self._deltas.append(ToolCallArguments(index, "".join(self._pieces)))
            case None:
                pass
        self._open, self._pieces = None, []
