"""Which columns go with which expert in a prefill, on CUDA.

    order   choices (token * k + slot) sorted by expert
    plan    entries (expert, first place in order, count), at most 32 columns each; unused: count 0

One block counts with shared integers, one thread of it lays the experts out, all place. The order
of an expert's choices is not fixed, and reaches no result: columns of a product never mix.
"""

from functools import cache
from typing import Final

from numba import cuda, int32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.expert_product import BLOCK_COLUMNS

THREADS: Final = 1024


def max_entries(num_choices: int, num_experts: int) -> int:
    """Entries that any choices fit in."""
    return num_choices // BLOCK_COLUMNS + min(num_experts, num_choices)


@cache
def make_plan(num_experts: int) -> Kernel:
    """Grid (1,), block (1024,)."""

    def make_entries(
        experts: int, plan: int, order: int, num_choices: int, num_entries: int
    ) -> None:
        counts = cuda.shared.array(num_experts, int32)
        places = cuda.shared.array(num_experts, int32)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        thread = int32(cuda.threadIdx.x)
        i = thread
        while i < num_experts:
            counts[i] = int32(0)
            i += int32(THREADS)
        cuda.syncthreads()
        i = thread
        while i < num_choices:
            expert = ptx.load_i32(experts + uint64(i) * uint64(4))
            cuda.atomic.add(counts, expert, int32(1))
            i += int32(THREADS)
        cuda.syncthreads()
        if thread == 0:
            start, entry = int32(0), int32(0)
            for expert in range(num_experts):
                places[expert] = start
                left = counts[expert]
                while left > 0:
                    at = plan + uint64(entry) * uint64(12)
                    ptx.store_i32(at, int32(expert))
                    ptx.store_i32(at + uint64(4), start)
                    ptx.store_i32(at + uint64(8), min(left, int32(BLOCK_COLUMNS)))
                    start += min(left, int32(BLOCK_COLUMNS))
                    left -= int32(BLOCK_COLUMNS)
                    entry += int32(1)
            while entry < num_entries:
                ptx.store_i32(plan + uint64(entry) * uint64(12) + uint64(8), int32(0))
                entry += int32(1)
        cuda.syncthreads()
        i = thread
        while i < num_choices:
            expert = ptx.load_i32(experts + uint64(i) * uint64(4))
            place = cuda.atomic.add(places, expert, int32(1))
            ptx.store_i32(order + uint64(place) * uint64(4), i)
            i += int32(THREADS)

    params = (Param.ADDRESS,) * 3 + (Param.I32,) * 2
    return Kernel(
        f"expert_plan_{num_experts}", make_entries, params, threads=THREADS, max_registers=64
    )
