"""Which columns go with which expert, for more than eight tokens on CUDA.

    order   choices (token * k + slot) sorted by expert, those of one expert in their own order
    places  where in that order each choice stands; not for who gives no address
    plan    entries (expert, first place in order, count), so many columns at most; unused: count 0

Entries are as even as those of an expert can be, and entries of more columns stand before those of
fewer, in eight classes: who takes them in turn ends when the others do.

A block places a run of choices. What it has to know of the others, how many there are of each
expert before its own and in all, it counts by itself, so that no block waits for another: reading
all choices anew costs less than one more launch. Within the block, a table [expert][warp] of the
choices of each warp is added up. All is a function of the choices.

Like the ranking, the plan is complete for every kernel that starts behind it (`expert_rank`), and
like others behind the ranking it reads the choices before its predecessor has ended.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.launch import WARP, blocks_for

ENTRY_BYTES: Final = 12
MAX_EXPERTS: Final = 1024
THREADS: Final = 1024

_PART_WARPS: Final = 8  # warps whose counts of one expert a thread adds up
_MOST_PARTS: Final = THREADS // (WARP * _PART_WARPS)
_TOGETHER: Final = 16  # choices of a thread that are under way at once

_CLASSES: Final = 8
"""Classes of entries by their columns; a thread has 16 bits for how many there are of each."""

_CLASS_WORDS: Final = _CLASSES // 2

_SCAN_BYTES: Final = 8 * WARP

Address = Any
Array = Any
Index = Any


def max_entries(num_choices: int, num_experts: int, columns: int) -> int:
    """Entries of at most ``columns`` that any choices fit in."""
    return num_choices // columns + min(num_experts, num_choices)


def plan_grid(num_choices: int, num_experts: int) -> tuple[int, int, int]:
    """Blocks of the plan of so many choices."""
    return blocks_for(num_choices, WARP * _PART_WARPS * _parts(num_experts)), 1, 1


def _parts(num_experts: int) -> int:
    """Parts of the warps that place choices: a thread for each expert and part."""
    return min(_MOST_PARTS, THREADS // num_experts)


@cache
def make_plan(num_experts: int) -> Kernel:
    """Grid (`plan_grid`), block (1024,)."""
    parts = _parts(num_experts)
    own_choices = WARP * _PART_WARPS * parts
    row = _PART_WARPS * parts + 1  # one word more, so that experts start at different banks
    # Bytes of shared memory: counts before the block's choices, other counts, table, sums of parts.
    rest_at, table_at = 4 * num_experts, 8 * num_experts
    sums_at = table_at + 4 * num_experts * row
    scan_at = sums_at + 4 * num_experts * parts
    clear, count = _make_clear(sums_at), _make_count(rest_at)
    add_up = _make_add_up(num_experts, parts, row)
    counted_of = _make_counted_of(num_experts, rest_at)
    sum_before, stand = _make_sum_before(num_experts, parts), _make_stand()

    def make_entries(
        experts: int,
        plan: int,
        order: int,
        places: int,
        num_choices: int,
        num_entries: int,
        columns: int,
    ) -> None:
        base = ptx.shared_address(cuda.shared.array(0, uint64))
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread & int32(31), thread >> int32(5)
        first = int32(cuda.blockIdx.x) * int32(own_choices)
        choice = first + thread
        is_own = int32(thread < int32(own_choices)) & int32(choice < num_choices)
        expert = ptx.fresh_u32_if(experts + uint64(choice) * uint64(4), uint32(is_own))
        clear(base, thread)
        cuda.syncthreads()
        count(experts, num_choices, first, thread, base)
        counted = base + uint32(table_at) + (expert * uint32(row) + uint32(warp)) * uint32(4)
        rank = _rank_in_warp(expert, is_own, lane, counted)
        cuda.syncthreads()
        mark = base + uint32(thread) * uint32(4)
        earlier, mine = counted_of(mark, thread)
        add_up(base + uint32(table_at), base + uint32(sums_at), thread)
        needed = int32(ptx.divide_u32(uint32(mine + columns - int32(1)), uint32(columns)))
        start, entry, used, each = stand(mine, needed, columns, base + uint32(scan_at), lane, warp)
        ptx.wait_for_predecessor()
        if thread < int32(num_experts):
            ptx.put_shared_u32(mark, uint32(start + earlier))
        _write_entries(plan, thread, start, mine, entry, needed, each)
        _clear_entries(plan, thread, used, num_entries)
        cuda.syncthreads()
        if is_own != int32(0):
            place = rank + ptx.shared_u32(base + expert * uint32(4)) + ptx.shared_u32(counted)
            place += sum_before(base + uint32(sums_at), expert, warp)
            ptx.store_i32(order + uint64(place) * uint64(4), choice)
            if places != uint64(0):
                ptx.store_i32(places + uint64(choice) * uint64(4), place)
        ptx.fence_gpu()
        cuda.syncthreads()
        ptx.release_successor()

    return Kernel(
        f"expert_plan_{num_experts}",
        make_entries,
        (Param.ADDRESS,) * 4 + (Param.I32,) * 3,
        threads=THREADS,
        max_registers=64,
        dynamic_shared_bytes=scan_at + _SCAN_BYTES * (1 + _CLASS_WORDS // 2),
    )


def _make_clear(nbytes: int) -> Any:
    @device_function
    def clear(base: Address, thread: Index) -> None:
        """Zeros of the counts and the table."""
        for at in range(4 * thread, nbytes, 4 * THREADS):
            ptx.put_shared_u32(base + uint32(at), uint32(0))

    return clear


def _make_count(rest_at: int) -> Any:
    @device_function
    def count(
        experts: Address, num_choices: Index, own: Index, thread: Index, base: Address
    ) -> None:
        """Choices of each expert before those of the block, and the others."""
        seen = cuda.local.array(_TOGETHER, uint32)
        first = int32(thread)
        while first < num_choices:
            for i in range(_TOGETHER):
                choice = first + int32(i * THREADS)
                at = experts + uint64(choice) * uint64(4)
                seen[i] = ptx.fresh_u32_if(at, uint32(choice < num_choices))
            for i in range(_TOGETHER):
                choice = first + int32(i * THREADS)
                if choice < num_choices:
                    at = base + uint32(seen[i]) * uint32(4)
                    ptx.add_shared_u32(at + uint32(choice >= own) * uint32(rest_at), uint32(1))
            first += int32(_TOGETHER * THREADS)

    return count


def _make_counted_of(num_experts: int, rest_at: int) -> Any:
    @device_function
    def counted_of(mark: Address, thread: Index) -> Any:
        """Choices of a thread's expert: before those of the block, and in all."""
        earlier, total = int32(0), int32(0)
        if thread < int32(num_experts):
            earlier = int32(ptx.shared_u32(mark))
            total = earlier + int32(ptx.shared_u32(mark + uint32(rest_at)))
        return int32(earlier), int32(total)

    return counted_of


