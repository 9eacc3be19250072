"""What warps agree on, for simulators in which every thread is a Python thread.

Votes and reductions of a warp, and barriers of some of a block's warps. Source: PTX ISA.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np


def vote_instructions(block: Any, wait_s: float) -> dict[str, Callable[..., Any]]:
    """Stand-ins for intrinsics of `ninfer.cuda.ptx`; ``block`` has barriers of its warps."""
    barriers: dict[tuple[int, int], threading.Barrier] = {}
    lock = threading.Lock()

    def sync_threads(name: Any, count: Any) -> None:
        with lock:
            key = (int(name), int(count))
            barrier = barriers.setdefault(key, threading.Barrier(int(count)))
        barrier.wait(wait_s)

    def lanes_alike(value: Any) -> Any:
        own = int(value) & 0xFFFFFFFF
        found = _gather(block, wait_s, own)
        return np.uint32(sum(1 << lane for lane, word in enumerate(found) if word == own))

    return {
        "lanes_alike": lanes_alike,
        "lanes_below": lambda: np.uint32((1 << block.place.thread % 32) - 1),
        "sync_threads": sync_threads,
        "largest_of_warp": lambda value: np.uint32(max(_gather(block, wait_s, value))),
        "smallest_of_warp": lambda value: np.uint32(min(_gather(block, wait_s, value))),
        "smaller_u32": lambda a, b: np.uint32(min(int(a), int(b))),
        "kept_u32": np.uint32,
        "bits_of_f32": lambda value: np.float32(value).view(np.uint32),
        "fresh_f32": lambda address: block.load(address, np.float32),
        "fresh_u32x4": lambda address: block.load(address, np.uint32, 4),
        "copy_async_4": lambda to, source, size: block.copy_async(to, source, size, 4),
    }


def vote_functions(block: Any, wait_s: float) -> dict[str, Callable[..., Any]]:
    """Stand-ins for functions of `numba.cuda`."""

    def ballot_sync(mask: Any, flag: Any) -> int:
        found = _gather(block, wait_s, bool(flag))
        return sum(1 << lane for lane, vote in enumerate(found) if vote)

    return {
        "ballot_sync": ballot_sync,
        "popc": lambda word: int(word).bit_count(),
        "ffs": lambda word: (int(word) & -int(word)).bit_length(),
    }


def _gather(block: Any, wait_s: float, value: Any) -> list[Any]:
    """The value of every lane."""
    thread = block.place.thread
    block.exchanged[thread] = value
    block.warps[thread // 32].wait(wait_s)
    found = list(block.exchanged[thread // 32 * 32 : thread // 32 * 32 + 32])
    block.warps[thread // 32].wait(wait_s)
    return found
