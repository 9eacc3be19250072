"""How one warp of decode attention reads sixteen cached positions: bf16 and int8 planes.

A stage in shared memory holds sixteen rows of keys and of values of one key head. Positions are the
rows of the products for scores, components the rows for outputs; eight query heads are the columns
of both. So a lane has scores and outputs of heads 2t and 2t + 1 (t = lane mod 4), and weights turn
from a result into an operand by one transposition across the lanes.

    bf16   rows of 2 D bytes, 16-byte chunk c of row r at c xor (r mod 8): matrix loads, transposed
           for the values
    int8   rows padded by 64 (keys) and 16 (values) bytes, then the scales. A lane's 16 key bytes
           are operands of four products, with the query's components in the same order; value
           bytes of two positions are merged into pairs. Codes become bf16 exactly, key scales
           multiply the f32 sums of their group, value scales the weights.

Rows behind the last position are zeros, never read. Source of the fragment orders: PTX ISA,
m16n8k16.
"""

from typing import Any, Final, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function

TILE: Final = 16
"""Positions of one stage."""

_GROUP: Final = 64


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


def make_reader(head_dim: int, is_int8: bool) -> CacheReader:
    """Functions for one head width; a multiple of 64."""
    return _int8_reader(head_dim) if is_int8 else _bf16_reader(head_dim)


def _bf16_reader(head_dim: int) -> CacheReader:
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


@device_function
def code_pair(word: Any) -> Any:
    """Two bf16 values of the int8 codes in bytes 0 and 2 of a word: (128 + low) - (128 + sign)."""
    low = (word & uint32(0x007F007F)) | uint32(0x43004300)
    sign = (word & uint32(0x00800080)) | uint32(0x43004300)
    return ptx.multiply_add_bf16x2(sign, uint32(0xBF80BF80), low)


