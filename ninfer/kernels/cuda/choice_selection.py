"""Weighted selection inside a block: how far down the order a target weight reaches.

`find_place` walks a table of weights, best place first; `select_word` finds the candidate word at
which a list's cumulative weight reaches a target, ten bits of the word at a time, whatever the
list's order and length. Weights are integers: counts (1 each) or masses. Both are called by all
threads of a block of `BLOCK` threads; every thread gets the result.
"""

from typing import Any, Final

from numba import cuda, int32, int64, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.choice_values import (
    NUM_BINS,
    Line,
    candidate_word,
    mass_of,
    penalised_logit,
)
from ninfer.kernels.cuda.device_functions import from_lane_xor_u64

BLOCK: Final = 256
MAX_IDS: Final = 1 << 18
"""Ids that a short word has room for."""

_LANES: Final = 32
_DIGIT: Final = 10  # bits
_PLACES: Final = 1 << _DIGIT
_WORD_BITS: Final = 50  # 32 of the logit, 18 of the id
_PIECE: Final = 13  # bits of a mass that 2^18 candidates sum without overflow in 32 bits

Shared = Any


@device_function
def plus_below(reached: Any, lane: Any, step: Any) -> Any:
    """One step of an inclusive sum over lanes."""
    below = uint64(cuda.shfl_up_sync(0xFFFFFFFF, int64(reached), step))
    if lane >= step:
        reached += below
    return reached


