"""How one warp of decode attention reads sixteen cached positions of int8 planes.

Rows are padded by 64 (keys) and 16 (values) bytes, so that no load finds a bank conflict; behind
them lie the scales. A lane's 16 key bytes are operands of four products, with the components of the
query in the same order; value bytes of two positions are merged into pairs. Codes become bf16
exactly, key scales multiply the f32 sums of their group of 64, value scales the weights.
"""

from typing import Any, Final, NamedTuple

from numba import float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.attention_cache import TILE, CacheReader

_GROUP: Final = 64


class _Stage(NamedTuple):
    """Where the parts of a stage lie."""

    head_dim: int

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.head_dim // _GROUP

    @property
    def key_stride(self) -> int:
        """Bytes from key row to key row."""
        return self.head_dim + 64

    @property
    def value_stride(self) -> int:
        """Bytes from value row to value row."""
        return self.head_dim + 16

    @property
    def values_at(self) -> int:
        """First byte of the values."""
        return TILE * self.key_stride

    @property
    def key_scales_at(self) -> int:
        """First byte of the key scales."""
        return self.values_at + TILE * self.value_stride

    @property
    def scale_bytes(self) -> int:
        """Bytes of either kind of scales."""
        return TILE * self.groups * 2


def int8_reader(head_dim: int) -> CacheReader:
    """Functions for int8 planes; heads are a multiple of 64 wide."""
    stage = _Stage(head_dim)
    return CacheReader(
        stage.key_scales_at + 2 * stage.scale_bytes,
        stage.groups * 8,
        _make_fetch(stage),
        _make_load_query(stage),
        _make_scores(stage),
        _make_accumulate(stage),
        _component,
    )


@device_function
def code_pair(word: Any) -> Any:
    """Two bf16 values of the int8 codes in bytes 0 and 2 of a word: (128 + low) - (128 + sign)."""
    low = (word & uint32(0x007F007F)) | uint32(0x43004300)
    sign = (word & uint32(0x00800080)) | uint32(0x43004300)
    return ptx.multiply_add_bf16x2(sign, uint32(0xBF80BF80), low)


def _make_fetch(layout: _Stage) -> Any:
    head_dim, groups = layout.head_dim, layout.groups
    pieces = head_dim // 16
    key_stride, value_stride = layout.key_stride, layout.value_stride
    values_at, key_scales_at = layout.values_at, layout.key_scales_at
    scale_bytes = layout.scale_bytes
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

    return fetch


def _make_load_query(layout: _Stage) -> Any:
    groups = layout.groups

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

    return load_query


def _make_scale_at(layout: _Stage) -> Any:
    groups = layout.groups

    @device_function
    def scale_at(stage: Any, place: Any, g: Any) -> Any:
        at = (uint32(place) * uint32(groups) + uint32(g)) << uint32(1)
        return ptx.f32_of_f16(ptx.shared_u16(stage + at))

    return scale_at


def _make_scores(layout: _Stage) -> Any:
    groups, key_stride, key_scales_at = layout.groups, layout.key_stride, layout.key_scales_at
    scale_at = _make_scale_at(layout)

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

    return scores


@device_function
def _add_products(first: Any, second: Any, x: Any, y: Any, o: Any, n: Any) -> None:
    o[n], o[n + 1], o[n + 2], o[n + 3] = ptx.mma_bf16(
        code_pair(x), code_pair(x >> uint32(8)), code_pair(y), code_pair(y >> uint32(8)),
        first, second, o[n], o[n + 1], o[n + 2], o[n + 3],
    )  # fmt: skip


def _make_accumulate(layout: _Stage) -> Any:
    groups, value_stride, values_at = layout.groups, layout.value_stride, layout.values_at
    value_scales_at = layout.key_scales_at + layout.scale_bytes
    scale_at = _make_scale_at(layout)

    @device_function
    def value_scale(scales: Any, place: Any, g: Any, count: Any) -> Any:
        """Scale of a position; behind the last one stored scales need not be numbers."""
        scale = scale_at(scales, place, g)
        if int32(place) >= int32(count):
            scale = float32(0.0)
        return scale

    @device_function
    def add_words(line: Any, first: Any, second: Any, n: Any, o: Any) -> None:
        a = ptx.shared_u32(line)
        b = ptx.shared_u32(line + uint32(value_stride))
        c = ptx.shared_u32(line + uint32(8 * value_stride))
        d = ptx.shared_u32(line + uint32(9 * value_stride))
        x = ptx.permute_bytes(a, b, uint32(0x5410))
        y = ptx.permute_bytes(c, d, uint32(0x5410))
        _add_products(first, second, x, y, o, n)
        x = ptx.permute_bytes(a, b, uint32(0x7632))
        y = ptx.permute_bytes(c, d, uint32(0x7632))
        _add_products(first, second, x, y, o, n + 4)

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

    return accumulate


@device_function
def _component(index: Any, lane: Any) -> Any:
    at = uint32(index)
    place = ((at >> uint32(4)) << uint32(6)) + ((at >> uint32(1)) & uint32(7))
    return place + ((uint32(lane) >> uint32(2)) << uint32(3))