def _int8_reader(head_dim: int) -> CacheReader:
    groups = head_dim // _GROUP
    pieces = head_dim // 16
    key_stride, value_stride = head_dim + 64, head_dim + 16  # no bank conflicts
    values_at = TILE * key_stride
    key_scales_at = values_at + TILE * value_stride
    scale_bytes = TILE * groups * 2
    value_scales_at = key_scales_at + scale_bytes
    scale_words = scale_bytes // 4

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
        offset = uint64(row) * uint64(head_dim)
        for i in range(pieces // 2):
            index = uint32(i * 32) + uint32(lane)
            place, piece = index // uint32(pieces), index % uint32(pieces)
            size = uint32(16) if int32(place) < int32(count) else uint32(0)
            source = offset + uint64(uint32(lane) << uint32(4)) + uint64(i * 512)
            target = uint32(stage) + (piece << uint32(4))
            ptx.copy_async_16(target + place * uint32(key_stride), keys + source, size)
            at = target + uint32(values_at) + place * uint32(value_stride)
            ptx.copy_async_16(at, values + source, size)
        if lane < scale_words:
            size = uint32(4) if count > 0 else uint32(0)
            source = uint64(row) * uint64(2 * groups) + uint64(lane * 4)
            target = stage + uint32(key_scales_at + lane * 4)
            ptx.copy_async_4(target, key_scales + source, size)
            ptx.copy_async_4(target + uint32(scale_bytes), value_scales + source, size)

    @device_function
    def load_half_group(address: Any, lane: Any, words: Any, half: Any) -> None:
        a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
        if address != 0:
            offset = uint64((uint32(lane) & uint32(3)) << uint32(5))
            offset += uint64(half // 2 * 128 + half % 2 * 16)
            a, b, c, d = ptx.load_u32x4(address + offset)
        words[4 * half] = ptx.permute_bytes(a, b, uint32(0x5410))
        words[4 * half + 1] = ptx.permute_bytes(a, b, uint32(0x7632))
        words[4 * half + 2] = ptx.permute_bytes(c, d, uint32(0x5410))
        words[4 * half + 3] = ptx.permute_bytes(c, d, uint32(0x7632))

    @device_function
    def load_query(address: Any, lane: Any, words: Any) -> None:
        load_half_group(address, lane, words, 0)
        load_half_group(address, lane, words, 1)
        if groups > 1:
            load_half_group(address, lane, words, 2)
            load_half_group(address, lane, words, 3)
        if groups > 2:
            load_half_group(address, lane, words, 4)
            load_half_group(address, lane, words, 5)
        if groups > 3:
            load_half_group(address, lane, words, 6)
            load_half_group(address, lane, words, 7)

    @device_function
    def scale_at(stage: Any, place: Any, g: Any) -> Any:
        at = (uint32(place) * uint32(groups) + uint32(g)) << uint32(1)
        return ptx.f32_of_f16(ptx.shared_u16(stage + at))

    @device_function
    def score_group(line: Any, scales: Any, row: Any, words: Any, g: Any, s: Any) -> None:
        none = float32(0.0)
        x0, x1, x2, x3 = ptx.shared_u32x4(line + uint32(g * 64))
        y0, y1, y2, y3 = ptx.shared_u32x4(line + uint32(g * 64 + 8 * key_stride))
        a0, a1, a2, a3 = none, none, none, none
        w = g * 8
        a0, a1, a2, a3 = ptx.mma_bf16(
            code_pair(x0), code_pair(y0), code_pair(x0 >> uint32(8)), code_pair(y0 >> uint32(8)),
            words[w], words[w + 1], a0, a1, a2, a3,
        )  # fmt: skip
        a0, a1, a2, a3 = ptx.mma_bf16(
            code_pair(x1), code_pair(y1), code_pair(x1 >> uint32(8)), code_pair(y1 >> uint32(8)),
            words[w + 2], words[w + 3], a0, a1, a2, a3,
        )  # fmt: skip
        a0, a1, a2, a3 = ptx.mma_bf16(
            code_pair(x2), code_pair(y2), code_pair(x2 >> uint32(8)), code_pair(y2 >> uint32(8)),
            words[w + 4], words[w + 5], a0, a1, a2, a3,
        )  # fmt: skip
        a0, a1, a2, a3 = ptx.mma_bf16(
            code_pair(x3), code_pair(y3), code_pair(x3 >> uint32(8)), code_pair(y3 >> uint32(8)),
            words[w + 6], words[w + 7], a0, a1, a2, a3,
        )  # fmt: skip
        upper, lower = scale_at(scales, row, g), scale_at(scales, row + uint32(8), g)
        s[0] += a0 * upper
        s[1] += a1 * upper
        s[2] += a2 * lower
        s[3] += a3 * lower

    @device_function
    def scores(stage: Any, words: Any, lane: Any, s: Any) -> None:
        row, part = uint32(lane) >> uint32(2), uint32(lane) & uint32(3)
        scales = uint32(stage) + uint32(key_scales_at)
        line = uint32(stage) + row * uint32(key_stride) + (part << uint32(4))
        for i in range(4):
            s[i] = float32(0.0)
        score_group(line, scales, row, words, 0, s)
        if groups > 1:
            score_group(line, scales, row, words, 1, s)
        if groups > 2:
            score_group(line, scales, row, words, 2, s)
        if groups > 3:
            score_group(line, scales, row, words, 3, s)

    @device_function
    def value_scale(scales: Any, place: Any, g: Any, count: Any) -> Any:
        """Scale of a position; behind the last one stored scales need not be numbers."""
        scale = scale_at(scales, place, g)
        if int32(place) >= int32(count):
            scale = float32(0.0)
        return scale

    @device_function
    def add_products(first: Any, second: Any, x: Any, y: Any, o: Any, n: Any) -> None:
        o[n], o[n + 1], o[n + 2], o[n + 3] = ptx.mma_bf16(
            code_pair(x), code_pair(x >> uint32(8)), code_pair(y), code_pair(y >> uint32(8)),
            first, second, o[n], o[n + 1], o[n + 2], o[n + 3],
        )  # fmt: skip

    @device_function
    def add_words(line: Any, first: Any, second: Any, n: Any, o: Any) -> None:
        a = ptx.shared_u32(line)
        b = ptx.shared_u32(line + uint32(value_stride))
        c = ptx.shared_u32(line + uint32(8 * value_stride))
        d = ptx.shared_u32(line + uint32(9 * value_stride))
        x = ptx.permute_bytes(a, b, uint32(0x5410))
        y = ptx.permute_bytes(c, d, uint32(0x5410))
        add_products(first, second, x, y, o, n)
        x = ptx.permute_bytes(a, b, uint32(0x7632))
        y = ptx.permute_bytes(c, d, uint32(0x7632))
        add_products(first, second, x, y, o, n + 4)

    @device_function
    def add_group(line: Any, scales: Any, p: Any, row: Any, count: Any, g: Any, o: Any) -> None:
        upper = value_scale(scales, row, g, count)
        lower = value_scale(scales, row + uint32(8), g, count)
        first = ptx.transpose_matrix(ptx.bf16x2_of_f32(p[0] * upper, p[1] * upper))
        second = ptx.transpose_matrix(ptx.bf16x2_of_f32(p[2] * lower, p[3] * lower))
        add_words(line + uint32(g * 64), first, second, 16 * g, o)
        add_words(line + uint32(g * 64 + 4), first, second, 16 * g + 8, o)

    @device_function
    def accumulate(stage: Any, p: Any, count: Any, lane: Any, o: Any) -> None:
        row, part = uint32(lane) >> uint32(2), uint32(lane) & uint32(3)
        scales = uint32(stage) + uint32(value_scales_at)
        line = uint32(stage) + uint32(values_at) + (part << uint32(1)) * uint32(value_stride)
        line += row << uint32(3)
        add_group(line, scales, p, row, count, 0, o)
        if groups > 1:
            add_group(line, scales, p, row, count, 1, o)
        if groups > 2:
            add_group(line, scales, p, row, count, 2, o)
        if groups > 3:
            add_group(line, scales, p, row, count, 3, o)

    @device_function
    def component(index: Any, lane: Any) -> Any:
        at = uint32(index)
        place = ((at >> uint32(4)) << uint32(6)) + ((at >> uint32(1)) & uint32(7))
        return place + ((uint32(lane) >> uint32(2)) << uint32(3))

    return CacheReader(
        value_scales_at + scale_bytes,
        groups * 8,
        fetch,
        load_query,
        scores,
        accumulate,
        component,
    )
