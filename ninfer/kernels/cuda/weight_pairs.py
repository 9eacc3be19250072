"""Stored weights to tensor-core operands: the A registers of one slab, in every format.

A lane holds chunk t of two rows (r of either half) of a slab of 32 features. The function that
`slab_pairs` gives for a format turns its words into eight registers: four of the first m16n8k16
product (pairs 0,4 and 1,5 of both rows), four of the second (pairs 2,6 and 3,7), as `fragments`
orders the columns. Values are exact bf16 integers without the scale. Nibble formats leave an offset
in: a bf16 of exponent 7 holds 128 + u in its lower bits, and u = code + 8, 16 or 32; ``offset``
times the column's group sum is what a product subtracts. W8 is made signed by one exact
subtraction, BF16 is taken as it is.
"""

from dataclasses import dataclass
from typing import Any, Final

from numba import uint32

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.weight_layout import CODE_BYTES, HIGH_BYTES, SCALE_BYTES
from ninfer.tensor import TensorFormat

MAGIC: Final = 0x43004300
"""Two bf16 of 128: their lower seven bits count units."""

_MINUS_ONE: Final = 0xBF80BF80  # two bf16 of -1

Word = Any


def slab_pairs(format: TensorFormat) -> Any:
    """Device function: four words of a row, of the row 8 below, high bits of both; eight pairs.

    Args:
        format: of the weights; for Q5 the high bits are the last pairs of the slab.
    """
    return _PAIRS[format]


def make_masks(format: TensorFormat, *, keeps: bool = False) -> Any:
    """Device function: the two masks that pairs of a format are made with.

    Args:
        format: of the weights.
        keeps: masks stay in registers, where a kernel has some to spare. Each is a shuffle: they
            are made before a loop, by all lanes.
    """
    first, second = _MASKS[format]

    @device_function
    def constant() -> Any:
        return uint32(first), uint32(second)

    @device_function
    def kept() -> Any:
        return ptx.kept_u32(uint32(first)), ptx.kept_u32(uint32(second))

    return kept if keeps else constant


_MASKS: Final = {  # of the first and the second use; 0: there is none
    TensorFormat.Q4: (0x000F000F, 0),
    TensorFormat.Q5: (0x001F001F, 0),
    TensorFormat.Q6: (0x000F000F, 0x00300030),
    TensorFormat.W8: (0x007F007F, 0x00800080),
    TensorFormat.BF16: (0, 0),
}


@device_function
def _nibble_pair(word: Word, place: int, mask: Word) -> Word:
    """Four bits of each of a word's halves as a bf16 of 128 and more."""
    return (word >> uint32(4 * place)) & mask | uint32(MAGIC)


@device_function
def _five_bit_pair(word: Word, place: int, mask: Word) -> Word:
    """The same with five bits."""
    return (word >> uint32(5 * place)) & mask | uint32(MAGIC)


@device_function
def _byte_pair(a: Word, b: Word, place: int, masks: Any) -> Word:
    """Bytes ``place`` of two words as signed bf16: (128 + lower bits) - (128 or 256), exact."""
    both = ptx.permute_bytes(a, b, uint32(0x4400 + 0x1111 * place))
    value = both & masks[0] | uint32(MAGIC)
    offset = both & masks[1] | uint32(MAGIC)
    return ptx.multiply_add_bf16x2(offset, uint32(_MINUS_ONE), value)


@device_function
def _q4_pairs(
    l0: Word, l1: Word, l2: Word, l3: Word,
    h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word, masks: Any,
) -> Any:  # fmt: skip
    m = masks[0]
    return (
        _nibble_pair(l0, 0, m), _nibble_pair(h0, 0, m),
        _nibble_pair(l0, 1, m), _nibble_pair(h0, 1, m),
        _nibble_pair(l0, 2, m), _nibble_pair(h0, 2, m),
        _nibble_pair(l0, 3, m), _nibble_pair(h0, 3, m),
    )  # fmt: skip


