"""Order as pure functions: nobody overtakes unproved, nobody starves, no attempt is in vain."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.engine.request import RequestOrder
from ninfer.engine.scheduler import (
    AdmissionFacts,
    AdmissionSnapshot,
    Attempt,
    ControlUnit,
    DecodeUnit,
    NoUnit,
    PrefillUnit,
    Scheduler,
    Unit,
    UnitKind,
    UnitSnapshot,
    WaitingView,
    choose_attempt,
    choose_unit,
)

ORDERS = st.integers(0, 9).map(RequestOrder)
SNAPSHOTS = st.builds(
    UnitSnapshot,
    prefill=st.none() | ORDERS,
    control=st.lists(ORDERS, max_size=3, unique=True).map(tuple),
    decode=st.lists(ORDERS, max_size=4, unique=True).map(tuple),
    last=st.none() | st.sampled_from(UnitKind),
)
NOBODY: frozenset[RequestOrder] = frozenset()
KIND_OF: dict[type[Unit], UnitKind] = {
    PrefillUnit: UnitKind.PREFILL,
    ControlUnit: UnitKind.CONTROL,
    DecodeUnit: UnitKind.DECODE,
}


def order(number: int) -> RequestOrder:
    return RequestOrder(number)


def possible_kinds(snapshot: UnitSnapshot) -> set[UnitKind]:
    kinds = set()
    if snapshot.prefill is not None:
        kinds.add(UnitKind.PREFILL)
    if snapshot.control:
        kinds.add(UnitKind.CONTROL)
    if snapshot.decode:
        kinds.add(UnitKind.DECODE)
    return kinds


def waiting(*numbers: int, tried: AdmissionFacts | None = None) -> tuple[WaitingView, ...]:
    return tuple(WaitingView(order(number), tried) for number in numbers)


def snapshot_of(views: tuple[WaitingView, ...], **changes: object) -> AdmissionSnapshot:
    plain = AdmissionSnapshot(
        waiting=views,
        revision=7,
        has_free_lane=True,
        has_transition=False,
        has_staged_request=False,
        protected=None,
        donors=NOBODY,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # names are the fields' own


@given(SNAPSHOTS)
def test_a_unit_runs_exactly_when_one_is_possible(snapshot: UnitSnapshot) -> None:
    unit = choose_unit(snapshot)

    assert isinstance(unit, NoUnit) == (not possible_kinds(snapshot))


@given(SNAPSHOTS)
def test_a_round_has_all_and_only_the_decode_ready_requests(snapshot: UnitSnapshot) -> None:
    unit = choose_unit(replace(snapshot, prefill=None, control=()))

    assert unit == (DecodeUnit(snapshot.decode) if snapshot.decode else NoUnit())


@given(SNAPSHOTS)
def test_a_chunk_is_read_whole_exactly_when_nobody_else_is_ready(snapshot: UnitSnapshot) -> None:
    unit = choose_unit(replace(snapshot, prefill=order(9), last=UnitKind.DECODE))

    assert unit == PrefillUnit(order(9), is_alone=not (snapshot.control or snapshot.decode))


@given(SNAPSHOTS)
def test_every_kind_that_stays_possible_runs_within_three_units(snapshot: UnitSnapshot) -> None:
    seen = set()
    last = snapshot.last
    for _ in range(3):
        unit = choose_unit(replace(snapshot, last=last))
        last = KIND_OF.get(type(unit), last)
        seen.add(last)

    assert possible_kinds(snapshot) <= seen


@settings(max_examples=30)
@given(st.lists(SNAPSHOTS, min_size=3, max_size=8), ORDERS)
def test_decode_is_never_kept_waiting_by_more_than_two_units(
    snapshots: list[UnitSnapshot], ready: RequestOrder
) -> None:
    last: UnitKind | None = None
    decoded = []
    for snapshot in snapshots:
        unit = choose_unit(replace(snapshot, decode=(ready,), last=last))
        last = KIND_OF[type(unit)]
        decoded.append(last is UnitKind.DECODE)

    assert all(any(decoded[i : i + 3]) for i in range(len(decoded) - 2))


def test_prefill_and_decode_take_turns() -> None:
    scheduler = Scheduler()
    kinds = []
    for _ in range(4):
        unit = choose_unit(UnitSnapshot(order(1), (), (order(0),), scheduler.last_unit))
        scheduler.note_unit(unit)
        kinds.append(type(unit))

    assert kinds == [PrefillUnit, DecodeUnit, PrefillUnit, DecodeUnit]


def test_the_head_is_tried_first() -> None:
    attempt = choose_attempt(snapshot_of(waiting(4, 5, 6)))

    assert attempt == Attempt(order(4), False, AdmissionFacts(7, order(4), NOBODY))


@given(
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_the_gate_lets_nobody_through_when_closed(
    has_free_lane: bool, has_transition: bool, has_staged_request: bool, num_waiting: int
) -> None:
    attempt = choose_attempt(
        snapshot_of(
            waiting(*range(num_waiting)),
            has_free_lane=has_free_lane,
            has_transition=has_transition,
            has_staged_request=has_staged_request,
        )
    )

    is_open = has_free_lane and not has_transition and not has_staged_request
    assert (attempt is not None) == (is_open and num_waiting > 0)


def test_nobody_overtakes_a_head_that_is_not_known_to_be_blocked() -> None:
    stale = AdmissionFacts(6, order(4), frozenset({order(1)}))

    attempt = choose_attempt(
        snapshot_of(
            waiting(4, tried=stale) + waiting(5),
            protected=order(4),
            donors=frozenset({order(1)}),
        )
    )

    assert attempt is not None
    assert (attempt.order, attempt.is_backfill) == (4, False)


def test_behind_a_blocked_head_the_first_untried_request_may_ask_for_a_proof() -> None:
    donors = frozenset({order(1)})
    facts = AdmissionFacts(7, order(4), donors)

    attempt = choose_attempt(
        snapshot_of(waiting(4, 5, tried=facts) + waiting(6, 7), protected=order(4), donors=donors)
    )

    assert attempt == Attempt(order(6), True, facts)


def test_nothing_is_tried_again_before_a_fact_changes() -> None:
    donors = frozenset({order(1), order(2)})
    facts = AdmissionFacts(7, order(4), donors)
    same = snapshot_of(waiting(4, 5, tried=facts), protected=order(4), donors=donors)

    assert choose_attempt(same) is None
    assert choose_attempt(replace(same, revision=8)) is not None
    assert choose_attempt(replace(same, donors=frozenset({order(1)}))) is not None
    assert choose_attempt(replace(same, waiting=same.waiting + waiting(6))) is not None


def test_donors_of_a_protected_head_only_become_fewer() -> None:
    scheduler = Scheduler()
    scheduler.protect(order(4), frozenset({order(1), order(2)}))

    scheduler.note_settled(order(1))
    scheduler.protect(order(4), frozenset({order(2), order(9)}))

    assert scheduler.donors == {order(2)}


def test_protection_ends_when_its_head_leaves_the_queue() -> None:
    scheduler = Scheduler()
    scheduler.protect(order(4), frozenset({order(1)}))
    scheduler.note_tried(order(4), order(4), 7)

    scheduler.note_left_queue(order(4))

    assert (scheduler.protected, scheduler.donors) == (None, NOBODY)
    assert scheduler.tried(order(4)) is None
