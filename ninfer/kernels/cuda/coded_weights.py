"""Stored weights to the left operands of warpgroups: rounded bf16 values in registers.

A warp has one tile of 16 rows x 128 features at a time. `load` brings a lane's words of it from
memory; `decode` makes the operands of half of the features, 16 words, four for each 16 features in
the order of m16n8k16. A code and its scale are exact in f32 and so is their product: a value is
rounded once, to bf16. The functions work on local arrays whose every index is a constant.
"""

from dataclasses import dataclass
from typing import Any, Final

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

_BYTE_OFFSET: Final = 32768.0 + 128.0  # what `_byte_value` of a signed byte exceeds it by

Address = Any
Array = Any
Index = Any


@dataclass(frozen=True, slots=True)
class LaneWords:
    """What a lane holds of a tile.

    Attributes:
        words: of codes.
        is_split: one half of a tile's features is loaded while the other is still to be decoded,
            which saves registers where the halves are in words of their own.
    """

    words: int
    is_split: bool


EXTRA_WORDS: Final = 8
"""Words of high bits and scales, of which a format may use some."""


def lane_words(format: TensorFormat) -> LaneWords:
    """What a lane holds of a tile of a format."""
    units = PAIR_FORMATS[format].code_bytes // 512
    return LaneWords(8 * units, format is TensorFormat.W8)


def make_load(format: TensorFormat) -> Any:
    """Make ``(tile, apart, lane, half, words, extra)``: a lane's part of the tile at an address.

    The record of the lower rows lies ``apart`` bytes behind that of the upper ones: its size where
    they are a stored tile. Of formats that are split, ``half`` chooses the features; of others it
    means nothing.
    """
    layout, is_split = PAIR_FORMATS[format], lane_words(format).is_split
    code_bytes = layout.code_bytes
    count = 1 if is_split else code_bytes // 512  # units of 512 bytes in a half, or in all
    load_extra = _load_scales if is_split else _make_load_extra(format)

    @device_function
    def load(
        tile: Address, apart: Address, lane: Index, half: int, words: Array, extra: Array
    ) -> None:
        for unit in range(count):
            first = half * count + unit if is_split else unit
            at = tile + uint64(first * 512) + uint64(lane * 16)
            i = 8 * first
            words[i], words[i + 1], words[i + 2], words[i + 3] = ptx.once_u32x4(at)
            at += apart
            words[i + 4], words[i + 5], words[i + 6], words[i + 7] = ptx.once_u32x4(at)
        load_extra(tile + uint64(code_bytes), apart, lane, half, extra)

    return load


@device_function
def _load_scales(extras: Address, apart: Address, lane: Index, half: int, extra: Array) -> None:
    """W8: scales of half of the features."""
    at = extras + uint64((lane >> 2) * 8 + half * 4)
    extra[4 + half] = ptx.once_u32(at)
    extra[6 + half] = ptx.once_u32(at + apart)


def _make_load_extra(format: TensorFormat) -> Any:
    """High bits and scales of all features; BF16 has neither."""
    layout = PAIR_FORMATS[format]
    high_bytes, scale_bytes = layout.high_bytes, layout.scale_bytes

    @device_function
    def load_extra(extras: Address, apart: Address, lane: Index, half: int, extra: Array) -> None:
        if high_bytes == 128:
            at = extras + uint64(lane * 4)
            extra[0], extra[2] = ptx.once_u32(at), ptx.once_u32(at + apart)
        if high_bytes == 256:
            at = extras + uint64(lane * 8)
            extra[0], extra[1] = ptx.once_u32x2(at)
            extra[2], extra[3] = ptx.once_u32x2(at + apart)
        if scale_bytes == 32:
            at = extras + uint64(high_bytes) + uint64((lane >> 2) * 4)
            extra[4], extra[6] = ptx.once_u32(at), ptx.once_u32(at + apart)
        if scale_bytes == 0:
            # Zero bits of an address: a selector of bytes in order that the compiler cannot fold.
            extra[0] = uint32(0x3210) | uint32(extras >> uint64(62))

    return load_extra


def make_decode(format: TensorFormat) -> Any:
    """Make ``(words, extra, half, operands)`` for features ``64 half ..`` of a tile."""
    if format is TensorFormat.W8:
        return _make_decode_bytes()
    layout, functions = PAIR_FORMATS[format], tile_functions(format)
    unit_slabs, group_slabs, offset = layout.unit_slabs, layout.group_slabs, float(layout.offset)
    pairs, scale, make_own_masks = functions.pairs, functions.scale, make_masks(format)

    @device_function
    def decode(words: Array, extra: Array, half: int, operands: Array) -> None:
        part = cuda.local.array(8, uint32)
        found = cuda.local.array(8, uint32)
        for i in range(2):
            slab = 2 * half + i
            for j in range(8):
                part[j] = words[slab // unit_slabs * 8 + j]
            pairs(part, extra, slab, found, make_own_masks())
            if group_slabs == 0:
                # Operands must be made, not loaded: a load may not end while products run.
                for j in range(8):
                    operands[8 * i + j] = ptx.permute_bytes(found[j], found[j], extra[0])
            else:
                upper = scale(extra, slab // group_slabs, 0)
                lower = scale(extra, slab // group_slabs, 1)
                for j in range(4):
                    operands[8 * i + 2 * j] = scaled(found[2 * j], offset, upper)
                    operands[8 * i + 2 * j + 1] = scaled(found[2 * j + 1], offset, lower)

    return decode


def _make_decode_bytes() -> Any:
    """W8: bytes become f32 without being bf16 before."""
    scale = tile_functions(TensorFormat.W8).scale

    @device_function
    def decode(words: Array, extra: Array, half: int, operands: Array) -> None:
        for i in range(2):
            slab = 2 * half + i
            first = slab // 2 * 8 + slab % 2 * 2
            for lower in range(2):
                factor = scale(extra, slab, lower)
                shift = float32(-_BYTE_OFFSET) * factor  # exact, and so is the sum
                a = words[first + 4 * lower] ^ uint32(0x80808080)
                b = words[first + 4 * lower + 1] ^ uint32(0x80808080)
                for place in range(4):
                    low = ptx.fused_multiply_add(_byte_value(a, place), factor, shift)
                    high = ptx.fused_multiply_add(_byte_value(b, place), factor, shift)
                    operands[8 * i + 2 * place + lower] = ptx.bf16x2_of_f32(low, high)

    return decode


@device_function
def _byte_value(word: Any, place: int) -> Any:
    """2**15 and a byte of a word, as f32: its bits 8 to 15 count units."""
    selector = uint32(0x7404 + 16 * place)
    return ptx.f32_of_bits(ptx.permute_bytes(word, uint32(0x47000000), selector))


@device_function
def scaled(pair: Any, offset: float, factor: Any) -> Any:
    """Two bf16 codes, less what they are stored with, times the scale: rounded once."""
    shift = -offset * factor  # exact, and so is the sum
    low = ptx.fused_multiply_add(lower_bf16(pair), factor, shift)
    high = ptx.fused_multiply_add(upper_bf16(pair), factor, shift)
    return ptx.bf16x2_of_f32(low, high)
