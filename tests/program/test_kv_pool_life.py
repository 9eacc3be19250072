"""Random lives of a `KvPool` against memory that remembers which token was written where."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
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

from ninfer.errors import InvariantError, StaleHandle
from ninfer.program.kv_pool import KvHandle, KvPool, PoolKind, TailCopy, pages_for
from tests.support.physical_memory import PAGE, SimulatedMemory

OWNER = 7


def snapshot_of(pool: KvPool, handles: list[KvHandle]) -> object:
    extents = [pool.extent(handle) for handle in handles]
    return extents, pool.free_pages, pool.free_rows, pool._table.tolist()


@dataclass
class Known:
    """What the test expects of one allocation."""

    tokens: list[int]
    reserved: int
    is_active: bool


class PoolMachine(RuleBasedStateMachine):
    """Random life of a pool; the model knows tokens and promises, and nothing about page ids."""

    @initialize(num_pages=st.integers(1, 9), rows=st.integers(1, 4), width=st.integers(1, 4))
    def build(self, num_pages: int, rows: int, width: int) -> None:
        self.table = np.zeros((rows, width), np.int32)
        self.uploaded = np.full((rows, width), -5, np.int32)
        self.pool = KvPool(PoolKind.MAIN, num_pages, OWNER, self.table)
        self.memory = SimulatedMemory(num_pages, 1)
        self.known: dict[KvHandle, Known] = {}
        self.dead: list[KvHandle] = []
        self.tokens = count(1000)

    def pick(self, data: st.DataObject, *, active: bool | None = None) -> KvHandle | None:
        handles = [h for h, k in self.known.items() if active is None or k.is_active is active]
        return data.draw(st.sampled_from(handles)) if handles else None

    def try_to(self, is_legal: bool, action: Callable[[], object]) -> bool:
        """Run a move; an illegal one must raise and change nothing."""
        if is_legal:
            action()
            return True
        before = snapshot_of(self.pool, list(self.known))
        with pytest.raises(InvariantError):
            action()
        assert snapshot_of(self.pool, list(self.known)) == before
        return False

    def expected_free(self) -> int:
        """Pages left, from the definition: unique full prefixes cannot be told apart here, so
        from what the allocations reference and were promised."""
        extents = [self.pool.extent(handle) for handle in self.known]
        unique = {page for extent in extents for page in extent.pages}
        promised = sum(k.reserved for k in self.known.values())
        return self.pool.num_pages - len(unique) - promised + sum(len(e.pages) for e in extents)

    @rule(reserved=st.integers(0, 5))
    def open(self, reserved: int) -> None:
        is_legal = reserved <= min(self.pool.free_pages, self.pool.table_width)
        is_legal = is_legal and self.pool.free_rows > 0
        opened: list[KvHandle] = []
        if self.try_to(is_legal, lambda: opened.append(self.pool.open(reserved))):
            self.known[opened[0]] = Known([], reserved, is_active=True)

    @rule(data=st.data(), num=st.integers(0, 140), is_kept=st.booleans())
    def write(self, data: st.DataObject, num: int, is_kept: bool) -> None:
        """A unit: map, write, then advance or roll back."""
        handle = self.pick(data, active=True)
        if handle is None:
            return
        known = self.known[handle]
        start = len(known.tokens)
        is_legal = start + num <= known.reserved * PAGE
        if not self.try_to(is_legal, lambda: self.pool.grow(handle, start + num)):
            return
        for row in self.pool.take_dirty_rows():
            self.uploaded[row] = self.table[row]
        written = [next(self.tokens) for _ in range(num)]
        self.memory.write(self.uploaded[self.pool.row(handle)].tolist(), start, written)
        accepted = num if is_kept else data.draw(st.integers(0, num))
        self.pool.advance(handle, start + accepted)
        self.pool.rollback(handle)
        known.tokens.extend(written[:accepted])

    @rule(data=st.data(), extra=st.integers(-1, 3))
    def fork(self, data: st.DataObject, extra: int) -> None:
        source = self.pick(data)
        if source is None:
            return
        tokens = self.known[source].tokens
        reserved = pages_for(len(tokens)) + extra
        is_legal = (
            extra >= 0
            and reserved <= self.pool.table_width
            and reserved - len(tokens) // PAGE <= self.pool.free_pages
            and self.pool.free_rows > 0
        )
        forked: list[tuple[KvHandle, TailCopy | None]] = []
        if self.try_to(is_legal, lambda: forked.append(self.pool.fork(source, reserved))):
            self.adopt(forked[0], Known(list(tokens), reserved, is_active=True))

    @rule(data=st.data())
    def snapshot(self, data: st.DataObject) -> None:
        source = self.pick(data, active=True)
        if source is None:
            return
        tokens = self.known[source].tokens
        is_legal = (1 if len(tokens) % PAGE else 0) <= self.pool.free_pages
        taken: list[tuple[KvHandle, TailCopy | None]] = []
        if self.try_to(is_legal, lambda: taken.append(self.pool.snapshot(source))):
            known = Known(list(tokens), pages_for(len(tokens)), is_active=False)
            self.adopt(taken[0], known)

    def adopt(self, made: tuple[KvHandle, TailCopy | None], known: Known) -> None:
        handle, tail = made
        if tail is not None:
            self.memory.copy_page(PoolKind.MAIN, tail.source, tail.destination)
        self.known[handle] = known

    @rule(data=st.data())
    def freeze(self, data: st.DataObject) -> None:
        handle = self.pick(data)
        if handle is None:
            return
        known = self.known[handle]
        frozen: list[KvHandle] = []
        if self.try_to(known.is_active, lambda: frozen.append(self.pool.freeze(handle))):
            self.dead.append(handle)
            del self.known[handle]
            reserved = pages_for(len(known.tokens))
            self.known[frozen[0]] = Known(known.tokens, reserved, is_active=False)

    @rule(data=st.data(), growth=st.integers(0, 2))
    def move(self, data: st.DataObject, growth: int) -> None:
        source = self.pick(data, active=False)
        if source is None or not self.pool.free_rows or growth > self.pool.free_pages:
            return
        held = self.known[source].reserved
        if growth > self.pool.table_width:
            return
        claim = self.pool.open(growth)
        self.known[claim] = Known([], growth, is_active=True)
        is_legal = held + growth <= self.pool.table_width
        if self.try_to(is_legal, lambda: self.pool.move(source, claim)):
            self.dead.append(source)
            self.known[claim] = Known(self.known.pop(source).tokens, held + growth, is_active=True)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        handle = self.pick(data)
        if handle is None:
            return
        expected = self.pool.freed_by([handle])
        before = self.pool.free_pages
        self.pool.release(handle)
        del self.known[handle]
        self.dead.append(handle)
        assert self.pool.free_pages - before == expected

    @rule(data=st.data())
    def joint_freeing_is_what_really_happens(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(list(self.known)))) if self.known else set()
        expected = self.pool.freed_by(chosen)
        before = self.pool.free_pages
        for handle in chosen:
            self.pool.release(handle)
            del self.known[handle]
            self.dead.append(handle)
        assert self.pool.free_pages - before == expected

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def use_a_dead_handle(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.dead))
        move = data.draw(st.sampled_from(["release", "freeze", "extent", "rollback", "snapshot"]))
        with pytest.raises(StaleHandle):
            getattr(self.pool, move)(handle)

    @invariant()
    def every_token_reads_back(self) -> None:
        for handle, known in self.known.items():
            extent = self.pool.extent(handle)
            assert extent.frontier == len(known.tokens)
            assert extent.reserved == known.reserved
            assert self.memory.read(extent.pages, len(known.tokens)) == known.tokens

    @invariant()
    def the_ledger_balances(self) -> None:
        assert self.pool.free_pages == self.expected_free() >= 0
        num_active = sum(known.is_active for known in self.known.values())
        assert self.pool.free_rows == self.table.shape[0] - num_active

    @invariant()
    def shared_pages_are_full_for_all_their_owners(self) -> None:
        owners: dict[int, list[int]] = {}
        for handle, known in self.known.items():
            for index, page in enumerate(self.pool.extent(handle).pages):
                owners.setdefault(page, []).append(len(known.tokens) - index * PAGE)
        shared = [valid for valid in owners.values() if len(valid) > 1]
        assert all(min(valid) >= PAGE for valid in shared)

    @invariant()
    def rows_are_exactly_the_mapping(self) -> None:
        width = self.pool.table_width
        expected = np.zeros_like(self.table)
        for handle, known in self.known.items():
            extent = self.pool.extent(handle)
            if known.is_active:
                expected[extent.row] = [*extent.pages, *[0] * (width - len(extent.pages))]
        assert (self.table == expected).all()


def test_every_life_of_a_pool_keeps_tokens_and_ledger() -> None:
    run_state_machine_as_test(
        PoolMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )


@pytest.mark.slow
def test_long_lives_of_a_pool_keep_tokens_and_ledger() -> None:
    run_state_machine_as_test(
        PoolMachine, settings=settings(max_examples=1500, stateful_step_count=80, deadline=None)
    )
