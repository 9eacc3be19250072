"""A row's candidates in shared memory: every block of a cluster reads its ids once, as values.

A value is a penalised logit, minus infinity for an id that has left the distribution, and 0 has no
sign. Logits come by bulk copies where the length of rows allows it; the first half is looked at
while the other is under way. Everything that filters need later is in the values. Source:
`ninfer.ops.sampling`.
"""

import math
from typing import Any, Final, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import cluster, ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_room import Room
from ninfer.kernels.cuda.choice_values import LARGEST_F32, Line

NO_ID: Final = 0xFFFFFFFF

Device = Any


class Slice(NamedTuple):
    """The ids of one block.

    Attributes:
        shared: address of the block's shared memory.
        block: number of the block in its cluster.
        first: first id.
        count: ids.
        turns: in which each thread takes one id.
    """

    shared: Any
    block: Any
    first: Any
    count: Any
    turns: Any


@device_function
def walk(mine: Slice, threads: Any) -> Any:
    """Address of a thread's first value and its id, and where values end, when all are there.

    The next ones are ``threads`` further.
    """
    tid = uint32(cuda.threadIdx.x)
    stop = uint32(mine.shared + uint32(4) * uint32(mine.turns) * uint32(threads))
    return uint32(mine.shared + uint32(4) * tid), uint32(mine.first + tid), stop


@device_function
def _four_counts(line: Line, token: Any, mask: Any, is_wide: Any) -> Any:
    """Counts of four neighbouring ids, 0 where a bit of ``mask`` is not set."""
    a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
    at = line.counts + uint64(uint32(token)) * uint64(4)
    if is_wide:
        if mask != uint32(0):
            a, b, c, d = ptx.load_u32x4(at)
    else:
        a = ptx.load_u32_if(at, mask & uint32(1))
        b = ptx.load_u32_if(at + uint64(4), mask & uint32(2))
        c = ptx.load_u32_if(at + uint64(8), mask & uint32(4))
        d = ptx.load_u32_if(at + uint64(12), mask & uint32(8))
    return a, b, c, d


@device_function
def _penalised(line: Line, logit: Any, count: Any) -> Any:
    """A logit less its penalty."""
    penalty = line.once + line.each * float32(int32(count))
    if int32(count) > int32(0):
        logit -= penalty
    return logit


@device_function
def _value(logit: Any) -> Any:
    """A penalised logit's value; infinity counts as the largest number."""
    value = ptx.larger_f32(logit + float32(0.0), float32(-math.inf))  # 0 without sign; a number
    return ptx.smaller_f32(value, float32(LARGEST_F32))


@device_function
def _permitted(value: Any, bits: Any, place: Any) -> Any:
    """A value where a bit is set."""
    if (bits & place) == uint32(0):
        value = float32(-math.inf)
    return value


@device_function
def _inside(mine: Slice, step: Any, threads: Any) -> Any:
    """First of a thread's four ids within the slice, and a bit for each that it has."""
    local = uint32(uint32(4) * (uint32(cuda.threadIdx.x) + uint32(step) * uint32(threads)))
    bits = uint32(0)
    if local < mine.count:
        left = min(uint32(4), uint32(mine.count - local))
        bits = uint32((uint32(1) << left) - uint32(1))
    return local, bits


@device_function
def _put_values(at: Any, logits: Any, bits: Any) -> Any:
    """Store the values of four ids; returns the largest."""
    v0, v1 = _value(logits[0]), _value(logits[1])
    v2, v3 = _value(logits[2]), _value(logits[3])
    if bits != uint32(15):
        v0, v1 = _permitted(v0, bits, uint32(1)), _permitted(v1, bits, uint32(2))
        v2, v3 = _permitted(v2, bits, uint32(4)), _permitted(v3, bits, uint32(8))
    ptx.put_shared_f32x4(at, v0, v1, v2, v3)
    return ptx.larger_f32(ptx.larger_f32(v0, v1), ptx.larger_f32(v2, v3))


