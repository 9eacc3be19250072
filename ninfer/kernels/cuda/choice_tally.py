"""Tallies of a row's candidates over bins, made by all blocks of a cluster together.

A block adds up the weights of its own candidates with integer atomics in its shared memory; then
every block adds up its part of the bins and gives the totals to all. Weights are numbers of 34
bits, added up as two of 17: a block's sums fit into 32 bits. Where many lanes of a warp mean the
same bin, one of them adds for all, so that equal logits cost little more than others.

Every function is called by all threads of a block, `share` by all of a cluster.
"""

from typing import Any, Final, NamedTuple

from numba import cuda, int32, int64, uint32, uint64

from ninfer.cuda import cluster, ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_read import Slice
from ninfer.kernels.cuda.choice_room import Room
from ninfer.kernels.cuda.choice_selection import plus_below

WEIGHT_BITS: Final = 17
"""Of each part of a weight: 2^15 parts sum in 32 bits."""

_CROWD: Final = 8
"""Lanes that mean one bin from which on one adds for all."""

Device = Any


class Place(NamedTuple):
    """Where a cumulative weight reaches a target.

    Attributes:
        bin: number of the bin; the number of bins when the target is not reached.
        before: weight of better bins.
        weight: of the bin.
        target: the weight to reach.
    """

    bin: Any
    before: Any
    weight: Any
    target: Any


@device_function
def _through_lanes(value: Any) -> Any:
    """Sum over the lanes up to this one."""
    lane = uint32(cuda.threadIdx.x) & uint32(31)
    value = plus_below(value, lane, 1)
    value = plus_below(value, lane, 2)
    value = plus_below(value, lane, 4)
    value = plus_below(value, lane, 8)
    return plus_below(value, lane, 16)


def make_scan(room: Room) -> Device:
    """Function that adds up what threads before this one have, and what all have."""
    warps, at_parts = room.warps, room.parts

    @device_function
    def scan(shared: Any, value: Any) -> Any:
        tid = uint32(cuda.threadIdx.x)
        lane, warp = tid & uint32(31), tid >> uint32(5)
        reached = _through_lanes(uint64(value))
        cuda.syncthreads()
        if lane == uint32(31):
            ptx.put_shared_u64(shared + uint32(at_parts) + uint32(8) * warp, reached)
        cuda.syncthreads()
        of_warps = uint64(0)
        if lane < uint32(warps):
            of_warps = ptx.shared_u64(shared + uint32(at_parts) + uint32(8) * lane)
        of_warps = _through_lanes(of_warps)
        total = uint64(cuda.shfl_sync(0xFFFFFFFF, int64(of_warps), 31))
        before = uint64(
            cuda.shfl_sync(0xFFFFFFFF, int64(of_warps), int32(max(warp, uint32(1)) - uint32(1)))
        )
        if warp == uint32(0):
            before = uint64(0)
        return before + reached - uint64(value), total

    return scan


def make_clear(room: Room) -> Device:
    """Function that empties the block's bins."""
    threads, at_sums = room.threads, room.sums

    @device_function
    def clear(shared: Any) -> None:
        zero = uint32(0)
        at = shared + uint32(at_sums) + uint32(16) * uint32(cuda.threadIdx.x)
        ptx.put_shared_u32x4(at, zero, zero, zero, zero)
        cuda.syncthreads()

    assert 4 * threads == 2 * room.bins
    return clear


