"""KvPool: what each move does, and what it refuses. Random lives are in `test_kv_pool_life`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ninfer.errors import InvariantError, StaleHandle
from ninfer.program.kv_pool import KvHandle, KvPool, PoolKind, TailCopy, pages_for

OWNER = 7


def make_pool(num_pages: int = 6, rows: int = 3, width: int = 4) -> KvPool:
    return KvPool(PoolKind.MAIN, num_pages, OWNER, np.full((rows, width), 99, np.int32))


def open_with(pool: KvPool, reserved: int, num_tokens: int) -> KvHandle:
    handle = pool.open(reserved)
    pool.grow(handle, num_tokens)
    pool.advance(handle, num_tokens)
    return handle


def test_pages_round_up() -> None:
    assert [pages_for(n) for n in (0, 1, 64, 65, 128)] == [0, 1, 1, 2, 2]


def test_a_promise_counts_as_used_at_once() -> None:
    pool = make_pool(num_pages=6)

    pool.open(4)

    assert pool.free_pages == 2


def test_growth_uses_the_promise_and_not_the_free_pages() -> None:
    pool = make_pool(num_pages=6)
    handle = pool.open(4)

    pool.grow(handle, 130)

    assert pool.free_pages == 2
    assert len(pool.extent(handle).pages) == 3


def test_mapped_pages_are_not_valid_until_advanced() -> None:
    pool = make_pool()
    handle = pool.open(2)

    pool.grow(handle, 128)

    assert pool.frontier(handle) == 0


def test_rollback_unmaps_and_keeps_the_promise() -> None:
    pool = make_pool(num_pages=6)
    handle = open_with(pool, 4, 10)
    pool.grow(handle, 250)

    pool.rollback(handle)

    extent = pool.extent(handle)
    assert (len(extent.pages), extent.reserved, extent.frontier) == (1, 4, 10)
    assert pool.free_pages == 2


def test_a_table_row_lists_the_mapped_pages_and_zeros() -> None:
    table = np.full((2, 4), 99, np.int32)
    pool = KvPool(PoolKind.MAIN, 6, OWNER, table)
    handle = pool.open(4)

    pool.grow(handle, 100)

    row = pool.row(handle)
    assert table[row].tolist() == [*pool.extent(handle).pages, 0, 0]


def test_every_row_is_dirty_at_first_and_later_only_what_changed() -> None:
    pool = make_pool(rows=3)
    first = pool.take_dirty_rows()
    handle = pool.open(2)
    opened = pool.take_dirty_rows()
    pool.grow(handle, 20)
    grown = pool.take_dirty_rows()
    pool.grow(handle, 30)
    unchanged = pool.take_dirty_rows()

    assert first == (0, 1, 2)
    assert opened == grown == (pool.row(handle),)
    assert unchanged == ()


def test_a_fork_shares_full_pages_and_copies_the_partial_tail() -> None:
    pool = make_pool(num_pages=8)
    source = open_with(pool, 3, 150)

    fork, tail = pool.fork(source, 4)

    before, after = pool.extent(source).pages, pool.extent(fork).pages
    assert after[:2] == before[:2]
    assert tail == TailCopy(before[2], after[2])
    assert after[2] not in before
    assert pool.frontier(fork) == 150


def test_a_fork_at_a_page_boundary_copies_nothing() -> None:
    pool = make_pool()
    source = open_with(pool, 2, 128)

    _, tail = pool.fork(source, 3)

    assert tail is None


def test_a_shared_page_becomes_free_with_its_last_owner() -> None:
    pool = make_pool(num_pages=6)
    source = open_with(pool, 2, 128)
    fork, _ = pool.fork(source, 2)

    pool.release(source)
    after_first = pool.free_pages
    pool.release(fork)

    assert (after_first, pool.free_pages) == (4, 6)


def test_joint_freeing_counts_references_left_and_not_owners() -> None:
    pool = make_pool(num_pages=6)
    first = open_with(pool, 2, 128)
    second, _ = pool.fork(first, 3)

    freed = (pool.freed_by([first]), pool.freed_by([second]), pool.freed_by([first, second]))

    assert freed == (0, 1, 3)


def test_a_handle_named_twice_is_freed_once() -> None:
    pool = make_pool()
    handle = open_with(pool, 2, 128)

    assert pool.freed_by([handle, handle]) == 2


def test_freezing_gives_back_everything_behind_the_frontier() -> None:
    pool = make_pool(num_pages=6, rows=1)
    handle = open_with(pool, 4, 70)
    pool.grow(handle, 200)

    frozen = pool.freeze(handle)

    extent = pool.extent(frozen)
    assert (len(extent.pages), extent.reserved, extent.row) == (2, 2, None)
    assert (pool.free_pages, pool.free_rows) == (4, 1)


def test_moving_needs_only_the_growth_beyond_the_source() -> None:
    pool = make_pool(num_pages=4)
    source = pool.freeze(open_with(pool, 3, 130))
    pages = pool.extent(source).pages

    claim = pool.open(1)
    pool.move(source, claim)

    extent = pool.extent(claim)
    assert (extent.pages, extent.reserved, extent.frontier) == (pages, 4, 130)
    assert pool.free_pages == 0


def test_a_move_beyond_a_table_row_is_refused() -> None:
    pool = make_pool(num_pages=6, width=4)
    source = pool.freeze(open_with(pool, 2, 100))
    claim = pool.open(3)
    before = snapshot_of(pool, [source, claim])

    with pytest.raises(InvariantError, match="row"):
        pool.move(source, claim)

    assert snapshot_of(pool, [source, claim]) == before


@pytest.mark.parametrize(
    ("num_pages", "table"),
    [
        (0, np.zeros((1, 1), np.int32)),
        (1, np.zeros(1, np.int32)),
        (1, np.zeros((1, 1), np.int64)),
    ],
)
def test_a_pool_needs_pages_and_an_int32_matrix(num_pages: int, table: Any) -> None:
    with pytest.raises(InvariantError, match="no pool"):
        KvPool(PoolKind.MAIN, num_pages, OWNER, table)


REFUSED: dict[str, Callable[[KvPool, KvHandle, KvHandle], object]] = {
    "growth beyond the promise": lambda pool, active, frozen: pool.grow(active, 129),
    "frontier backwards": lambda pool, active, frozen: pool.advance(active, 69),
    "frontier beyond the mapping": lambda pool, active, frozen: pool.advance(active, 129),
    "growth of a frozen one": lambda pool, active, frozen: pool.grow(frozen, 1),
    "frontier of a frozen one": lambda pool, active, frozen: pool.advance(frozen, 64),
    "rollback of a frozen one": lambda pool, active, frozen: pool.rollback(frozen),
    "freezing twice": lambda pool, active, frozen: pool.freeze(frozen),
    "snapshot of a frozen one": lambda pool, active, frozen: pool.snapshot(frozen),
    "a row of a frozen one": lambda pool, active, frozen: pool.row(frozen),
    "moving an active one": lambda pool, active, frozen: pool.move(active, active),
    "moving into one with pages": lambda pool, active, frozen: pool.move(frozen, active),
    "more pages than are free": lambda pool, active, frozen: pool.open(4),
    "more pages than a row holds": lambda pool, active, frozen: pool.open(5),
    "a negative promise": lambda pool, active, frozen: pool.open(-1),
    "a fork shorter than its source": lambda pool, active, frozen: pool.fork(active, 1),
    "a fork wider than a row": lambda pool, active, frozen: pool.fork(active, 5),
    "a fork beyond what is free": lambda pool, active, frozen: pool.fork(frozen, 4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_illegal_move_raises_and_changes_nothing(name: str) -> None:
    pool = make_pool(num_pages=6)
    active = open_with(pool, 2, 70)
    frozen = pool.freeze(open_with(pool, 1, 40))
    before = snapshot_of(pool, [active, frozen])

    with pytest.raises(InvariantError):
        REFUSED[name](pool, active, frozen)

    assert snapshot_of(pool, [active, frozen]) == before


def test_a_fork_without_a_free_row_is_refused() -> None:
    pool = make_pool(rows=1)
    source = open_with(pool, 1, 10)

    with pytest.raises(InvariantError, match="row"):
        pool.fork(source, 2)

    assert pool.free_pages == 5


def test_a_released_handle_is_stale_for_ever() -> None:
    pool = make_pool()
    old = pool.open(1)
    pool.release(old)
    pool.open(1)

    with pytest.raises(StaleHandle):
        pool.release(old)


def test_a_frozen_allocation_leaves_its_active_handle_stale() -> None:
    pool = make_pool()
    active = open_with(pool, 1, 3)
    pool.freeze(active)

    with pytest.raises(StaleHandle):
        pool.grow(active, 4)


@pytest.mark.parametrize(
    "foreign", [KvHandle(OWNER + 1, PoolKind.MAIN, 0), KvHandle(OWNER, PoolKind.BACKEND, 0)]
)
def test_a_handle_of_another_pool_is_refused(foreign: KvHandle) -> None:
    pool = make_pool()
    pool.open(1)

    with pytest.raises(StaleHandle):
        pool.extent(foreign)


def snapshot_of(pool: KvPool, handles: list[KvHandle]) -> object:
    extents = [pool.extent(handle) for handle in handles]
    return extents, pool.free_pages, pool.free_rows, pool._table.tolist()
