"""Every decision is legal for Program, whatever a session answers and however a unit came out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.request import RequestOrder, RequestRecord, StopCause
from ninfer.engine.response_channel import CapacityGate, ResponseChannel
from ninfer.engine.row_decision import judge_row
from ninfer.errors import InvariantError, NinferError, RequestError, RequestTimeout
from ninfer.generation import FinishReason, OutputPreview
from ninfer.program.contract import PendingRow, RowDecision, SequenceHandle
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import ScriptedSession, make_request

SEQUENCE = SequenceHandle(1, 2, 3)


class FixedSession(ScriptedSession):
    """Answers every preview alike."""

    answer: OutputPreview

    def preview(self, token_ids: object, **_: object) -> OutputPreview:
        return self.answer


def make_record(
    budget: int, *, committed: int = 0, answer: OutputPreview | None = None
) -> RequestRecord:
    program = ScriptedProgram()
    request = make_request(program, max_new_tokens=budget)
    if answer is not None:
        session = FixedSession(program, request.prompt)
        session.answer = answer
        request = replace(request, output=session)
    channel = ResponseChannel(CapacityGate(1).acquire(), lambda: None)
    record = RequestRecord(RequestOrder(0), request, channel, 0.0)
    record.token_ids.extend(range(committed))
    return record


def make_row(num_tokens: int) -> PendingRow:
    return PendingRow(SEQUENCE, 5, tuple(range(100, 100 + num_tokens)))


@given(
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(0, 9),
    st.none() | st.sampled_from(FinishReason),
    st.lists(st.integers(0, 9), max_size=2).map(tuple),
)
def test_a_decision_is_legal_or_the_preview_is_found_out(
    produced: int,
    budget: int,
    accepted: int,
    finish: FinishReason | None,
    boundaries: tuple[int, ...],
) -> None:
    record = make_record(budget, answer=OutputPreview(accepted, finish, boundaries, None))
    try:
        decision = judge_row(record, make_row(produced), None).decision
    except InvariantError:
        decision = None

    offered = min(produced, budget)
    is_sound = 1 <= accepted <= offered and (finish is not None or accepted == offered)
    is_sound = is_sound and all(1 <= boundary <= accepted for boundary in boundaries)
    is_last = finish is not None or budget <= produced
    assert decision == (RowDecision(accepted, is_last, boundaries) if is_sound else None)


def test_tokens_beyond_the_budget_are_not_offered() -> None:
    verdict = judge_row(make_record(5, committed=3), make_row(4), None)

    assert verdict.decision == RowDecision(2, True, (2,))
    assert verdict.output is not None
    assert verdict.output.token_ids == (100, 101)
    assert verdict.outcome is FinishReason.LENGTH


@pytest.mark.parametrize("cause", StopCause)
def test_a_stopped_row_accepts_nothing_and_asks_nobody(cause: StopCause) -> None:
    record = make_record(5)

    verdict = judge_row(record, make_row(2), cause)

    assert verdict.decision == RowDecision(0, True)
    assert verdict.output is None
    session = record.request.output
    assert isinstance(session, ScriptedSession)
    assert session.calls.total() == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ValueError, NinferError), (RequestTimeout, RequestTimeout), (RequestError, RequestError)],
)
def test_a_session_that_breaks_down_ends_its_row(
    error: type[Exception], expected: type[NinferError]
) -> None:
    program = ScriptedProgram()
    request = make_request(program, fault_at={"preview": 0}, error=error)
    channel = ResponseChannel(CapacityGate(1).acquire(), lambda: None)
    record = RequestRecord(RequestOrder(0), request, channel, 0.0)

    verdict = judge_row(record, make_row(1), None)

    assert verdict.decision == RowDecision(0, True)
    assert type(verdict.outcome) is expected
