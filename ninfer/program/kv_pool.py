"""Page groups of one paged KV pool: who may grow, what is mapped, what is valid.

A page group is 64 token positions of every plane of the pool. An *allocation* has three extents:

    0 ........ frontier ........ mapped * 64 ........ reserved * 64
      valid             writable            promised, not yet given a page

Pages below a frontier may be shared by reference, but only full ones: the page a frontier lies in
has one owner, so an active sequence can always write behind its frontier without a copy. A promise
is counted as used from the moment it is made, which is why `grow` cannot fail inside it.

The pool also owns the host side of the block tables, one row for each active allocation, and says
which rows the executor must upload before the next unit. It touches no device memory and knows no
layer, sequence or checkpoint (design, section 6).
"""

import enum
import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NewType

import numpy as np
import numpy.typing as npt

from ninfer.config import PAGE_TOKENS
from ninfer.errors import IllegalMove, InvariantError, StaleHandle

PageId = NewType("PageId", int)
TableRow = NewType("TableRow", int)


class PoolKind(enum.Enum):
    """Which planes a pool groups; each kind has its own page ids."""

    MAIN = enum.auto()  # all full-attention layers
    BACKEND = enum.auto()  # the speculative drafter's growing context


@dataclass(frozen=True, slots=True)
class KvHandle:
    """An allocation of one pool; serial numbers are never reused."""

    owner: int
    kind: PoolKind
    serial: int


@dataclass(frozen=True, slots=True)
class KvExtent:
    """Published facts of an allocation.

    Attributes:
        pages: mapped pages in position order.
        reserved: pages promised in all, mapped ones included.
        frontier: valid tokens.
        row: block-table row of an active allocation.
    """

    pages: tuple[PageId, ...]
    reserved: int
    frontier: int
    row: TableRow | None


@dataclass(frozen=True, slots=True)
class TailCopy:
    """A partially filled page whose content the new owner needs."""

    source: PageId
    destination: PageId


class _State(enum.Enum):
    ACTIVE = enum.auto()  # grows and is written; has a table row
    FROZEN = enum.auto()  # immutable; mapped exactly up to its frontier


@dataclass(slots=True)
class _Allocation:
    state: _State
    reserved: int
    row: TableRow | None = None
    frontier: int = 0
    pages: list[PageId] = field(default_factory=list)


