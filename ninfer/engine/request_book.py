"""All requests of the worker, their output accounting, and the outbox of what is to be published.

Events are collected while a boundary changes things and published together after the status
snapshot, so that whoever sees an event finds the snapshot no older than it. The book forms results;
it decides nothing and knows no resources. Source: system design, section 5, step 9.
"""

from collections import Counter, deque

from ninfer.engine.engine_status import EngineCounters
from ninfer.engine.request import (
    HeldOutput,
    Outcome,
    RequestMove,
    RequestOrder,
    RequestRecord,
    RequestState,
)
from ninfer.engine.response_channel import RunningEvent
from ninfer.engine.row_decision import ask
from ninfer.errors import EngineFailed, InvariantError, NinferError
from ninfer.generation import GenerationResult, OutputCommitted, Usage

FinalEvent = GenerationResult | NinferError
"""What ends a request towards its consumer."""

_PREFILLING = (RequestState.MATERIALIZING, RequestState.PREFILL)


class RequestBook:
    """Waiting and active records, counters and outbox; worker thread only.

    Attributes:
        waiting: first come first.
        active: everything that holds a lane, by order.
        counters: totals of the engine's life.
    """

    def __init__(self) -> None:
        self.waiting: list[RequestRecord] = []
        self.active: dict[RequestOrder, RequestRecord] = {}
        self.counters = EngineCounters()
        self._outbox: deque[tuple[RequestRecord, RunningEvent | FinalEvent]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no request is left."""
        return not self.waiting and not self.active

    def in_state(self, *states: RequestState) -> tuple[RequestRecord, ...]:
        """Active records in given states, in publication order."""
        return tuple(record for _, record in sorted(self.active.items()) if record.state in states)

    def staged(self) -> RequestRecord | None:
        """The one request that materializes or processes its prompt.

        Raises:
            InvariantError: there are two.
        """
        staged = self.in_state(*_PREFILLING)
        if len(staged) > 1:
            raise InvariantError("two requests are in staged prefill")
        return staged[0] if staged else None

    def count_states(self) -> dict[str, int]:
        """Active records by the name of their state."""
        return dict(Counter(record.state.name for record in self.active.values()))

    def emit(self, record: RequestRecord, event: RunningEvent) -> None:
        """Publish an event at the next flush."""
        self._outbox.append((record, event))

    def commit_output(self, record: RequestRecord, held: HeldOutput) -> NinferError | None:
        """Account for tokens that Program committed, commit their preview, emit them.

        Returns:
            The error of an output session that broke down.
        """
        record.token_ids.extend(held.token_ids)
        self.counters.decode_tokens += len(held.token_ids)
        deltas = ask(record, lambda: record.request.output.commit(held.preview))
        if isinstance(deltas, NinferError):
            return deltas
        self.emit(record, OutputCommitted(held.token_ids, deltas))
        return None

    def refuse(self, record: RequestRecord, outcome: Outcome, now: float) -> None:
        """End a waiting request."""
        final = self._final(record, outcome, now)
        record.move(RequestMove.REFUSE)
        self.waiting.remove(record)
        self._finish(record, final)

    def give_up(self, record: RequestRecord, outcome: Outcome, now: float) -> None:
        """End a request whose materialization was aborted."""
        final = self._final(record, outcome, now)
        record.move(RequestMove.ABORT)
        del self.active[record.order]
        self._finish(record, final)

    def settle(self, record: RequestRecord, now: float) -> None:
        """End a request whose terminal resource result was adopted."""
        ending = record.ending
        if ending is None:
            raise InvariantError(f"request {record.order} settles without an ending")
        error = None if ending.held is None else self.commit_output(record, ending.held)
        final = self._final(record, ending.outcome if error is None else error, now)
        record.move(RequestMove.SETTLE)
        del self.active[record.order]
        self._finish(record, final)

    def fail_all(self, unseen: list[RequestRecord], message: str) -> None:
        """End every request with an error of its own, after what is already settled."""
        self.counters.accepted += len(unseen)
        for record in (*self.active.values(), *self.waiting, *unseen):
            record.move(RequestMove.FAIL)
            self._finish(record, EngineFailed(message))
        self.active.clear()
        self.waiting.clear()

    def flush(self) -> None:
        """Publish everything collected, in order."""
        while self._outbox:
            record, event = self._outbox.popleft()
            if isinstance(event, GenerationResult | NinferError):
                record.channel.finish(event)
            else:
                record.channel.publish(event)

    def _final(self, record: RequestRecord, outcome: Outcome, now: float) -> FinalEvent:
        """Form what ends a request; the record stays in the book should its session raise."""
        if isinstance(outcome, NinferError):
            return outcome
        summary = ask(record, record.request.output.summary)
        if isinstance(summary, NinferError):
            return summary
        usage = Usage(
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.reused_tokens,
            completion_tokens=len(record.token_ids),
            reasoning_tokens=summary.reasoning_tokens,
        )
        return GenerationResult(
            outcome, usage, record.timings(now), tuple(record.token_ids), summary
        )

    def _finish(self, record: RequestRecord, final: FinalEvent) -> None:
        if isinstance(final, GenerationResult):
            self.counters.reasoning_tokens += final.usage.reasoning_tokens
            self.counters.note_ended(final.finish.value)
        else:
            self.counters.note_ended(final.code)
        self._outbox.append((record, final))
