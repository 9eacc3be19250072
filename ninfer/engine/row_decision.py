"""From a pending row and its output session's preview to one decision.

    accepted 0             the request was stopped, or its session failed: terminal
    accepted 1..produced   fewer than produced only when the request ends there

Nothing here changes a session, a record or Program: a preview is a question. A session that breaks
down harms its own request only; one that breaks a rule of ours fails the engine.
Source: system design, section 5, "Output of a round".
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ninfer.engine.request import HeldOutput, Outcome, RequestRecord, StopCause, stop_outcome
from ninfer.errors import InvariantError, NinferError
from ninfer.generation import FinishReason
from ninfer.program.contract import PendingBatch, PendingRow, RowDecision, SequenceHandle

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What becomes of a row and of its request.

    Attributes:
        output: accepted tokens and their preview; None when nothing is accepted.
        outcome: how the request ends, if it does.
    """

    decision: RowDecision
    output: HeldOutput | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """What a row of the pending batch has to be.

    Attributes:
        forced: the tokens that were given, or None for sampled ones.
    """

    sequence: SequenceHandle
    frontier: int
    forced: tuple[int, ...] | None


def check_batch(batch: PendingBatch, expected: tuple[ExpectedRow, ...]) -> None:
    """Verify that Program ran the unit that was asked for.

    Raises:
        InvariantError: membership, frontier, extent or origin of the tokens differ.
    """
    if len(batch.rows) != len(expected):
        raise InvariantError(f"a unit of {len(expected)} rows came back with {len(batch.rows)}")
    for row, wanted in zip(batch.rows, expected, strict=True):
        if row.sequence != wanted.sequence:
            raise InvariantError("a pending batch has another member than was asked for")
        if row.base_frontier != wanted.frontier:
            raise InvariantError(
                f"a row starts at frontier {row.base_frontier}; {wanted.frontier} is committed"
            )
        if not row.tokens or row.is_forced != (wanted.forced is not None):
            raise InvariantError("a row has no tokens, or tokens of the wrong origin")
        if wanted.forced is not None and row.tokens != wanted.forced:
            raise InvariantError("a forced row has other tokens than were given")


def judge_row(record: RequestRecord, row: PendingRow, cause: StopCause | None) -> RowVerdict:
    """Decide one row.

    Raises:
        InvariantError: the preview is not a legal answer.
    """
    if cause is not None:
        return _refused(stop_outcome(cause))
    offered = row.tokens[: record.remaining_budget]
    is_budget_end = len(offered) == record.remaining_budget
    preview = ask(
        record,
        lambda: record.request.output.preview(
            offered, is_forced=row.is_forced, is_budget_end=is_budget_end
        ),
    )
    if isinstance(preview, NinferError):
        return _refused(preview)
    if not 1 <= preview.accepted <= len(offered):
        raise InvariantError(f"a preview accepts {preview.accepted} of {len(offered)} tokens")
    if preview.finish is None and preview.accepted < len(offered):
        raise InvariantError("a preview drops tokens of a request that goes on")
    if any(not 1 <= boundary <= preview.accepted for boundary in preview.boundaries):
        raise InvariantError("a reconstruction boundary lies outside the accepted span")
    finish = preview.finish
    if finish is None and is_budget_end:
        finish = FinishReason.LENGTH
    return RowVerdict(
        RowDecision(preview.accepted, finish is not None, preview.boundaries),
        HeldOutput(offered[: preview.accepted], preview),
        finish,
    )


def ask(record: RequestRecord, question: Callable[[], _T]) -> _T | NinferError:
    """Call a request's output session; an error of its own is returned, for this request alone.

    Raises:
        InvariantError: the session says that a rule of ours was broken.
    """
    try:
        return question()
    except InvariantError:
        raise
    except NinferError as error:
        _logger.warning("request %d ends with %s: %s", record.order, error.code, error)
        return error
    except Exception:
        # The session belongs to this request alone, so its bugs end this request alone.
        _logger.exception("the output session of request %d failed", record.order)
        return NinferError(f"the output of request {record.order} could not be processed")


def _refused(outcome: Outcome) -> RowVerdict:
    return RowVerdict(RowDecision(0, True), None, outcome)