@device_function
def _id_of(mine: Slice, local: Any, value: Any) -> Any:
    """Lowest of four ids that has a value."""
    v0, v1, v2, _ = ptx.shared_f32x4(mine.shared + uint32(4) * local)
    place = uint32(3)
    if v2 == value:
        place = uint32(2)
    if v1 == value:
        place = uint32(1)
    if v0 == value:
        place = uint32(0)
    return uint32(mine.first + local + place)


def _half(room: Room) -> int:
    """Turns of four ids that a thread takes before the others: half of them."""
    half, rest = divmod(room.ids, 8 * room.threads)
    assert rest == 0
    return half


def make_slice(room: Room) -> Device:
    """Function that says which ids of a row a block has."""
    threads, blocks = room.threads, room.blocks

    @device_function
    def slice_of(shared: Any, block: Any, addressable: Any) -> Slice:
        span = (int32(addressable) + int32(blocks - 1)) // int32(blocks)
        span = (int32(span) + int32(31)) // int32(32) * int32(32)  # whole words of the mask
        first = int32(block) * int32(span)
        count = max(int32(0), min(int32(span), int32(addressable) - int32(first)))
        turns = (int32(span) + int32(threads - 1)) // int32(threads)
        return Slice(shared, uint32(block), uint32(first), uint32(count), int32(turns))

    return slice_of


def make_ask(room: Room) -> Device:
    """Function that asks for the logits of a slice, half of a block's turns at a time."""
    threads, at_arrivals = room.threads, room.arrivals
    most = 4 * _half(room) * threads

    @device_function
    def ask_for(to: Any, source: Any, nbytes: Any, barrier: Any) -> None:
        warpgroup.expect_bytes(barrier, nbytes)
        if nbytes != uint32(0):
            warpgroup.copy_bulk(to, source, nbytes, barrier)

    @device_function
    def ask(mine: Slice, logits: Any, is_wide: Any) -> None:
        tid = uint32(cuda.threadIdx.x)
        source = logits + uint64(mine.first) * uint64(4)
        if is_wide:
            if tid == uint32(0):
                at = uint32(mine.shared + uint32(at_arrivals))
                warpgroup.init_barrier(at, uint32(1))
                warpgroup.init_barrier(at + uint32(8), uint32(1))
                warpgroup.publish_barriers()
                whole = uint32(uint32(mine.count + uint32(3)) & uint32(0xFFFFFFFC))
                left = uint32(uint32(4) * min(whole, uint32(most)))
                ask_for(mine.shared, source, left, at)
                more = uint32(uint32(4) * whole - left)
                ask_for(mine.shared + left, source + uint64(left), more, at + uint32(8))
        else:
            local = tid
            while local < mine.count:
                to = mine.shared + uint32(4) * local
                ptx.copy_async_4(to, source + uint64(local) * uint64(4), uint32(4))
                local = uint32(local + uint32(threads))
            ptx.close_copies()
            ptx.wait_copies_0()
        cuda.syncthreads()

    return ask


