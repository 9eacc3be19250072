"""What stands around the experts' products on CUDA: ranking, activation and the final sum.

    rank     p = softmax over experts ; the k largest, lower index first among equals ; p / sum p
    active   silu(g) * u of each choice, written as a linear input
    combine  residual += sum over slots, in ranking order, of w * product + shared gate * shared

Ranking is one warp a token, with the logits in its registers; the others are one thread a chunk of
eight features, or an element. Everything is f32; the residual is rounded once.
"""

import math
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.device_functions import lower_bf16, warp_sum
from ninfer.kernels.cuda.fragments import store_chunk
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.pointwise import gated

THREADS: Final = 128

_UNSEEN: Final = float("-inf")


@device_function
def lanes_max(value: Any) -> Any:
    """Largest of the 32 lanes, of any type."""
    value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 16))
    value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 8))
    value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 4))
    value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 2))
    return max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, 1))


@cache
def make_rank(  # noqa: C901, PLR0915 - softmax and ranking of the same registers
    num_experts: int,
) -> Kernel:
    """Grid (tokens,), block (32,)."""
    per_lane = -(-num_experts // WARP)

    def rank(  # noqa: C901 - as above
        router: int, experts: int, weights: int, shared_gate: int, chosen: int
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        lane = int32(cuda.threadIdx.x)
        token = cuda.blockIdx.x
        line = router + uint64(token) * uint64(4 * (num_experts + 1))
        p = cuda.local.array(per_lane, float32)
        most = float32(_UNSEEN)
        for i in range(per_lane):
            p[i] = float32(_UNSEEN)
            expert = lane + int32(32 * i)
            if expert < num_experts:
                p[i] = ptx.load_f32(line + uint64(expert) * uint64(4))
            most = max(most, p[i])
        most = lanes_max(most)
        total = float32(0.0)
        for i in range(per_lane):
            if lane + int32(32 * i) < num_experts:
                p[i] = float32(math.exp(p[i] - most))
                total += p[i]
            else:
                p[i] = float32(-2.0)
        total = warp_sum(total)
        for i in range(per_lane):
            p[i] = p[i] / total
        chosen_sum = float32(0.0)
        first = uint64(token) * uint64(chosen) * uint64(4)
        for slot in range(chosen):
            best, best_expert = float32(-1.5), int32(num_experts)
            for i in range(per_lane):
                if p[i] > best:
                    best, best_expert = p[i], lane + int32(32 * i)
            best_of_all = lanes_max(best)
            candidate = int32(0x7FFFFFFF)
            if best == best_of_all:
                candidate = best_expert
            winner = -lanes_max(-candidate)
            for i in range(per_lane):
                if lane + int32(32 * i) == winner:
                    p[i] = float32(-1.75)
            chosen_sum += best_of_all
            if lane == 0:
                at = first + uint64(slot) * uint64(4)
                ptx.store_i32(experts + at, winner)
                ptx.store_f32(weights + at, best_of_all)
        if lane == 0:
            for slot in range(chosen):
                at = weights + first + uint64(slot) * uint64(4)
                ptx.store_f32(at, ptx.load_f32(at) / chosen_sum)
            gate = ptx.load_f32(line + uint64(4 * num_experts))
            value = float32(1.0) / (float32(1.0) + float32(math.exp(-gate)))
            ptx.store_f32(shared_gate + uint64(token) * uint64(4), value)

    params = (Param.ADDRESS,) * 4 + (Param.I32,)
    return Kernel(f"moe_rank_{num_experts}", rank, params, threads=WARP, max_registers=128)


@cache
def make_active() -> Kernel:
    """Grid (choices, blocks of chunks), block (128,)."""

    def active(products: int, base: int, sums: int, width: int, padded: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        choice = cuda.blockIdx.x
        chunk = int32(cuda.blockIdx.y * THREADS + cuda.threadIdx.x)
        line = products + uint64(choice) * uint64(width) * uint64(8)
        x = cuda.local.array(8, float32)
        for i in range(8):
            at = chunk * int32(8) + int32(i)
            x[i] = float32(0.0)
            if at < width:
                g = ptx.load_f32(line + uint64(at) * uint64(4))
                u = ptx.load_f32(line + uint64(width + at) * uint64(4))
                x[i] = gated(g, u)
        store_chunk(
            base,
            sums,
            uint32(padded),
            choice,
            chunk,
            chunk * int32(8) < padded,
            x[0],
            x[1],
            x[2],
            x[3],
            x[4],
            x[5],
            x[6],
            x[7],
        )

    params = (Param.ADDRESS,) * 3 + (Param.I32,) * 2
    return Kernel("moe_active", active, params, threads=THREADS, max_registers=64)


@cache
def make_combine() -> Kernel:
    """Grid (tokens, blocks of features), block (128,)."""

    def combine(
        products: int,
        weights: int,
        shared: int,
        shared_gate: int,
        residual: int,
        hidden: int,
        chosen: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        token = cuda.blockIdx.x
        feature = int32(cuda.blockIdx.y * THREADS + cuda.threadIdx.x)
        if feature < hidden:
            total = float32(0.0)
            first = uint64(token) * uint64(chosen)
            for slot in range(chosen):
                choice = first + uint64(slot)
                weight = ptx.load_f32(weights + choice * uint64(4))
                at = choice * uint64(hidden) + uint64(feature)
                total += weight * ptx.load_f32(products + at * uint64(4))
            at = (uint64(token) * uint64(hidden) + uint64(feature)) * uint64(2)
            gate = ptx.load_f32(shared_gate + uint64(token) * uint64(4))
            total += gate * lower_bf16(ptx.load_u16(shared + at))
            total += lower_bf16(ptx.load_u16(residual + at))
            ptx.store_u16(residual + at, ptx.bf16x2_of_f32(total, float32(0.0)))

    params = (Param.ADDRESS,) * 5 + (Param.I32,) * 2
    return Kernel("moe_combine", combine, params, threads=THREADS, max_registers=64)
