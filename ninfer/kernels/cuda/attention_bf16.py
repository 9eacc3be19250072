"""How a block of decode attention reads one page of cached positions of bf16 planes.

Rows of 2 D bytes: 16-byte chunk c of row r lies at c xor (r mod 8), for matrix loads, which turn
the values around.
"""

from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.attention_cache import THREADS, TILE, WARP_COMPONENTS, CacheReader


def bf16_reader(head_dim: int) -> CacheReader:
    """Functions for bf16 planes; heads are a multiple of 64 wide."""
    steps = head_dim // 32  # of half of the components
    return CacheReader(
        2 * TILE * 2 * head_dim,
        2 * steps,
        _make_fetch(head_dim),
        _make_load_query(steps),
        _make_scores(head_dim, steps),
        _make_accumulate(head_dim),
        _component,
    )


def _make_fetch(head_dim: int) -> Any:
    row_bytes = 2 * head_dim
    pieces, plane_bytes = row_bytes // 16, TILE * row_bytes

    @device_function
    def fetch(stage: Any, keys: Any, values: Any, row: Any, count: Any) -> None:
        thread = uint32(cuda.threadIdx.x)
        offset = uint64(row) * uint64(row_bytes) + uint64(thread << uint32(4))
        for i in range(TILE * pieces // THREADS):
            index = uint32(i * THREADS) + thread
            place, piece = index // uint32(pieces), index % uint32(pieces)
            size = uint32(int32(place) < int32(count)) << uint32(4)
            swizzled = (piece ^ (place & uint32(7))) << uint32(4)
            target = uint32(stage) + place * uint32(row_bytes) + swizzled
            source = offset + uint64(i * THREADS * 16)
            ptx.copy_async_16(target, keys + source, size)
            ptx.copy_async_16(target + uint32(plane_bytes), values + source, size)

    return fetch


def _make_load_query(steps: int) -> Any:
    @device_function
    def load_query(address: Any, half: Any, lane: Any, words: Any) -> None:
        at = address + uint64(
            uint32(half) * uint32(32 * steps) + (uint32(lane) & uint32(3)) * uint32(4)
        )
        for i in range(2 * steps):
            words[i] = ptx.load_u32(at + uint64(i * 16))

    return load_query


def _make_scores(head_dim: int, steps: int) -> Any:
    row_bytes = 2 * head_dim

    @device_function
    def scores(stage: Any, words: Any, block: Any, half: Any, lane: Any, s: Any) -> None:
        none = float32(0.0)
        row = uint32(block) * uint32(16) + (uint32(lane) & uint32(15))
        line = uint32(stage) + row * uint32(row_bytes) + uint32(half) * uint32(32 * steps)
        swizzle = (uint32(lane) >> uint32(4)) << uint32(4)
        turn = (row & uint32(7)) << uint32(4)
        if steps % 4 != 0:  # half a row is no multiple of 128 bytes
            line -= uint32(half) * uint32(32 * steps)
            swizzle += uint32(half) * uint32(32 * steps)
        a0, a1, a2, a3 = none, none, none, none
        b0, b1, b2, b3 = none, none, none, none
        for j in range(steps // 2):
            x0, x1, x2, x3 = ptx.load_matrices(
                line + ((swizzle + uint32(j % 2 * 64)) ^ turn) + uint32(j // 2 * 128)
            )
            a0, a1, a2, a3 = ptx.mma_bf16(
                x0, x1, x2, x3, words[4 * j], words[4 * j + 1], a0, a1, a2, a3
            )
            x0, x1, x2, x3 = ptx.load_matrices(
                line + ((swizzle + uint32(j % 2 * 64 + 32)) ^ turn) + uint32(j // 2 * 128)
            )
            b0, b1, b2, b3 = ptx.mma_bf16(
                x0, x1, x2, x3, words[4 * j + 2], words[4 * j + 3], b0, b1, b2, b3
            )
        s[0], s[1], s[2], s[3] = a0 + b0, a1 + b1, a2 + b2, a3 + b3

    return scores


def _make_accumulate(head_dim: int) -> Any:
    row_bytes = 2 * head_dim
    plane_bytes = TILE * row_bytes

    @device_function
    def accumulate(stage: Any, p: Any, count: Any, warp: Any, lane: Any, o: Any) -> None:
        row = (uint32(lane) & uint32(7)) + ((uint32(lane) >> uint32(4)) << uint32(3))
        line = uint32(stage) + uint32(plane_bytes) + row * uint32(row_bytes)
        piece = uint32(warp) * uint32(4) + ((uint32(lane) >> uint32(3)) & uint32(1))
        turn = row & uint32(7)
        first_at = (piece ^ turn) << uint32(4)
        second_at = ((piece + uint32(2)) ^ turn) << uint32(4)
        for i in range(TILE // 16):
            first = ptx.bf16x2_of_f32(p[4 * i], p[4 * i + 1])
            second = ptx.bf16x2_of_f32(p[4 * i + 2], p[4 * i + 3])
            at = line + uint32(i * 16 * row_bytes)
            x0, x1, x2, x3 = ptx.load_matrices_transposed(at + first_at)
            o[0], o[1], o[2], o[3] = ptx.mma_bf16(
                x0, x1, x2, x3, first, second, o[0], o[1], o[2], o[3]
            )
            x0, x1, x2, x3 = ptx.load_matrices_transposed(at + second_at)
            o[4], o[5], o[6], o[7] = ptx.mma_bf16(
                x0, x1, x2, x3, first, second, o[4], o[5], o[6], o[7]
            )

    return accumulate


@device_function
def _component(index: Any, warp: Any, lane: Any) -> Any:
    at = uint32(index)
    place = ((at >> uint32(2)) << uint32(4)) + ((at & uint32(2)) << uint32(2))
    return uint32(warp) * uint32(WARP_COMPONENTS) + place + (uint32(lane) >> uint32(2))