def make_read(room: Room) -> Device:
    """Function that makes values of the logits that were asked for; a thread's best and its id."""
    threads, at_arrivals = room.threads, room.arrivals
    together = _half(room)
    num_counts = 4 * together

    @device_function
    def read(line: Line, mine: Slice, is_wide: Any) -> Any:
        has_penalty = line.once != float32(0.0) or line.each != float32(0.0)
        # A thread without any value reads a place of its own: others are still written.
        best, best_at = float32(-math.inf), uint32(4) * uint32(cuda.threadIdx.x)
        permitted = cuda.local.array(together, uint32)
        counts = cuda.local.array(num_counts, uint32)
        for turn in range(0, (mine.turns + 3) // 4, together):
            # What half of the turns need is asked for together.
            for i in range(together):
                local, bits = _inside(mine, turn + i, threads)
                token = uint32(mine.first + local)
                at = line.mask + uint64(token >> uint32(5)) * uint64(4)
                word = ptx.load_u32_if(at, bits)
                permitted[i] = uint32(word >> (token & uint32(31))) & bits
            if has_penalty:
                for i in range(together):
                    local, bits = _inside(mine, turn + i, threads)
                    a, b, c, d = _four_counts(line, uint32(mine.first + local), bits, is_wide)
                    counts[4 * i], counts[4 * i + 1] = a, b
                    counts[4 * i + 2], counts[4 * i + 3] = c, d
            if is_wide:
                barrier = uint32(mine.shared + uint32(at_arrivals))
                if turn != 0:
                    barrier = uint32(barrier + uint32(8))
                warpgroup.wait_phase(barrier, uint32(0))
            for i in range(together):
                local, _ = _inside(mine, turn + i, threads)
                at = uint32(mine.shared + uint32(4) * local)
                l0, l1, l2, l3 = ptx.shared_f32x4(at)
                if has_penalty:
                    l0 = _penalised(line, l0, counts[4 * i])
                    l1 = _penalised(line, l1, counts[4 * i + 1])
                    l2 = _penalised(line, l2, counts[4 * i + 2])
                    l3 = _penalised(line, l3, counts[4 * i + 3])
                top = _put_values(at, (l0, l1, l2, l3), permitted[i])
                if top > best:
                    best, best_at = top, local
        return best, _id_of(mine, best_at, best)

    return read


def make_agree(room: Room) -> Device:
    """Function by which all blocks come to know the best candidates of all warps.

    Returns:
        The word of the row's best candidate (`choice_values.candidate_word`), for every thread.
    """
    blocks, warps, at_tops = room.blocks, room.warps, room.tops
    num_tops = blocks * warps
    shares = -(-num_tops // 32)

    @device_function
    def agree(mine: Slice, value: Any, token: Any) -> Any:
        tid = uint32(cuda.threadIdx.x)
        lane, warp = tid & uint32(31), tid >> uint32(5)
        key = uint32(values.key_of(value))
        best = ptx.largest_of_warp(key)
        if key != best:
            token = uint32(NO_ID)
        token = ptx.smallest_of_warp(token)
        cluster.wait_cluster()  # all blocks have started
        if lane < uint32(blocks):
            to = mine.shared + uint32(at_tops) + uint32(8) * (mine.block * uint32(warps) + warp)
            cluster.put_there_u64(cluster.map_shared(to, lane), values.word_of_key(best, token))
        cluster.release_cluster()
        cluster.wait_cluster()
        word = uint64(0)
        for i in range(shares):
            at = lane + uint32(32 * i)
            if at < uint32(num_tops):
                word = max(word, ptx.shared_u64(mine.shared + uint32(at_tops) + uint32(8) * at))
        return values.warp_largest(word)

    return agree


def make_lowest(room: Room) -> Device:
    """Function that finds the lowest permitted id of a row, for the first warp of the first block.

    All ones where there is none.
    """
    threads, blocks, warps = room.threads, room.blocks, room.warps
    at_parts, at_lowest = room.parts, room.lowest

    @device_function
    def lowest_of(line: Line, mine: Slice) -> Any:
        tid = uint32(cuda.threadIdx.x)
        lowest = uint32(NO_ID)
        for local in range(tid, mine.count, uint32(threads)):
            token = uint32(mine.first + uint32(local))
            word = ptx.load_u32(line.mask + uint64(token >> uint32(5)) * uint64(4))
            if (word >> (token & uint32(31))) & uint32(1) != uint32(0):
                lowest = min(lowest, token)
        lowest = ptx.smallest_of_warp(lowest)
        at = mine.shared + uint32(at_parts)
        if tid & uint32(31) == uint32(0):
            ptx.put_shared_u32(at + uint32(4) * (tid >> uint32(5)), lowest)
        cuda.syncthreads()
        if tid == uint32(0):
            for i in range(warps):
                lowest = min(lowest, ptx.shared_u32(at + uint32(4 * i)))
            to = mine.shared + uint32(at_lowest) + uint32(4) * mine.block
            cluster.put_there_u32(cluster.map_shared(to, uint32(0)), lowest)
        cluster.release_cluster()
        cluster.wait_cluster()
        if mine.block == uint32(0):
            for i in range(blocks):
                lowest = min(lowest, ptx.shared_u32(mine.shared + uint32(at_lowest + 4 * i)))
        return lowest

    return lowest_of
