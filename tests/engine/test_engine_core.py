"""One boundary after the other: life of a request, order of publication, cancellation, draining."""

import pytest

from ninfer.engine.engine_core import Boundary
from ninfer.errors import (
    NinferError,
    QueueTimeout,
    RequestError,
    RequestTimeout,
)
from ninfer.generation import (
    FinishReason,
    GenerationEvent,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    PrefillProgress,
)
from tests.support.engine_harness import EngineHarness, read_available
from tests.support.scripted_books import Faults
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request


def tokens_of(events: list[GenerationEvent]) -> list[tuple[int, ...]]:
    return [event.token_ids for event in events if isinstance(event, OutputCommitted)]


def result_of(events: list[GenerationEvent]) -> GenerationResult:
    last = events[-1]
    assert isinstance(last, GenerationResult)
    return last


def test_events_tell_the_whole_life_in_order() -> None:
    engine = EngineHarness(ScriptedProgram(chunk=3))
    handle = engine.submit(make_request(engine.program, 1, prompt_tokens=6, max_new_tokens=2))

    engine.step_until_idle()
    events, error = read_available(handle)

    assert error is None
    # Progress that nobody read is replaced by newer progress.
    assert events[:2] == [GenerationStart(6, 0), PrefillProgress(5, 6)]
    assert tokens_of(events) == [(1000,), (1001,)]
    assert result_of(events).finish is FinishReason.LENGTH
    assert result_of(events).token_ids == (1000, 1001)
    assert result_of(events).usage.completion_tokens == 2
    engine.program.check_idle()


def test_progress_follows_every_chunk() -> None:
    engine = EngineHarness(ScriptedProgram(chunk=2))
    handle = engine.submit(make_request(engine.program, 1, prompt_tokens=6))
    events: list[GenerationEvent] = []

    for _ in range(3):
        engine.step()
        events.extend(read_available(handle)[0])

    assert events == [
        GenerationStart(6, 0),
        PrefillProgress(2, 6),
        PrefillProgress(4, 6),
        PrefillProgress(5, 6),
    ]


def test_the_start_does_not_wait_for_prefill() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program))
    events: list[GenerationEvent | None] = []
    program.books.observe = lambda call: (
        events.append(handle.next_event(0.0)) if call == "prefill" else None
    )

    engine.step()

    assert events == [GenerationStart(6, 0)]


def test_a_budget_of_nothing_processes_the_prompt_and_ends_by_length() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(make_request(engine.program, max_new_tokens=0))

    engine.step_until_idle()
    events, _ = read_available(handle)

    assert events[:-1] == [GenerationStart(6, 0), PrefillProgress(5, 6)]
    assert result_of(events).finish is FinishReason.LENGTH
    assert result_of(events).token_ids == ()
    assert engine.program.calls["decode"] == 0


def test_a_prompt_that_fills_the_context_may_ask_for_nothing() -> None:
    engine = EngineHarness(ScriptedProgram(max_context=6))
    handle = engine.submit(make_request(engine.program, prompt_tokens=6, max_new_tokens=0))

    engine.step_until_idle()

    assert handle.result().finish is FinishReason.LENGTH


def test_a_prompt_of_one_token_goes_straight_to_decode() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(make_request(engine.program, prompt_tokens=1, max_new_tokens=1))

    engine.step_until_idle()

    assert handle.result().token_ids == (1000,)
    assert engine.program.calls["prefill"] == 0


def test_a_stop_inside_a_wide_round_commits_the_prefix_only() -> None:
    engine = EngineHarness(ScriptedProgram(width=4))
    handle = engine.submit(make_request(engine.program, max_new_tokens=9, stop_after=2))

    engine.step_until_idle()
    result = handle.result()

    assert (result.finish, result.token_ids) == (FinishReason.STOP, (1000, 1001))
    assert engine.program.committed[b"prompt 1"] == [1000, 1001]


def test_forced_tokens_are_committed_between_sampled_ones() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(make_request(engine.program, max_new_tokens=6, forced={2: (7, 8)}))

    engine.step_until_idle()

    assert handle.result().token_ids == (1000, 1001, 7, 8, 1004, 1005)
    assert engine.program.calls["control"] == 1


def test_a_suffix_forced_before_any_output_comes_first() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(make_request(engine.program, max_new_tokens=3, forced={0: (7,)}))

    engine.step_until_idle()

    assert handle.result().token_ids == (7, 1001, 1002)


def test_the_budget_wins_over_a_forced_suffix() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(make_request(engine.program, max_new_tokens=3, forced={1: (7, 8, 9)}))

    engine.step_until_idle()
    result = handle.result()

    assert (result.finish, result.token_ids) == (FinishReason.LENGTH, (1000, 7, 8))


def test_one_output_goes_through_program_then_resources_then_session() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    order: list[str] = []
    program.books.observe = order.append
    handle = engine.submit(make_request(program, prompt_tokens=1, max_new_tokens=1))

    engine.step()

    # The scripted session itself refuses a commit before these.
    assert order[-6:] == ["decode", "commit", "seal", "start", "advance", "commit_transition"]
    assert handle.is_done


def test_nothing_is_visible_of_a_round_that_is_not_committed() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program, prompt_tokens=1, max_new_tokens=1))
    seen: list[GenerationEvent | None] = []
    program.books.observe = lambda call: (
        seen.append(handle.next_event(0.0)) if call == "commit" else None
    )

    engine.step()

    assert seen == [GenerationStart(1, 0)]


