"""What warps agree on, for simulators in which every thread is a Python thread.

Votes and reductions of a warp, and barriers of some of a block's warps. Source: PTX ISA.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.turns import Meeting
from tests.support.word_arithmetic import bits_of


def _alike(words: list[int]) -> dict[int, Any]:
    """By word, lanes that have it."""
    found = dict.fromkeys(words, 0)
    for lane, word in enumerate(words):
        found[word] |= 1 << lane
    return {word: np.uint32(lanes) for word, lanes in found.items()}


def _ballot(votes: list[bool]) -> int:
    return sum(1 << lane for lane, vote in enumerate(votes) if vote)


def _largest(values: list[Any]) -> Any:
    return np.uint32(max(values))


def _smallest(values: list[Any]) -> Any:
    return np.uint32(min(values))


def vote_instructions(block: Any) -> dict[str, Callable[..., Any]]:
    """Stand-ins for intrinsics of `ninfer.cuda.ptx`; ``block`` has threads that take turns."""
    meetings: dict[tuple[int, int], Meeting] = {}

    def sync_threads(name: Any, count: Any) -> None:
        key = int(name), int(count)
        meetings.setdefault(key, block.turns.meeting(key[1])).wait()

    def lanes_alike(value: Any) -> Any:
        own = int(value) & 0xFFFFFFFF
        return block.of_warp(own, _alike)[own]

    return {
        "lanes_alike": lanes_alike,
        "lanes_below": lambda: np.uint32((1 << block.turns.current % 32) - 1),
        "sync_threads": sync_threads,
        "largest_of_warp": lambda value: block.of_warp(value, _largest),
        "smallest_of_warp": lambda value: block.of_warp(value, _smallest),
        "sum_of_warp": lambda value: np.uint32(sum(map(int, block.of_warp(value)))),
        "smaller_u32": lambda a, b: np.uint32(min(int(a), int(b))),
        "kept_u32": np.uint32,
        "bits_of_f32": lambda value: np.uint32(bits_of(value)),
        "fresh_f32": lambda address: block.load(address, np.float32),
        "fresh_u32x4": lambda address: block.load(address, np.uint32, 4),
        "copy_async_4": lambda to, source, size: block.copy_async(to, source, size, 4),
    }


def vote_functions(block: Any) -> dict[str, Callable[..., Any]]:
    """Stand-ins for functions of `numba.cuda`."""

    def ballot_sync(mask: Any, flag: Any) -> int:
        return int(block.of_warp(bool(flag), _ballot))

    return {
        "ballot_sync": ballot_sync,
        "popc": lambda word: int(word).bit_count(),
        "ffs": lambda word: (int(word) & -int(word)).bit_length(),
    }
