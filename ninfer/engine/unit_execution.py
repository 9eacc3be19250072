"""One model unit: run it, have its rows judged, commit it, account for it.

    PendingBatch -> previews -> decisions -> Program commits or aborts
      row goes on:  budget -> output session commits -> event
      row ends:     its `Ending` is handed back; resources settle before its output is committed

The order is the visible one of the design: Program first, then the output session, then the
consumer. Which unit runs is the scheduler's choice. Source: system design, section 5.
"""

import time
from collections.abc import Callable

from ninfer.engine.request import Ending, RequestMove, RequestOrder, RequestRecord, StopCause
from ninfer.engine.request_book import RequestBook
from ninfer.engine.resource_manager import ResourceManager
from ninfer.engine.row_decision import ExpectedRow, RowVerdict, ask, check_batch, judge_row
from ninfer.engine.scheduler import ControlUnit, DecodeUnit, NoUnit, PrefillUnit, Unit
from ninfer.errors import InvariantError, NinferError
from ninfer.generation import FinishReason, PrefillProgress
from ninfer.program.contract import PendingBatch, PrefillStep, Program, SequenceHandle

UnitProduct = PrefillStep | PendingBatch | None
Ended = tuple[RequestRecord, Ending]


class UnitExecution:
    """Runs and commits the units of one engine; worker thread only."""

    def __init__(self, program: Program, resources: ResourceManager, book: RequestBook) -> None:
        self._program = program
        self._resources = resources
        self._book = book

    def run(self, unit: Unit) -> UnitProduct:
        """Execute a unit on the device; nothing visible changes."""
        counters = self._book.counters
        match unit:
            case PrefillUnit(order=order, is_alone=is_alone):
                counters.prefill_units += 1
                return self._program.prefill(self._sequence(order), is_alone=is_alone)
            case ControlUnit(order=order):
                counters.control_units += 1
                record = self._book.active[order]
                return self._program.control(self._sequence(order), _forced(record))
            case DecodeUnit(orders=orders):
                counters.decode_rounds += 1
                counters.decode_row_rounds += len(orders)
                sequences = tuple(self._sequence(order) for order in orders)
                masks = tuple(self._book.active[order].token_mask for order in orders)
                is_free = all(mask is None for mask in masks)
                return self._program.decode(
                    sequences,
                    () if is_free else masks,
                    is_steady=is_free and self._is_steady(orders),
                )
            case NoUnit():
                return None

    def commit(
        self,
        unit: Unit,
        product: UnitProduct,
        stop_cause: Callable[[RequestRecord], StopCause | None],
        now: float,
    ) -> tuple[Ended, ...]:
        """Commit what `run` produced.

        Args:
            unit: what was run.
            product: what `run` returned for it.
            now: clock reading after the unit.
            stop_cause: asked once for each row, after the unit.

        Returns:
            Requests whose model work is over.

        Raises:
            InvariantError: the product is not one of the unit.
        """
        match unit, product:
            case PrefillUnit(order=order, is_alone=is_alone), PrefillStep() as step:
                return self._commit_prefill(self._book.active[order], step, is_alone)
            case ControlUnit(order=order), PendingBatch() as batch:
                return self._commit_batch(batch, (order,), True, stop_cause, now)
            case DecodeUnit(orders=orders), PendingBatch() as batch:
                return self._commit_batch(batch, orders, False, stop_cause, now)
            case NoUnit(), None:
                return ()
            case _:
                raise InvariantError("a unit's product is of another kind than the unit")

    def begin(self, record: RequestRecord) -> tuple[Ended, ...]:
        """Let a request that was just admitted go on at once when nothing is left to prefill."""
        if record.remaining_prefill > 0:
            return ()
        return self._leave_prefill(record)

    def _is_steady(self, orders: tuple[RequestOrder, ...]) -> bool:
        """Whether the next unit will most likely be a round of the same rows."""
        active = self._book.active
        return len(orders) == len(active) and all(
            record.remaining_budget > 1 for record in active.values()
        )

    def _sequence(self, order: RequestOrder) -> SequenceHandle:
        lane = self._book.active[order].lane
        if lane is None:
            raise InvariantError(f"request {order} is active without a lane")
        return self._resources.sequence(lane)

    def _commit_prefill(
        self, record: RequestRecord, step: PrefillStep, is_alone: bool
    ) -> tuple[Ended, ...]:
        num_tokens = record.remaining_prefill - step.remaining_tokens
        if num_tokens == 0 and not is_alone:
            return ()  # a part of a chunk
        if num_tokens < 1 or step.remaining_tokens < 0:
            raise InvariantError(
                f"prefill left {step.remaining_tokens} of {record.remaining_prefill} tokens"
            )
        record.remaining_prefill = step.remaining_tokens
        self._book.counters.prefill_tokens += num_tokens
        total = record.prompt_tokens
        self._book.emit(record, PrefillProgress(total - 1 - step.remaining_tokens, total))
        return self._leave_prefill(record) if step.remaining_tokens == 0 else ()

    def _leave_prefill(self, record: RequestRecord) -> tuple[Ended, ...]:
        if record.request.max_new_tokens == 0:
            return ((record, Ending(FinishReason.LENGTH)),)
        return self._make_ready(record)

    def _commit_batch(
        self,
        batch: PendingBatch,
        orders: tuple[RequestOrder, ...],
        is_forced: bool,
        stop_cause: Callable[[RequestRecord], StopCause | None],
        now: float,
    ) -> tuple[Ended, ...]:
        records = tuple(self._book.active[order] for order in orders)
        expected = tuple(
            ExpectedRow(
                self._sequence(record.order),
                record.frontier,
                _forced(record) if is_forced else None,
            )
            for record in records
        )
        check_batch(batch, expected)
        verdicts = tuple(
            judge_row(record, row, stop_cause(record))
            for record, row in zip(records, batch.rows, strict=True)
        )
        if any(verdict.decision.accepted for verdict in verdicts):
            self._program.commit(batch, tuple(verdict.decision for verdict in verdicts))
        else:
            self._program.abort_pending(batch)
        ended: list[Ended] = []
        for record, verdict in zip(records, verdicts, strict=True):
            if verdict.decision.accepted:
                record.note_committed(now)
            ended.extend(self._apply(record, verdict))
        return tuple(ended)

    def _apply(self, record: RequestRecord, verdict: RowVerdict) -> tuple[Ended, ...]:
        if verdict.outcome is not None:
            return ((record, Ending(verdict.outcome, verdict.output)),)
        if verdict.output is None:
            raise InvariantError("a row that goes on accepts nothing")
        error = self._book.commit_output(record, verdict.output)
        return self._make_ready(record) if error is None else ((record, Ending(error)),)

    def _make_ready(self, record: RequestRecord) -> tuple[Ended, ...]:
        forced = ask(record, record.request.output.forced_suffix)
        if isinstance(forced, NinferError):
            return ((record, Ending(forced)),)
        record.forced = tuple(forced)
        if not forced:
            started_at = time.perf_counter()
            mask = ask(record, record.request.output.token_mask)
            if isinstance(mask, NinferError):
                return ((record, Ending(mask)),)
            if mask is not None:
                self._book.counters.mask_times.note(time.perf_counter() - started_at)
            record.token_mask = mask
        record.move(RequestMove.CONTROL if forced else RequestMove.DECODE)
        return ()


def _forced(record: RequestRecord) -> tuple[int, ...]:
    # The budget wins over a suffix that does not fit any more; the row is then its end.
    return record.forced[: record.remaining_budget]