@device_function
def _q5_pairs(
    l0: Word, l1: Word, l2: Word, l3: Word,
    h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word, masks: Any,
) -> Any:  # fmt: skip
    m = masks[0]
    return (
        _five_bit_pair(l0, 0, m), _five_bit_pair(h0, 0, m),
        _five_bit_pair(l0, 1, m), _five_bit_pair(h0, 1, m),
        _five_bit_pair(l0, 2, m), _five_bit_pair(h0, 2, m),
        _five_bit_pair(lb, 0, m), _five_bit_pair(hb, 0, m),
    )  # fmt: skip


@device_function
def _q6_pairs(
    l0: Word, l1: Word, l2: Word, l3: Word,
    h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word, masks: Any,
) -> Any:  # fmt: skip
    m, high = masks
    return (
        ptx.masked_or(lb << uint32(4), high, _nibble_pair(l0, 0, m)),
        ptx.masked_or(hb << uint32(4), high, _nibble_pair(h0, 0, m)),
        ptx.masked_or(lb << uint32(2), high, _nibble_pair(l0, 1, m)),
        ptx.masked_or(hb << uint32(2), high, _nibble_pair(h0, 1, m)),
        ptx.masked_or(lb, high, _nibble_pair(l0, 2, m)),
        ptx.masked_or(hb, high, _nibble_pair(h0, 2, m)),
        ptx.masked_or(lb >> uint32(2), high, _nibble_pair(l0, 3, m)),
        ptx.masked_or(hb >> uint32(2), high, _nibble_pair(h0, 3, m)),
    )


@device_function
def _w8_pairs(
    l0: Word, l1: Word, l2: Word, l3: Word,
    h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word, masks: Any,
) -> Any:  # fmt: skip
    return (
        _byte_pair(l0, l1, 0, masks), _byte_pair(h0, h1, 0, masks),
        _byte_pair(l0, l1, 1, masks), _byte_pair(h0, h1, 1, masks),
        _byte_pair(l0, l1, 2, masks), _byte_pair(h0, h1, 2, masks),
        _byte_pair(l0, l1, 3, masks), _byte_pair(h0, h1, 3, masks),
    )  # fmt: skip


@device_function
def _bf16_pairs(
    l0: Word, l1: Word, l2: Word, l3: Word,
    h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word, masks: Any,
) -> Any:  # fmt: skip
    return l0, h0, l1, h1, l2, h2, l3, h3


_PAIRS: Final = {
    TensorFormat.Q4: _q4_pairs,
    TensorFormat.Q5: _q5_pairs,
    TensorFormat.Q6: _q6_pairs,
    TensorFormat.W8: _w8_pairs,
    TensorFormat.BF16: _bf16_pairs,
}


@dataclass(frozen=True, slots=True)
class PairFormat:
    """How a kernel reads tiles of one format.

    Attributes:
        code_bytes, high_bytes, scale_bytes: of a record, half a tile of 16 x 128.
        slab_words: words of codes that a lane has for one row of one slab.
        unit_slabs: slabs that one 16-byte word of a lane covers.
        group_slabs: slabs that share a scale; 0 for BF16.
        offset: what a stored unit exceeds its code by; 0 when values are signed.
    """

    code_bytes: int
    high_bytes: int
    scale_bytes: int
    slab_words: int
    unit_slabs: int
    group_slabs: int
    offset: int

    @property
    def record_bytes(self) -> int:
        """Bytes of half a tile."""
        return self.code_bytes + self.high_bytes + self.scale_bytes

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return 2 * self.record_bytes


def _format(format: TensorFormat, slab_words: int, group_slabs: int, offset: int) -> PairFormat:
    return PairFormat(
        CODE_BYTES[format],
        HIGH_BYTES.get(format, 0),
        SCALE_BYTES.get(format, 0),
        slab_words,
        4 // slab_words,
        group_slabs,
        offset,
    )


PAIR_FORMATS: Final = {
    TensorFormat.Q4: _format(TensorFormat.Q4, 1, 2, 136),
    TensorFormat.Q5: _format(TensorFormat.Q5, 1, 2, 144),
    TensorFormat.Q6: _format(TensorFormat.Q6, 1, 2, 160),
    TensorFormat.W8: _format(TensorFormat.W8, 2, 1, 0),
    TensorFormat.BF16: _format(TensorFormat.BF16, 4, 0, 0),
}
