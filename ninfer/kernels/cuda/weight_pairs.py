"""Stored weights to tensor-core operands: the A registers of one slab, in every format.

A lane holds chunk t of two rows (r of either half) of a slab of 32 features. `slab_pairs` of a
format turns its words into eight registers: four of the first m16n8k16 product (pairs 0,4 and 1,5
of both rows), four of the second (pairs 2,6 and 3,7), as `fragments` orders the columns. Values are
exact bf16 integers without the scale. Nibble formats leave an offset in: a bf16 of exponent 7 holds
128 + u in its lower bits, and u = code + 8, 16 or 32; ``offset`` times the column's group sum is
what a product subtracts. W8 is made signed by one exact subtraction, BF16 is taken as it is.
"""

from collections.abc import Callable
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


@device_function
def _nibble_pair(word: Word, place: int) -> Word:
    return (word >> uint32(4 * place)) & uint32(0x000F000F) | uint32(MAGIC)


@device_function
def _q4_pairs(
    l0: Word,
    l1: Word,
    l2: Word,
    l3: Word,
    h0: Word,
    h1: Word,
    h2: Word,
    h3: Word,
    lb: Word,
    hb: Word,
) -> Any:
    return (
        _nibble_pair(l0, 0),
        _nibble_pair(h0, 0),
        _nibble_pair(l0, 1),
        _nibble_pair(h0, 1),
        _nibble_pair(l0, 2),
        _nibble_pair(h0, 2),
        _nibble_pair(l0, 3),
        _nibble_pair(h0, 3),
    )


@device_function
def _five_bit_pair(word: Word, place: int) -> Word:
    return (word >> uint32(5 * place)) & uint32(0x001F001F) | uint32(MAGIC)


@device_function
def _q5_pairs(
    l0: Word,
    l1: Word,
    l2: Word,
    l3: Word,
    h0: Word,
    h1: Word,
    h2: Word,
    h3: Word,
    lb: Word,
    hb: Word,
) -> Any:
    return (
        _five_bit_pair(l0, 0),
        _five_bit_pair(h0, 0),
        _five_bit_pair(l0, 1),
        _five_bit_pair(h0, 1),
        _five_bit_pair(l0, 2),
        _five_bit_pair(h0, 2),
        _five_bit_pair(lb, 0),
        _five_bit_pair(hb, 0),
    )


@device_function
def _q6_pairs(
    l0: Word,
    l1: Word,
    l2: Word,
    l3: Word,
    h0: Word,
    h1: Word,
    h2: Word,
    h3: Word,
    lb: Word,
    hb: Word,
) -> Any:
    mask = uint32(0x00300030)
    return (
        _nibble_pair(l0, 0) | (lb << uint32(4)) & mask,
        _nibble_pair(h0, 0) | (hb << uint32(4)) & mask,
        _nibble_pair(l0, 1) | (lb << uint32(2)) & mask,
        _nibble_pair(h0, 1) | (hb << uint32(2)) & mask,
        _nibble_pair(l0, 2) | lb & mask,
        _nibble_pair(h0, 2) | hb & mask,
        _nibble_pair(l0, 3) | (lb >> uint32(2)) & mask,
        _nibble_pair(h0, 3) | (hb >> uint32(2)) & mask,
    )


@device_function
def _byte_pair(a: Word, b: Word, place: int) -> Word:
    """Bytes ``place`` of two words as signed bf16: (128 + lower bits) - (128 or 256), exact."""
    both = ptx.permute_bytes(a, b, uint32(0x4400 + 0x1111 * place))
    value = both & uint32(0x007F007F) | uint32(MAGIC)
    offset = both & uint32(0x00800080) | uint32(MAGIC)
    return ptx.multiply_add_bf16x2(offset, uint32(_MINUS_ONE), value)


@device_function
def _w8_pairs(
    l0: Word,
    l1: Word,
    l2: Word,
    l3: Word,
    h0: Word,
    h1: Word,
    h2: Word,
    h3: Word,
    lb: Word,
    hb: Word,
) -> Any:
    return (
        _byte_pair(l0, l1, 0),
        _byte_pair(h0, h1, 0),
        _byte_pair(l0, l1, 1),
        _byte_pair(h0, h1, 1),
        _byte_pair(l0, l1, 2),
        _byte_pair(h0, h1, 2),
        _byte_pair(l0, l1, 3),
        _byte_pair(h0, h1, 3),
    )


@device_function
def _bf16_pairs(
    l0: Word,
    l1: Word,
    l2: Word,
    l3: Word,
    h0: Word,
    h1: Word,
    h2: Word,
    h3: Word,
    lb: Word,
    hb: Word,
) -> Any:
    return l0, h0, l1, h1, l2, h2, l3, h3


@dataclass(frozen=True, slots=True)
class PairFormat:
    """How a kernel reads tiles of one format.

    Attributes:
        code_bytes, high_bytes, scale_bytes: of a record, half a tile of 16 x 128.
        slab_words: words of codes that a lane has for one row of one slab.
        unit_slabs: slabs that one 16-byte word of a lane covers.
        group_slabs: slabs that share a scale; 0 for BF16.
        offset: what a stored unit exceeds its code by; 0 when values are signed.
        slab_pairs: device function (four words of a row, of the row 8 below, high bits of both;
            for Q5 those are the last pairs of the slab).
    """

    code_bytes: int
    high_bytes: int
    scale_bytes: int
    slab_words: int
    unit_slabs: int
    group_slabs: int
    offset: int
    slab_pairs: Callable[..., Any]

    @property
    def record_bytes(self) -> int:
        """Bytes of half a tile."""
        return self.code_bytes + self.high_bytes + self.scale_bytes

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return 2 * self.record_bytes


def _format(
    format: TensorFormat, slab_words: int, group_slabs: int, offset: int, pairs: Any
) -> PairFormat:
    return PairFormat(
        CODE_BYTES[format],
        HIGH_BYTES.get(format, 0),
        SCALE_BYTES.get(format, 0),
        slab_words,
        4 // slab_words,
        group_slabs,
        offset,
        pairs,
    )


PAIR_FORMATS: Final = {
    TensorFormat.Q4: _format(TensorFormat.Q4, 1, 2, 136, _q4_pairs),
    TensorFormat.Q5: _format(TensorFormat.Q5, 1, 2, 144, _q5_pairs),
    TensorFormat.Q6: _format(TensorFormat.Q6, 1, 2, 160, _q6_pairs),
    TensorFormat.W8: _format(TensorFormat.W8, 2, 1, 0, _w8_pairs),
    TensorFormat.BF16: _format(TensorFormat.BF16, 4, 0, 0, _bf16_pairs),
}