def test_rounds_are_compact_and_hold_every_ready_request() -> None:
    program = ScriptedProgram(max_concurrency=3)
    engine = EngineHarness(program)
    for first in (1, 2, 3):
        engine.submit(make_request(program, first, prompt_tokens=1, max_new_tokens=first + 2))

    engine.step_until_idle()

    assert program.rounds[:3] == [(1,), (1, 2), (1, 2, 3)]
    assert program.rounds[3:] == [(2, 3), (2, 3), (3,), (3,)]


def test_decode_goes_on_while_a_long_prompt_is_staged() -> None:
    program = ScriptedProgram(chunk=1)
    engine = EngineHarness(program)
    calls: list[str] = []
    engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=20))
    engine.step()
    engine.submit(make_request(program, 2, prompt_tokens=9, max_new_tokens=1))
    program.books.observe = lambda call: (
        calls.append(call) if call in ("prefill", "decode") else None
    )

    engine.step(12)

    assert calls == ["prefill", "decode"] * 6


def test_only_one_request_is_in_staged_prefill() -> None:
    program = ScriptedProgram(max_concurrency=3, chunk=1)
    engine = EngineHarness(program)
    for first in (1, 2, 3):
        engine.submit(make_request(program, first))

    most = 0
    for _ in range(40):
        engine.step()
        most = max(most, engine.core.status().prefilling)

    assert most == 1


def test_a_program_refusal_before_any_mutation_ends_one_request_only() -> None:
    refusal = Faults(at={"project": 0}, error=lambda text: RequestError(text, field="sampling"))
    engine = EngineHarness(ScriptedProgram(faults=refusal))
    first = engine.submit(make_request(engine.program, 1))
    second = engine.submit(make_request(engine.program, 2))

    engine.step_until_idle()

    with pytest.raises(RequestError, match="project 0"):
        first.result()
    assert second.result().finish is FinishReason.LENGTH


def test_a_waiting_request_times_out_in_the_queue() -> None:
    engine = EngineHarness(ScriptedProgram(max_concurrency=1))
    engine.submit(make_request(engine.program, 1, max_new_tokens=20))
    handle = engine.submit(make_request(engine.program, 2, queue_timeout_s=3.0))

    engine.step()
    engine.clock.advance(3.5)
    engine.step()

    with pytest.raises(QueueTimeout, match="3 s"):
        handle.result()


def test_an_active_request_outlives_its_queue_deadline_but_not_its_limit() -> None:
    engine = EngineHarness(ScriptedProgram())
    handle = engine.submit(
        make_request(
            engine.program, 1, max_new_tokens=40, queue_timeout_s=1.0, request_timeout_s=5.0
        )
    )

    engine.step(5)
    engine.clock.advance(4.0)
    engine.step()
    is_done_early = handle.is_done
    engine.clock.advance(2.0)
    engine.step_until_idle()

    assert not is_done_early
    with pytest.raises(RequestTimeout):
        handle.result()
    engine.program.check_idle()


def test_a_chunk_runs_in_parts_while_others_decode_and_at_once_when_they_are_gone() -> None:
    program = ScriptedProgram(max_context=128, chunk=8, num_parts=4)
    engine = EngineHarness(program)
    first = engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=7))
    engine.step(2)

    second = engine.submit(make_request(program, 2, prompt_tokens=33, max_new_tokens=1))
    engine.step_until_idle()

    # Until the first request ends every part is followed by a round of its own.
    shared = program.alone.count(False)
    assert program.alone == [False] * shared + [True] * (len(program.alone) - shared)
    assert 4 <= shared <= 7
    assert len(program.alone) < 16
    assert [handle.result().usage.completion_tokens for handle in (first, second)] == [7, 1]
    program.check_idle()


def test_the_first_token_ends_the_prefill_phase() -> None:
    program = ScriptedProgram(chunk=8)
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program, 1, max_new_tokens=2))
    seconds = {"project": 2.0, "prefill": 3.0, "decode": 0.5}
    engine.clock.advance(1.0)
    program.books.observe = lambda call: engine.clock.advance(seconds.get(call, 0.0))

    engine.step_until_idle()
    timings = handle.result().timings

    assert (timings.queue_s, timings.prefill_s, timings.decode_s) == (1.0, 5.5, 0.5)


def test_stale_plans_are_made_again_without_side_effect() -> None:
    engine = EngineHarness(ScriptedProgram(faults=Faults(stale=frozenset({0, 1, 3}))))
    handle = engine.submit(make_request(engine.program, 1))

    engine.step_until_idle()

    assert handle.result().finish is FinishReason.LENGTH
    engine.program.check_idle()
    engine.check_resources_idle()


def test_an_idle_engine_has_nothing_to_do() -> None:
    engine = EngineHarness(ScriptedProgram())

    assert engine.step() is Boundary.IDLE
    assert engine.program.calls.total() == 0


def test_ordinary_decode_plans_nothing() -> None:
    program = ScriptedProgram(max_concurrency=1)
    engine = EngineHarness(program)
    engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=30))
    engine.submit(make_request(program, 2))
    engine.step(2)
    before = program.calls["project"]

    engine.step(10)

    assert program.calls["project"] == before


def test_a_bug_of_one_session_ends_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    engine = EngineHarness(ScriptedProgram())
    broken = engine.submit(make_request(engine.program, 1, fault_at={"commit": 1}))
    sound = engine.submit(make_request(engine.program, 2))

    engine.step_until_idle()

    with pytest.raises(NinferError) as caught:
        broken.result()
    assert caught.value.code == "internal_error"
    assert sound.result().token_ids == (2000, 2001, 2002, 2003)
    assert "output session of request 0" in caplog.text
    engine.program.check_idle()
