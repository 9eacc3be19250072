"""Failure of the engine: one clean-up order, one end for each request, no hang, no downgrade."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ninfer.engine.engine_core import Boundary
from ninfer.engine.intake import EngineState
from ninfer.engine.resource_manager import MAX_STALE_STARTS
from ninfer.engine.response_channel import GenerationHandle
from ninfer.errors import EngineFailed, InvariantError
from ninfer.generation import FinishReason, OutputPreview, TokenMask
from ninfer.program.contract import PendingBatch, PrefillStep, ResourcePlan, SequenceHandle
from tests.support.engine_harness import EngineHarness, read_available
from tests.support.scripted_books import Faults, ScriptedTransaction
from tests.support.scripted_program import CALLS, ScriptedProgram
from tests.support.scripted_session import ScriptedSession, make_request

REACHED = tuple(call for call in CALLS if call not in ("abort_transition", "prove_backfill"))
LIES = ("drop a row", "swap sequences", "move a frontier", "empty a row", "call it forced")


class LyingProgram(ScriptedProgram):
    """Returns batches that are not those that were asked for."""

    lie = ""

    def decode(
        self,
        rows: Sequence[SequenceHandle],
        masks: Sequence[TokenMask | None] = (),
        *,
        is_steady: bool = False,
    ) -> PendingBatch:
        batch = super().decode(rows, masks, is_steady=is_steady)
        first, last = batch.rows[0], batch.rows[-1]
        match self.lie:
            case "drop a row":
                changed = batch.rows[1:]
            case "swap sequences":
                changed = (last, *batch.rows[1:-1], first)
            case "move a frontier":
                changed = (replace(first, base_frontier=first.base_frontier + 1), *batch.rows[1:])
            case "empty a row":
                changed = (replace(first, tokens=()), *batch.rows[1:])
            case _:
                changed = (replace(first, is_forced=True), *batch.rows[1:])
        self.pending = replace(batch, rows=changed)
        return self.pending


class StuckProgram(ScriptedProgram):
    """Prefill that never gets on."""

    def prefill(self, sequence: SequenceHandle, *, is_alone: bool = True) -> PrefillStep:
        return PrefillStep(0, 5)


class StaleProgram(ScriptedProgram):
    """Every plan is stale."""

    def start(self, plan: ResourcePlan) -> ScriptedTransaction | None:
        self.books.enter("start")
        return None


class GreedySession(ScriptedSession):
    """Accepts tokens that nobody offered."""

    def preview(
        self, token_ids: Sequence[int], *, is_forced: bool, is_budget_end: bool
    ) -> OutputPreview:
        honest = super().preview(token_ids, is_forced=is_forced, is_budget_end=is_budget_end)
        return replace(honest, accepted=len(token_ids) + 1)


def failing_engine(call: str, number: int = 0) -> EngineHarness:
    return EngineHarness(ScriptedProgram(max_concurrency=2, faults=Faults(at={call: number})))


def cancel_all(handles: list[GenerationHandle], is_now: bool) -> None:
    for handle in handles if is_now else ():
        handle.cancel()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("call", REACHED)
def test_a_fault_of_program_ends_every_request_once(call: str, number: int) -> None:
    if call == "abort_pending" and number == 1:
        number = 0
    engine = failing_engine(call, number)
    handles = [
        engine.submit(make_request(engine.program, first, forced={1: (7,), 2: (8,)}))
        for first in (1, 2, 3, 4)
    ]
    if call == "abort_pending":
        engine.program.books.observe = lambda name: cancel_all(handles, name == "decode")

    boundary = engine.step_until_idle()
    errors = [read_available(handle)[1] for handle in handles]

    assert boundary is Boundary.OVER
    assert any(isinstance(error, EngineFailed) for error in errors)
    assert all(handle.is_done for handle in handles)
    assert engine.core.status().state is EngineState.FAILED
    assert engine.core.status().outstanding == 0
    assert sum(engine.core.status().counters.ended.values()) == 4
    assert engine.program.calls["abandon"] == 1


def test_the_failed_engine_refuses_what_comes_later() -> None:
    engine = failing_engine("prefill")
    engine.submit(make_request(engine.program))
    engine.step_until_idle()

    with pytest.raises(EngineFailed):
        engine.submit(make_request(engine.program))

    assert engine.step() is Boundary.OVER


def test_program_is_abandoned_before_any_response_is_formed() -> None:
    engine = failing_engine("decode")
    handles = [engine.submit(make_request(engine.program, first)) for first in (1, 2)]
    done_at_abandon: list[bool] = []
    lanes_at_abandon: list[int] = []

    def observe(call: str) -> None:
        if call == "abandon":
            done_at_abandon.extend(handle.is_done for handle in handles)
            lanes_at_abandon.append(engine.core._resources.num_free_lanes)

    engine.program.books.observe = observe
    engine.step_until_idle()

    assert done_at_abandon == [False, False]
    assert lanes_at_abandon[0] < engine.program.capacity.max_concurrency
    assert all(handle.is_done for handle in handles)
    engine.check_resources_idle()
    engine.program.check_idle()


def test_a_failing_clean_up_still_answers_everyone() -> None:
    faults = Faults(at={"decode": 0, "abandon": 0})
    engine = EngineHarness(ScriptedProgram(faults=faults))
    handle = engine.submit(make_request(engine.program))

    engine.step_until_idle()

    with pytest.raises(EngineFailed, match="InjectedFaultError"):
        handle.result()


def test_results_settled_before_the_failure_are_delivered() -> None:
    program = ScriptedProgram(max_concurrency=2, faults=Faults(at={"project": 1}))
    engine = EngineHarness(program)
    first = engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=1))
    engine.step()
    second = engine.submit(make_request(program, 2))
    engine.step_until_idle()

    assert first.result().token_ids == (1000,)
    with pytest.raises(EngineFailed):
        second.result()


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_was_not_asked_for_fails_the_engine(lie: str) -> None:
    program = LyingProgram(max_concurrency=2)
    program.lie = lie
    engine = EngineHarness(program)
    handles = [engine.submit(make_request(program, first, prompt_tokens=first)) for first in (2, 1)]
    program.lie = lie

    engine.step_until_idle()

    assert engine.core.status().state is EngineState.FAILED
    assert all(isinstance(read_available(handle)[1], EngineFailed) for handle in handles)
    assert program.calls["commit"] == 0


def test_prefill_without_progress_fails_the_engine() -> None:
    engine = EngineHarness(StuckProgram())
    handle = engine.submit(make_request(engine.program))

    engine.step_until_idle()

    with pytest.raises(EngineFailed, match="prefill left"):
        handle.result()


def test_plans_that_are_always_stale_are_not_retried_for_ever() -> None:
    engine = EngineHarness(StaleProgram())
    handle = engine.submit(make_request(engine.program))

    engine.step_until_idle()

    assert engine.program.calls["start"] == MAX_STALE_STARTS
    with pytest.raises(EngineFailed, match="stale"):
        handle.result()


def test_single_stale_plans_never_add_up_to_a_failure() -> None:
    odd = frozenset(range(0, 4 * MAX_STALE_STARTS, 2))
    engine = EngineHarness(ScriptedProgram(faults=Faults(stale=odd)))
    handles = [engine.submit(make_request(engine.program, first)) for first in range(8)]

    engine.step_until_idle()

    assert [handle.result().finish for handle in handles] == [FinishReason.LENGTH] * 8


def test_an_illegal_preview_fails_the_engine_before_the_commit() -> None:
    engine = EngineHarness(ScriptedProgram())
    request = make_request(engine.program)
    session = GreedySession(engine.program, request.prompt)
    handle = engine.submit(replace(request, output=session))

    engine.step_until_idle()

    with pytest.raises(EngineFailed, match="accepts 2 of 1"):
        handle.result()
    assert engine.program.calls["commit"] == 0


@pytest.mark.parametrize("call", ["preview", "commit", "forced_suffix", "summary"])
def test_a_broken_rule_in_a_session_is_not_downgraded(call: str) -> None:
    engine = EngineHarness(ScriptedProgram())
    broken = engine.submit(
        make_request(engine.program, 1, fault_at={call: 0}, error=InvariantError)
    )
    other = engine.submit(make_request(engine.program, 2))

    engine.step_until_idle()

    for handle in (broken, other):
        with pytest.raises(EngineFailed, match=f"{call} 0"):
            handle.result()
    assert engine.program.is_abandoned


def test_an_interrupt_fails_the_engine_and_goes_on() -> None:
    program = ScriptedProgram(
        faults=Faults(at={"decode": 0}, error=lambda text: KeyboardInterrupt(text))  # type: ignore[arg-type, return-value]  # not an Exception, on purpose
    )
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program))

    with pytest.raises(KeyboardInterrupt):
        engine.step_until_idle()

    with pytest.raises(EngineFailed):
        handle.result()
