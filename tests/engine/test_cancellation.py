"""Cancellation at every state of a request, seen at a boundary, never in the middle of a unit."""

from collections.abc import Callable

import pytest

from ninfer.errors import RequestTimeout
from ninfer.generation import FinishReason, GenerationResult, GenerationStart
from tests.support.engine_harness import EngineHarness, read_available
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request


def act_at(program: ScriptedProgram, call: str, number: int, act: Callable[[], object]) -> None:
    """Do something when a numbered call is made, before it has an effect."""

    def observe(name: str) -> None:
        if name == call and program.calls[call] == number + 1:
            act()

    program.books.observe = observe


def test_a_cancelled_waiting_request_creates_no_state() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program))

    handle.cancel()
    engine.step_until_idle()

    assert handle.result().finish is FinishReason.CANCELLED
    assert handle.result().usage.completion_tokens == 0
    assert program.calls["project"] == 0


def test_a_cancelled_materialization_is_aborted_and_its_result_adopted() -> None:
    program = ScriptedProgram(num_stages=3)
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program))
    engine.step(2)

    handle.cancel()
    engine.step()

    assert handle.result().finish is FinishReason.CANCELLED
    assert program.calls["abort_transition"] == 1
    assert program.free() == program.capacity.total
    engine.check_resources_idle()


def test_a_cancellation_between_commit_and_adoption_lets_the_adoption_happen_first() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program))
    act_at(program, "commit_transition", 0, handle.cancel)

    engine.step_until_idle()
    events, _ = read_available(handle)

    assert isinstance(events[0], GenerationStart)
    assert handle.result().finish is FinishReason.CANCELLED
    assert program.calls["abort_transition"] == 0
    assert program.calls["commit_transition"] == 2
    program.check_idle()


def test_a_cancellation_in_prefill_ends_after_the_chunk() -> None:
    program = ScriptedProgram(chunk=1)
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program, prompt_tokens=9))
    act_at(program, "prefill", 2, handle.cancel)

    engine.step_until_idle()

    assert program.calls["prefill"] == 3
    assert handle.result().finish is FinishReason.CANCELLED
    program.check_idle()


def test_a_cancellation_during_a_round_commits_nothing_of_its_row() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    doomed = engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=9))
    other = engine.submit(make_request(program, 2, prompt_tokens=1, max_new_tokens=5))
    act_at(program, "decode", 3, doomed.cancel)

    engine.step_until_idle()

    assert doomed.result().finish is FinishReason.CANCELLED
    assert doomed.result().token_ids == (1000, 1001, 1002)
    assert program.committed[b"prompt 1"] == [1000, 1001, 1002]
    assert other.result().token_ids == (2000, 2001, 2002, 2003, 2004)
    program.check_idle()


def test_a_round_of_cancelled_rows_is_aborted_as_a_whole() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program, prompt_tokens=1, max_new_tokens=9))
    act_at(program, "decode", 2, handle.cancel)

    engine.step_until_idle()

    assert program.calls["abort_pending"] == 1
    assert handle.result().token_ids == (1000, 1001)
    program.check_idle()


def test_a_cancellation_in_control_commits_no_forced_token() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program, max_new_tokens=9, forced={1: (7, 8)}))
    act_at(program, "control", 0, handle.cancel)

    engine.step_until_idle()

    assert handle.result().token_ids == (1000,)
    program.check_idle()


def test_a_request_that_has_ended_well_is_not_cancelled_while_it_settles() -> None:
    program = ScriptedProgram(num_stages=3)
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program, prompt_tokens=1, max_new_tokens=1))
    act_at(program, "commit", 0, handle.cancel)

    engine.step_until_idle()

    assert handle.result().finish is FinishReason.LENGTH
    assert handle.result().token_ids == (1000,)


def test_a_cancelled_request_gives_its_lane_back_within_one_unit() -> None:
    program = ScriptedProgram(max_concurrency=1)
    engine = EngineHarness(program)
    doomed = engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=50))
    engine.submit(make_request(program, 2, prompt_tokens=1, max_new_tokens=3))
    engine.step(3)

    doomed.close()
    rounds_before = len(program.rounds)
    engine.step(1)

    assert program.rounds[rounds_before:] == [(2,)]


def test_a_timeout_in_the_middle_keeps_what_was_published() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(
        make_request(program, prompt_tokens=1, max_new_tokens=9, request_timeout_s=5.0)
    )
    act_at(program, "decode", 2, lambda: engine.clock.advance(6.0))

    engine.step_until_idle()
    events, error = read_available(handle)

    assert isinstance(error, RequestTimeout)
    assert len(events) == 3
    assert program.committed[b"prompt 1"] == [1000, 1001]


@pytest.mark.parametrize("call", ["project", "start", "advance", "prefill", "decode", "commit"])
def test_dropping_at_any_call_ends_the_request_and_frees_capacity(call: str) -> None:
    program = ScriptedProgram(num_stages=1)
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program))
    act_at(program, call, 0, handle.close)

    engine.step_until_idle()

    assert engine.core.status().outstanding == 0
    assert isinstance(handle.next_event(0.0), GenerationResult)
    program.check_idle()
    engine.check_resources_idle()
