"""What targets mean: reservations, verdicts, moves and forks, joint freeing, refused actions."""

from collections.abc import Callable

import pytest

from ninfer.errors import IllegalMove, StaleHandle, UnsupportedFeature
from ninfer.program.contract import (
    Capture,
    CheckpointHandle,
    Evict,
    FromCheckpoint,
    InactiveAction,
    Materialize,
    Outcome,
    Place,
    Rearrange,
    Release,
    ResourceVector,
    Retain,
    Root,
    SequenceHandle,
    Shorten,
    Target,
    Tier,
    Verdict,
)
from ninfer.program.sequence_table import SequencePhase
from tests.support.booked_program import BookedProgram, demand_of, retained, root, started


def test_admission_reserves_all_that_can_be_written() -> None:
    program = BookedProgram(num_pages=8, num_slots=3)

    result = program.run(Materialize(demand_of(range(100), 93), Root()))

    # 100 + 93 tokens, the last of which is never processed: 192 positions are three pages.
    assert result.free == ResourceVector(state_slots=2, main_pages=5)
    assert result.outcome is Outcome.COMMITTED
    assert result.reused_tokens == 0


def test_a_request_is_clamped_to_the_context() -> None:
    program = BookedProgram(num_pages=8, max_context=128)

    result = program.run(Materialize(demand_of(range(100), 10_000), Root()))

    assert result.free.main_pages == 6


def test_an_admitted_request_can_always_grow_to_its_end() -> None:
    program = BookedProgram(num_pages=5, num_slots=2)
    grower = root(program, 10, 120)
    root(program, 10, 110, base=500)
    program.prefill_all(grower)

    for token in range(1000, 1120):
        program.decode(grower, token)

    assert program.stores.view(grower).frontier == 129
    assert program.transitions.project(Release(grower)).free_after.main_pages == 3
    program.check_contents()


def test_a_prompt_that_fills_the_context_is_permanently_infeasible() -> None:
    program = BookedProgram(max_context=128)

    target = Materialize(demand_of(range(128), 1), Root())

    assert program.transitions.project(target).verdict is Verdict.PERMANENTLY_INFEASIBLE


def test_a_demand_beyond_the_pool_is_permanently_infeasible_whoever_holds_it() -> None:
    program = BookedProgram(num_pages=2, max_context=256)
    root(program, 10, 10)

    verdict = program.transitions.project(Materialize(demand_of(range(100), 100), Root())).verdict

    assert verdict is Verdict.PERMANENTLY_INFEASIBLE


def test_what_active_sequences_hold_blocks_and_is_named_missing() -> None:
    program = BookedProgram(num_pages=4, num_slots=2)
    root(program, 100, 50)

    projection = program.transitions.project(Materialize(demand_of(range(100), 50), Root()))

    assert projection.verdict is Verdict.TEMPORARILY_BLOCKED
    assert projection.missing == ResourceVector(main_pages=2)


def test_a_lane_too_many_is_blocked() -> None:
    program = BookedProgram(num_slots=3, max_concurrency=1)
    root(program, 5, 5)

    verdict = program.transitions.project(Materialize(demand_of(range(5), 5), Root())).verdict

    assert verdict is Verdict.TEMPORARILY_BLOCKED


def test_evicting_inside_the_target_makes_room() -> None:
    program = BookedProgram(num_pages=4, num_slots=2)
    old = retained(program, 128)
    demand = demand_of(range(500, 700), 50)

    without = program.transitions.project(Materialize(demand, Root())).verdict
    result = program.run(Materialize(demand, Root(), (Evict(old),)))

    assert without is Verdict.TEMPORARILY_BLOCKED
    assert result.checkpoints == ()
    assert result.free == ResourceVector(state_slots=1, main_pages=0)


