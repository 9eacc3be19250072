"""How one warp of decode attention reads sixteen cached positions.

A stage in shared memory holds sixteen rows of keys and of values of one key head. Positions are the
rows of the products for scores, components the rows for outputs; eight query heads are the columns
of both. So a lane has scores and outputs of heads 2t and 2t + 1 (t = lane mod 4), and weights turn
from a result into an operand by one transposition across the lanes.

Rows of 2 D bytes: 16-byte chunk c of row r lies at c xor (r mod 8), for matrix loads, which turn
the values around. The int8 stage is drawn in `attention_int8`.

Rows behind the last position are zeros, never read. Source of the fragment orders: PTX ISA,
m16n8k16.
"""

from typing import Any, Final, NamedTuple

from numba import float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function

TILE: Final = 16
"""Positions of one stage."""


class CacheReader(NamedTuple):
    """Functions of one kind of cache, and what they need.

    Attributes:
        stage_bytes: shared memory of one stage.
        query_words: registers of a lane that hold the queries.
        fetch: ``(stage, keys, values, key_scales, value_scales, row, count, lane)``; starts copies
            of ``count`` rows from plane row ``row``, and zeros behind them.
        load_query: ``(address, lane, words)`` from the lane's head; address 0 gives zeros.
        scores: ``(stage, words, lane, s)``; s[2 i + j] is position lane / 4 + 8 i, head 2t + j.
        accumulate: ``(stage, p, count, lane, o)``; adds the values with weights p, placed as s.
        component: ``(index, lane)``; the component that ``o[index]`` is, of head 2t + index mod 2.
    """

    stage_bytes: int
    query_words: int
    fetch: Any
    load_query: Any
    scores: Any
    accumulate: Any
    component: Any


def bf16_reader(head_dim: int) -> CacheReader:
    """Functions for bf16 planes; heads are a multiple of 64 wide."""
    row_bytes = 2 * head_dim
    pieces = row_bytes // 16
    plane_bytes = TILE * row_bytes

    @device_function
    def fetch(
        stage: Any,
        keys: Any,
        values: Any,
        key_scales: Any,
        value_scales: Any,
        row: Any,
        count: Any,
        lane: Any,
    ) -> None:
        offset = uint64(row) * uint64(row_bytes)
        for i in range(pieces // 2):
            index = uint32(i * 32) + uint32(lane)
            place, piece = index // uint32(pieces), index % uint32(pieces)
            size = uint32(16) if int32(place) < int32(count) else uint32(0)
            swizzled = (piece ^ (place & uint32(7))) << uint32(4)
            target = uint32(stage) + place * uint32(row_bytes) + swizzled
            source = offset + uint64(uint32(lane) << uint32(4)) + uint64(i * 512)
            ptx.copy_async_16(target, keys + source, size)
            ptx.copy_async_16(target + uint32(plane_bytes), values + source, size)

    @device_function
    def load_query(address: Any, lane: Any, words: Any) -> None:
        for i in range(pieces):
            words[i] = uint32(0)
            if address != 0:
                words[i] = ptx.load_u32(address + uint64(i * 16) + uint64((lane & 3) * 4))

    @device_function
    def scores(stage: Any, words: Any, lane: Any, s: Any) -> None:
        none = float32(0.0)
        row = uint32(lane) & uint32(15)
        line = uint32(stage) + row * uint32(row_bytes)
        swizzle = ((uint32(lane) >> uint32(4)) ^ (row & uint32(7))) << uint32(4)
        a0, a1, a2, a3 = none, none, none, none
        b0, b1, b2, b3 = none, none, none, none
        for j in range(pieces // 4):
            x0, x1, x2, x3 = ptx.load_matrices(
                line + (swizzle ^ uint32(j % 2 * 64)) + uint32(j // 2 * 128)
            )
            a0, a1, a2, a3 = ptx.mma_bf16(
                x0, x1, x2, x3, words[4 * j], words[4 * j + 1], a0, a1, a2, a3
            )
            x0, x1, x2, x3 = ptx.load_matrices(
                line + (swizzle ^ uint32(j % 2 * 64 + 32)) + uint32(j // 2 * 128)
            )
            b0, b1, b2, b3 = ptx.mma_bf16(
                x0, x1, x2, x3, words[4 * j + 2], words[4 * j + 3], b0, b1, b2, b3
            )
        s[0], s[1], s[2], s[3] = a0 + b0, a1 + b1, a2 + b2, a3 + b3

    @device_function
    def accumulate(stage: Any, p: Any, count: Any, lane: Any, o: Any) -> None:
        first = ptx.transpose_matrix(ptx.bf16x2_of_f32(p[0], p[1]))
        second = ptx.transpose_matrix(ptx.bf16x2_of_f32(p[2], p[3]))
        place = uint32(lane) & uint32(7)
        row = place + ((uint32(lane) >> uint32(4)) << uint32(3))
        line = uint32(stage) + uint32(plane_bytes) + row * uint32(row_bytes)
        swizzle = (((uint32(lane) >> uint32(3)) & uint32(1)) ^ place) << uint32(4)
        for j in range(pieces // 2):
            x0, x1, x2, x3 = ptx.load_matrices_transposed(
                line + (swizzle ^ uint32(j % 4 * 32)) + uint32(j // 4 * 128)
            )
            o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3] = ptx.mma_bf16(
                x0, x1, x2, x3, first, second,
                o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3],
            )  # fmt: skip

    @device_function
    def component(index: Any, lane: Any) -> Any:
        at = uint32(index)
        place = ((at >> uint32(2)) << uint32(4)) + ((at & uint32(2)) << uint32(2))
        return place + (uint32(lane) >> uint32(2))

    return CacheReader(2 * plane_bytes, pieces, fetch, load_query, scores, accumulate, component)