def pages_for(num_tokens: int) -> int:
    """Page groups that hold ``num_tokens`` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


class KvPool:
    """Owner of the page ids, reservations, references and block tables of one pool.

    Args:
        kind: which planes the pool groups.
        num_pages: page groups of the pool.
        owner: identity of the Program that the handles belong to.
        block_table: [table_rows, L] int32, may view pinned memory; cleared here. Entries behind
            the mapped extent are 0, which is a legal page that no kernel reads for its content.
    """

    def __init__(
        self, kind: PoolKind, num_pages: int, owner: int, block_table: npt.NDArray[np.int32]
    ) -> None:
        if num_pages < 1 or block_table.ndim != 2 or block_table.dtype != np.int32:
            raise InvariantError(f"no pool of {num_pages} pages and a {block_table.dtype} table")
        self.kind: Final = kind
        self.num_pages: Final = num_pages
        self._owner: Final = owner
        self._table = block_table
        self._table[:] = 0
        self._free_pages = [PageId(page) for page in range(num_pages)]
        self._free_rows = [TableRow(row) for row in range(block_table.shape[0])]
        self._references = [0] * num_pages
        self._promised = 0
        self._allocations: dict[int, _Allocation] = {}
        self._next_serial = 0
        self._dirty: set[TableRow] = set(self._free_rows)

    @property
    def free_pages(self) -> int:
        """Pages neither referenced nor promised."""
        return len(self._free_pages) - self._promised

    @property
    def free_rows(self) -> int:
        """Block-table rows without an allocation."""
        return len(self._free_rows)

    @property
    def table_width(self) -> int:
        """L: most pages one allocation can have."""
        return int(self._table.shape[1])

    def take_dirty_rows(self) -> tuple[TableRow, ...]:
        """Return the rows changed since the last call, ascending; the caller uploads them."""
        rows = tuple(sorted(self._dirty))
        self._dirty.clear()
        return rows

    def extent(self, handle: KvHandle) -> KvExtent:
        """Facts of an allocation.

        Raises:
            StaleHandle: it does not exist, here and in all other methods.
        """
        found = self._find(handle)
        return KvExtent(tuple(found.pages), found.reserved, found.frontier, found.row)

    def frontier(self, handle: KvHandle) -> int:
        """Valid tokens of an allocation."""
        return self._find(handle).frontier

    def row(self, handle: KvHandle) -> TableRow:
        """Block-table row of an active allocation."""
        return self._row_of(self._active(handle))

    def freed_by(self, handles: Iterable[KvHandle]) -> int:
        """Pages that would be free if exactly these allocations ended together.

        Counted from the references and promises that would be left, so a page shared inside the
        set is freed once and a page shared with an outsider not at all.
        """
        ending = [self._find(handle) for handle in set(handles)]
        dropped = Counter(page for found in ending for page in found.pages)
        unreferenced = sum(self._references[page] == count for page, count in dropped.items())
        return unreferenced + sum(found.reserved - len(found.pages) for found in ending)

    def open(self, reserved: int) -> KvHandle:
        """Promise ``reserved`` pages to a new, empty, active allocation and give it a table row.

        Raises:
            InvariantError: pages or rows are missing; nothing changed.
        """
        self._require(reserved, needs_row=True)
        return self._open(reserved, [], 0)

    def fork(self, source: KvHandle, reserved: int) -> tuple[KvHandle, TailCopy | None]:
        """Open an active allocation that continues ``source`` without disturbing it.

        Args:
            source: any allocation; its full pages up to the frontier become shared.
            reserved: pages promised in all, shared ones included.

        Returns:
            The allocation, and the copy of the partial tail page that must be made first.
        """
        found = self._find(source)
        if reserved < pages_for(found.frontier):
            raise IllegalMove(f"{reserved} pages cannot continue {found.frontier} tokens")
        shared = found.pages[: found.frontier // PAGE_TOKENS]
        self._require(reserved - len(shared), needs_row=True, width=reserved)
        handle = self._open(reserved, shared, found.frontier)
        return handle, self._copied_tail(found, handle)

    def snapshot(self, source: KvHandle) -> tuple[KvHandle, TailCopy | None]:
        """Create a frozen allocation at the frontier of an active one, which goes on unchanged."""
        found = self._active(source)
        shared = found.pages[: found.frontier // PAGE_TOKENS]
        reserved = pages_for(found.frontier)
        self._require(reserved - len(shared), needs_row=False)
        frozen = _Allocation(_State.FROZEN, reserved, frontier=found.frontier)
        handle = self._enter(frozen, shared)
        return handle, self._copied_tail(found, handle)

    def move(self, source: KvHandle, claim: KvHandle) -> None:
        """Let an empty active ``claim`` take over a frozen source; no page is copied.

        The claim's promise grows by the source's pages, and the source ends.
        """
        frozen = self._frozen(source)
        taker = self._active(claim)
        if taker.pages or taker.frontier:
            raise IllegalMove("a claim that already has pages cannot take over others")
        if taker.reserved + len(frozen.pages) > self.table_width:
            raise IllegalMove("the pages would not fit a table row")
        del self._allocations[source.serial]
        taker.pages, taker.frontier = frozen.pages, frozen.frontier
        taker.reserved += len(frozen.pages)
        self._write_row(taker)

    def freeze(self, handle: KvHandle) -> KvHandle:
        """Make an active allocation immutable; what lies behind the frontier is given back.

        Returns:
            The frozen allocation; ``handle`` is stale from now on.
        """
        found = self._active(handle)
        row = self._row_of(found)
        del self._allocations[handle.serial]
        kept = pages_for(found.frontier)
        self._promised -= found.reserved - len(found.pages)
        self._drop_pages(found.pages[kept:])
        self._give_row_back(row)
        frozen = _Allocation(_State.FROZEN, kept, None, found.frontier, found.pages[:kept])
        return self._register(frozen)

    def release(self, handle: KvHandle) -> None:
        """End an allocation; pages that nobody else references become free."""
        found = self._find(handle)
        del self._allocations[handle.serial]
        self._promised -= found.reserved - len(found.pages)
        self._drop_pages(found.pages)
        if found.row is not None:
            self._give_row_back(found.row)

    def grow(self, handle: KvHandle, num_tokens: int) -> None:
        """Map pages until ``num_tokens`` tokens can be written; never fails inside the promise.

        Raises:
            IllegalMove: the promise is smaller.
        """
        found = self._active(handle)
        wanted = pages_for(num_tokens)
        if wanted > found.reserved:
            raise IllegalMove(f"{num_tokens} tokens exceed {found.reserved} reserved pages")
        if wanted <= len(found.pages):
            return
        while len(found.pages) < wanted:
            found.pages.append(self._take_page())
        self._write_row(found)

    def advance(self, handle: KvHandle, frontier: int) -> None:
        """Declare everything below ``frontier`` valid.

        Raises:
            IllegalMove: it moves backwards or beyond what is mapped.
        """
        self.check_frontier(handle, frontier)
        self._active(handle).frontier = frontier

    def check_frontier(self, handle: KvHandle, frontier: int) -> None:
        """Raise what `advance` would raise, and change nothing."""
        found = self._active(handle)
        if not found.frontier <= frontier <= len(found.pages) * PAGE_TOKENS:
            raise IllegalMove(
                f"frontier {found.frontier} cannot become {frontier} "
                f"with {len(found.pages)} mapped pages"
            )

    def rollback(self, handle: KvHandle) -> None:
        """Unmap what lies wholly behind the frontier; the promise stays as it is."""
        found = self._active(handle)
        kept = pages_for(found.frontier)
        if kept == len(found.pages):
            return
        self._promised += len(found.pages) - kept
        self._drop_pages(found.pages[kept:])
        del found.pages[kept:]
        self._write_row(found)

    def _find(self, handle: KvHandle) -> _Allocation:
        found = self._allocations.get(handle.serial)
        if found is None or handle.owner != self._owner or handle.kind is not self.kind:
            raise StaleHandle(f"{handle} names no allocation of this pool")
        return found

    def _active(self, handle: KvHandle) -> _Allocation:
        found = self._find(handle)
        if found.state is not _State.ACTIVE:
            raise IllegalMove(f"{handle} is frozen")
        return found

    def _frozen(self, handle: KvHandle) -> _Allocation:
        found = self._find(handle)
        if found.state is not _State.FROZEN:
            raise IllegalMove(f"{handle} is still active")
        return found

    def _row_of(self, active: _Allocation) -> TableRow:
        if active.row is None:
            raise InvariantError("an active allocation has lost its table row")
        return active.row

    def _require(self, fresh: int, *, needs_row: bool, width: int | None = None) -> None:
        """Refuse before anything changes: ``fresh`` new pages, a row, a table ``width``."""
        if fresh < 0 or (fresh if width is None else width) > self.table_width:
            raise IllegalMove(f"{fresh} pages do not fit a table row of {self.table_width}")
        if fresh > self.free_pages:
            raise InvariantError(f"{fresh} pages asked for, {self.free_pages} are free")
        if needs_row and not self._free_rows:
            raise InvariantError("no block-table row is free")

    def _open(self, reserved: int, shared: Sequence[PageId], frontier: int) -> KvHandle:
        row = heapq.heappop(self._free_rows)
        active = _Allocation(_State.ACTIVE, reserved, row, frontier)
        handle = self._enter(active, shared)
        self._write_row(active)
        return handle

    def _enter(self, allocation: _Allocation, shared: Sequence[PageId]) -> KvHandle:
        """Register an allocation that references ``shared`` and is promised the rest."""
        for page in shared:
            self._references[page] += 1
        allocation.pages.extend(shared)
        self._promised += allocation.reserved - len(shared)
        return self._register(allocation)

    def _register(self, allocation: _Allocation) -> KvHandle:
        handle = KvHandle(self._owner, self.kind, self._next_serial)
        self._next_serial += 1
        self._allocations[handle.serial] = allocation
        return handle

    def _copied_tail(self, source: _Allocation, handle: KvHandle) -> TailCopy | None:
        """Map a page for the partial tail of ``source``, if it has one."""
        if source.frontier % PAGE_TOKENS == 0:
            return None
        taker = self._allocations[handle.serial]
        page = self._take_page()
        taker.pages.append(page)
        if taker.row is not None:
            self._write_row(taker)
        return TailCopy(source.pages[source.frontier // PAGE_TOKENS], page)

    def _take_page(self) -> PageId:
        page = heapq.heappop(self._free_pages)
        self._references[page] = 1
        self._promised -= 1
        return page

    def _drop_pages(self, pages: Iterable[PageId]) -> None:
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                heapq.heappush(self._free_pages, page)

    def _write_row(self, allocation: _Allocation) -> None:
        row = self._row_of(allocation)
        self._table[row, : len(allocation.pages)] = allocation.pages
        self._table[row, len(allocation.pages) :] = 0
        self._dirty.add(row)

    def _give_row_back(self, row: TableRow) -> None:
        self._table[row] = 0
        self._dirty.add(row)
        heapq.heappush(self._free_rows, row)
