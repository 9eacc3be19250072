"""Token choice with a small top_k: the candidates of a row as sorted lists.

Each slice of a row leaves its best candidates, in order; one warp merges the lists of all slices,
and a lane holds each candidate that is left: top_p, min_p, noise and the argmax are a few steps of
a warp. It chooses what the long way through histograms would, bit for bit: order, masses and scores
are the same functions. Merging is a tournament: of the lists' first words the largest one wins and
its list moves on; a word is 64 bits, compared as two reductions of 32.
"""

from typing import Any, Final

from numba import cuda, float32, int32, int64, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_selection import BLOCK, plus_below

MOST: Final = 32
"""Largest top_k of this way: a lane for each candidate."""

KEYS: Final = 16
"""Ids of a slice that a thread has, `BLOCK` apart."""

NUM_LISTS: Final = 64
"""Slices of a row."""

SLICE_WORDS: Final = BLOCK
"""Shared words that `list_best` works in: a list for each warp."""

ROW_WORDS: Final = NUM_LISTS * MOST
"""Shared words that `merge_lists` works in."""

_LIST_BITS: Final = 5
_WARPS: Final = BLOCK // 32

Address = Any
Array = Any
Index = Any
Shared = Any


@device_function
def is_short(temperature: Any, top_k: Any) -> Any:
    """Whether a row goes this way."""
    return temperature > float32(0.0) and top_k > int32(0) and top_k <= int32(MOST)


@device_function
def _largest_word(word: Any) -> Any:
    """Largest u64 of the 32 lanes."""
    high = uint32(word >> uint64(32))
    best_high = ptx.largest_of_warp(high)
    low = uint32(0)
    if high == best_high:
        low = uint32(word & uint64(0xFFFFFFFF))
    best_low = ptx.largest_of_warp(low)
    return (uint64(best_high) << uint64(32)) | uint64(best_low)


@device_function
def _best_key(keys: Array) -> Any:
    """Largest of a thread's keys, and the first place that has it."""
    best, place = keys[0], int32(0)
    for i in range(1, KEYS):
        if keys[i] > best:
            best, place = keys[i], int32(i)
    return best, place


@device_function
def _list_warp(keys: Array, first: Index, top_k: Index) -> Any:
    """The warp's ``top_k`` best candidates, one a lane, in order; 0 behind the last."""
    lane = int32(cuda.threadIdx.x) & int32(31)
    mine = uint64(0)
    best, place = _best_key(keys)
    for rank in range(top_k):
        key = ptx.largest_of_warp(best)
        candidate = uint32(0xFFFFFFFF)
        if best == key and key != uint32(0):
            candidate = uint32(first + place * int32(BLOCK))
        token = ptx.smallest_of_warp(candidate)
        if lane == rank and key != uint32(0):
            mine = values.word_of_key(key, token)
        if candidate == token:
            for i in range(KEYS):
                if place == int32(i):
                    keys[i] = uint32(0)
            best, place = _best_key(keys)
    return mine


@device_function
def _merge(lists: Shared, first: Index, second: Index, top_k: Index) -> Any:
    """The ``top_k`` best words of sorted lists, one a lane, in order; by one warp.

    ``lists`` is shared u64, `MOST` to a list; ``first`` and ``second`` are this lane's lists, -1
    for none.
    """
    lane = int32(cuda.threadIdx.x) & int32(31)
    mine = uint64(0)
    a_at, b_at = first << int32(_LIST_BITS), second << int32(_LIST_BITS)
    a_end, b_end = a_at + top_k, b_at + top_k
    a, b = uint64(0), uint64(0)
    if first >= int32(0):
        a = lists[a_at]
    if second >= int32(0):
        b = lists[b_at]
    for rank in range(top_k):
        word = _largest_word(max(a, b))
        if lane == rank:
            mine = word
        if word != uint64(0):
            if a == word:
                a_at += int32(1)
                a = uint64(0)
                if a_at < a_end:
                    a = lists[a_at]
            elif b == word:
                b_at += int32(1)
                b = uint64(0)
                if b_at < b_end:
                    b = lists[b_at]
    return mine


@device_function
def list_best(keys: Array, first: Index, top_k: Index, to: Address, lists: Shared) -> None:
    """Leave the block's ``top_k`` best candidates at ``to``, u64 [`MOST`].

    ``keys`` holds `values.key_of` of the ids ``first + BLOCK i`` and is overwritten; ``lists`` is
    shared u64 [`SLICE_WORDS`]. All threads of the block take part.
    """
    thread = int32(cuda.threadIdx.x)
    lists[thread] = _list_warp(keys, first, top_k)
    cuda.syncthreads()
    if thread < int32(32):
        own = int32(-1)
        if thread < int32(_WARPS):
            own = thread
        word = _merge(lists, own, int32(-1), top_k)
        ptx.store_u64(to + uint64(thread) * uint64(8), word)


@device_function
def merge_lists(source: Address, top_k: Index, lists: Shared) -> Any:
    """The row's ``top_k`` best candidates from its slices' lists, one a lane of the first warp."""
    thread = int32(cuda.threadIdx.x)
    for i in range(thread, ROW_WORDS, BLOCK):
        if i & int32(MOST - 1) < top_k:
            lists[i] = ptx.load_u64(source + uint64(i) * uint64(8))
    cuda.syncthreads()
    word = uint64(0)
    if thread < int32(32):
        word = _merge(lists, thread, thread + int32(32), top_k)
    return word


@device_function
def is_in_nucleus(mass: Any, top_p: Any) -> Any:
    """Whether the masses before a lane's own have not reached top_p yet; by one warp, in order."""
    lane = int32(cuda.threadIdx.x) & int32(31)
    reached = mass
    for step in (1, 2, 4, 8, 16):
        reached = plus_below(reached, lane, step)
    total = uint64(cuda.shfl_sync(0xFFFFFFFF, int64(reached), 31))
    return reached - mass < values.mass_target(total, top_p)


@device_function
def mass_of_word(word: Any, largest: Any, temperature: Any) -> Any:
    """Mass of a candidate, 0 of none."""
    mass = uint64(0)
    if word != uint64(0):
        mass = values.mass_of(values.word_value(word), largest, temperature)
    return mass