@device_function
def _rank_in_warp(expert: Index, is_own: Index, lane: Index, counted: Address) -> Any:
    """Choices of the same expert in lower lanes; the lowest writes how many there are in all."""
    alike = ptx.lanes_alike(expert | (uint32(is_own) - uint32(1)))
    rank = uint32(cuda.popc(uint32(alike & ((uint32(1) << uint32(lane)) - uint32(1)))))
    if is_own != int32(0) and rank == uint32(0):
        ptx.put_shared_u32(counted, uint32(cuda.popc(alike)))
    return rank


def _make_add_up(num_experts: int, parts: int, row: int) -> Any:
    @device_function
    def add_up(table: Address, sums: Address, thread: Index) -> None:
        """Each count of the table becomes the sum of those before it in its part."""
        if thread < int32(num_experts * parts):
            part, expert = thread // int32(num_experts), thread % int32(num_experts)
            at = table + uint32(expert * int32(row) + part * int32(_PART_WARPS)) * uint32(4)
            total = uint32(0)
            for i in range(_PART_WARPS):
                found = ptx.shared_u32(at + uint32(4 * i))
                ptx.put_shared_u32(at + uint32(4 * i), total)
                total = uint32(total + found)
            ptx.put_shared_u32(sums + uint32(thread) * uint32(4), total)

    return add_up


def _make_sum_before(num_experts: int, parts: int) -> Any:
    @device_function
    def sum_before(sums: Address, expert: Index, warp: Index) -> Any:
        """Choices of an expert in the parts before that of a warp."""
        total = uint32(0)
        for part in range(parts - 1):
            if int32(part) < warp // int32(_PART_WARPS):
                at = sums + (uint32(part * num_experts) + expert) * uint32(4)
                total = uint32(total + ptx.shared_u32(at))
        return total

    return sum_before


