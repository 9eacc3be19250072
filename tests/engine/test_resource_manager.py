"""Transitions are adopted as a whole or not at all, and policies can reuse, retain and evict."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ninfer.engine.checkpoint_catalog import CheckpointCatalog
from ninfer.engine.lanes import LaneId
from ninfer.engine.resource_manager import ResourceManager
from ninfer.engine.resource_planner import (
    AdmissionQuestion,
    Admit,
    Blocked,
    Infeasible,
    RootOnlyPlanner,
    TerminalChoice,
    TerminalQuestion,
)
from ninfer.errors import IllegalMove, InvariantError
from ninfer.generation import CacheMode, GenerationResult, PreparedPrompt
from ninfer.program.contract import (
    CheckpointHandle,
    Demand,
    Evict,
    Outcome,
    Program,
    ResourceResult,
    Retain,
    SequenceHandle,
)
from tests.support.engine_harness import EngineHarness
from tests.support.retaining_planner import RetainingPlanner
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_prompt, make_request

GHOST = SequenceHandle(5, 5, 5)
GHOST_CHECKPOINT = CheckpointHandle(5, 5, 5)
LIES: dict[str, Callable[[ResourceResult], ResourceResult]] = {
    "another plan": lambda result: replace(result, plan_id=result.plan_id + 1),
    "another outcome": lambda result: replace(result, outcome=Outcome.ABORTED),
    "another revision": lambda result: replace(result, revision=result.revision + 1),
    "no sequence": lambda result: replace(result, sequence=None),
    "too much reuse": lambda result: replace(result, reused_tokens=6),
    "a publication": lambda result: replace(result, published=GHOST_CHECKPOINT),
    "a release": lambda result: replace(result, released=GHOST),
}


class RetainAnyway(RootOnlyPlanner):
    """Wants to keep what must be released."""

    def plan_terminal(
        self, program: Program, catalog: CheckpointCatalog, question: TerminalQuestion
    ) -> TerminalChoice:
        return TerminalChoice(Retain(question.sequence))


def question(first: int = 1, prompt_tokens: int = 6, output: int = 2) -> AdmissionQuestion:
    request = make_request(ScriptedProgram(), first)
    demand = Demand(make_prompt(first, prompt_tokens), request.sampling, output)
    return AdmissionQuestion(demand, CacheMode.READ_WRITE, None)


def manager_of(program: ScriptedProgram, num_slots: int = 2) -> ResourceManager:
    return ResourceManager(program, RootOnlyPlanner(), CheckpointCatalog(num_slots))


def start(manager: ResourceManager) -> LaneId:
    answer = manager.plan_admission(question())
    assert isinstance(answer, Admit)
    lane = manager.start_admission(answer.target, may_publish=True)
    assert lane is not None
    return lane


def lying(manager: ResourceManager, change: Callable[[ResourceResult], ResourceResult]) -> None:
    """Let the running transition return something else than it did."""
    assert manager._running is not None
    transaction = manager._running.transaction
    honest = transaction.commit
    transaction.commit = lambda: change(honest())  # type: ignore[method-assign]  # a lie


@pytest.mark.parametrize("lie", LIES)
def test_a_contradictory_result_is_not_adopted(lie: str) -> None:
    manager = manager_of(ScriptedProgram())
    lane = start(manager)
    lying(manager, LIES[lie])

    with pytest.raises(InvariantError):
        manager.commit()

    assert manager.has_transition
    with pytest.raises(IllegalMove):
        manager.sequence(lane)


def test_a_sequence_of_another_lane_is_not_adopted_again() -> None:
    manager = manager_of(ScriptedProgram())
    first = start(manager)
    manager.commit()
    owned = manager.sequence(first)
    start(manager)
    lying(manager, lambda result: replace(result, sequence=owned))

    with pytest.raises(InvariantError, match="already owned"):
        manager.commit()


def test_one_unsettled_transition_blocks_the_next() -> None:
    manager = manager_of(ScriptedProgram())
    start(manager)
    answer = manager.plan_admission(question(2))
    assert isinstance(answer, Admit)

    with pytest.raises(InvariantError, match="unsettled"):
        manager.start_admission(answer.target, may_publish=True)


def test_an_aborted_materialization_gives_lane_and_place_back() -> None:
    manager = manager_of(ScriptedProgram(num_stages=2), num_slots=1)
    start(manager)

    manager.abort()

    assert manager.num_free_lanes == 2
    assert manager._catalog.num_free == 1
    assert not manager.has_transition


def test_a_settled_lane_is_free_and_its_place_too() -> None:
    manager = manager_of(ScriptedProgram(), num_slots=1)
    lane = start(manager)
    manager.commit()
    manager.end(lane)

    manager.start_settlement(lane, is_success=True, publication_order=0, session_key=None)
    free_before = manager.num_free_lanes
    manager.commit()

    assert (free_before, manager.num_free_lanes) == (1, 2)
    assert manager._catalog.num_free == 1


def test_without_a_transition_there_is_nothing_to_commit() -> None:
    with pytest.raises(InvariantError, match="no resource transition"):
        manager_of(ScriptedProgram()).commit()


def test_a_policy_cannot_keep_a_state_that_must_be_released() -> None:
    program = ScriptedProgram()
    manager = ResourceManager(program, RetainAnyway(), CheckpointCatalog(2))
    lane = start(manager)
    manager.commit()
    manager.end(lane)

    with pytest.raises(InvariantError, match="must be released"):
        manager.start_settlement(lane, is_success=False, publication_order=0, session_key=None)


def test_root_only_answers_with_the_verdict() -> None:
    program = ScriptedProgram(num_pages=4)
    manager = manager_of(program)
    never = manager.plan_admission(question(prompt_tokens=16, output=2))
    start(manager)
    manager.commit()

    blocked = manager.plan_admission(question(prompt_tokens=10, output=2))

    assert isinstance(never, Infeasible)
    assert isinstance(blocked, Blocked)
    assert blocked.missing.main_pages == 3


def test_the_incumbent_releases_inactive_cache_only_when_needed() -> None:
    program = ScriptedProgram(max_concurrency=1, num_state_slots=2, num_pages=6)
    planner = RetainingPlanner(is_moving=False)
    engine = EngineHarness(program, planner=planner, num_checkpoint_slots=1)
    engine.submit(make_request(program, 1, session_key="s"))
    engine.step_until_idle()
    catalog = engine.core._resources._catalog
    kept = catalog.entries()[0].handle

    small = RootOnlyPlanner().plan_admission(program, catalog, question(2))
    large = RootOnlyPlanner().plan_admission(program, catalog, question(3, prompt_tokens=20))

    assert isinstance(small, Admit)
    assert small.target.actions == ()
    assert isinstance(large, Admit)
    assert large.target.actions == (Evict(kept),)


def test_a_finished_turn_is_reused_by_the_next_one_of_its_session() -> None:
    program = ScriptedProgram(num_state_slots=4, num_pages=32)
    planner = RetainingPlanner(is_moving=False)
    engine = EngineHarness(program, planner=planner, num_checkpoint_slots=2)
    first = engine.submit(make_request(program, 1, session_key="s"))
    engine.step_until_idle()
    history = (*make_prompt(1, 6).token_ids, *first.result().token_ids)

    plain = make_request(program, 2, session_key="s")
    prompt = PreparedPrompt((*history, 5, 6), bytes(12), None, plain.prompt.identity)
    session = make_request(program, 2).output
    handle = engine.submit(replace(plain, prompt=prompt, output=session))
    engine.step(2)
    start_event = handle.next_event(0.0)

    assert planner.num_reuses == 1
    assert getattr(start_event, "reused_tokens", None) == len(history) - 1


def test_a_full_catalog_retains_in_place_of_the_oldest() -> None:
    program = ScriptedProgram(max_concurrency=1, num_state_slots=4)
    planner = RetainingPlanner(is_moving=False)
    engine = EngineHarness(program, planner=planner, num_checkpoint_slots=1)
    handles = [
        engine.submit(make_request(program, first, session_key=f"s{first}"))
        for first in (1, 2, 3, 4)
    ]

    engine.step_until_idle()

    assert all(isinstance(handle.result(), GenerationResult) for handle in handles)
    assert engine.core.status().checkpoints == len(program.books.checkpoints) <= 2
    engine.check_resources_idle()
    program.check_idle()


def test_a_request_outside_the_cache_leaves_nothing_behind() -> None:
    program = ScriptedProgram(num_state_slots=4)
    planner = RetainingPlanner(is_moving=False)
    engine = EngineHarness(program, planner=planner, num_checkpoint_slots=2)
    engine.submit(replace(make_request(program, 1, session_key="s"), cache=CacheMode.DISABLED))

    engine.step_until_idle()

    assert engine.core.status().checkpoints == 0
    assert program.free() == program.capacity.total


def test_a_cancelled_request_publishes_nothing() -> None:
    program = ScriptedProgram(num_state_slots=4)
    planner = RetainingPlanner(is_moving=False)
    engine = EngineHarness(program, planner=planner, num_checkpoint_slots=2)
    handle = engine.submit(make_request(program, 1, max_new_tokens=20, session_key="s"))
    engine.step(4)

    handle.cancel()
    engine.step_until_idle()

    assert engine.core.status().checkpoints == 0
    assert program.free() == program.capacity.total
