"""Candidates of an interval, gathered in the first block of a cluster, and put in order there.

Every block looks at all its values, keeps the words (key, then inverted id) that lie in the
interval, and sends them there, and a report of how many there are to all. So every block knows by
itself whether they are few enough to be ranked by comparing each with each. Their order is that of
the words, so that it does not matter in which order they came.
"""

from typing import Any, NamedTuple

from numba import cuda, uint32, uint64

from ninfer.cuda import cluster, ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_read import NO_ID, Slice, walk
from ninfer.kernels.cuda.choice_room import Room
from ninfer.kernels.cuda.choice_shares import (
    LOWEST_KEY,
    Scale,
    height_of,
    key_value,
    mass_at,
    word_height,
    word_key,
    word_of,
)
from ninfer.kernels.cuda.choice_tally import make_scan
from ninfer.kernels.cuda.device_functions import from_lane_xor_u64

Device = Any


class Gathered(NamedTuple):
    """What all blocks have found together.

    Attributes:
        number: candidates of the interval.
        low, high: the interval, as far as they need it.
        mass: of all candidates of the row; 0 where it was not asked for.
        mass_within: of those of the interval.
    """

    number: Any
    low: Any
    high: Any
    mass: Any
    mass_within: Any


@device_function
def _warp_total(value: Any) -> Any:
    """Sum of a u64 value over the lanes."""
    value += from_lane_xor_u64(value, 16)
    value += from_lane_xor_u64(value, 8)
    value += from_lane_xor_u64(value, 4)
    value += from_lane_xor_u64(value, 2)
    return value + from_lane_xor_u64(value, 1)


def make_report(room: Room) -> Device:
    """Function that tells all blocks what the threads of this one have found.

    A report is four u64: number, lowest and highest key in one word, both masses.
    """
    blocks, warps, few = room.blocks, room.warps, room.few
    at_parts, at_length, at_reports = room.parts, room.length, room.reports
    at_own, at_sent = room.own_words, room.sent_words

    @device_function
    def put_four(at: Any, first: Any, second: Any, third: Any, fourth: Any) -> None:
        ptx.put_shared_u64(at, first)
        ptx.put_shared_u64(at + uint32(8), second)
        ptx.put_shared_u64(at + uint32(16), third)
        ptx.put_shared_u64(at + uint32(24), fourth)

    @device_function
    def report(mine: Slice, lowest: Any, highest: Any, mass: Any, within: Any) -> None:
        tid = uint32(cuda.threadIdx.x)
        lane, warp = tid & uint32(31), tid >> uint32(5)
        shared = mine.shared
        lowest, highest = ptx.smallest_of_warp(lowest), ptx.largest_of_warp(highest)
        mass, within = _warp_total(mass), _warp_total(within)
        if lane == uint32(0):
            at = shared + uint32(at_parts) + uint32(32) * warp
            put_four(at, uint64(lowest), uint64(highest), mass, within)
        cuda.syncthreads()
        number = ptx.shared_u32(shared + uint32(at_length))
        if warp == uint32(0):
            lowest, highest, mass, within = uint32(NO_ID), uint32(0), uint64(0), uint64(0)
            if lane < uint32(warps):
                at = shared + uint32(at_parts) + uint32(32) * lane
                lowest = uint32(ptx.shared_u64(at))
                highest = uint32(ptx.shared_u64(at + uint32(8)))
                mass = ptx.shared_u64(at + uint32(16))
                within = ptx.shared_u64(at + uint32(24))
            lowest, highest = ptx.smallest_of_warp(lowest), ptx.largest_of_warp(highest)
            mass, within = _warp_total(mass), _warp_total(within)
            if lane < uint32(blocks):
                at = shared + uint32(at_reports) + uint32(32) * mine.block
                there = cluster.map_shared(at, lane)
                keys = (uint64(highest) << uint64(32)) | uint64(lowest)
                cluster.put_there_u64(there, uint64(number))
                cluster.put_there_u64(there + uint32(8), keys)
                cluster.put_there_u64(there + uint32(16), mass)
                cluster.put_there_u64(there + uint32(24), within)
        if tid < min(number, uint32(few)):
            at = shared + uint32(at_sent) + uint32(8) * (mine.block * uint32(few) + tid)
            word = ptx.shared_u64(shared + uint32(at_own) + uint32(8) * tid)
            cluster.put_there_u64(cluster.map_shared(at, uint32(0)), word)
        cluster.release_cluster()
        cluster.wait_cluster()

    return report


