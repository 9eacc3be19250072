"""PhysicalStores: what model units do to the books, and what they refuse."""

from collections.abc import Callable

import numpy as np
import pytest

from ninfer.errors import InvariantError, StaleHandle
from ninfer.program.contract import PrefillStep, Release, ResourceVector, SequenceHandle
from ninfer.program.physical_stores import PhysicalStores, StoreShape
from ninfer.program.sequence_table import SequencePhase
from tests.support.booked_program import BookedProgram, demand_of, retained, root


def ready(program: BookedProgram, num_tokens: int = 10, max_new: int = 60) -> SequenceHandle:
    handle = root(program, num_tokens, max_new)
    program.prefill_all(handle)
    return handle


def test_capacity_is_what_the_shape_says() -> None:
    program = BookedProgram(num_pages=8, num_slots=3, max_concurrency=2, max_context=256)

    capacity = program.stores.capacity

    assert (capacity.max_concurrency, capacity.max_context) == (2, 256)
    assert capacity.total == ResourceVector(state_slots=3, main_pages=8) == program.stores.free()


def test_a_block_table_of_another_shape_is_refused() -> None:
    shape = StoreShape(2, 256, 3, 8, 1)

    with pytest.raises(InvariantError, match="block table"):
        PhysicalStores(shape, 1, np.zeros((2, 5), np.int32))


@pytest.mark.parametrize(
    ("num_prompt", "max_new", "num_pages"),
    [(1, 1, 1), (64, 1, 1), (64, 2, 2), (255, 1, 4), (1, 10_000, 4), (1, 0, 0), (256, 0, 4)],
)
def test_a_root_needs_a_slot_and_what_it_can_write(
    num_prompt: int, max_new: int, num_pages: int
) -> None:
    program = BookedProgram(max_context=256)

    need = program.stores.root_need(demand_of(range(num_prompt), max_new))

    assert need == ResourceVector(state_slots=1, main_pages=num_pages)


@pytest.mark.parametrize("num_prompt", [256, 257, 1000])
def test_a_prompt_without_room_for_one_token_has_no_root(num_prompt: int) -> None:
    program = BookedProgram(max_context=256)

    assert program.stores.root_need(demand_of(range(num_prompt), 1)) is None


def test_a_deleted_checkpoint_gives_its_slot_and_pages_back() -> None:
    program = BookedProgram()
    handle = retained(program, 70)

    program.stores.release_checkpoint(handle)

    assert program.stores.free() == program.stores.capacity.total
    with pytest.raises(StaleHandle):
        program.stores.release_checkpoint(handle)


def test_a_released_sequence_gives_everything_back_in_any_phase() -> None:
    program = BookedProgram()
    handle = ready(program)
    program.begin_decode(handle, 900)

    program.stores.release_sequence(handle)

    assert program.stores.free() == program.stores.capacity.total
    assert program.stores.sequences.num_free == 2


def test_prefill_steps_count_down_to_the_anchor() -> None:
    program = BookedProgram()
    handle = root(program, 100, 5)

    program.stores.begin_prefill(handle, 70)
    first = program.stores.commit_prefill(handle, 70)
    program.stores.begin_prefill(handle, 29)
    second = program.stores.commit_prefill(handle, 29)

    assert (first, second) == (PrefillStep(70, 29), PrefillStep(29, 0))
    assert program.stores.view(handle).phase is SequencePhase.READY


def test_prefill_leaves_nothing_to_fold() -> None:
    program = BookedProgram()
    handle = root(program, 100, 5)
    state = program.stores.view(handle).state
    program.stores.state.set_pending_fold(state, 2)

    program.prefill(handle, 10)

    assert program.stores.view(handle).pending_fold == 0


def test_a_chunk_that_was_not_begun_cannot_be_committed() -> None:
    program = BookedProgram()
    handle = root(program, 100, 5)

    with pytest.raises(InvariantError):
        program.stores.commit_prefill(handle, 70)


def test_a_decode_round_leaves_its_column_to_be_folded_by_the_next() -> None:
    program = BookedProgram()
    handle = ready(program)

    program.decode(handle, 900)

    view = program.stores.view(handle)
    assert (view.frontier, view.anchor, view.pending_fold) == (10, 900, 1)
    program.check_contents()


