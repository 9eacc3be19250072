"""Which columns go with which expert, for more than eight tokens on CUDA.

    order   choices (token * k + slot) sorted by expert
    plan    entries (expert, first place in order, count), so many columns at most; unused: count 0

One block counts with shared integers, a thread for each expert lays it out, all place. The order of
an expert's choices is not fixed, and reaches no result: columns of a product never mix. Like the
ranking, the plan is complete for every kernel that starts behind it (`expert_rank`).
"""

from functools import cache
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.launch import WARP

ENTRY_BYTES: Final = 12
MAX_EXPERTS: Final = 1024
THREADS: Final = 1024

_WARPS: Final = THREADS // WARP
_TOGETHER: Final = 4  # choices of a thread that are under way at once

Address = Any
Array = Any
Index = Any


def max_entries(num_choices: int, num_experts: int, columns: int) -> int:
    """Entries of at most ``columns`` that any choices fit in."""
    return num_choices // columns + min(num_experts, num_choices)


@device_function
def _before(value: Index, parts: Array) -> Any:
    """Sum over the threads before this one, and over all; ``parts`` is shared i32 [33]."""
    thread = int32(cuda.threadIdx.x)
    lane, warp = thread & int32(31), thread >> int32(5)
    reached = int32(value)
    for step in (1, 2, 4, 8, 16):
        below = int32(cuda.shfl_up_sync(0xFFFFFFFF, reached, step))
        if lane >= step:
            reached += below
    cuda.syncthreads()
    if lane == int32(31):
        parts[warp] = reached
    cuda.syncthreads()
    start, total = int32(0), int32(0)
    for i in range(_WARPS):
        if i < warp:
            start += parts[i]
        total += parts[i]
    return start + reached - int32(value), total


@device_function
def _load_some(experts: Address, first: Index, num_choices: Index, seen: Array) -> None:
    """Experts of choices ``first + 1024 i``, all under way at once."""
    for i in range(_TOGETHER):
        choice = first + int32(i * THREADS)
        at = experts + uint64(choice) * uint64(4)
        seen[i] = ptx.load_u32_if(at, uint32(choice < num_choices))


@device_function
def _count(experts: Address, num_choices: Index, counts: Array) -> None:
    """Choices of each expert."""
    seen = cuda.local.array(_TOGETHER, uint32)
    first = int32(cuda.threadIdx.x)
    while first < num_choices:
        _load_some(experts, first, num_choices, seen)
        for i in range(_TOGETHER):
            if first + int32(i * THREADS) < num_choices:
                cuda.atomic.add(counts, int32(seen[i]), int32(1))
        first += int32(_TOGETHER * THREADS)


@device_function
def _place(experts: Address, num_choices: Index, places: Array, order: Address) -> None:
    """Every choice at its expert's next place."""
    seen = cuda.local.array(_TOGETHER, uint32)
    first = int32(cuda.threadIdx.x)
    while first < num_choices:
        _load_some(experts, first, num_choices, seen)
        for i in range(_TOGETHER):
            choice = first + int32(i * THREADS)
            if choice < num_choices:
                place = int32(cuda.atomic.add(places, int32(seen[i]), int32(1)))
                ptx.store_i32(order + uint64(place) * uint64(4), choice)
        first += int32(_TOGETHER * THREADS)


@cache
def make_plan(num_experts: int) -> Kernel:
    """Grid (1,), block (1024,)."""

    def make_entries(
        experts: int, plan: int, order: int, num_choices: int, num_entries: int, columns: int
    ) -> None:
        counts = cuda.shared.array(num_experts, int32)
        parts = cuda.shared.array(_WARPS, int32)
        ptx.wait_for_predecessor()
        thread = int32(cuda.threadIdx.x)
        if thread < int32(num_experts):
            counts[thread] = int32(0)
        cuda.syncthreads()
        _count(experts, num_choices, counts)
        cuda.syncthreads()
        mine = int32(0)
        if thread < int32(num_experts):
            mine = int32(counts[thread])
        start, _ = _before(mine, parts)
        needed = int32(ptx.divide_u32(uint32(mine + columns - int32(1)), uint32(columns)))
        entry, used = _before(needed, parts)
        for i in range(needed):
            at = plan + uint64(entry + int32(i)) * uint64(ENTRY_BYTES)
            done = int32(i) * columns
            ptx.store_i32(at, thread)
            ptx.store_i32(at + uint64(4), start + done)
            ptx.store_i32(at + uint64(8), min(mine - done, columns))
        for unused in range(used + thread, num_entries, THREADS):
            ptx.store_i32(plan + uint64(unused) * uint64(ENTRY_BYTES) + uint64(8), int32(0))
        if thread < int32(num_experts):
            counts[thread] = start
        cuda.syncthreads()
        _place(experts, num_choices, counts, order)
        ptx.fence_gpu()
        cuda.syncthreads()
        ptx.release_successor()

    params = (Param.ADDRESS,) * 3 + (Param.I32,) * 3
    return Kernel(
        f"expert_plan_{num_experts}", make_entries, params, threads=THREADS, max_registers=64
    )