@device_function
def block_total(value: Any, parts: Shared) -> Any:
    """Sum of a u64 value over the block, for every thread; ``parts`` is shared u64 [256]."""
    value += from_lane_xor_u64(value, 16)
    value += from_lane_xor_u64(value, 8)
    value += from_lane_xor_u64(value, 4)
    value += from_lane_xor_u64(value, 2)
    value += from_lane_xor_u64(value, 1)
    tid = int32(cuda.threadIdx.x)
    cuda.syncthreads()
    if tid & 31 == 0:
        parts[tid >> 5] = value
    cuda.syncthreads()
    total = uint64(0)
    for i in range(BLOCK // _LANES):
        total += parts[i]
    cuda.syncthreads()
    return total


@device_function
def find_place(weights: Shared, num_places: Any, target: Any, parts: Shared, found: Shared) -> Any:
    """Place at which the cumulative weight reaches ``target`` > 0, and the weight before it.

    Args:
        weights: shared u64 [num_places], a multiple of 256; written before the call, by any thread.
        num_places: places, at most `NUM_BINS`.
        target: u64 weight to reach.
        parts: shared u64 [256], overwritten.
        found: shared u64 [2], overwritten.

    Returns:
        The place, ``num_places`` when the target is not reached, and the weight before the place.
    """
    tid = int32(cuda.threadIdx.x)
    share = int32(num_places) // int32(BLOCK)
    cuda.syncthreads()
    total = uint64(0)
    for i in range(share):
        total += weights[tid * share + i]
    parts[tid] = total
    if tid == 0:
        found[0] = uint64(num_places)
        found[1] = uint64(0)
    cuda.syncthreads()
    if tid < _LANES:
        mine = uint64(0)
        for i in range(BLOCK // _LANES):
            mine += parts[tid * (BLOCK // _LANES) + i]
        reached = mine
        reached = plus_below(reached, tid, 1)
        reached = plus_below(reached, tid, 2)
        reached = plus_below(reached, tid, 4)
        reached = plus_below(reached, tid, 8)
        reached = plus_below(reached, tid, 16)
        before = reached - mine
        if before < target and reached >= target:
            part = tid * int32(BLOCK // _LANES)
            while before + parts[part] < target:
                before += parts[part]
                part += int32(1)
            place = part * share
            while before + weights[place] < target:
                before += weights[place]
                place += int32(1)
            found[0] = uint64(place)
            found[1] = before
    cuda.syncthreads()
    return int32(found[0]), found[1]


@device_function
def short_word(word: Any) -> Any:
    """A candidate word in 50 bits: 32 of the logit, 18 of the inverted id."""
    return ((word >> uint64(32)) << uint64(18)) | (word & uint64(MAX_IDS - 1))


@device_function
def _rank_word(
    ids: Any,
    num_ids: Any,
    target: Any,
    by_mass: Any,
    line: Line,
    largest: Any,
    temperature: Any,
    weights: Shared,
    found: Shared,
) -> Any:
    """`select_word` for a list of at most `BLOCK` candidates: each thread ranks one of them."""
    tid = int32(cuda.threadIdx.x)
    short, weight = uint64(0), uint64(0)
    cuda.syncthreads()
    if tid == 0:
        found[0] = uint64(0)
    if tid < num_ids:
        token = ptx.load_u32(ids + uint64(tid) * uint64(4))
        value = penalised_logit(line, token)
        short = short_word(candidate_word(value, token))
        weight = uint64(1)
        if by_mass:
            weight = mass_of(value, largest, temperature)
        weights[tid] = short
        weights[tid + BLOCK] = weight
    cuda.syncthreads()
    reached = uint64(0)
    for i in range(num_ids):
        if weights[i] >= short:
            reached += weights[i + BLOCK]
    if tid < num_ids and reached >= target and reached - weight < target:
        found[0] = short
    cuda.syncthreads()
    return found[0]


@device_function
def select_word(
    ids: Any,
    num_ids: Any,
    target: Any,
    by_mass: Any,
    line: Line,
    largest: Any,
    temperature: Any,
    pieces: Shared,
    weights: Shared,
    parts: Shared,
    found: Shared,
) -> Any:
    """Short word of the candidate at which a list's cumulative weight reaches ``target``.

    ``ids`` is the address of ``num_ids`` u32 ids in any order, all of them candidates, ``target``
    at least 1. ``by_mass`` weighs by mass and counts otherwise. ``line`` to ``temperature`` are the
    row's. ``pieces`` (u32 [3 * 1024]), ``weights`` (u64 [1024]), ``parts`` (u64 [256]) and
    ``found`` (u64 [2]) are shared memory to work in.

    Returns:
        The short word; 0 when the whole list weighs less than the target.
    """
    if num_ids <= int32(BLOCK):
        return _rank_word(
            ids,
            num_ids,
            target,
            by_mass,
            line,
            largest,
            temperature,
            weights,
            found,
        )
    tid = int32(cuda.threadIdx.x)
    prefix = uint64(0)
    left = uint64(target)
    shift = int32(_WORD_BITS)
    for _ in range(_WORD_BITS // _DIGIT):
        shift -= int32(_DIGIT)
        for i in range(tid, 3 * _PLACES, BLOCK):
            pieces[i] = uint32(0)
        cuda.syncthreads()
        for i in range(tid, num_ids, BLOCK):
            token = ptx.load_u32(ids + uint64(i) * uint64(4))
            value = penalised_logit(line, token)
            short = short_word(candidate_word(value, token))
            if (short >> uint64(shift + _DIGIT)) == prefix:
                place = int32(_PLACES - 1) - int32((short >> uint64(shift)) & uint64(_PLACES - 1))
                if by_mass:
                    mass = mass_of(value, largest, temperature)
                    low = uint32(mass & uint64((1 << _PIECE) - 1))
                    middle = uint32((mass >> uint64(_PIECE)) & uint64((1 << _PIECE) - 1))
                    high = uint32(mass >> uint64(2 * _PIECE))
                    if low != uint32(0):
                        cuda.atomic.add(pieces, place, low)
                    if middle != uint32(0):
                        cuda.atomic.add(pieces, place + _PLACES, middle)
                    if high != uint32(0):
                        cuda.atomic.add(pieces, place + 2 * _PLACES, high)
                else:
                    cuda.atomic.add(pieces, place, uint32(1))
        cuda.syncthreads()
        for i in range(tid, _PLACES, BLOCK):
            weights[i] = (
                uint64(pieces[i])
                + (uint64(pieces[i + _PLACES]) << uint64(_PIECE))
                + (uint64(pieces[i + 2 * _PLACES]) << uint64(2 * _PIECE))
            )
        place, before = find_place(weights, _PLACES, left, parts, found)
        if place == _PLACES:
            return uint64(0)
        left -= before
        prefix = (prefix << uint64(_DIGIT)) | uint64(int32(_PLACES - 1) - place)
    return prefix


@device_function
def load_weights(bins: Any, weights: Shared) -> None:
    """Copy a row's global u64 table of `NUM_BINS` weights to shared memory."""
    for i in range(int32(cuda.threadIdx.x), NUM_BINS, BLOCK):
        weights[i] = ptx.load_u64(bins + uint64(i) * uint64(8))
