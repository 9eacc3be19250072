"""Resource transitions one by one; random lives are in `test_resource_transaction_life`."""

from collections.abc import Callable

import pytest

from ninfer.errors import IllegalMove, InvariantError, StaleHandle
from ninfer.program.contract import (
    Capture,
    Evict,
    FromCheckpoint,
    Materialize,
    Outcome,
    Rearrange,
    Release,
    ResourceVector,
    Retain,
    Root,
    SequenceHandle,
    Target,
)
from tests.support.booked_program import BookedProgram, demand_of, retained, root, started


def test_projecting_and_sealing_change_nothing() -> None:
    program = BookedProgram(num_pages=8, num_slots=3)
    source = retained(program, 100)
    before = program.facts(), program.transitions.resource_revision
    target = Materialize(demand_of(range(120), 9), FromCheckpoint(source, True), (Evict(source),))

    program.transitions.project(target)
    program.transitions.seal(target)

    assert (program.facts(), program.transitions.resource_revision) == before


def test_an_infeasible_target_cannot_be_sealed() -> None:
    program = BookedProgram(num_pages=1)

    with pytest.raises(InvariantError, match="PERMANENTLY_INFEASIBLE"):
        program.transitions.seal(Materialize(demand_of(range(100), 9), Root()))


def test_a_plan_from_before_another_transition_is_stale() -> None:
    program = BookedProgram()
    plan = program.transitions.seal(Materialize(demand_of(range(10), 5), Root()))
    root(program, 10, 5)
    before = program.facts()

    assert program.transitions.start(plan) is None
    assert program.facts() == before


def test_a_plan_starts_once() -> None:
    program = BookedProgram()
    plan = program.transitions.seal(Rearrange(()))
    running = program.transitions.start(plan)
    assert running is not None
    running.abort()

    assert program.transitions.start(plan) is None


def test_a_plan_of_another_program_is_stale() -> None:
    program, other = BookedProgram(owner=1), BookedProgram(owner=2)
    plan = other.transitions.seal(Rearrange(()))

    assert program.transitions.start(plan) is None


def test_a_capture_whose_sequence_grew_beyond_the_room_is_stale() -> None:
    program = BookedProgram(num_pages=2, num_slots=2)
    handle = root(program, 65, 30)
    program.prefill_all(handle)
    plan = program.transitions.seal(Capture(handle))
    program.decode(handle, 900)

    assert program.transitions.start(plan) is None


def test_only_one_transition_runs_at_a_time() -> None:
    program = BookedProgram()
    plans = [program.transitions.seal(Rearrange(())) for _ in range(2)]
    program.transitions.start(plans[0])

    with pytest.raises(InvariantError, match="unsettled"):
        program.transitions.start(plans[1])


def test_a_commit_before_the_last_stage_is_refused_and_may_follow_later() -> None:
    program = BookedProgram()
    running = started(program, Materialize(demand_of(range(10), 5), Root()))

    with pytest.raises(InvariantError, match="stages are left"):
        running.commit()
    running.advance()

    assert running.commit().outcome is Outcome.COMMITTED


@pytest.mark.parametrize("num_stages", [0, 1])
@pytest.mark.parametrize("consume", [False, True])
def test_an_abort_puts_everything_back(num_stages: int, consume: bool) -> None:
    program = BookedProgram()
    source = retained(program, 70)
    before = program.facts()
    running = started(
        program, Materialize(demand_of(range(90), 5), FromCheckpoint(source, consume))
    )
    for _ in range(num_stages):
        running.advance()

    result = running.abort()

    assert program.facts() == before
    assert result.outcome is Outcome.ABORTED
    assert result.sequence is None
    assert result.free == program.stores.free()
    program.check_contents()


def test_deleted_checkpoints_stay_deleted_after_an_abort() -> None:
    program = BookedProgram()
    old, kept = retained(program, 70), retained(program, 80, base=300)
    running = started(program, Materialize(demand_of(range(9), 5), Root(), (Evict(old),)))
    running.advance()

    result = running.abort()

    assert [summary.handle for summary in result.checkpoints] == [kept]
    assert result.free == ResourceVector(state_slots=2, main_pages=6)


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_ends_once(end: str) -> None:
    program = BookedProgram()
    running = started(program, Rearrange(()))
    getattr(running, end)()

    for call in (running.advance, running.commit, running.abort):
        with pytest.raises(IllegalMove):
            call()


def test_a_failed_stage_leaves_only_the_abort() -> None:
    program = BookedProgram()
    before = program.facts()
    running = started(program, Materialize(demand_of(range(9), 5), Root()))
    program.memory.clear_state = _broken  # type: ignore[method-assign]

    with pytest.raises(ZeroDivisionError):
        running.advance()
    for call in (running.advance, running.commit):
        with pytest.raises(IllegalMove):
            call()
    running.abort()

    assert program.facts() == before


