"""Who gets in, who is refused and how, what a drain does, and what anybody may read."""

import pytest

from ninfer.engine.engine_core import Boundary
from ninfer.engine.intake import EngineState
from ninfer.engine.response_channel import GenerationHandle
from ninfer.errors import (
    ContextLengthExceeded,
    EngineClosed,
    EngineOverloaded,
    IllegalMove,
    InvalidPrompt,
    RequestCancelled,
    RequestError,
    RequestInfeasible,
)
from ninfer.generation import FinishReason
from tests.support.engine_harness import EngineHarness
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request


def test_more_than_active_and_waiting_capacity_is_refused_at_once() -> None:
    engine = EngineHarness(ScriptedProgram(max_concurrency=1), max_pending=1)
    handles = [engine.submit(make_request(engine.program, first)) for first in (1, 2)]

    with pytest.raises(EngineOverloaded, match="limit is 2"):
        engine.submit(make_request(engine.program, 3))

    engine.step_until_idle()
    assert [handle.result().finish for handle in handles] == [FinishReason.LENGTH] * 2
    engine.submit(make_request(engine.program, 4))


def test_an_unread_answer_still_takes_capacity() -> None:
    engine = EngineHarness(ScriptedProgram(max_concurrency=1), max_pending=0)
    handle = engine.submit(make_request(engine.program, 1))
    engine.step_until_idle()

    with pytest.raises(EngineOverloaded):
        engine.submit(make_request(engine.program, 2))
    handle.close()

    engine.submit(make_request(engine.program, 3))


@pytest.mark.parametrize(
    ("prompt_tokens", "max_new_tokens", "error", "field"),
    [
        (0, 1, InvalidPrompt, "prompt"),
        (65, 0, ContextLengthExceeded, "prompt"),
        (60, 5, RequestError, "max_new_tokens"),
        (60, -1, RequestError, "max_new_tokens"),
    ],
)
def test_a_request_outside_the_context_contract_is_refused_by_name(
    prompt_tokens: int, max_new_tokens: int, error: type[RequestError], field: str
) -> None:
    engine = EngineHarness(ScriptedProgram(max_context=64))
    request = make_request(engine.program, max_new_tokens=max_new_tokens)
    ids = tuple(range(prompt_tokens))
    prompt = type(request.prompt)(ids, bytes(prompt_tokens), None, b"")
    bad = type(request)(prompt, request.output, request.sampling, max_new_tokens)

    with pytest.raises(error) as caught:
        engine.submit(bad)

    assert caught.value.field == field
    assert engine.core.status().outstanding == 0


def test_a_request_that_never_fits_harms_nobody() -> None:
    engine = EngineHarness(ScriptedProgram(num_pages=3))
    big = engine.submit(make_request(engine.program, 1, prompt_tokens=12, max_new_tokens=4))
    small = engine.submit(make_request(engine.program, 2))

    engine.step_until_idle()

    with pytest.raises(RequestInfeasible):
        big.result()
    assert small.result().finish is FinishReason.LENGTH


def test_an_engine_that_is_not_open_says_why() -> None:
    engine = EngineHarness(ScriptedProgram())
    engine.core.drain(0.0)

    with pytest.raises(EngineClosed) as caught:
        engine.submit(make_request(engine.program))

    assert caught.value.code == "server_draining"
    assert engine.core.status().state is EngineState.DRAINING


def test_draining_lets_active_requests_end_and_refuses_waiting_ones() -> None:
    engine = EngineHarness(ScriptedProgram(max_concurrency=1))
    active = engine.submit(make_request(engine.program, 1))
    waiting = engine.submit(make_request(engine.program, 2))
    engine.step()

    engine.core.drain(30.0)
    engine.step_until_idle()

    assert active.result().finish is FinishReason.LENGTH
    with pytest.raises(EngineClosed):
        waiting.result()
    assert engine.step() is Boundary.OVER
    assert engine.core.status().state is EngineState.STOPPED


def test_a_drain_past_its_grace_cancels_what_is_active() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(make_request(engine.program, 1, max_new_tokens=40))
    engine.step(4)

    engine.core.drain(10.0)
    engine.step()
    is_done_early = handle.is_done
    engine.clock.advance(10.0)
    engine.step_until_idle()

    assert not is_done_early
    with pytest.raises(RequestCancelled, match="shut down"):
        handle.result()
    engine.program.check_idle()


def test_a_request_accepted_during_the_last_boundary_before_a_drain_is_answered() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=1))
    late: list[GenerationHandle] = []

    def observe(call: str) -> None:
        if call == "commit_transition" and program.calls[call] == 2:
            late.append(engine.submit(make_request(program, 2)))
            engine.core.drain(0.0)

    program.books.observe = observe
    engine.step_until_idle()
    engine.step()

    with pytest.raises(EngineClosed):
        late[0].result()
    assert engine.core.status().state is EngineState.STOPPED


def test_a_second_drain_can_only_hurry() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(make_request(engine.program, 1, max_new_tokens=40))
    engine.step(4)

    engine.core.drain(0.0)
    engine.core.drain(60.0)
    engine.step_until_idle()

    with pytest.raises(RequestCancelled):
        handle.result()


def test_opening_twice_is_illegal_and_changes_nothing() -> None:
    engine = EngineHarness(ScriptedProgram())

    with pytest.raises(IllegalMove):
        engine.core.open()

    assert engine.core.status().state is EngineState.READY


def test_status_counts_what_happened() -> None:
    program = ScriptedProgram(max_concurrency=2)
    engine = EngineHarness(program)
    handles = [engine.submit(make_request(program, first)) for first in (1, 2, 3)]

    waiting_before = engine.core.status().waiting
    engine.step()
    during = engine.core.status()
    engine.step_until_idle()
    counters = engine.core.status().counters

    assert (waiting_before, during.active, during.waiting, during.prefilling) == (3, 1, 2, 1)
    assert during.free.main_pages < during.total.main_pages
    assert counters.ended == {"length": 3}
    assert (counters.accepted, counters.prompt_tokens, counters.prefill_tokens) == (3, 18, 15)
    assert counters.decode_tokens == counters.decode_row_rounds == 12
    assert all(handle.is_done for handle in handles)


def test_progress_age_counts_only_while_there_is_work() -> None:
    engine = EngineHarness(ScriptedProgram())
    engine.step()
    idle = engine.core.status()
    handle = engine.submit(make_request(engine.program))
    engine.step()

    busy = engine.core.status()

    assert idle.progress_age_s(engine.clock.now + 900) == 0.0
    assert busy.progress_age_s(engine.clock.now + 7) == 7.0
    assert not handle.is_done