def test_a_fork_reuses_the_prefix_and_keeps_its_source() -> None:
    program = BookedProgram(num_pages=8, num_slots=3)
    source = retained(program, 150)
    target = Materialize(demand_of(range(200), 20), FromCheckpoint(source, consume=False))

    projection = program.transitions.project(target)
    result = program.run(target)

    assert projection.verdict is Verdict.NEEDS_TRANSFER
    assert (projection.transfer_bytes, projection.transfer_operations) == (1000 + 10, 2)
    # Four pages, two of them shared with the source.
    assert projection.free_after == result.free == ResourceVector(state_slots=1, main_pages=3)
    assert projection.reused_tokens == result.reused_tokens == 150
    assert program.read_checkpoint(source) == tuple(range(150))


def test_a_consumed_source_is_moved_without_a_copy() -> None:
    program = BookedProgram(num_pages=8, num_slots=3)
    source = retained(program, 150)
    num_copies = program.memory.num_copies
    target = Materialize(demand_of(range(200), 20), FromCheckpoint(source, consume=True))

    projection = program.transitions.project(target)
    result = program.run(target)

    assert projection.verdict is Verdict.READY
    assert projection.free_after == result.free == ResourceVector(state_slots=2, main_pages=4)
    assert program.memory.num_copies == num_copies
    with pytest.raises(StaleHandle):
        program.stores.checkpoints.get(source)


def test_a_source_that_is_evicted_anyway_is_moved() -> None:
    program = BookedProgram(num_pages=4, num_slots=1)
    source = retained(program, 150)
    kept = FromCheckpoint(source, consume=False)

    result = program.run(Materialize(demand_of(range(200), 20), kept, (Evict(source),)))

    assert result.reused_tokens == 150
    assert result.checkpoints == ()
    program.check_contents()


def test_a_continued_sequence_runs_on_from_its_source() -> None:
    program = BookedProgram()
    source = retained(program, 70)
    result = program.run(Materialize(demand_of(range(90), 5), FromCheckpoint(source, False)))
    assert result.sequence is not None

    program.prefill_all(result.sequence)
    program.decode(result.sequence, 1000)
    program.decode(result.sequence, 1001)

    program.check_contents()


@pytest.mark.parametrize("consume", [False, True])
def test_a_continued_request_counts_only_its_own_output(consume: bool) -> None:
    program = BookedProgram()
    before = root(program, 10, 20)
    program.prefill_all(before)
    for token in (900, 901, 902):
        program.decode(before, token)
    source = program.run(Retain(before)).published
    assert source is not None
    demand = demand_of((*range(10), 900, 901, 950), 5)

    handle = program.run(Materialize(demand, FromCheckpoint(source, consume))).sequence
    assert handle is not None

    slot = program.stores.view(handle).slot
    assert program.memory.images[slot].counted == ()
    program.check_contents()


def test_a_source_that_is_no_prefix_is_never_feasible() -> None:
    program = BookedProgram()
    source = retained(program, 70)
    other = (*range(69), 555, *range(70, 80))

    projection = program.transitions.project(
        Materialize(demand_of(other, 5), FromCheckpoint(source, False))
    )

    assert projection.verdict is Verdict.PERMANENTLY_INFEASIBLE
    assert projection.missing == ResourceVector()


def test_the_anchor_must_lie_behind_the_source() -> None:
    program = BookedProgram()
    source = FromCheckpoint(retained(program, 70), consume=False)

    exact = program.transitions.project(Materialize(demand_of(range(70), 5), source)).verdict
    one_more = program.run(Materialize(demand_of(range(71), 5), source))

    assert exact is Verdict.PERMANENTLY_INFEASIBLE
    assert one_more.sequence is not None
    assert program.stores.view(one_more.sequence).phase is SequencePhase.READY


def test_a_capture_is_at_the_present_frontier_and_the_sequence_runs_on() -> None:
    program = BookedProgram()
    handle = root(program, 71, 20)
    program.prefill_all(handle)
    program.decode(handle, 900)

    published = program.run(Capture(handle)).published
    assert published is not None
    program.decode(handle, 901)

    assert program.read_checkpoint(published) == tuple(range(71))
    program.check_contents()


def test_a_capture_is_not_disturbed_by_units_before_its_commit() -> None:
    program = BookedProgram()
    handle = root(program, 71, 20)
    program.prefill_all(handle)
    running = started(program, Capture(handle))

    running.advance()
    program.decode(handle, 900)
    program.decode(handle, 901)
    published = running.commit().published

    assert published is not None
    assert program.read_checkpoint(published) == tuple(range(70))


