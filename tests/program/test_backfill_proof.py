"""Backfill proofs: what they promise holds when it is played out, and where none is given."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import StaleHandle
from ninfer.program.contract import (
    Demand,
    Evict,
    FromCheckpoint,
    Materialize,
    Rearrange,
    Release,
    Root,
    SequenceHandle,
)
from tests.support.booked_program import BookedProgram, demand_of, retained, root, started

HEAD = demand_of(range(100, 200), 93)
"""Three pages."""


def proves(
    program: BookedProgram, donors: set[SequenceHandle], borrower: Demand, head: Demand = HEAD
) -> bool:
    proof = program.transitions.prove_backfill(head, frozenset(donors), borrower)
    return proof is not None


def test_a_borrower_beside_the_donors_place_is_proved() -> None:
    program = BookedProgram(num_pages=4, num_slots=2, max_concurrency=2)
    donor = root(program, 10, 170)

    assert proves(program, {donor}, demand_of(range(9), 9))


def test_a_borrower_that_would_stand_in_the_heads_way_is_not() -> None:
    program = BookedProgram(num_pages=4, num_slots=3, max_concurrency=3)
    donor = root(program, 10, 100)

    assert proves(program, {donor}, demand_of(range(9), 55))
    assert not proves(program, {donor}, demand_of(range(9), 57))


def test_incumbents_that_are_no_donors_stay() -> None:
    program = BookedProgram(num_pages=6, num_slots=4, max_concurrency=3)
    donor = root(program, 10, 50)
    root(program, 10, 150)

    assert not proves(program, {donor}, demand_of(range(9), 9))


def test_inactive_cache_never_stands_in_the_way() -> None:
    program = BookedProgram(num_pages=4, num_slots=2, max_concurrency=2)
    retained(program, 130)

    assert proves(program, set(), demand_of(range(9), 9))


def test_a_page_shared_with_an_incumbent_is_not_freed_with_the_cache() -> None:
    program = BookedProgram(num_pages=5, num_slots=5, max_concurrency=3)
    source = retained(program, 128)
    program.run(Materialize(demand_of(range(129), 5), FromCheckpoint(source, consume=False)))
    small = demand_of(range(5), 5)

    assert program.transitions.prove_backfill(small, frozenset(), small) is not None
    assert not proves(program, set(), small)


def test_state_slots_and_lanes_are_counted_too() -> None:
    few_slots = BookedProgram(num_pages=8, num_slots=2, max_concurrency=3)
    few_lanes = BookedProgram(num_pages=8, num_slots=3, max_concurrency=2)
    root(few_slots, 5, 5)
    root(few_lanes, 5, 5)

    assert not proves(few_slots, set(), demand_of(range(9), 9))
    assert not proves(few_lanes, set(), demand_of(range(9), 9))


def test_what_can_never_be_served_proves_nothing() -> None:
    program = BookedProgram(num_pages=8, max_context=256)
    endless = demand_of(range(256), 1)

    assert not proves(program, set(), endless)
    assert not proves(program, set(), demand_of(range(9), 9), head=endless)


def test_no_proof_is_given_while_a_transition_is_unsettled() -> None:
    program = BookedProgram()
    started(program, Rearrange(()))

    assert not proves(program, set(), demand_of(range(9), 9))


def test_a_donor_that_ended_is_stale() -> None:
    program = BookedProgram()
    donor = root(program, 5, 5)
    program.run(Release(donor))

    with pytest.raises(StaleHandle):
        proves(program, {donor}, demand_of(range(9), 9))


def test_a_proof_is_bound_to_the_revision() -> None:
    program = BookedProgram()
    donor = root(program, 5, 5)

    proof = program.transitions.prove_backfill(HEAD, frozenset({donor}), demand_of(range(9), 9))

    assert proof is not None
    assert (proof.revision, proof.donors) == (
        program.transitions.resource_revision,
        frozenset({donor}),
    )


DEMANDS = st.builds(
    lambda num, budget: demand_of(range(num), budget), st.integers(1, 150), st.integers(1, 120)
)


@settings(deadline=None, max_examples=150)
@given(
    num_pages=st.integers(2, 9),
    active=st.lists(st.tuples(DEMANDS, st.booleans()), max_size=3),
    cached=st.lists(st.integers(1, 150), max_size=2),
    head=DEMANDS,
    borrower=DEMANDS,
)
def test_a_proved_head_fits_once_the_donors_ended(
    num_pages: int,
    active: list[tuple[Demand, bool]],
    cached: list[int],
    head: Demand,
    borrower: Demand,
) -> None:
    program = BookedProgram(num_pages=num_pages, num_slots=6, max_concurrency=4, max_context=200)
    donors = populate(program, active, cached)
    is_proved = proves(program, donors, borrower, head)

    for handle in donors:
        program.run(Release(handle))
    every = tuple(Evict(checkpoint.handle) for checkpoint in program.stores.checkpoints)
    program.run(Rearrange(every))

    # The borrower was to come first; that it now comes last changes no amount.
    is_head_in = program.is_feasible(Materialize(head, Root()))
    if is_head_in:
        program.run(Materialize(head, Root()))
    assert is_proved is (is_head_in and program.is_feasible(Materialize(borrower, Root())))


def populate(
    program: BookedProgram, active: list[tuple[Demand, bool]], cached: list[int]
) -> set[SequenceHandle]:
    """Fill a program as far as it goes; the handles of those that are donors."""
    for num_tokens in cached:
        if program.is_feasible(Materialize(demand_of(range(num_tokens + 1), 1), Root())):
            retained(program, num_tokens)
    donors = set()
    for demand, is_donor in active:
        sources = [
            target
            for checkpoint in program.stores.checkpoints
            if program.is_feasible(
                target := Materialize(demand, FromCheckpoint(checkpoint.handle, consume=False))
            )
        ]
        target = [*sources, Materialize(demand, Root())][0]
        if program.is_feasible(target):
            handle = program.run(target).sequence
            assert handle is not None
            donors |= {handle} if is_donor else set()
    return donors