@device_function
def _up_to(one: Index, other: Index, lane: Index) -> Any:
    """Sums of two values over the lanes up to this one."""
    for step in (1, 2, 4, 8, 16):
        source = max(lane - int32(step), int32(0))
        below, other_below = (
            int32(cuda.shfl_sync(0xFFFFFFFF, one, source)),
            int32(cuda.shfl_sync(0xFFFFFFFF, other, source)),
        )
        if lane >= int32(step):
            one, other = int32(one + below), int32(other + other_below)
    return int32(one), int32(other)


@device_function
def _before(one: Index, other: Index, scan: Address, lane: Index, warp: Index) -> Any:
    """Sums of two values over the threads before this one, and over all.

    ``scan`` is shared memory for two words of each warp.
    """
    reached, other_reached = _up_to(one, other, lane)
    if lane == int32(WARP - 1):
        at = scan + uint32(warp) * uint32(8)
        ptx.put_shared_u32x2(at, uint32(reached), uint32(other_reached))
    cuda.syncthreads()
    of_warp, other_of_warp = ptx.shared_u32x2(scan + uint32(lane) * uint32(8))
    last, other_last = _up_to(int32(of_warp), int32(other_of_warp), lane)
    start = int32(cuda.shfl_sync(0xFFFFFFFF, last - int32(of_warp), warp))
    other_start = int32(cuda.shfl_sync(0xFFFFFFFF, other_last - int32(other_of_warp), warp))
    total = int32(cuda.shfl_sync(0xFFFFFFFF, last, int32(WARP - 1)))
    other_total = int32(cuda.shfl_sync(0xFFFFFFFF, other_last, int32(WARP - 1)))
    before = int32(start + reached - one)
    return before, int32(other_start + other_reached - other), total, other_total


def _make_stand() -> Any:
    @device_function
    def stand(
        count: Index, needed: Index, columns: Index, scan: Address, lane: Index, warp: Index
    ) -> Any:
        """First place and first entry of a thread's expert, entries in all, columns of each."""
        own = cuda.local.array(_CLASS_WORDS, int32)
        totals = cuda.local.array(_CLASS_WORDS, int32)
        each, rank = int32(1), int32(0)
        if needed > int32(0):
            each = int32(ptx.divide_u32(uint32(count + needed - int32(1)), uint32(needed)))
            rank = int32(
                ptx.divide_u32(uint32(each - int32(1)) * uint32(_CLASSES), uint32(columns))
            )
            rank = int32(int32(_CLASSES - 1) - rank)  # the most columns first
        for word in range(_CLASS_WORDS):
            is_here = (rank >> int32(1)) == int32(word)
            own[word] = int32(needed << int32(16 * (rank & int32(1)))) if is_here else int32(0)
        start, _, _, _ = _before(count, int32(0), scan, lane, warp)
        for word in range(0, _CLASS_WORDS, 2):
            scan += uint32(_SCAN_BYTES)
            own[word], own[word + 1], totals[word], totals[word + 1] = _before(
                own[word], own[word + 1], scan, lane, warp
            )
        entry, used = uint32(0), uint32(0)
        for other in range(_CLASSES):
            mark = uint32(16 * (other % 2))
            found = (uint32(totals[other // 2]) >> mark) & uint32(0xFFFF)
            used = uint32(used + found)
            if int32(other) < rank:
                entry = uint32(entry + found)
            if int32(other) == rank:
                entry = uint32(entry + ((uint32(own[other // 2]) >> mark) & uint32(0xFFFF)))
        return start, int32(entry), int32(used), each

    return stand


@device_function
def _write_entries(
    plan: Address,
    expert: Index,
    start: Index,
    count: Index,
    entry: Index,
    needed: Index,
    each: Index,
) -> None:
    """Entries of an expert, by the block whose turn it is."""
    if needed > int32(0) and expert % int32(cuda.gridDim.x) == int32(cuda.blockIdx.x):
        for i in range(needed):
            at = plan + uint64(entry + int32(i)) * uint64(ENTRY_BYTES)
            done = int32(i) * each
            ptx.store_i32(at, expert)
            ptx.store_i32(at + uint64(4), start + done)
            ptx.store_i32(at + uint64(8), min(count - done, each))


@device_function
def _clear_entries(plan: Address, thread: Index, used: Index, num_entries: Index) -> None:
    """Counts of unused entries, by all blocks."""
    unused = used + int32(cuda.blockIdx.x) * int32(THREADS) + thread
    while unused < num_entries:
        ptx.store_i32(plan + uint64(unused) * uint64(ENTRY_BYTES) + uint64(8), int32(0))
        unused += int32(cuda.gridDim.x) * int32(THREADS)