def make_add(room: Room) -> Device:
    """Function that adds a lane's weight to a bin; by whole warps.

    Where it is told to look for crowds, it returns whether there was one.
    """
    bins, at_sums = room.bins, room.sums

    @device_function
    def add_at(shared: Any, place: Any, low: Any, high: Any) -> None:
        at = uint32(shared + uint32(at_sums) + uint32(4) * uint32(place))
        ptx.add_shared_u32(at, low)
        if high != uint32(0):
            ptx.add_shared_u32(at + uint32(4 * bins), high)

    @device_function
    def add(shared: Any, is_one: Any, place: Any, low: Any, high: Any, is_watchful: Any) -> Any:
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        place = int32(place)
        is_crowded = False
        if is_watchful:
            waiting = uint32(cuda.ballot_sync(0xFFFFFFFF, is_one))
            for _ in range(2):
                if uint32(cuda.popc(waiting)) >= uint32(_CROWD):
                    leader = uint32(
                        cuda.popc(uint32((waiting & uint32(-int32(waiting))) - uint32(1)))
                    )
                    common = int32(cuda.shfl_sync(0xFFFFFFFF, place, int32(leader)))
                    is_common = is_one and place == common
                    crowd = uint32(cuda.ballot_sync(0xFFFFFFFF, is_common))
                    if uint32(cuda.popc(crowd)) >= uint32(_CROWD):
                        is_crowded = True
                        lower, upper = uint32(0), uint32(0)
                        if is_common:
                            lower, upper = low, high
                        lower, upper = ptx.sum_of_warp(lower), ptx.sum_of_warp(upper)
                        if lane == leader:
                            add_at(shared, common, lower, upper)
                        is_one = is_one and not is_common
                        waiting = uint32(waiting & ~crowd)
        if is_one:
            add_at(shared, place, low, high)
        return is_crowded

    return add


def make_share(room: Room) -> Device:
    """Function that lets every block know the totals of all bins."""
    threads, blocks, bins, part = room.threads, room.blocks, room.bins, room.part
    at_sums, at_given = room.sums, room.given
    peer_step = threads // part

    @device_function
    def share(mine: Slice) -> None:
        tid = uint32(cuda.threadIdx.x)
        shared = mine.shared
        cuda.syncthreads()
        for i in range(2):
            place = tid + uint32(i * threads)
            at = shared + uint32(at_sums) + uint32(4) * place
            weight = uint64(ptx.shared_u32(at))
            weight += uint64(ptx.shared_u32(at + uint32(4 * bins))) << uint64(WEIGHT_BITS)
            to = mine.block * uint32(part) + place % uint32(part)
            there = cluster.map_shared(shared + uint32(at_given), place // uint32(part))
            cluster.put_there_u64(there + uint32(8) * to, weight)
        cluster.release_cluster()
        cluster.wait_cluster()
        own = tid % uint32(part)
        weight = uint64(0)
        for i in range(blocks):
            at = shared + uint32(at_given + 8 * i * part) + uint32(8) * own
            weight += ptx.shared_u64(at)
        place = mine.block * uint32(part) + own
        for i in range(2):
            peer = tid // uint32(part) + uint32(i * peer_step)
            there = cluster.map_shared(shared + uint32(at_sums), peer)
            cluster.put_there_u64(there + uint32(8) * place, weight)
        cluster.release_cluster()
        cluster.wait_cluster()

    return share


def make_find(room: Room) -> Device:
    """Function that finds the `Place` where a weight is reached, best bin first.

    A target of 0 stands for what top_p keeps of the total.
    """
    bins, at_sums, at_place = room.bins, room.sums, room.place
    scan = make_scan(room)

    @device_function
    def find(shared: Any, target: Any, top_p: Any) -> Place:
        tid = uint32(cuda.threadIdx.x)
        at = shared + uint32(at_sums) + uint32(16) * tid
        w0, w1 = ptx.shared_u64(at), ptx.shared_u64(at + uint32(8))
        before, total = scan(shared, w0 + w1)
        if target == uint64(0):
            target = uint64(values.mass_target(total, top_p))
        to = shared + uint32(at_place)
        if tid == uint32(0):
            ptx.put_shared_u64(to, uint64(bins))
        cuda.syncthreads()
        place = uint32(2) * tid
        if before + w0 < target:
            before, w0, place = before + w0, w1, place + uint32(1)
        if before < target and before + w0 >= target:
            ptx.put_shared_u64(to, uint64(place))
            ptx.put_shared_u64(to + uint32(8), before)
            ptx.put_shared_u64(to + uint32(16), w0)
        cuda.syncthreads()
        return Place(
            uint32(ptx.shared_u64(to)),
            ptx.shared_u64(to + uint32(8)),
            ptx.shared_u64(to + uint32(16)),
            uint64(target),
        )

    return find
