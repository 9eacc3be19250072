"""The life cycle of a request: every legal move, and nothing but those."""

import itertools

import pytest

from ninfer.engine.request import (
    Ending,
    RequestMove,
    RequestOrder,
    RequestRecord,
    RequestState,
    StopCause,
    stop_outcome,
)
from ninfer.engine.response_channel import CapacityGate, ResponseChannel
from ninfer.errors import IllegalMove, QueueTimeout, RequestCancelled, RequestTimeout
from ninfer.generation import FinishReason
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request

PATHS: dict[RequestState, tuple[RequestMove, ...]] = {
    RequestState.WAITING: (),
    RequestState.MATERIALIZING: (RequestMove.CLAIM,),
    RequestState.PREFILL: (RequestMove.CLAIM, RequestMove.ADOPT),
    RequestState.DECODE_READY: (RequestMove.CLAIM, RequestMove.ADOPT, RequestMove.DECODE),
    RequestState.CONTROL_READY: (RequestMove.CLAIM, RequestMove.ADOPT, RequestMove.CONTROL),
    RequestState.TERMINAL_PENDING: (RequestMove.CLAIM, RequestMove.ADOPT, RequestMove.END),
    RequestState.FINISHED: (RequestMove.REFUSE,),
}
RUNNING = (RequestState.PREFILL, RequestState.DECODE_READY, RequestState.CONTROL_READY)
LEGAL: dict[RequestMove, tuple[RequestState, ...]] = {
    RequestMove.REFUSE: (RequestState.WAITING,),
    RequestMove.CLAIM: (RequestState.WAITING,),
    RequestMove.ABORT: (RequestState.MATERIALIZING,),
    RequestMove.ADOPT: (RequestState.MATERIALIZING,),
    RequestMove.DECODE: RUNNING,
    RequestMove.CONTROL: RUNNING,
    RequestMove.END: RUNNING,
    RequestMove.SETTLE: (RequestState.TERMINAL_PENDING,),
    RequestMove.FAIL: tuple(state for state in RequestState if state is not RequestState.FINISHED),
}
ILLEGAL = [
    (state, move)
    for state, move in itertools.product(RequestState, RequestMove)
    if state not in LEGAL[move]
]


def make_record(
    *, queue_timeout_s: float | None = None, request_timeout_s: float | None = None
) -> RequestRecord:
    request = make_request(
        ScriptedProgram(), queue_timeout_s=queue_timeout_s, request_timeout_s=request_timeout_s
    )
    channel = ResponseChannel(CapacityGate(1).acquire(), lambda: None)
    return RequestRecord(RequestOrder(3), request, channel, 10.0)


def record_in(state: RequestState) -> RequestRecord:
    record = make_record()
    for move in PATHS[state]:
        record.move(move)
    return record


@pytest.mark.parametrize("state", RequestState)
def test_every_state_is_reached_by_its_path(state: RequestState) -> None:
    assert record_in(state).state is state


@pytest.mark.parametrize(
    ("state", "move"), [(state, move) for move, states in LEGAL.items() for state in states]
)
def test_legal_moves_are_taken(state: RequestState, move: RequestMove) -> None:
    record = record_in(state)

    record.move(move)

    assert record.state is not state or move in (RequestMove.DECODE, RequestMove.CONTROL)


@pytest.mark.parametrize(("state", "move"), ILLEGAL)
def test_illegal_moves_raise_and_change_nothing(state: RequestState, move: RequestMove) -> None:
    record = record_in(state)

    with pytest.raises(IllegalMove, match=move.name):
        record.move(move)

    assert record.state is state


def test_an_illegal_end_leaves_no_ending_behind() -> None:
    record = make_record()

    with pytest.raises(IllegalMove):
        record.end(Ending(FinishReason.STOP))

    assert record.ending is None


def test_an_illegal_admission_leaves_no_trace() -> None:
    record = make_record()

    with pytest.raises(IllegalMove):
        record.admit(12.0, 2)

    assert (record.reused_tokens, record.remaining_prefill) == (0, 0)
    assert record.timings(15.0).queue_s == 5.0


def test_the_last_prompt_token_is_not_prefilled() -> None:
    record = record_in(RequestState.MATERIALIZING)

    record.admit(12.0, 2)

    assert record.remaining_prefill == record.prompt_tokens - 1 - 2


def test_phases_follow_one_another_without_gap() -> None:
    record = record_in(RequestState.MATERIALIZING)

    record.admit(12.0, 0)
    record.note_committed(15.5)
    record.note_committed(17.0)
    timings = record.timings(20.0)

    assert (timings.queue_s, timings.prefill_s, timings.decode_s) == (2.0, 3.5, 4.5)


@pytest.mark.parametrize(
    ("queue_s", "whole_s", "age_s", "expected"),
    [
        (None, None, 1e9, type(None)),
        (5.0, None, 5.0, type(None)),
        (5.0, None, 5.1, QueueTimeout),
        (None, 5.0, 5.1, RequestTimeout),
        (5.0, 9.0, 9.1, QueueTimeout),
        (9.0, 5.0, 9.1, RequestTimeout),
        (9.0, 5.0, 5.1, RequestTimeout),
    ],
)
def test_the_earlier_passed_deadline_ends_a_waiting_request(
    queue_s: float | None, whole_s: float | None, age_s: float, expected: type
) -> None:
    record = make_record(queue_timeout_s=queue_s, request_timeout_s=whole_s)

    assert type(record.overdue_wait(10.0 + age_s)) is expected


def test_the_queue_deadline_does_not_count_once_active() -> None:
    record = make_record(queue_timeout_s=1.0)

    assert record.stop_cause(500.0, None) is None


def test_cancellation_goes_before_timeout_and_shutdown() -> None:
    record = make_record(request_timeout_s=1.0)

    before = record.stop_cause(500.0, 400.0)
    record.channel.cancel()

    assert before is StopCause.TIMED_OUT
    assert record.stop_cause(500.0, 400.0) is StopCause.CANCELLED


def test_each_stop_cause_has_its_own_outcome() -> None:
    outcomes = [stop_outcome(cause) for cause in StopCause]

    assert outcomes[0] is FinishReason.CANCELLED
    assert [type(outcome) for outcome in outcomes[1:]] == [RequestTimeout, RequestCancelled]


def test_only_regular_ends_count_as_success() -> None:
    good = [reason for reason in FinishReason if Ending(reason).is_success]

    assert good == [FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS]
    assert not Ending(RequestTimeout("late")).is_success
