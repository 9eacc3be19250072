"""Catalog: reserved places, claims, adoption of absolute results, and session bindings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.checkpoint_catalog import (
    CheckpointCatalog,
    CheckpointKind,
    Publication,
    ReservationId,
    RetentionClass,
    SessionIndex,
)
from ninfer.errors import InvariantError
from ninfer.program.contract import CheckpointHandle, CheckpointSummary, Tier


def handle(generation: int) -> CheckpointHandle:
    return CheckpointHandle(1, 0, generation)


def summary(generation: int, frontier: int = 8) -> CheckpointSummary:
    return CheckpointSummary(handle(generation), frontier, frozenset({Tier.DEVICE}))


def publication(order: int = 0, session_key: str | None = None) -> Publication:
    kind = CheckpointKind.SESSION_ENDPOINT
    return Publication(kind, RetentionClass.RECENT, order, session_key)


def publish(catalog: CheckpointCatalog, generation: int, session_key: str | None = None) -> None:
    reservation = catalog.reserve()
    known = tuple(CheckpointSummary(e.handle, e.frontier, e.tiers) for e in catalog.entries())
    catalog.adopt(
        (*known, summary(generation)),
        handle(generation),
        reservation,
        publication(generation, session_key),
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=20))
def test_only_a_later_request_replaces_a_binding(bindings: list[tuple[int, int]]) -> None:
    index = SessionIndex()
    for order, generation in bindings:
        index.bind("key", order, handle(generation))

    best = max((order for order, _ in bindings), default=None)
    first = next((g for order, g in bindings if order == best), None)
    assert index.find("key") == (None if first is None else handle(first))


def test_a_binding_ends_with_its_checkpoint() -> None:
    catalog = CheckpointCatalog(2)
    publish(catalog, 1, "key")

    catalog.adopt((), None, None, None)

    assert catalog.sessions.find("key") is None
    assert catalog.entries() == ()


def test_places_are_bounded_by_entries_and_reservations_together() -> None:
    catalog = CheckpointCatalog(2)
    publish(catalog, 1)
    reservation = catalog.reserve()

    assert reservation is not None
    assert catalog.reserve() is None
    catalog.cancel(reservation)
    assert catalog.reserve() is not None


def test_a_reservation_is_given_back_once() -> None:
    catalog = CheckpointCatalog(1)

    with pytest.raises(InvariantError, match="does not exist"):
        catalog.cancel(ReservationId(0))


def test_publication_uses_the_reserved_place_of_a_full_catalog() -> None:
    catalog = CheckpointCatalog(1)
    reservation = catalog.reserve()

    catalog.adopt((summary(1),), handle(1), reservation, publication())

    assert [entry.handle for entry in catalog.entries()] == [handle(1)]
    assert (catalog.num_free, catalog.num_reserved) == (0, 0)


def test_adoption_follows_programs_placement() -> None:
    catalog = CheckpointCatalog(2)
    publish(catalog, 1)

    catalog.adopt((CheckpointSummary(handle(1), 4, frozenset({Tier.HOST})),), None, None, None)

    entry = catalog.entries()[0]
    assert (entry.frontier, entry.tiers) == (4, frozenset({Tier.HOST}))


@pytest.mark.parametrize(
    ("summaries", "published", "message"),
    [
        ((summary(1), summary(1)), None, "twice"),
        ((summary(1), summary(9)), None, "nobody published"),
        ((summary(1),), handle(2), "does not exist"),
        ((summary(1),), handle(1), "not new"),
    ],
)
def test_impossible_results_are_found_out(
    summaries: tuple[CheckpointSummary, ...], published: CheckpointHandle | None, message: str
) -> None:
    catalog = CheckpointCatalog(2)
    publish(catalog, 1)

    with pytest.raises(InvariantError, match=message):
        catalog.check(summaries, published)

    assert [entry.handle for entry in catalog.entries()] == [handle(1)]


def test_claimed_entries_are_protected_until_the_transition_ends() -> None:
    catalog = CheckpointCatalog(3)
    publish(catalog, 1)
    publish(catalog, 2)

    catalog.claim(frozenset({handle(1)}))

    assert catalog.unprotected() == (handle(2),)
    with pytest.raises(InvariantError, match="at the same time"):
        catalog.claim(frozenset({handle(2)}))
    catalog.unclaim()
    assert set(catalog.unprotected()) == {handle(1), handle(2)}


def test_what_does_not_exist_cannot_be_claimed() -> None:
    catalog = CheckpointCatalog(1)

    with pytest.raises(InvariantError, match="do not exist"):
        catalog.claim(frozenset({handle(5)}))

    assert catalog.unprotected() == ()