def make_gather(room: Room) -> Device:
    """Function that gathers the candidates of an interval of words."""
    threads, blocks, few = room.threads, room.blocks, room.few
    at_length, at_own, at_reports = room.length, room.own_words, room.reports
    report = make_report(room)

    @device_function
    def keep(shared: Any, word: Any) -> None:
        at = ptx.fetch_add_shared_u32(shared + uint32(at_length), uint32(1))
        if at < uint32(few):
            ptx.put_shared_u64(shared + uint32(at_own) + uint32(8) * at, word)

    @device_function
    def total(shared: Any, low: Any, high: Any) -> Gathered:
        """Sum of all reports."""
        number, mass, within = uint32(0), uint64(0), uint64(0)
        lowest, highest = uint32(NO_ID), uint32(0)
        for i in range(blocks):
            at = shared + uint32(at_reports + 32 * i)
            number += uint32(ptx.shared_u64(at))
            keys = ptx.shared_u64(at + uint32(8))
            lowest = min(lowest, uint32(keys & uint64(0xFFFFFFFF)))
            highest = max(highest, uint32(keys >> uint64(32)))
            mass += ptx.shared_u64(at + uint32(16))
            within += ptx.shared_u64(at + uint32(24))
        low = max(low, uint64(lowest) << uint64(18))
        high = min(high, (uint64(highest) << uint64(18)) | uint64(0x3FFFF))
        return Gathered(uint32(number), low, high, mass, within)

    @device_function
    def gather(mine: Slice, low: Any, high: Any, scale: Scale, has_mass: Any) -> Any:
        if cuda.threadIdx.x == 0:
            ptx.put_shared_u32(mine.shared + uint32(at_length), uint32(0))
        cuda.syncthreads()
        low_value, high_value = key_value(word_key(low)), key_value(word_key(high))
        lowest, highest, mass, within = uint32(NO_ID), uint32(0), uint64(0), uint64(0)
        at, token, stop = walk(mine, threads)
        while at < stop:
            value = ptx.shared_f32(at)
            own = uint64(0)
            if has_mass:
                own = uint64(mass_at(height_of(value, scale)))
                mass += own
            if value >= low_value and value <= high_value:
                word = word_of(value, token)
                if word >= low and word <= high:
                    keep(mine.shared, word)
                    key = word_key(word)
                    lowest, highest = min(lowest, key), max(highest, key)
                    within += own
            at, token = uint32(at + uint32(4 * threads)), uint32(token + uint32(threads))
        report(mine, lowest, highest, mass, within)
        return total(mine.shared, low, high)

    return gather


