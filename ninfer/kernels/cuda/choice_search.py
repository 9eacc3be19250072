"""Where top_k and top_p end in a row whose keys a cluster holds: a weighted selection, no sort.

The first tally parts candidates by depth. The bin that the target falls into is an interval of
words (key, then inverted id). While it has more candidates than one block can rank, a further tally
parts it evenly: 11 bits of 50 at most each time, and usually none. So the time has a bound whatever
the logits are, and ties are cut by id.
"""

import math
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.choice_gather import make_cut, make_gather
from ninfer.kernels.cuda.choice_read import Slice, walk
from ninfer.kernels.cuda.choice_room import Room
from ninfer.kernels.cuda.choice_shares import (
    DEPTH,
    Scale,
    height_of,
    key_value,
    make_bin_of,
    mass_at,
    word_key,
    word_of,
)
from ninfer.kernels.cuda.choice_tally import (
    WEIGHT_BITS,
    make_add,
    make_clear,
    make_find,
    make_share,
)

_WORD_BITS: Final = 50
_LOW_PART: Final = (1 << WEIGHT_BITS) - 1
_WATCH: Final = 7
"""Of so many turns, and one more, one looks for crowds where there was none."""

Device = Any


@device_function
def _weight(height: Any, by_mass: Any) -> Any:
    """Lower and upper part of a candidate's weight."""
    low, high = uint32(1), uint32(0)
    if by_mass:
        mass = uint64(mass_at(height))
        low = uint32(mass & uint64(_LOW_PART))
        high = uint32(mass >> uint64(WEIGHT_BITS))
    return low, high


def make_first(room: Room) -> Device:
    """Function that finds the `Place` of a target weight among bins of depth."""
    threads, bins, at_sums = room.threads, room.bins, room.sums
    clear, add, share, find = make_clear(room), make_add(room), make_share(room), make_find(room)
    bin_of, _ = make_bin_of(bins)

    @device_function
    def first(mine: Slice, scale: Scale, end: Any, by_mass: Any, target: Any, top_p: Any) -> Any:
        clear(mine.shared)
        rest, is_crowded = uint32(0), False
        turn = uint32(0)
        at, token, stop = walk(mine, threads)
        while at < stop:
            value = ptx.shared_f32(at)
            height = height_of(value, scale)
            low, high = _weight(height, by_mass)
            is_one = value > float32(-math.inf)
            if end != uint64(0):
                is_one = is_one and word_of(value, token) >= end
            is_near = height > float32(-DEPTH)
            if is_one and not is_near:
                rest = uint32(rest + low + (high << uint32(WEIGHT_BITS)))
            is_watchful = is_crowded or turn & uint32(_WATCH) == uint32(0)
            is_crowded = add(
                mine.shared, is_one and is_near, bin_of(height), low, high, is_watchful
            )
            at, token = uint32(at + uint32(4 * threads)), uint32(token + uint32(threads))
            turn = uint32(turn + uint32(1))
        rest = ptx.sum_of_warp(rest)
        if cuda.threadIdx.x & 31 == 0 and rest != uint32(0):
            at = mine.shared + uint32(at_sums + 4 * (bins - 1))
            ptx.add_shared_u32(at, rest & uint32(_LOW_PART))
            ptx.add_shared_u32(at + uint32(4 * bins), rest >> uint32(WEIGHT_BITS))
        share(mine)
        return find(mine.shared, target, top_p)

    return first


def make_bounds(room: Room) -> Device:
    """Function that gives the lowest and the highest word of a bin of depth."""
    at_place = room.place + 40
    _, lowest_key = make_bin_of(room.bins)

    @device_function
    def bounds_of(mine: Slice, scale: Scale, place: Any) -> Any:
        warp = uint32(cuda.threadIdx.x) >> uint32(5)
        to = mine.shared + uint32(at_place)
        if warp < uint32(2):
            low = uint32(scale.key + uint32(1))
            if place >= warp:
                low = uint32(lowest_key(uint32(place - warp), scale))
            ptx.put_shared_u64(to + uint32(8) * warp, uint64(low) << uint64(18))
        cuda.syncthreads()
        return ptx.shared_u64(to), ptx.shared_u64(to + uint32(8)) - uint64(1)

    return bounds_of


def make_part(room: Room) -> Device:
    """Function that finds the part of an interval of words in which a weight is reached."""
    threads, digit_bits = room.threads, room.bins.bit_length() - 1
    clear, add, share, find = make_clear(room), make_add(room), make_share(room), make_find(room)

    @device_function
    def part(mine: Slice, scale: Scale, low: Any, high: Any, by_mass: Any, target: Any) -> Any:
        """Returns the smaller interval, and what is left of the target in it."""
        span_bits = int32(64) - int32(ptx.leading_zeros_u64(high - low))
        shift = uint64(max(int32(0), int32(span_bits - int32(digit_bits))))
        low_value, high_value = key_value(word_key(low)), key_value(word_key(high))
        clear(mine.shared)
        is_crowded = False
        turn = uint32(0)
        at, token, stop = walk(mine, threads)
        while at < stop:
            value = ptx.shared_f32(at)
            is_near = value >= low_value and value <= high_value
            if cuda.ballot_sync(0xFFFFFFFF, is_near) != 0:
                word = word_of(value, token)
                is_one = word >= low and word <= high
                digit = int32((high - word) >> shift)
                lower, upper = _weight(height_of(value, scale), by_mass)
                is_watchful = is_crowded or turn & uint32(_WATCH) == uint32(0)
                is_crowded = add(mine.shared, is_one, digit, lower, upper, is_watchful)
            at, token = uint32(at + uint32(4 * threads)), uint32(token + uint32(threads))
            turn = uint32(turn + uint32(1))
        share(mine)
        place = find(mine.shared, target, float32(0.0))
        high -= uint64(place.bin) << shift
        if high - low >= (uint64(1) << shift):
            low = high - (uint64(1) << shift) + uint64(1)
        return low, high, uint64(target - place.before)

    return part


def make_search(room: Room) -> Device:
    """Function of a whole cluster that finds the last word which a filter keeps.

    Of the candidates from the word ``end`` on; it returns ``end`` where the filter keeps all. The
    filter counts up to ``target``, or adds up masses to the share ``top_p``.
    """
    few, bins = room.few, room.bins
    levels = -(-_WORD_BITS // (bins.bit_length() - 1)) + 1
    first, bounds_of, part = make_first(room), make_bounds(room), make_part(room)
    gather, cut = make_gather(room), make_cut(room)

    @device_function
    def search(mine: Slice, scale: Scale, end: Any, by_mass: Any, target: Any, top_p: Any) -> Any:
        place = first(mine, scale, end, by_mass, target, top_p)
        if place.bin < uint32(bins):
            low, high = bounds_of(mine, scale, place.bin)
            low = max(low, end)
            left = place.target - place.before
            is_found = False
            for _ in range(int32(ptx.kept_u32(uint32(levels)))):
                if not is_found:
                    gathered = gather(mine, low, high, scale, False)
                    low, high = gathered.low, gathered.high
                    if gathered.number <= uint32(few):
                        end = cut(mine, gathered.number, by_mass, left, scale)
                        is_found = True
                    else:
                        low, high, left = part(mine, scale, low, high, by_mass, left)
        return end

    return search
