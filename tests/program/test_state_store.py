"""StateStore: the slots' life cycle, handles that die with every move, the scratch copy."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ninfer.errors import IllegalMove, InvariantError, StaleHandle
from ninfer.program.state_store import SlotCopy, SlotId, SlotState, StateHandle, StateStore

OWNER = 3
MAX_FOLD = 4


def make_store(num_slots: int = 3) -> StateStore:
    return StateStore(num_slots, OWNER, MAX_FOLD)


def active_in(store: StateStore) -> StateHandle:
    return store.activate(store.reserve())


def frozen_in(store: StateStore) -> StateHandle:
    return store.freeze(active_in(store))


@pytest.mark.parametrize(("num_slots", "max_fold"), [(0, 1), (1, -1)])
def test_a_store_needs_a_slot(num_slots: int, max_fold: int) -> None:
    with pytest.raises(InvariantError, match="no store"):
        StateStore(num_slots, OWNER, max_fold)


def test_a_reserved_slot_cannot_be_written() -> None:
    store = make_store()
    reserved = store.reserve()

    with pytest.raises(IllegalMove):
        store.writable(reserved)


def test_a_move_keeps_the_slot_and_kills_the_old_handle() -> None:
    store = make_store()
    frozen = frozen_in(store)

    moved = store.move(frozen)

    assert store.writable(moved) == frozen.slot
    with pytest.raises(StaleHandle):
        store.state(frozen)


def test_a_fork_leaves_its_source_and_names_the_copy() -> None:
    store = make_store()
    source = frozen_in(store)

    fork, copy = store.fork(source)

    assert copy == SlotCopy(source.slot, fork.slot)
    assert store.state(source) is SlotState.FROZEN
    assert store.state(fork) is SlotState.RESERVED


def test_pending_fold_follows_a_fork_and_a_move_but_not_a_new_owner() -> None:
    store = make_store()
    active = active_in(store)
    store.set_pending_fold(active, 3)

    frozen = store.freeze(active)
    fork, _ = store.fork(frozen)
    moved = store.move(frozen)
    folds = store.pending_fold(fork), store.pending_fold(moved)
    store.release(moved)
    reused = store.reserve()

    assert folds == (3, 3)
    assert reused.slot == moved.slot
    assert store.pending_fold(reused) == 0


def test_as_many_columns_may_be_pending_as_an_image_records() -> None:
    store = make_store()
    active = active_in(store)

    store.set_pending_fold(active, MAX_FOLD)

    assert store.pending_fold(active) == MAX_FOLD


def test_a_reused_slot_does_not_answer_to_its_old_handle() -> None:
    store = make_store(num_slots=1)
    old = store.reserve()
    store.release(old)
    new = store.reserve()

    assert new.slot == old.slot
    with pytest.raises(StaleHandle):
        store.release(old)


def test_scratch_is_outside_the_vector() -> None:
    store = make_store(num_slots=2)

    slots = {store.reserve().slot, store.reserve().slot}

    assert store.scratch_slot == 2
    assert store.scratch_slot not in slots
    assert store.free_slots == 0


def test_restoring_a_snapshot_brings_image_and_fold_back() -> None:
    store = make_store()
    active = active_in(store)
    store.set_pending_fold(active, 2)

    taken = store.snapshot(active)
    store.set_pending_fold(active, 0)
    back = store.restore(active)

    assert taken == SlotCopy(active.slot, store.scratch_slot)
    assert back == SlotCopy(store.scratch_slot, active.slot)
    assert store.pending_fold(active) == 2


def test_a_discarded_snapshot_frees_scratch_and_keeps_the_present_fold() -> None:
    store = make_store()
    active = active_in(store)
    store.set_pending_fold(active, 2)
    store.snapshot(active)
    store.set_pending_fold(active, 1)

    store.discard(active)
    store.snapshot(active)

    assert store.pending_fold(active) == 1


def test_releasing_an_image_drops_its_snapshot() -> None:
    store = make_store()
    held = active_in(store)
    other = active_in(store)
    store.snapshot(held)

    store.release(held)

    assert store.snapshot(other).destination == store.scratch_slot


REFUSED: dict[str, Callable[[StateStore, StateHandle, StateHandle, StateHandle], object]] = {
    "activating twice": lambda store, reserved, active, frozen: store.activate(active),
    "activating a frozen one": lambda store, reserved, active, frozen: store.activate(frozen),
    "freezing twice": lambda store, reserved, active, frozen: store.freeze(frozen),
    "freezing a held one": lambda store, reserved, active, frozen: store.freeze(active),
    "moving an active one": lambda store, reserved, active, frozen: store.move(active),
    "moving a reserved one": lambda store, reserved, active, frozen: store.move(reserved),
    "forking a reserved one": lambda store, reserved, active, frozen: store.fork(reserved),
    "forking without a free slot": lambda store, reserved, active, frozen: store.fork(frozen),
    "reserving without a free slot": lambda store, reserved, active, frozen: store.reserve(),
    "writing a frozen one": lambda store, reserved, active, frozen: store.writable(frozen),
    "folding a frozen one": lambda store, reserved, active, frozen: store.set_pending_fold(
        frozen, 0
    ),
    "too many columns": lambda store, reserved, active, frozen: store.set_pending_fold(
        active, MAX_FOLD + 1
    ),
    "fewer than no column": lambda store, reserved, active, frozen: store.set_pending_fold(
        active, -1
    ),
    "a second snapshot": lambda store, reserved, active, frozen: store.snapshot(active),
    "restoring another": lambda store, reserved, active, frozen: store.restore(frozen),
    "discarding another": lambda store, reserved, active, frozen: store.discard(frozen),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_illegal_move_raises_and_changes_nothing(name: str) -> None:
    store = make_store(num_slots=3)
    handles = store.reserve(), active_in(store), frozen_in(store)
    store.set_pending_fold(handles[1], 2)
    store.snapshot(handles[1])
    before = facts(store, handles)

    with pytest.raises(InvariantError):
        REFUSED[name](store, *handles)

    assert facts(store, handles) == before
    store.restore(handles[1])


@pytest.mark.parametrize(
    "foreign",
    [
        StateHandle(OWNER + 1, SlotId(0), 1),
        StateHandle(OWNER, SlotId(3), 1),
        StateHandle(OWNER, SlotId(-1), 1),
    ],
)
def test_a_handle_of_another_store_is_refused(foreign: StateHandle) -> None:
    store = make_store(num_slots=3)
    for _ in range(3):
        store.reserve()

    with pytest.raises(StaleHandle):
        store.release(foreign)


def facts(store: StateStore, handles: tuple[StateHandle, ...]) -> object:
    known = [(store.state(handle), store.pending_fold(handle)) for handle in handles]
    return known, store.free_slots


@dataclass
class Known:
    """What the test expects of one owned slot."""

    state: SlotState
    value: int
    fold: int


class StoreMachine(RuleBasedStateMachine):
    """Random life; each image is a number that only its owner's writes change."""

    @initialize(num_slots=st.integers(1, 4))
    def build(self, num_slots: int) -> None:
        self.store = StateStore(num_slots, OWNER, MAX_FOLD)
        self.images = [-1] * (num_slots + 1)
        self.known: dict[StateHandle, Known] = {}
        self.dead: list[StateHandle] = []
        self.held: tuple[StateHandle, Known] | None = None
        self.values = count()

    def pick(self, data: st.DataObject, *states: SlotState) -> StateHandle | None:
        handles = [h for h, k in self.known.items() if not states or k.state in states]
        return data.draw(st.sampled_from(handles)) if handles else None

    def copy(self, copy: SlotCopy) -> None:
        self.images[copy.destination] = self.images[copy.source]

    def replace(self, old: StateHandle, new: StateHandle, state: SlotState) -> None:
        known = self.known.pop(old)
        self.dead.append(old)
        self.known[new] = Known(state, known.value, known.fold)

    @rule()
    def reserve(self) -> None:
        if not self.store.free_slots:
            with pytest.raises(InvariantError):
                self.store.reserve()
            return
        handle = self.store.reserve()
        value = next(self.values)
        self.images[handle.slot] = value
        self.known[handle] = Known(SlotState.RESERVED, value, 0)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        source = self.pick(data)
        if source is None:
            return
        known = self.known[source]
        if known.state is SlotState.RESERVED or not self.store.free_slots:
            with pytest.raises(InvariantError):
                self.store.fork(source)
            return
        handle, copy = self.store.fork(source)
        self.copy(copy)
        self.known[handle] = Known(SlotState.RESERVED, known.value, known.fold)

    @rule(data=st.data(), event=st.sampled_from(["activate", "freeze", "move"]))
    def step(self, data: st.DataObject, event: str) -> None:
        handle = self.pick(data)
        if handle is None:
            return
        reachable = {
            (SlotState.RESERVED, "activate"): SlotState.ACTIVE,
            (SlotState.RESERVED, "freeze"): SlotState.FROZEN,
            (SlotState.ACTIVE, "freeze"): SlotState.FROZEN,
            (SlotState.FROZEN, "move"): SlotState.ACTIVE,
        }
        following = reachable.get((self.known[handle].state, event))
        is_held = self.held is not None and self.held[0] == handle
        if following is None or is_held:
            with pytest.raises(IllegalMove):
                getattr(self.store, event)(handle)
            return
        self.replace(handle, getattr(self.store, event)(handle), following)

    @rule(data=st.data(), fold=st.integers(0, MAX_FOLD))
    def write(self, data: st.DataObject, fold: int) -> None:
        handle = self.pick(data, SlotState.ACTIVE)
        if handle is None:
            return
        value = next(self.values)
        self.images[self.store.writable(handle)] = value
        self.store.set_pending_fold(handle, fold)
        self.known[handle].value, self.known[handle].fold = value, fold

    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        handle = self.pick(data, SlotState.ACTIVE)
        if handle is None:
            return
        if self.held is not None:
            with pytest.raises(IllegalMove):
                self.store.snapshot(handle)
            return
        self.copy(self.store.snapshot(handle))
        known = self.known[handle]
        self.held = (handle, Known(known.state, known.value, known.fold))

    @precondition(lambda self: self.held is not None)
    @rule(is_restored=st.booleans())
    def settle(self, is_restored: bool) -> None:
        assert self.held is not None
        handle, before = self.held
        self.held = None
        if is_restored:
            self.copy(self.store.restore(handle))
            self.known[handle] = before
        else:
            self.store.discard(handle)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        handle = self.pick(data)
        if handle is None:
            return
        self.store.release(handle)
        self.dead.append(handle)
        del self.known[handle]
        if self.held is not None and self.held[0] == handle:
            self.held = None

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), move=st.sampled_from(["release", "fork", "freeze", "writable", "state"]))
    def use_a_dead_handle(self, data: st.DataObject, move: str) -> None:
        with pytest.raises(StaleHandle):
            getattr(self.store, move)(data.draw(st.sampled_from(self.dead)))

    @invariant()
    def every_image_is_its_owners(self) -> None:
        for handle, known in self.known.items():
            assert self.store.state(handle) is known.state
            assert self.images[handle.slot] == known.value
            assert self.store.pending_fold(handle) == known.fold

    @invariant()
    def the_slots_balance(self) -> None:
        slots = {handle.slot for handle in self.known}
        assert len(slots) == len(self.known)
        assert self.store.free_slots == self.store.num_slots - len(slots)


def test_every_life_of_a_store_keeps_images_apart() -> None:
    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@pytest.mark.slow
def test_long_lives_of_a_store_keep_images_apart() -> None:
    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=1500, stateful_step_count=80, deadline=None)
    )
