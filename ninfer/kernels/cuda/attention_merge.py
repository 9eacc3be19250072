"""Merge of the splits of decode attention on CUDA, gate, and the linear input.

    out = sum_i exp2(m_i - M) a_i / sum_i exp2(m_i - M) l_i * sigmoid(gate)

A block makes up to 128 components of one head of a column. Each of its eight warps adds every
eighth split in the order of positions, a lane its own components, and the warps' sums are added in
the order of the warps: what is added in which order depends on the column's position alone. Up to
8,192 positions everything is asked for at once, partial results before it is known how they weigh:
one trip to the second-level cache, and 384 blocks of a 27B round of eight are one turn on an H200.
Traffic: the partial results once, statistics once a warp.
"""

import math
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_softmax import UNSEEN
from ninfer.kernels.cuda.attention_splits import count_splits
from ninfer.kernels.cuda.column_image import array_storer
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16, warp_sum
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.product_output import warp_index

_WARPS: Final = 8
_AT_ONCE: Final = 8  # splits a warp asks for at once
_WIDEST: Final = 128
_HELD: Final = _AT_ONCE * _WIDEST // WARP  # components of a lane


@device_function
def warp_max(value: Any) -> Any:
    """Largest of the 32 lanes."""
    for step in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(0xFFFFFFFF, value, step))
    return value


@device_function
def largest_and_sum(stats: Any, count: Any, lane: Any) -> Any:
    """Largest maximum of all splits, and the sum of all weights in its units."""
    most = float32(UNSEEN)
    for i in range(lane, count, 32):
        most = max(most, ptx.load_f32(stats + uint64(i) * uint64(8)))
    most = warp_max(most)
    total = float32(0.0)
    for i in range(lane, count, 32):
        largest, weight_sum = ptx.load_f32x2(stats + uint64(i) * uint64(8))
        total += ptx.power_of_two(largest - most) * weight_sum
    return most, warp_sum(total)


def block_components(head_dim: int) -> int:
    """Components of one block."""
    return min(head_dim, _WIDEST)


def make_batches(head_dim: int) -> Any:
    """Functions ``ask`` and ``add`` of the splits that a warp has in registers at once."""
    owned = block_components(head_dim) // WARP  # components of a lane
    is_quad = owned == 4

    @device_function
    def ask(stat: int, source: int, start: Any, count: Any, m: Any, a: Any) -> None:
        for i in range(_AT_ONCE):
            split = uint64(min(int32(start + i * _WARPS), count - int32(1)))
            m[i] = ptx.load_f32(stat + split * uint64(8))
            at = source + split * uint64(4 * head_dim)
            if is_quad:
                a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = ptx.load_f32x4(at)
            else:
                a[2 * i], a[2 * i + 1] = ptx.load_f32x2(at)

    @device_function
    def add(start: Any, count: Any, most: Any, m: Any, a: Any, x: Any) -> None:
        for i in range(_AT_ONCE):
            weight = weight_of(m[i] - most, start + i * _WARPS < count)
            for j in range(owned):
                x[j] = ptx.fused_multiply_add(weight, a[owned * i + j], x[j])

    return ask, add


@device_function
def weight_of(distance: Any, is_there: Any) -> Any:
    """Weight of a split, 0 behind the last one."""
    weight = float32(0.0)
    if is_there:
        weight = ptx.power_of_two(distance)
    return weight


@cache
def make_merge(head_dim: int) -> Kernel:  # noqa: PLR0915 - one pass, whose state is a lane's registers
    """Merge, gate and write; grid (columns, heads, head_dim / components), block (256,)."""
    width = block_components(head_dim)
    slices, chunks, block_chunks = head_dim // width, head_dim // 8, width // 8
    owned, line_bytes = width // WARP, 4 * width
    ask, add = make_batches(head_dim)
    store = array_storer(to_image=False)

    def merge(  # noqa: PLR0915 - as above
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
        parts = cuda.shared.array(1024, float32, alignment=16)
        ptx.release_successor()
        place, head, part = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        lane, warp = int32(cuda.threadIdx.x & 31), int32(warp_index())
        column = int32(place) + int32(first_column)
        count = count_splits(ptx.load_i32(positions + uint64(column) * uint64(4)) + int32(1))
        first = (uint64(place) * uint64(num_heads) + uint64(head)) * uint64(max_splits)
        stat = stats + first * uint64(8)
        source = partial + first * uint64(4 * head_dim)
        source += uint64(part * line_bytes + lane * 4 * owned)
        gates = projected + uint64(column) * uint64(2 * (num_heads + num_kv_heads) * head_dim * 2)
        gates += uint64((num_heads + num_kv_heads) * head_dim * 2)
        chunk = int32(head * chunks + part * block_chunks) + lane
        m = cuda.local.array(_AT_ONCE, float32)
        a = cuda.local.array(_HELD, float32)
        x = cuda.local.array(8, float32)
        for i in range(8):
            x[i] = float32(0.0)
        ptx.wait_for_predecessor()
        ask(stat, source, warp, count, m, a)
        g0, g1, g2, g3 = uint32(0), uint32(0), uint32(0), uint32(0)
        if warp == 0 and lane < block_chunks:
            g0, g1, g2, g3 = ptx.load_u32x4(gates + uint64(chunk) * uint64(16))
        most, total = largest_and_sum(stat, count, lane)
        start = warp
        while start < count:
            add(start, count, most, m, a, x)
            start = int32(start + _WARPS * _AT_ONCE)
            if start < count:
                ask(stat, source, start, count, m, a)
        shared = ptx.shared_address(parts)
        at = shared + uint32(warp * line_bytes + lane * 4 * owned)
        for i in range(owned // 2):
            ptx.put_shared_f32x2(at + uint32(8 * i), x[2 * i], x[2 * i + 1])
        cuda.syncthreads()
        if warp == 0:
            is_last = head == num_heads - 1 and part == slices - 1
            is_inside = lane < block_chunks or (is_last and chunk * 8 < padded)
            for i in range(8):
                x[i] = float32(0.0)
            if lane < block_chunks:
                for w in range(_WARPS):
                    at = shared + uint32(w * line_bytes + lane * 32)
                    p0, p1, p2, p3 = ptx.shared_f32x4(at)
                    p4, p5, p6, p7 = ptx.shared_f32x4(at + uint32(16))
                    x[0], x[1], x[2], x[3] = x[0] + p0, x[1] + p1, x[2] + p2, x[3] + p3
                    x[4], x[5], x[6], x[7] = x[4] + p4, x[5] + p5, x[6] + p6, x[7] + p7
                x[0], x[1] = gated(x[0], total, lower_bf16(g0)), gated(x[1], total, upper_bf16(g0))
                x[2], x[3] = gated(x[2], total, lower_bf16(g1)), gated(x[3], total, upper_bf16(g1))
                x[4], x[5] = gated(x[4], total, lower_bf16(g2)), gated(x[5], total, upper_bf16(g2))
                x[6], x[7] = gated(x[6], total, lower_bf16(g3)), gated(x[7], total, upper_bf16(g3))
            store(base, sums, uint32(padded), column, chunk, is_inside, x)

    params = (Param.ADDRESS,) * 6 + (Param.I32,) * 5
    name = f"attention_merge_{head_dim}"
    return Kernel(name, merge, params, threads=_WARPS * WARP, max_registers=80, min_blocks=3)


@device_function
def gated(value: Any, total: Any, gate: Any) -> Any:
    """One component: normalised, times the sigmoid of its gate."""
    return value / total / (float32(1.0) + math.exp(-gate))
