"""Ranking of one token's experts by the eight warps of a block: short, because all wait for it.

    p = softmax over experts ; the k largest, lower index first among equals ; p / sum p

The same as `expert_rank`, bit for bit, where a warp ranks alone. A thread has one expert; each warp
counts how many of its own come before, leaves its eight best in order, and the places of those
sixty-four among each other are counted again. Nothing waits for a winner to be taken out.

    scratch   keys of all experts, keys and experts of the candidates, words of warps, then experts
              and keys of the ranking
"""

import math
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.launch import WARP

RANK_WARPS: Final = 8
"""Warps that rank."""

MOST_RANKED: Final = 8
"""Most experts of a token."""

MOST_EXPERTS: Final = RANK_WARPS * WARP

_LARGEST_KEY: Final = 0x7FFFFFFE  # of a logit that is no number; every other key is smaller
_CANDIDATES: Final = RANK_WARPS * MOST_RANKED
_KEYS_AT: Final = 4 * MOST_EXPERTS  # of candidates
_EXPERTS_AT: Final = _KEYS_AT + 4 * _CANDIDATES
_WARPS_AT: Final = _EXPERTS_AT + 4 * _CANDIDATES
RANKED_AT: Final = _WARPS_AT + 4 * RANK_WARPS
"""Experts of the ranking; its keys are behind them."""

SHARES_AT: Final = RANKED_AT + 4 * MOST_RANKED
RANK_BYTES: Final = SHARES_AT + 4 * MOST_RANKED

_BARRIER: Final = 1

Address = Any
Index = Any


def make_rank_block(num_experts: int) -> Any:
    """Ranking by threads 0..255 of a block: (line of the router, chosen, warp, lane, scratch).

    The line is read past the first-level cache, so that a kernel may rank before it has waited.
    """

    @device_function
    def rank_block(
        line: Address, chosen: Index, warp: Index, lane: Index, scratch: Address
    ) -> None:
        expert = int32(warp * int32(WARP) + lane)
        place = min(expert, int32(num_experts - 1))
        logit = ptx.fresh_f32(line + uint64(place) * uint64(4))
        words = scratch + uint32(_WARPS_AT)
        own = ptx.largest_of_warp(_ordered(logit))
        if lane == int32(0):
            ptx.put_shared_u32(words + uint32(warp) * uint32(4), own)
        _meet()
        most = ptx.shared_u32(words + (uint32(lane) & uint32(7)) * uint32(4))
        largest = _number(ptx.largest_of_warp(most))
        bits = ptx.bits_of_f32(float32(math.exp(logit - largest)))
        key = uint32(ptx.smaller_u32(bits, uint32(_LARGEST_KEY)) + uint32(1))
        if expert >= int32(num_experts):
            key = uint32(0)
        keys = scratch + uint32(warp) * uint32(WARP * 4)
        ptx.put_shared_u32(keys + uint32(lane) * uint32(4), key)
        ptx.sync_warp()
        before = _count_before(keys, key)
        if before < int32(MOST_RANKED):
            at = scratch + uint32(warp * int32(MOST_RANKED) + before) * uint32(4)
            ptx.put_shared_u32(at + uint32(_KEYS_AT), key)
            ptx.put_shared_u32(at + uint32(_EXPERTS_AT), uint32(expert))
        _meet()
        _place_candidate(scratch, chosen, warp, lane)
        _meet()

    return rank_block


@device_function
def weight_of(scratch: Address, chosen: Index, slot: Index) -> Any:
    """Weight of a slot, after the ranking."""
    keys = scratch + uint32(SHARES_AT)
    total = float32(0.0)
    for i in range(chosen):
        total += ptx.f32_of_bits(ptx.shared_u32(keys + uint32(i) * uint32(4)) - uint32(1))
    own = ptx.f32_of_bits(ptx.shared_u32(keys + uint32(slot) * uint32(4)) - uint32(1))
    return own / total


@device_function
def gate_share(logit: Any) -> Any:
    """Sigmoid of the shared expert's gate."""
    return float32(1.0) / (float32(1.0) + float32(math.exp(-logit)))


@device_function
def _meet() -> None:
    ptx.sync_threads(uint32(_BARRIER), uint32(RANK_WARPS * WARP))


@device_function
def _ordered(value: Any) -> Any:
    """Word that orders as numbers do; of what is no number, the least."""
    bits = uint32(ptx.bits_of_f32(value))
    word = uint32(bits | uint32(0x80000000))
    if bits >= uint32(0x80000000):
        word = uint32(bits ^ uint32(0xFFFFFFFF))
    if value != value:
        word = uint32(0)
    return word


@device_function
def _number(word: Any) -> Any:
    """The number that such a word stands for."""
    bits = uint32(word & uint32(0x7FFFFFFF))
    if word < uint32(0x80000000):
        bits = uint32(word ^ uint32(0xFFFFFFFF))
    return ptx.f32_of_bits(bits)


@device_function
def _count_before(keys: Address, key: Any) -> Any:
    """How many of a warp's experts are ranked before a lane's: larger, or equal and lower."""
    count = int32(cuda.popc(ptx.lanes_alike(key) & ptx.lanes_below()))
    for i in range(8):
        k0, k1, k2, k3 = ptx.shared_u32x4(keys + uint32(16 * i))
        count += int32(k0 > key) + int32(k1 > key) + int32(k2 > key) + int32(k3 > key)
    return int32(count)


@device_function
def _is_before(other: Any, place: Index, key: Any, own: Index) -> Any:
    """1 where a key is larger, or equal and at a lower place."""
    bound = uint32(key)
    if place >= own:
        bound = uint32(key + uint32(1))
    return int32(uint32(other) >= bound)


@device_function
def _place_candidate(scratch: Address, chosen: Index, warp: Index, lane: Index) -> None:
    """Rank a warp's eight candidates among all; four lanes count for each."""
    own = int32(warp * int32(MOST_RANKED) + (lane & int32(7)))
    at = scratch + uint32(own) * uint32(4)
    key = uint32(ptx.shared_u32(at + uint32(_KEYS_AT)))
    expert = ptx.shared_u32(at + uint32(_EXPERTS_AT))
    first = int32((lane >> int32(3)) * int32(16))
    count = int32(0)
    for i in range(4):
        place = int32(first + int32(4 * i))
        k0, k1, k2, k3 = ptx.shared_u32x4(scratch + uint32(_KEYS_AT) + uint32(place) * uint32(4))
        count += _is_before(k0, place, key, own)
        count += _is_before(k1, int32(place + int32(1)), key, own)
        count += _is_before(k2, int32(place + int32(2)), key, own)
        count += _is_before(k3, int32(place + int32(3)), key, own)
    count += int32(cuda.shfl_xor_sync(0xFFFFFFFF, count, 8))
    count += int32(cuda.shfl_xor_sync(0xFFFFFFFF, count, 16))
    if lane < int32(8) and count < chosen:
        to = scratch + uint32(count) * uint32(4)
        ptx.put_shared_u32(to + uint32(RANKED_AT), expert)
        ptx.put_shared_u32(to + uint32(SHARES_AT), key)