def test_retaining_gives_back_what_lies_behind_the_frontier() -> None:
    program = BookedProgram(num_pages=8, num_slots=3, max_concurrency=1)
    handle = root(program, 71, 150)
    program.prefill_all(handle)
    projection = program.transitions.project(Retain(handle))

    result = program.run(Retain(handle))

    assert projection.verdict is Verdict.READY
    assert projection.free_after == result.free == ResourceVector(state_slots=2, main_pages=6)
    assert result.released == handle
    assert [summary.frontier for summary in result.checkpoints] == [70]
    assert program.stores.sequences.num_free == 1


@pytest.mark.parametrize("kind", [Capture, Retain])
def test_nothing_processed_is_no_checkpoint(kind: Callable[[SequenceHandle], Target]) -> None:
    program = BookedProgram()
    handle = root(program, 10, 5)

    verdict = program.transitions.project(kind(handle)).verdict

    assert verdict is Verdict.PERMANENTLY_INFEASIBLE


def test_a_capture_that_only_its_own_sequence_keeps_from_fitting_is_never_feasible() -> None:
    program = BookedProgram(num_slots=1)
    handle = root(program, 71, 5)
    program.prefill_all(handle)

    verdict = program.transitions.project(Capture(handle)).verdict

    assert verdict is Verdict.PERMANENTLY_INFEASIBLE


def test_releasing_frees_what_nobody_else_references() -> None:
    program = BookedProgram(num_pages=8, num_slots=3)
    source = retained(program, 128)
    fork = program.run(Materialize(demand_of(range(140), 5), FromCheckpoint(source, False)))
    assert fork.sequence is not None

    result = program.run(Release(fork.sequence))

    assert result.released == fork.sequence
    assert result.free == ResourceVector(state_slots=2, main_pages=6)


def test_evictions_are_freed_jointly() -> None:
    program = BookedProgram(num_pages=8, num_slots=3)
    first = retained(program, 128)
    handle = program.run(
        Materialize(demand_of(range(140), 5), FromCheckpoint(first, False))
    ).sequence
    assert handle is not None
    program.prefill_all(handle)
    second = program.run(Retain(handle)).published
    assert second is not None

    alone = program.transitions.project(Rearrange((Evict(first),))).free_after
    both = program.transitions.project(Rearrange((Evict(first), Evict(second)))).free_after

    assert alone.main_pages == 5
    assert both == program.stores.capacity.total


@pytest.mark.parametrize(
    "action",
    [
        lambda handle: Place(handle, frozenset({Tier.HOST})),
        lambda handle: Place(handle, frozenset({Tier.HOST, Tier.DEVICE})),
        lambda handle: Shorten(handle, 5),
    ],
)
def test_host_replicas_are_a_typed_refusal(
    action: Callable[[CheckpointHandle], InactiveAction],
) -> None:
    program = BookedProgram()
    handle = retained(program, 70)

    with pytest.raises(UnsupportedFeature):
        program.transitions.project(Rearrange((action(handle),)))


def test_placing_a_checkpoint_where_it_is_changes_nothing() -> None:
    program = BookedProgram()
    handle = retained(program, 70)
    before = program.facts()

    program.run(Rearrange((Place(handle, frozenset({Tier.DEVICE})),)))

    assert program.facts() == before


@pytest.mark.parametrize("tiers", [{Tier.DEVICE}, {Tier.HOST}, set()])
def test_placing_a_deleted_checkpoint_is_stale_before_all_else(tiers: set[Tier]) -> None:
    program = BookedProgram()
    handle = retained(program, 70)
    program.run(Rearrange((Evict(handle),)))

    with pytest.raises(StaleHandle):
        program.transitions.project(Rearrange((Place(handle, frozenset(tiers)),)))


def test_a_checkpoint_without_a_place_is_refused() -> None:
    program = BookedProgram()
    handle = retained(program, 70)

    with pytest.raises(IllegalMove):
        program.transitions.project(Rearrange((Place(handle, frozenset()),)))
