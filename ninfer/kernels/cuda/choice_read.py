"""A row's candidates in shared memory: every block of a cluster reads its ids once, as keys.

A key is the order-preserving bits of a penalised logit, 0 for an id that has left the distribution.
Logits come by asynchronous copies, all of them under way at once, 16 bytes each where a row's
length allows it; a thread reads what it has copied itself. Everything that filters need later is in
the keys. Source: `ninfer.ops.sampling`.
"""

from typing import Any, Final, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import cluster, ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_room import Room
from ninfer.kernels.cuda.choice_values import Line

NO_ID: Final = 0xFFFFFFFF

_LOWEST_KEY: Final = 0x00800000  # of the smallest finite number
_KEY_SPAN: Final = 0xFF000000  # from there to infinity
_LARGEST_KEY: Final = 0xFF7FFFFF  # of the largest finite number

_TOGETHER: Final = 4
"""Turns whose masks and counts are under way together."""

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
    """Address of a thread's first key and its id, and where keys end, when all have been read.

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
def _penalised(line: Line, bits: Any, count: Any) -> Any:
    """Bits of a penalised logit."""
    value = ptx.f32_of_bits(bits)
    penalty = line.once + line.each * float32(int32(count))
    if int32(count) > int32(0):
        value -= penalty
    return ptx.bits_of_f32(value)


@device_function
def _key(bits: Any, is_permitted: Any) -> Any:
    """Key of a penalised logit's bits; infinity counts as the largest number."""
    bits = uint32(ptx.bits_of_f32(ptx.f32_of_bits(bits) + float32(0.0)))  # turns -0 into 0
    key = uint32(bits ^ (uint32(int32(bits) >> int32(31)) | uint32(0x80000000)))
    is_number = uint32(key - uint32(_LOWEST_KEY)) <= uint32(_KEY_SPAN)
    key = ptx.smaller_u32(key, uint32(_LARGEST_KEY))
    if is_permitted == uint32(0) or not is_number:
        key = uint32(0)
    return key


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
def _put_keys(at: Any, logits: Any, bits: Any) -> Any:
    """Store the keys of four ids; returns the largest."""
    k0 = uint32(_key(logits[0], bits & uint32(1)))
    k1 = uint32(_key(logits[1], bits & uint32(2)))
    k2 = uint32(_key(logits[2], bits & uint32(4)))
    k3 = uint32(_key(logits[3], bits & uint32(8)))
    ptx.put_shared_u32x4(at, k0, k1, k2, k3)
    return uint32(max(max(k0, k1), max(k2, k3)))


@device_function
def _id_of(mine: Slice, local: Any, key: Any) -> Any:
    """Lowest of four ids that has a key."""
    k0, k1, k2, _ = ptx.shared_u32x4(mine.shared + uint32(4) * local)
    place = uint32(3)
    if k2 == key:
        place = uint32(2)
    if k1 == key:
        place = uint32(1)
    if k0 == key:
        place = uint32(0)
    return uint32(mine.first + local + place)


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
    """Function that asks for the logits of a slice."""
    threads = room.threads

    @device_function
    def ask(mine: Slice, logits: Any, is_wide: Any) -> None:
        tid = uint32(cuda.threadIdx.x)
        to = uint32(mine.shared + uint32(16) * tid)
        source = logits + uint64(mine.first) * uint64(4) + uint64(tid) * uint64(16)
        left = int32(mine.count) - int32(4) * int32(tid)
        while left > int32(0):
            nbytes = int32(4) * min(left, int32(4))
            if is_wide:
                ptx.copy_async_16(to, source, uint32(nbytes))
            else:
                for i in range(min(left, int32(4))):
                    ptx.copy_async_4(to + uint32(4 * i), source + uint64(4 * i), uint32(4))
            to = uint32(to + uint32(16 * threads))
            source += uint64(16 * threads)
            left = int32(left - int32(4 * threads))
        ptx.close_copies()

    return ask


def make_read(room: Room) -> Device:
    """Function that makes keys of the logits that were asked for; a thread's best key and id."""
    threads = room.threads
    together = min(_TOGETHER, room.ids // (4 * threads))
    num_counts = 4 * together
    assert room.ids % (threads * num_counts) == 0

    @device_function
    def read(line: Line, mine: Slice, is_wide: Any) -> Any:
        has_penalty = line.once != float32(0.0) or line.each != float32(0.0)
        best, best_at = uint32(0), uint32(0)
        permitted = cuda.local.array(together, uint32)
        counts = cuda.local.array(num_counts, uint32)
        for turn in range(0, (mine.turns + 3) // 4, together):
            # What several turns need is asked for together.
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
            ptx.wait_copies_0()
            for i in range(together):
                local, _ = _inside(mine, turn + i, threads)
                at = uint32(mine.shared + uint32(4) * local)
                l0, l1, l2, l3 = ptx.shared_u32x4(at)
                if has_penalty:
                    l0 = _penalised(line, l0, counts[4 * i])
                    l1 = _penalised(line, l1, counts[4 * i + 1])
                    l2 = _penalised(line, l2, counts[4 * i + 2])
                    l3 = _penalised(line, l3, counts[4 * i + 3])
                top = _put_keys(at, (l0, l1, l2, l3), permitted[i])
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
    def agree(mine: Slice, key: Any, token: Any) -> Any:
        tid = uint32(cuda.threadIdx.x)
        lane, warp = tid & uint32(31), tid >> uint32(5)
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
