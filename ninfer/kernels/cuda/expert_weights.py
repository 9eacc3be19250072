"""Stored weights in shared memory to the left operands of warpgroups, for `expert_wide`.

As `coded_weights`: rounded values, bit for bit, with fewer instructions. Scales have eleven bits
and go in two bf16, an upper of eight bits and the rest of three; a code of six bits times the rest
is exact in bf16, and the sum of both products is rounded once, by the second multiply-add.
"""

from typing import Any, Final

from numba import cuda, uint32

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.coded_weights import make_decode
from ninfer.kernels.cuda.device_functions import lower_bf16
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

_MINUS_OFFSETS: Final = {136: 0xC308C308, 144: 0xC310C310, 160: 0xC320C320}  # two bf16
_ONES: Final = 0x3F803F80  # two bf16

Address = Any
Array = Any
Index = Any


def make_load_half(format: TensorFormat, lower_at: int = 0) -> Any:
    """Make ``(stored, lane, half, words, extra)``: what a lane has of half of a tile's features.

    ``stored`` is the upper record of eight rows, the lower one lies ``lower_at`` bytes behind it.
    """
    layout, functions = PAIR_FORMATS[format], tile_functions(format, lower_at)
    unit_slabs, is_scaled = layout.unit_slabs, layout.group_slabs > 0
    load_codes, load_high = functions.load_codes, functions.load_high
    load_scales = functions.load_scales
    is_whole = unit_slabs == 4  # both halves lie in the same words

    @device_function
    def load_half(stored: Address, lane: Index, half: int, words: Array, extra: Array) -> None:
        part = cuda.local.array(8, uint32)
        for i in range(2):
            slab = 2 * half + i
            if slab % unit_slabs == 0:
                load_codes(stored, lane, slab, part)
                for j in range(8):
                    words[slab // unit_slabs * 8 + j] = part[j]
        if half == 0 or not is_whole:
            load_high(stored, lane, extra)
            load_scales(stored, lane, extra)
            if not is_scaled:
                # A selector of bytes in order that the compiler cannot fold.
                extra[0] = uint32(0x3210) | (stored >> uint32(31))

    return load_half


def make_rounded(format: TensorFormat) -> Any:
    """Make ``(words, extra, half, operands, masks)`` for features ``64 half ..`` of a tile."""
    layout, functions = PAIR_FORMATS[format], tile_functions(format)
    if layout.group_slabs != 2:
        return _without_masks(make_decode(format))
    pairs, scale = functions.pairs, functions.scale
    minus_offset = _MINUS_OFFSETS[layout.offset]

    @device_function
    def split(factor: Any) -> Any:
        upper = ptx.bf16x2_of_f32(factor, factor)
        rest = factor - lower_bf16(upper)
        return upper, ptx.bf16x2_of_f32(rest, rest)

    @device_function
    def value(pair: Any, upper: Any, rest: Any) -> Any:
        code = ptx.multiply_add_bf16x2(pair, uint32(_ONES), uint32(minus_offset))
        return ptx.multiply_add_bf16x2(code, upper, ptx.multiply_add_bf16x2(code, rest, uint32(0)))

    @device_function
    def decode(words: Array, extra: Array, half: int, operands: Array, masks: Any) -> None:
        found = cuda.local.array(8, uint32)
        high, high_rest = split(scale(extra, half, 0))
        low, low_rest = split(scale(extra, half, 1))
        for i in range(2):
            pairs(words, extra, 2 * half + i, found, masks)
            for j in range(4):
                operands[8 * i + 2 * j] = value(found[2 * j], high, high_rest)
                operands[8 * i + 2 * j + 1] = value(found[2 * j + 1], low, low_rest)

    return decode


def _without_masks(plain: Any) -> Any:
    @device_function
    def decode(words: Array, extra: Array, half: int, operands: Array, masks: Any) -> None:
        plain(words, extra, half, operands)

    return decode


def make_rounded_masks(format: TensorFormat) -> Any:
    """Make ``()``: the masks of `make_rounded`, made once by all lanes."""
    return make_masks(format, keeps=PAIR_FORMATS[format].group_slabs == 2)


def lane_words(format: TensorFormat) -> int:
    """Words of codes that a lane has of a tile."""
    return 8 * (PAIR_FORMATS[format].code_bytes // 512)
