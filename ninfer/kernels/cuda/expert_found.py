"""Who chose an expert: found by a block from the router's products, without a launch that ranks.

A block stands for one choice, a token's slot. The warp of that token ranks as far as the slot
(`expert_rank`); then each warp counts how many experts of its token come before the one found. So
many as a token chooses: it has not chosen it; fewer: that is its slot. The block of the first token
that has it works for all.

    scratch    the expert, then the choice of each token, -1 where it has not chosen it
"""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.expert_rank import make_load_keys, make_take_best
from ninfer.kernels.cuda.launch import WARP

FOUND_TOKENS: Final = 8
"""Most tokens: as many as a block has warps."""

FOUND_BYTES: Final = 64
"""Shared memory of what is found."""

Address = Any
Array = Any
Index = Any


def make_find(num_experts: int) -> Any:
    """Function of all warps of a block: (router, num_tokens, chosen, warp, lane, scratch).

    It gives the expert of choice ``blockIdx.y``, -1 where another block works for it, and the
    choice of token ``lane mod 8``, -1 where it has not chosen the expert.
    """
    per_lane = -(-num_experts // WARP)
    load_keys, take_best = make_load_keys(num_experts), make_take_best(per_lane)
    count_before = _make_count_before(per_lane)

    @device_function
    def find(
        router: Address,
        num_tokens: Index,
        chosen: Index,
        warp: Index,
        lane: Index,
        scratch: Address,
    ) -> Any:
        choice = uint32(cuda.blockIdx.y)
        own_token = int32(ptx.divide_u32(choice, uint32(chosen)))
        keys = cuda.local.array(per_lane, uint32)
        if warp < num_tokens:
            line = router + uint64(uint32(warp)) * uint64(4 * (num_experts + 1))
            load_keys(line, lane, keys)
            if warp == own_token:
                winner = int32(0)
                for _ in range(int32(choice) - own_token * chosen + int32(1)):
                    _key, winner = take_best(keys, lane)
                if lane == int32(0):
                    ptx.put_shared_u32(scratch, uint32(winner))
        cuda.syncthreads()
        expert = int32(ptx.shared_u32(scratch))
        if warp < num_tokens:
            found = int32(choice)
            if warp != own_token:
                slot = count_before(keys, expert, lane)
                found = int32(-1)
                if slot < chosen:
                    found = int32(warp * chosen + slot)
            if lane == int32(0):
                ptx.put_shared_u32(scratch + uint32(4) + uint32(warp) * uint32(4), uint32(found))
        cuda.syncthreads()
        token = int32(lane & int32(FOUND_TOKENS - 1))
        found = int32(ptx.shared_u32(scratch + uint32(4) + uint32(token) * uint32(4)))
        if token >= num_tokens:
            found = int32(-1)
        votes = uint32(cuda.ballot_sync(0xFFFFFFFF, found >= int32(0)))
        if votes & ((uint32(1) << uint32(own_token)) - uint32(1)) != uint32(0):
            expert = int32(-1)
        return int32(expert), int32(found)

    return find


def _make_count_before(per_lane: int) -> Any:
    """Experts of a warp's token that are ranked before one: larger, or equal and lower."""

    @device_function
    def count_before(keys: Array, expert: Index, lane: Index) -> Any:
        own = uint32(0)
        for i in range(per_lane):
            if expert >> int32(5) == int32(i):
                own = keys[i]
        lane_of = int32(expert & int32(31))
        own = uint32(cuda.shfl_sync(0xFFFFFFFF, int32(own), lane_of))
        count = uint32(0)
        for i in range(per_lane):
            bound = own
            if lane + int32(WARP * i) >= expert:
                bound = uint32(own + uint32(1))
            count += uint32(keys[i] >= bound)
        return int32(ptx.sum_of_warp(count))

    return count_before
