"""Merge of the splits of decode attention on CUDA, gate, and the linear input.

    out = sum_i exp2(m_i - M) a_i / sum_i exp2(m_i - M) l_i * sigmoid(gate)

A block makes 64 components of one head of a column. Each of its eight warps adds every eighth split
in the order of positions, a lane two components, and the warps' sums are added in the order of the
warps: what is added in which order depends on the column's position alone. Traffic: the partial
results once, statistics once a warp.
"""

import math
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_splits import count_splits
from ninfer.kernels.cuda.device_functions import load_chunk, warp_sum
from ninfer.kernels.cuda.fragments import store_chunk
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.product_output import warp_index

COMPONENTS: Final = 64
"""Components of one block."""

_WARPS: Final = 8
_AT_ONCE: Final = 4  # splits a warp asks for at once
_UNSEEN: Final = float("-inf")


@device_function
def warp_max(value: Any) -> Any:
    """Largest of the 32 lanes."""
    for step in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, step))
    return value


@device_function
def largest_and_sum(stats: Any, count: Any, lane: Any) -> Any:
    """Largest maximum of all splits, and the sum of all weights in its units."""
    most = float32(_UNSEEN)
    for i in range(lane, count, 32):
        most = max(most, ptx.load_f32(stats + uint64(i) * uint64(8)))
    most = warp_max(most)
    total = float32(0.0)
    for i in range(lane, count, 32):
        largest, weight_sum = ptx.load_f32x2(stats + uint64(i) * uint64(8))
        total += ptx.power_of_two(largest - most) * weight_sum
    return most, warp_sum(total)


@cache
def make_merge(head_dim: int) -> Kernel:  # noqa: PLR0915 - one pass, whose state is a lane's registers
    """Merge, gate and write; grid (columns, heads, head_dim / 64), block (256,)."""
    slices = head_dim // COMPONENTS
    chunks = head_dim // 8

    def merge(
        partial: int,
        stats: int,
        positions: int,
        projected: int,
        base: int,
        sums: int,
        num_heads: int,
        num_kv_heads: int,
        max_splits: int,
        padded: int,
        first_column: int,
    ) -> None:
        parts = cuda.shared.array(512, float32, alignment=16)
        ptx.release_successor()
        place, head, part = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        lane, warp = int32(cuda.threadIdx.x & 31), int32(warp_index())
        column = int32(place) + int32(first_column)
        count = count_splits(ptx.load_i32(positions + uint64(column) * uint64(4)) + int32(1))
        ptx.wait_for_predecessor()
        first = (uint64(place) * uint64(num_heads) + uint64(head)) * uint64(max_splits)
        stat = stats + first * uint64(8)
        source = partial + first * uint64(4 * head_dim)
        source += uint64(part * 4 * COMPONENTS + lane * 8)
        m = cuda.local.array(_AT_ONCE, float32)
        a = cuda.local.array(_AT_ONCE, float32)
        b = cuda.local.array(_AT_ONCE, float32)
        most, total = largest_and_sum(stat, count, lane)
        left, right = float32(0.0), float32(0.0)
        for start in range(warp, count, _WARPS * _AT_ONCE):
            for i in range(_AT_ONCE):
                split = min(int32(start + i * _WARPS), count - int32(1))
                m[i] = ptx.load_f32(stat + uint64(split) * uint64(8))
                a[i], b[i] = ptx.load_f32x2(source + uint64(split) * uint64(4 * head_dim))
            for i in range(_AT_ONCE):
                weight = float32(0.0)
                if start + i * _WARPS < count:
                    weight = ptx.power_of_two(m[i] - most)
                left = ptx.fused_multiply_add(weight, a[i], left)
                right = ptx.fused_multiply_add(weight, b[i], right)
        shared = ptx.shared_address(parts)
        ptx.put_shared_f32x2(shared + uint32(warp * 256 + lane * 8), left, right)
        cuda.syncthreads()
        if warp == 0:
            width = num_heads * head_dim
            chunk = int32(head * chunks + part * 8) + lane
            is_last = head == num_heads - 1 and part == slices - 1
            is_inside = lane < 8 or (is_last and chunk * 8 < padded)
            x = cuda.local.array(8, float32)
            for i in range(8):
                x[i] = float32(0.0)
            if lane < 8:
                line = projected + uint64(column) * uint64(
                    2 * (num_heads + num_kv_heads) * head_dim * 2
                )
                g = load_chunk(
                    line + uint64((num_heads + num_kv_heads) * head_dim * 2), chunk, width
                )
                for w in range(_WARPS):
                    at = shared + uint32(w * 256 + lane * 32)
                    p0, p1, p2, p3 = ptx.shared_f32x4(at)
                    p4, p5, p6, p7 = ptx.shared_f32x4(at + uint32(16))
                    x[0], x[1], x[2], x[3] = x[0] + p0, x[1] + p1, x[2] + p2, x[3] + p3
                    x[4], x[5], x[6], x[7] = x[4] + p4, x[5] + p5, x[6] + p6, x[7] + p7
                for i in range(8):
                    x[i] = x[i] / total / (float32(1.0) + math.exp(-g[i]))
            store_chunk(
                base,
                sums,
                uint32(padded),
                column,
                chunk,
                is_inside,
                x[0],
                x[1],
                x[2],
                x[3],
                x[4],
                x[5],
                x[6],
                x[7],
            )

    params = (Param.ADDRESS,) * 6 + (Param.I32,) * 5
    name = f"attention_merge_{head_dim}"
    return Kernel(name, merge, params, threads=_WARPS * WARP, max_registers=80)