def make_rank(room: Room) -> Device:
    """Function that puts the words that the first block was sent in order; for that block."""
    few, blocks = room.few, room.blocks
    at_sent, at_reports = room.sent_words, room.reports
    at_found, at_ranked, at_ranks = room.found_words, room.ranked_words, room.ranks
    shares = room.threads // few

    @device_function
    def sent_word(shared: Any, index: Any) -> Any:
        """One of the words that were sent, of all blocks in order."""
        word = uint64(0)
        for i in range(blocks):
            number = uint32(ptx.shared_u64(shared + uint32(at_reports + 32 * i)))
            if index < number:
                at = shared + uint32(at_sent + 8 * few * i) + uint32(8) * index
                word = ptx.shared_u64(at)
                index = uint32(NO_ID)
            elif index != uint32(NO_ID):
                index = uint32(index - number)
        return word

    @device_function
    def rank(shared: Any, number: Any) -> None:
        tid = uint32(cuda.threadIdx.x)
        own, turn = tid % uint32(few), tid // uint32(few)
        if turn == uint32(0) and own < number:
            ptx.put_shared_u32(shared + uint32(at_ranks) + uint32(4) * own, uint32(0))
            at = shared + uint32(at_found) + uint32(8) * own
            ptx.put_shared_u64(at, sent_word(shared, own))
        cuda.syncthreads()
        word = uint64(0)
        if own < number:
            word = ptx.shared_u64(shared + uint32(at_found) + uint32(8) * own)
            better = uint32(0)
            at = uint32(shared + uint32(at_found) + uint32(8) * turn)
            stop = uint32(shared + uint32(at_found) + uint32(8) * number)
            while at < stop:
                better = uint32(better + uint32(ptx.shared_u64(at) > word))
                at = uint32(at + uint32(8 * shares))
            ptx.add_shared_u32(shared + uint32(at_ranks) + uint32(4) * own, better)
        cuda.syncthreads()
        if own < number and turn == uint32(0):
            at = ptx.shared_u32(shared + uint32(at_ranks) + uint32(4) * own)
            ptx.put_shared_u64(shared + uint32(at_ranked) + uint32(8) * at, word)
        cuda.syncthreads()

    return rank


def make_cut(room: Room) -> Device:
    """Function by which all blocks come to know where a weight is reached among few candidates."""
    blocks, at_ranked, at_end = room.blocks, room.ranked_words, room.end
    scan, rank = make_scan(room), make_rank(room)

    @device_function
    def cut(mine: Slice, number: Any, by_mass: Any, target: Any, scale: Scale) -> Any:
        if mine.block == uint32(0):
            tid = uint32(cuda.threadIdx.x)
            rank(mine.shared, number)
            word, weight = uint64(0), uint64(0)
            if tid < number:
                word = ptx.shared_u64(mine.shared + uint32(at_ranked) + uint32(8) * tid)
                weight = uint64(1)
                if by_mass:
                    weight = uint64(mass_at(word_height(word, scale)))
            before, total = scan(mine.shared, weight)
            target = min(target, total)
            if before < target and before + weight >= target:
                for i in range(blocks):
                    there = cluster.map_shared(mine.shared + uint32(at_end), uint32(i))
                    cluster.put_there_u64(there, word)
        cluster.release_cluster()
        cluster.wait_cluster()
        return ptx.shared_u64(mine.shared + uint32(at_end))

    return cut


def make_top_key(room: Room) -> Device:
    """Function that gives the key which so many warps' best reach; the lowest for more of them."""
    blocks, warps, at_tops, at_parts = room.blocks, room.warps, room.tops, room.parts
    num_tops = blocks * warps
    shares = -(-num_tops // 32)

    @device_function
    def top_key(shared: Any, number: Any) -> Any:
        tid = uint32(cuda.threadIdx.x)
        lane, warp = tid & uint32(31), tid >> uint32(5)
        keys = cuda.local.array(shares, uint32)
        for i in range(shares):
            keys[i] = uint32(0)
            at = lane + uint32(32 * i)
            if at < uint32(num_tops):
                keys[i] = ptx.shared_u32(shared + uint32(at_tops + 4) + uint32(8) * at)
        found = uint32(LOWEST_KEY)
        for i in range(blocks):
            at = shared + uint32(at_tops + 4) + uint32(8) * (warp * uint32(blocks) + uint32(i))
            key = ptx.shared_u32(at)
            reaching = uint32(0)
            for k in range(shares):
                reaching = uint32(reaching + uint32(keys[k] >= key))
            if ptx.sum_of_warp(reaching) >= number:
                found = max(found, key)
        if lane == uint32(0):
            ptx.put_shared_u32(shared + uint32(at_parts) + uint32(4) * warp, found)
        cuda.syncthreads()
        if lane < uint32(warps):
            found = ptx.shared_u32(shared + uint32(at_parts) + uint32(4) * lane)
        return ptx.largest_of_warp(found)

    return top_key


@device_function
def mass_kept(gathered: Gathered, top_p: Any) -> Any:
    """Mass that top_p keeps of all candidates."""
    return uint64(values.mass_target(gathered.mass, top_p))
