"""Weight tiles on their way through shared memory: global records -> ring -> a lane's operands.

A tile of 16 x 128 lies in a ring as it lies in global memory (`weight_layout`). The functions of
one format are made together; they work on local arrays that the kernel owns, which stay in
registers because every index is a constant once loops are unrolled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from numba import uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, slab_pairs
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


@dataclass(frozen=True, slots=True)
class TileFunctions:
    """Device functions of one format.

    Attributes:
        copy: (ring, codes, high, scales, tile, lane): ask for one tile; ``high`` and ``scales``
            are not looked at, as tiles hold their own.
        load_codes: (stored, lane, slab, words): the 16-byte words of both rows that hold a slab.
        load_scales: (stored, lane, extra): words of scales of both rows into ``extra[4:8]``.
        load_high: (stored, lane, extra): words of high bits of both rows into ``extra[0:4]``.
        pairs: (words, extra, slab, a, masks): the eight operand registers of a slab; masks are
            those of `weight_pairs.make_masks`.
        scale: (extra, group, is_lower): f32 scale of a group of the row, or of the row 8 below.
    """

    copy: Callable[..., Any]
    load_codes: Callable[..., Any]
    load_scales: Callable[..., Any]
    load_high: Callable[..., Any]
    pairs: Callable[..., Any]
    scale: Callable[..., Any]


@cache
def tile_functions(format: TensorFormat, lower_at: int = 0) -> TileFunctions:
    """Make the functions of a format.

    Args:
        format: of the weights.
        lower_at: bytes from a stored tile's upper record to its lower one; 0 where it follows.
    """
    record = lower_at or PAIR_FORMATS[format].record_bytes
    return TileFunctions(
        _make_copy(format),
        _make_load_codes(format, record),
        _make_load_scales(format, record),
        _make_load_high(format, record),
        _make_pairs(format),
        _make_scale(format),
    )


def _make_copy(format: TensorFormat) -> Any:
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    steps, rest = tile_bytes // 512, tile_bytes % 512

    @device_function
    def copy(
        ring: Address, codes: Address, high: Address, scales: Address, tile: Index, lane: Index
    ) -> None:
        to = ring + uint32(lane) * uint32(16)
        source = codes + uint64(tile) * uint64(tile_bytes) + uint64(lane) * uint64(16)
        for step in range(steps):
            ptx.copy_async_16(to + uint32(step * 512), source + uint64(step * 512), uint32(16))
        if rest > 0:
            ptx.copy_async_16_if(
                to + uint32(steps * 512),
                source + uint64(steps * 512),
                uint32(lane < rest // 16),
            )

    return copy


def _make_load_codes(format: TensorFormat, record: int) -> Any:
    unit_slabs = PAIR_FORMATS[format].unit_slabs

    @device_function
    def load_codes(stored: Address, lane: Index, slab: int, words: Array) -> None:
        at = stored + uint32(slab // unit_slabs * 512) + uint32(lane) * uint32(16)
        words[0], words[1], words[2], words[3] = ptx.shared_u32x4(at)
        words[4], words[5], words[6], words[7] = ptx.shared_u32x4(at + uint32(record))

    return load_codes


def _make_load_scales(format: TensorFormat, record: int) -> Any:
    layout = PAIR_FORMATS[format]
    scale_bytes, offset = layout.scale_bytes, layout.code_bytes + layout.high_bytes

    @device_function
    def load_scales(stored: Address, lane: Index, extra: Array) -> None:
        row = uint32(lane) >> uint32(2)
        if scale_bytes == 32:
            at = stored + uint32(offset) + row * uint32(4)
            extra[4] = ptx.shared_u32(at)
            extra[6] = ptx.shared_u32(at + uint32(record))
        if scale_bytes == 64:
            at = stored + uint32(offset) + row * uint32(8)
            extra[4], extra[5] = ptx.shared_u32x2(at)
            extra[6], extra[7] = ptx.shared_u32x2(at + uint32(record))

    return load_scales


def _make_load_high(format: TensorFormat, record: int) -> Any:
    layout = PAIR_FORMATS[format]
    code_bytes, high_bytes = layout.code_bytes, layout.high_bytes

    @device_function
    def load_high(stored: Address, lane: Index, extra: Array) -> None:
        if high_bytes == 128:
            at = stored + uint32(code_bytes) + uint32(lane) * uint32(4)
            extra[0] = ptx.shared_u32(at)
            extra[2] = ptx.shared_u32(at + uint32(record))
        if high_bytes == 256:
            at = stored + uint32(code_bytes) + uint32(lane) * uint32(8)
            extra[0], extra[1] = ptx.shared_u32x2(at)
            extra[2], extra[3] = ptx.shared_u32x2(at + uint32(record))

    return load_high


@device_function
def _last_pair(words: Array, first: int, high: Any) -> Any:
    """The last pair of slab 3 of Q5, from the bits that other pairs leave."""
    mask = uint32(0x00010001)
    pair = (words[first] >> uint32(15)) & mask
    pair |= (words[first + 1] >> uint32(14)) & (mask << uint32(1))
    pair |= (words[first + 2] >> uint32(13)) & (mask << uint32(2))
    pair |= (words[first + 3] >> uint32(12)) & (mask << uint32(3))
    return pair | (high >> uint32(11)) & (mask << uint32(4))


def _make_pairs(format: TensorFormat) -> Any:
    layout = PAIR_FORMATS[format]
    high_bytes, slab_words, unit_slabs = layout.high_bytes, layout.slab_words, layout.unit_slabs
    turn = slab_pairs(format)
    bits = high_bytes // 128  # of each code: 1, 2, or none

    @device_function
    def pairs(words: Array, extra: Array, slab: int, a: Array, masks: Any) -> None:
        i = slab % unit_slabs * slab_words
        upper, lower = uint32(0), uint32(0)
        if bits == 1 and slab < 3:
            upper, lower = extra[0] >> uint32(5 * slab), extra[2] >> uint32(5 * slab)
        if bits == 1 and slab == 3:
            upper, lower = _last_pair(words, 0, extra[0]), _last_pair(words, 4, extra[2])
        if bits == 2:
            shift = uint32(slab % 2 * 8)
            upper, lower = extra[slab // 2] >> shift, extra[2 + slab // 2] >> shift
        a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7] = turn(
            words[i],
            words[(i + 1) % 4],
            words[(i + 2) % 4],
            words[(i + 3) % 4],
            words[4 + i],
            words[4 + (i + 1) % 4],
            words[4 + (i + 2) % 4],
            words[4 + (i + 3) % 4],
            upper,
            lower,
            masks,
        )

    return pairs


def _make_scale(format: TensorFormat) -> Any:
    @device_function
    def scale(extra: Array, group: int, is_lower: int) -> Any:
        word = extra[4 + is_lower * 2 + group // 2]
        if group % 2 == 0:
            return ptx.f32_of_f16(word)
        return ptx.f32_of_upper_f16(word)

    return scale
