"""Stored weights to tensor-core operands: the A registers of one slab, in every format.

A lane holds chunk t of two rows (r of either half) of a slab of 32 features. The function that
`make_slab_pairs` makes of a format turns its words into eight registers: four of the first m16n8k16
product (pairs 0,4 and 1,5 of both rows), four of the second (pairs 2,6 and 3,7), as `fragments`
orders the columns. Values are exact bf16 integers without the scale. Nibble formats leave an offset
in: a bf16 of exponent 7 holds 128 + u in its lower bits, and u = code + 8, 16 or 32; ``offset``
times the column's group sum is what a product subtracts. W8 is made signed by one exact
subtraction, BF16 is taken as it is.
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


def make_slab_pairs(format: TensorFormat, *, keeps_masks: bool) -> Any:
    """Device function: four words of a row, of the row 8 below, high bits of both; eight pairs.

    Args:
        format: of the weights; for Q5 the high bits are the last pairs of the slab.
        keeps_masks: masks stay in registers, where a kernel has some to spare.
    """
    return _PAIRS[format](_kept if keeps_masks else _constant)


@device_function
def _constant(value: Word) -> Word:
    return value


@device_function
def _kept(value: Word) -> Word:
    return ptx.kept_u32(value)


def _make_q4_pairs(mask: Any) -> Any:
    pair = _make_field_pair(4, 0x000F000F, mask)

    @device_function
    def pairs(
        l0: Word, l1: Word, l2: Word, l3: Word,
        h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word,
    ) -> Any:  # fmt: skip
        return (
            pair(l0, 0), pair(h0, 0), pair(l0, 1), pair(h0, 1),
            pair(l0, 2), pair(h0, 2), pair(l0, 3), pair(h0, 3),
        )  # fmt: skip

    return pairs


def _make_q5_pairs(mask: Any) -> Any:
    pair = _make_field_pair(5, 0x001F001F, mask)

    @device_function
    def pairs(
        l0: Word, l1: Word, l2: Word, l3: Word,
        h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word,
    ) -> Any:  # fmt: skip
        return (
            pair(l0, 0), pair(h0, 0), pair(l0, 1), pair(h0, 1),
            pair(l0, 2), pair(h0, 2), pair(lb, 0), pair(hb, 0),
        )  # fmt: skip

    return pairs


def _make_q6_pairs(mask: Any) -> Any:
    pair = _make_field_pair(4, 0x000F000F, mask)

    @device_function
    def pairs(
        l0: Word, l1: Word, l2: Word, l3: Word,
        h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word,
    ) -> Any:  # fmt: skip
        high = mask(uint32(0x00300030))
        return (
            pair(l0, 0) | (lb << uint32(4)) & high,
            pair(h0, 0) | (hb << uint32(4)) & high,
            pair(l0, 1) | (lb << uint32(2)) & high,
            pair(h0, 1) | (hb << uint32(2)) & high,
            pair(l0, 2) | lb & high,
            pair(h0, 2) | hb & high,
            pair(l0, 3) | (lb >> uint32(2)) & high,
            pair(h0, 3) | (hb >> uint32(2)) & high,
        )

    return pairs


def _make_w8_pairs(mask: Any) -> Any:
    @device_function
    def pair(a: Word, b: Word, place: int) -> Word:
        """Bytes ``place`` of two words as signed bf16: (128 + lower bits) - (128 or 256), exact."""
        both = ptx.permute_bytes(a, b, uint32(0x4400 + 0x1111 * place))
        value = both & mask(uint32(0x007F007F)) | uint32(MAGIC)
        offset = both & mask(uint32(0x00800080)) | uint32(MAGIC)
        return ptx.multiply_add_bf16x2(offset, uint32(_MINUS_ONE), value)

    @device_function
    def pairs(
        l0: Word, l1: Word, l2: Word, l3: Word,
        h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word,
    ) -> Any:  # fmt: skip
        return (
            pair(l0, l1, 0), pair(h0, h1, 0), pair(l0, l1, 1), pair(h0, h1, 1),
            pair(l0, l1, 2), pair(h0, h1, 2), pair(l0, l1, 3), pair(h0, h1, 3),
        )  # fmt: skip

    return pairs


def _make_bf16_pairs(mask: Any) -> Any:
    @device_function
    def pairs(
        l0: Word, l1: Word, l2: Word, l3: Word,
        h0: Word, h1: Word, h2: Word, h3: Word, lb: Word, hb: Word,
    ) -> Any:  # fmt: skip
        return l0, h0, l1, h1, l2, h2, l3, h3

    return pairs


def _make_field_pair(bits: int, fields: int, mask: Any) -> Any:
    """One pair of two words' halves: ``bits`` of each as a bf16 of 128 and more."""

    @device_function
    def pair(word: Word, place: int) -> Word:
        return (word >> uint32(bits * place)) & mask(uint32(fields)) | uint32(MAGIC)

    return pair


_PAIRS: Final[dict[TensorFormat, Callable[[Any], Any]]] = {
    TensorFormat.Q4: _make_q4_pairs,
    TensorFormat.Q5: _make_q5_pairs,
    TensorFormat.Q6: _make_q6_pairs,
    TensorFormat.W8: _make_w8_pairs,
    TensorFormat.BF16: _make_bf16_pairs,
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