def test_an_aborted_round_is_as_if_it_had_not_been() -> None:
    program = BookedProgram()
    handle = ready(program, num_tokens=65)
    program.decode(handle, 900)
    before = program.stores.view(handle)

    program.begin_decode(handle, 901)
    program.abort(handle)

    after = program.stores.view(handle)
    assert (after.frontier, after.anchor, after.phase) == (
        before.frontier,
        before.anchor,
        SequencePhase.READY,
    )
    program.check_contents()


@pytest.mark.parametrize("is_kept", [True, False])
def test_forced_control_keeps_all_or_nothing(is_kept: bool) -> None:
    program = BookedProgram()
    handle = ready(program, num_tokens=60)
    program.decode(handle, 900)

    program.control(handle, range(1000, 1008), is_kept=is_kept)
    program.decode(handle, 950)

    assert program.stores.view(handle).frontier == 61 + (8 if is_kept else 0)
    program.check_contents()


def test_an_aborted_row_gives_pages_back_but_not_the_promise() -> None:
    program = BookedProgram()
    handle = ready(program, num_tokens=60, max_new=120)
    kv = program.stores.sequences.get(handle).kv
    free = program.stores.free()
    program.stores.begin_rows([(handle, 70)])
    mapped = len(program.stores.kv.extent(kv).pages)

    program.stores.abort_row(handle, pending_fold=0)

    assert (mapped, len(program.stores.kv.extent(kv).pages)) == (3, 1)
    assert program.stores.free() == free


def test_a_partial_prefix_of_a_round_moves_the_frontier_by_as_much() -> None:
    program = BookedProgram()
    handle = ready(program)
    program.stores.begin_rows([(handle, 3)])

    program.stores.commit_row(handle, (900, 901), is_terminal=True, pending_fold=2)

    view = program.stores.view(handle)
    assert (view.frontier, view.anchor, view.pending_fold) == (11, 901, 2)
    assert view.phase is SequencePhase.ENDED


def test_the_last_token_of_the_limit_is_never_processed() -> None:
    program = BookedProgram()
    handle = ready(program, num_tokens=10, max_new=2)
    program.decode(handle, 900)
    program.decode(handle, 901)

    with pytest.raises(InvariantError):
        program.stores.begin_rows([(handle, 1)])

    view = program.stores.view(handle)
    assert (view.frontier, view.num_output_tokens) == (view.writable_tokens, 2)


REFUSED: dict[str, Callable[[PhysicalStores, SequenceHandle, SequenceHandle], object]] = {
    "one row twice": lambda stores, a, b: stores.begin_rows([(a, 1), (a, 1)]),
    "no column": lambda stores, a, b: stores.begin_rows([(a, 1), (b, 0)]),
    "more columns than are left": lambda stores, a, b: stores.begin_rows([(a, 1), (b, 61)]),
    "prefill of a ready row": lambda stores, a, b: stores.begin_prefill(a, 1),
    "a commit without a unit": lambda stores, a, b: stores.commit_row(
        a, (1,), is_terminal=False, pending_fold=1
    ),
    "an abort without a unit": lambda stores, a, b: stores.abort_row(a, pending_fold=0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_illegal_unit_raises_and_changes_no_row(name: str) -> None:
    program = BookedProgram(num_pages=8, num_slots=3)
    rows = ready(program), ready(program)
    before = program.facts()

    with pytest.raises(InvariantError):
        REFUSED[name](program.stores, *rows)

    assert program.facts() == before


@pytest.mark.parametrize("pending_fold", [-1, 4])
def test_a_commit_with_an_impossible_fold_changes_nothing(pending_fold: int) -> None:
    program = BookedProgram()
    handle = ready(program)
    program.stores.begin_rows([(handle, 1)])
    before = program.facts()

    with pytest.raises(InvariantError):
        program.stores.commit_row(handle, (1,), is_terminal=False, pending_fold=pending_fold)
    with pytest.raises(InvariantError):
        program.stores.abort_row(handle, pending_fold=pending_fold)

    assert program.facts() == before


def test_rows_of_a_round_begin_all_or_none() -> None:
    program = BookedProgram()
    fine, prefilling = ready(program), root(program, 10, 5)
    before = program.facts()

    with pytest.raises(InvariantError):
        program.stores.begin_rows([(fine, 1), (prefilling, 1)])

    assert program.facts() == before


def test_units_of_a_released_sequence_are_refused() -> None:
    program = BookedProgram()
    handle = ready(program)
    program.run(Release(handle))

    with pytest.raises(StaleHandle):
        program.stores.begin_rows([(handle, 1)])