def _broken(slot: int) -> None:
    raise ZeroDivisionError(slot)


def test_the_revision_moves_with_topology_and_not_with_growth() -> None:
    program = BookedProgram()
    handle = root(program, 60, 100)
    admitted = program.transitions.resource_revision
    program.prefill_all(handle)
    for token in range(900, 920):
        program.decode(handle, token)
    grown = program.transitions.resource_revision
    program.run(Release(handle))

    assert grown == admitted
    assert program.transitions.resource_revision > grown


def test_every_stage_and_end_of_a_transition_moves_the_revision() -> None:
    program = BookedProgram()
    old = retained(program, 70)
    target = Materialize(demand_of(range(9), 5), Root(), (Evict(old),))
    running = started(program, target)
    seen = [program.transitions.resource_revision]

    for step in (running.advance, running.advance, running.abort):
        step()
        seen.append(program.transitions.resource_revision)

    assert seen == sorted(set(seen))


def test_a_plan_made_while_another_transition_ran_is_stale_after_it() -> None:
    program = BookedProgram()
    running = started(program, Rearrange(()))
    plan = program.transitions.seal(Materialize(demand_of(range(9), 5), Root()))
    running.commit()

    assert program.transitions.start(plan) is None


@pytest.mark.parametrize("kind", [Capture, Retain, Release])
def test_a_sequence_with_provisional_tokens_is_left_alone(
    kind: Callable[[SequenceHandle], Target],
) -> None:
    program = BookedProgram()
    handle = root(program, 10, 5)
    program.prefill_all(handle)
    program.begin_decode(handle, 900)

    with pytest.raises(IllegalMove, match="provisional"):
        program.transitions.project(kind(handle))


def test_a_retain_meeting_provisional_tokens_at_its_commit_changes_nothing() -> None:
    program = BookedProgram()
    handle = root(program, 10, 5)
    program.prefill_all(handle)
    running = started(program, Retain(handle))
    program.begin_decode(handle, 900)
    before = program.facts()

    with pytest.raises(IllegalMove):
        running.commit()

    assert program.facts() == before
    program.commit(handle)
    assert running.commit().released == handle


def test_an_ended_sequence_can_be_retained_but_not_captured() -> None:
    program = BookedProgram()
    handle = root(program, 10, 5)
    program.prefill_all(handle)
    program.begin_decode(handle, 900)
    program.commit(handle, is_terminal=True)

    with pytest.raises(IllegalMove, match="ended"):
        program.transitions.project(Capture(handle))
    published = program.run(Retain(handle)).published

    assert published is not None
    assert program.read_checkpoint(published) == tuple(range(10))


def test_an_evicted_handle_is_stale_even_when_its_index_is_reused() -> None:
    program = BookedProgram()
    old = retained(program, 70)
    program.run(Rearrange((Evict(old),)))
    new = retained(program, 70)

    assert new.index == old.index
    with pytest.raises(StaleHandle):
        program.transitions.project(Rearrange((Evict(old),)))


def test_a_released_sequence_is_stale_even_when_its_index_is_reused() -> None:
    program = BookedProgram()
    old = root(program, 10, 5)
    program.run(Release(old))
    new = root(program, 10, 5)

    assert new.index == old.index
    with pytest.raises(StaleHandle):
        program.transitions.project(Release(old))


def test_abandoning_ends_everything_active_and_keeps_checkpoints() -> None:
    program = BookedProgram(num_pages=8, num_slots=4)
    kept = retained(program, 70)
    pending = root(program, 10, 5)
    program.prefill_all(pending)
    program.begin_decode(pending, 900)
    running = started(program, Materialize(demand_of(range(9), 5), Root()))
    running.advance()

    program.transitions.abandon()
    program.transitions.abandon()

    assert program.stores.free() == ResourceVector(state_slots=3, main_pages=6)
    assert program.read_checkpoint(kept) == tuple(range(70))
    assert not program.transitions.is_running
    with pytest.raises(IllegalMove):
        running.commit()


def test_abandoning_leaves_earlier_plans_stale() -> None:
    program = BookedProgram()
    root(program, 10, 5)
    plan = program.transitions.seal(Rearrange(()))

    program.transitions.abandon()

    assert program.transitions.start(plan) is None


def test_abandoning_nothing_moves_nothing() -> None:
    program = BookedProgram()
    retained(program, 70)
    before = program.transitions.resource_revision

    program.transitions.abandon()

    assert program.transitions.resource_revision == before
