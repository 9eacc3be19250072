"""Ranking of experts on CUDA: one warp a token, with the logits in its registers.

    p = softmax over experts ; the k largest, lower index first among equals ; p / sum p

The sum over all experts leaves a renormalised weight again, so it is not taken: keys are the bits
of exp(logit - largest), which order like the numbers, and a round of the ranking is two reductions
of integers. A logit that is no number ranks as the largest.

Few tokens are ranked by a launch whose other blocks gate the shared expert's projections: both need
the same products, and either alone is mostly the start of a kernel.

The ranking lets its successor start only when its results are written. So every kernel behind it on
the stream, when it starts, finds the choices complete, also before it has waited for its own
predecessor: `expert_gate` and `expert_down` ask for the experts' rows that early. They read choices
past the first-level cache.
"""

import math
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.pointwise import make_gate_chunk

MAX_CHOSEN: Final = WARP
"""Most experts of a token: a lane keeps one."""

_LARGEST_KEY: Final = 0x7FFFFFFE  # of a logit that is no number; every other key is smaller

Address = Any
Array = Any
Index = Any


@cache
def make_rank(num_experts: int) -> Kernel:
    """Grid (tokens,), block (32,)."""
    rank_token = _make_rank_token(num_experts)

    def rank(router: int, experts: int, weights: int, shared_gate: int, chosen: int) -> None:
        ptx.wait_for_predecessor()
        rank_token(router, experts, weights, shared_gate, chosen)
        ptx.fence_gpu()
        cuda.syncwarp()
        ptx.release_successor()

    params = (Param.ADDRESS,) * 4 + (Param.I32,)
    return Kernel(f"moe_rank_{num_experts}", rank, params, threads=WARP, max_registers=64)


@cache
def make_rank_and_gate(num_experts: int, is_aligned: bool) -> Kernel:
    """Grid (tokens, 1 + padded width / 256), block (32,); blocks (t, 0) rank, the others gate.

    Args:
        num_experts: of the router.
        is_aligned: the shared expert's halves are whole chunks, read sixteen bytes at a time.
    """
    rank_token, gate_chunk = _make_rank_token(num_experts), make_gate_chunk(is_aligned)

    def rank_and_gate(
        router: int,
        experts: int,
        weights: int,
        shared_gate: int,
        gate_up: int,
        base: int,
        sums: int,
        chosen: int,
        width: int,
        padded: int,
    ) -> None:
        ptx.wait_for_predecessor()
        if cuda.blockIdx.y == 0:
            rank_token(router, experts, weights, shared_gate, chosen)
            ptx.fence_gpu()
            cuda.syncwarp()
        else:
            column = cuda.blockIdx.x
            chunk = (cuda.blockIdx.y - 1) * WARP + cuda.threadIdx.x
            gate_chunk(gate_up, column, chunk, base, sums, width, padded)
        ptx.release_successor()

    kind = "" if is_aligned else "_ragged"
    return Kernel(
        f"moe_rank_and_gate_{num_experts}{kind}",
        rank_and_gate,
        (Param.ADDRESS,) * 7 + (Param.I32,) * 3,
        threads=WARP,
        max_registers=64,
    )


def _make_rank_token(num_experts: int) -> Any:
    """Ranking of token ``blockIdx.x``."""
    rank_warp = make_rank_warp(num_experts)

    @device_function
    def rank_token(
        router: Address, experts: Address, weights: Address, shared_gate: Address, chosen: Index
    ) -> None:
        lane = int32(cuda.threadIdx.x)
        token = uint64(cuda.blockIdx.x)
        line = router + token * uint64(4 * (num_experts + 1))
        gate = ptx.load_f32(line + uint64(4 * num_experts))
        expert, share = rank_warp(line, chosen, lane)
        store_ranking(experts, weights, shared_gate, token, chosen, lane, expert, share, gate)

    return rank_token


def make_rank_warp(num_experts: int) -> Any:
    """Ranking by a warp: (line of the router, chosen, lane); a lane's expert and its share."""
    per_lane = -(-num_experts // WARP)
    load_keys, take_best = make_load_keys(num_experts), make_take_best(per_lane)

    @device_function
    def rank_warp(line: Address, chosen: Index, lane: Index) -> Any:
        keys = cuda.local.array(per_lane, uint32)
        load_keys(line, lane, keys)
        total = float32(0.0)
        own, own_expert = float32(0.0), int32(0)
        for slot in range(chosen):
            key, winner = take_best(keys, lane)
            value = ptx.f32_of_bits(key - uint32(1))
            total += value
            if lane == slot:
                own, own_expert = value, winner
        return int32(own_expert), own / total

    return rank_warp


@device_function
def store_ranking(
    experts: Address,
    weights: Address,
    shared_gate: Address,
    token: Index,
    chosen: Index,
    lane: Index,
    expert: Index,
    share: Any,
    gate: Any,
) -> None:
    """Write what a warp has ranked, and the share of the shared expert."""
    if lane < chosen:
        at = (token * uint64(chosen) + uint64(lane)) * uint64(4)
        ptx.store_i32(experts + at, expert)
        ptx.store_f32(weights + at, share)
    if lane == int32(0):
        value = float32(1.0) / (float32(1.0) + float32(math.exp(-gate)))
        ptx.store_f32(shared_gate + token * uint64(4), value)


def make_load_keys(num_experts: int) -> Any:
    """Keys of experts ``lane + 32 i``; 0 where there is none."""
    per_lane = -(-num_experts // WARP)

    @device_function
    def load_keys(line: Address, lane: Index, keys: Array) -> None:
        logits = cuda.local.array(per_lane, float32)
        for i in range(per_lane):
            expert = min(lane + int32(WARP * i), int32(num_experts - 1))
            logits[i] = ptx.load_f32(line + uint64(expert) * uint64(4))
        most = logits[0]
        for i in range(1, per_lane):
            most = max(most, logits[i])
        for step in (16, 8, 4, 2, 1):
            most = max(most, cuda.shfl_xor_sync(0xFFFFFFFF, most, step))
        for i in range(per_lane):
            bits = ptx.bits_of_f32(float32(math.exp(logits[i] - most)))
            keys[i] = ptx.smaller_u32(bits, uint32(_LARGEST_KEY)) + uint32(1)
            if lane + int32(WARP * i) >= int32(num_experts):
                keys[i] = uint32(0)

    return load_keys


def make_take_best(per_lane: int) -> Any:
    """Largest key of the warp and its expert, the lowest of equals; the key becomes 0."""

    @device_function
    def take_best(keys: Array, lane: Index) -> Any:
        best, place = keys[0], int32(0)
        for i in range(1, per_lane):
            if keys[i] > best:
                best, place = keys[i], int32(i)
        best_of_all = ptx.largest_of_warp(best)
        candidate = uint32(0xFFFFFFFF)
        if best == best_of_all:
            candidate = uint32(lane + int32(WARP) * place)
        winner = int32(ptx.smallest_of_warp(candidate))
        for i in range(per_lane):
            if lane + int32(WARP * i) == winner:
                keys[i] = uint32(0)
        return best_of_all, winner

    return take_best
