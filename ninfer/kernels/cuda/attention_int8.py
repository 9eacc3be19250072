"""How a block of decode attention reads one page of cached positions of int8 planes.

Rows are padded by 64 (keys) and 16 (values) bytes, so that no load finds a bank conflict; behind
them lie the scales. A lane's 16 key bytes are operands of four products, with the components of the
query in the same order; value bytes of two positions are merged into pairs. Codes become bf16
exactly, key scales multiply the f32 sums of their group of 64, value scales the weights.
"""

from typing import Any, Final, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.attention_cache import THREADS, TILE, WARP_COMPONENTS, CacheReader

_GROUP: Final = 64


class _Stage(NamedTuple):
    """Where the parts of a stage lie."""

    head_dim: int

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.head_dim // _GROUP

    @property
    def half_groups(self) -> int:
        """Groups that a warp multiplies with the queries."""
        return -(-self.groups // 2)

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
        stage.half_groups * 8,
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


@device_function
def there(scale: Any, is_there: Any) -> Any:
    """A scale, or that of a position behind the last one."""
    result = float32(0.0)
    if is_there:
        result = scale
    return result


def _make_fetch(layout: _Stage) -> Any:
    head_dim, groups = layout.head_dim, layout.groups
    pieces = head_dim // 16
    key_stride, value_stride = layout.key_stride, layout.value_stride
    values_at, key_scales_at = layout.values_at, layout.key_scales_at
    scale_bytes = layout.scale_bytes
    scale_pieces = scale_bytes // 16

    @device_function
    def fetch(
        stage: Any,
        keys: Any,
        values: Any,
        key_scales: Any,
        value_scales: Any,
        row: Any,
        count: Any,
    ) -> None:
        thread = uint32(cuda.threadIdx.x)
        offset = uint64(row) * uint64(head_dim) + uint64(thread << uint32(4))
        for i in range(TILE * pieces // THREADS):
            index = uint32(i * THREADS) + thread
            place, piece = index // uint32(pieces), index % uint32(pieces)
            size = uint32(int32(place) < int32(count)) << uint32(4)
            source = offset + uint64(i * THREADS * 16)
            target = uint32(stage) + (piece << uint32(4))
            ptx.copy_async_16(target + place * uint32(key_stride), keys + source, size)
            at = target + uint32(values_at) + place * uint32(value_stride)
            ptx.copy_async_16(at, values + source, size)
        is_there = uint32(thread < uint32(scale_pieces))
        source = uint64(row) * uint64(2 * groups) + uint64(thread << uint32(4))
        target = uint32(stage) + uint32(key_scales_at) + (thread << uint32(4))
        ptx.copy_async_16_if(target, key_scales + source, is_there)
        ptx.copy_async_16_if(target + uint32(scale_bytes), value_scales + source, is_there)

    return fetch


def _make_load_query(layout: _Stage) -> Any:
    groups, half_groups = layout.groups, layout.half_groups

    @device_function
    def load_half_group(address: Any, lane: Any, words: Any, part: Any) -> None:
        """Sixteen bytes of a lane's 32 of a group of the query, in the order of key bytes."""
        offset = uint64((uint32(lane) & uint32(3)) << uint32(5))
        offset += uint64(part // 2 * 128 + part % 2 * 16)
        a, b, c, d = ptx.load_u32x4(address + offset)
        words[4 * part] = ptx.permute_bytes(a, b, uint32(0x5410))
        words[4 * part + 1] = ptx.permute_bytes(a, b, uint32(0x7632))
        words[4 * part + 2] = ptx.permute_bytes(c, d, uint32(0x5410))
        words[4 * part + 3] = ptx.permute_bytes(c, d, uint32(0x7632))

    @device_function
    def load_query(address: Any, half: Any, lane: Any, words: Any) -> None:
        for i in range(8 * half_groups):
            words[i] = uint32(0)
        if half * half_groups < groups:
            at = address + uint64(half * (half_groups * 128))
            load_half_group(at, lane, words, 0)
            load_half_group(at, lane, words, 1)
            if half_groups > 1:
                load_half_group(at, lane, words, 2)
                load_half_group(at, lane, words, 3)

    return load_query


def _make_scale_at(layout: _Stage) -> Any:
    groups = layout.groups

    @device_function
    def scale_at(scales: Any, place: Any, g: Any) -> Any:
        at = (uint32(place) * uint32(groups) + uint32(g)) << uint32(1)
        return ptx.f32_of_f16(ptx.shared_u16(scales + at))

    return scale_at


def _make_scores(layout: _Stage) -> Any:
    groups, half_groups = layout.groups, layout.half_groups
    key_stride, key_scales_at = layout.key_stride, layout.key_scales_at
    scale_at = _make_scale_at(layout)

    @device_function
    def score_group(line: Any, scales: Any, row: Any, words: Any, i: Any, g: Any, s: Any) -> None:
        none = float32(0.0)
        x0, x1, x2, x3 = ptx.shared_u32x4(line + (uint32(g) << uint32(6)))
        y0, y1, y2, y3 = ptx.shared_u32x4(line + (uint32(g) << uint32(6)) + uint32(8 * key_stride))
        a0, a1, a2, a3 = none, none, none, none
        b0, b1, b2, b3 = none, none, none, none
        w = i * 8
        a0, a1, a2, a3 = ptx.mma_bf16(
            code_pair(x0), code_pair(y0), code_pair(x0 >> uint32(8)), code_pair(y0 >> uint32(8)),
            words[w], words[w + 1], a0, a1, a2, a3,
        )  # fmt: skip
        b0, b1, b2, b3 = ptx.mma_bf16(
            code_pair(x1), code_pair(y1), code_pair(x1 >> uint32(8)), code_pair(y1 >> uint32(8)),
            words[w + 2], words[w + 3], b0, b1, b2, b3,
        )  # fmt: skip
        a0, a1, a2, a3 = ptx.mma_bf16(
            code_pair(x2), code_pair(y2), code_pair(x2 >> uint32(8)), code_pair(y2 >> uint32(8)),
            words[w + 4], words[w + 5], a0, a1, a2, a3,
        )  # fmt: skip
        b0, b1, b2, b3 = ptx.mma_bf16(
            code_pair(x3), code_pair(y3), code_pair(x3 >> uint32(8)), code_pair(y3 >> uint32(8)),
            words[w + 6], words[w + 7], b0, b1, b2, b3,
        )  # fmt: skip
        upper, lower = scale_at(scales, row, g), scale_at(scales, row + uint32(8), g)
        s[0] += (a0 + b0) * upper
        s[1] += (a1 + b1) * upper
        s[2] += (a2 + b2) * lower
        s[3] += (a3 + b3) * lower

    @device_function
    def scores(stage: Any, words: Any, block: Any, half: Any, lane: Any, s: Any) -> None:
        row = uint32(block) * uint32(16) + (uint32(lane) >> uint32(2))
        part = uint32(lane) & uint32(3)
        scales = uint32(stage) + uint32(key_scales_at)
        line = uint32(stage) + row * uint32(key_stride) + (part << uint32(4))
        for i in range(4):
            s[i] = float32(0.0)
        first = half * half_groups
        if first < groups:
            score_group(line, scales, row, words, 0, first, s)
            if half_groups > 1:
                score_group(line, scales, row, words, 1, first + 1, s)

    return scores


def _make_accumulate(layout: _Stage) -> Any:
    value_stride, values_at = layout.value_stride, layout.values_at
    value_scales_at = layout.key_scales_at + layout.scale_bytes
    scale_at = _make_scale_at(layout)

    @device_function
    def scaled(scales: Any, p: Any, place: Any, g: Any, count: Any) -> Any:
        """A weight times its value scale; behind the last position scales need not be numbers."""
        return p * there(scale_at(scales, place, g), int32(place) < int32(count))

    @device_function
    def accumulate(stage: Any, p: Any, count: Any, warp: Any, lane: Any, o: Any) -> None:
        scales = uint32(stage) + uint32(value_scales_at)
        pair = (uint32(lane) & uint32(3)) << uint32(1)
        g = uint32(warp) >> uint32(1)
        line = uint32(stage) + uint32(values_at) + pair * uint32(value_stride)
        line += uint32(warp) * uint32(WARP_COMPONENTS) + (uint32(lane) & uint32(28))
        for i in range(TILE // 16):
            place = pair + uint32(16 * i)
            first = ptx.bf16x2_of_f32(
                scaled(scales, p[4 * i], place, g, count),
                scaled(scales, p[4 * i + 1], place + uint32(1), g, count),
            )
            second = ptx.bf16x2_of_f32(
                scaled(scales, p[4 * i + 2], place + uint32(8), g, count),
                scaled(scales, p[4 * i + 3], place + uint32(9), g, count),
            )
            at = line + uint32(16 * i * value_stride)
            a = ptx.shared_u32(at)
            b = ptx.shared_u32(at + uint32(value_stride))
            c = ptx.shared_u32(at + uint32(8 * value_stride))
            d = ptx.shared_u32(at + uint32(9 * value_stride))
            x = ptx.permute_bytes(a, b, uint32(0x5410))
            y = ptx.permute_bytes(c, d, uint32(0x5410))
            o[0], o[1], o[2], o[3] = ptx.mma_bf16(
                code_pair(x), code_pair(x >> uint32(8)), code_pair(y), code_pair(y >> uint32(8)),
                first, second, o[0], o[1], o[2], o[3],
            )  # fmt: skip
            x = ptx.permute_bytes(a, b, uint32(0x7632))
            y = ptx.permute_bytes(c, d, uint32(0x7632))
            o[4], o[5], o[6], o[7] = ptx.mma_bf16(
                code_pair(x), code_pair(x >> uint32(8)), code_pair(y), code_pair(y >> uint32(8)),
                first, second, o[4], o[5], o[6], o[7],
            )  # fmt: skip

    return accumulate


@device_function
def _component(index: Any, warp: Any, lane: Any) -> Any:
    place = uint32(warp) * uint32(WARP_COMPONENTS) + (uint32(lane) & uint32(28))
    return place + (uint32(index) >> uint32(1))
