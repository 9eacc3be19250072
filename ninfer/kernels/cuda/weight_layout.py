"""Order of stored weights on the device: fragment-major, one record for each tile.

A matrix ``[N, K]`` is padded to whole tiles of 16 rows x 128 features, which follow one another,
those of one row tile first (``tile = row_tile * K/128 + k_tile``). A tile is two records, one for
each half: row 8 h + r has half h and lanes 4 r + t. A record is codes, high bits, scales; feature
32 w + 8 t + i of a tile has slab w, lane part t and place i (as in `fragments`).

    part     bytes of a record      order              what a lane holds
    Q4, Q6   512                    [lane][16]         word w: nibble i of it
    Q5       512                    [lane][16]         word w: place i below 3, see below
    W8       1024                   [w / 2][lane][16]  byte 8 (w % 2) + i
    BF16     2048                   [w][lane][16]      pairs 0,4 1,5 2,6 3,7
    Q5 high  128                    [lane][4]          places 3 and 7, see below
    Q6 high  256                    [lane][w / 2][4]   two bits from 8 (w % 2)
                                                       + 2 (i % 4) + 16 (i / 4)
    scales   32, W8: 64             [r][128 / group]   binary16

Q5 keeps a code's five bits together, so that a pair of operands takes one mask and at most one
shift: place i of word w at bit 5 (i % 4) + 16 (i / 4) for i % 4 < 3; the places 3 and 7 of slab
w < 3 at bits 5 w and 5 w + 16 of the high word; those of slab 3 bit by bit in the bits 15 and 31
that are left, bit b in word b, bit 4 in the high word.

Codes below eight bits are stored with the sign bit flipped (code + 8, 16 or 32; W8 keeps two's
complement), which is the offset a product subtracts by the sums of `fragments`. Neighbouring tiles
of a row tile are contiguous, so that one bulk copy brings many. Padding has zero scales (BF16: zero
words).
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ninfer.errors import ShapeError
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats.geometry import GROUPED, RowSplitGeometry
from ninfer.tensor_formats.grouped import split_planes, unpack_codes

TILE_ROWS: Final = 16
TILE_FEATURES: Final = 128

CODE_BYTES: Final = {
    TensorFormat.Q4: 512,
    TensorFormat.Q5: 512,
    TensorFormat.Q6: 512,
    TensorFormat.W8: 1024,
    TensorFormat.BF16: 2048,
}
"""Bytes of codes of a record, half a tile."""

HIGH_BYTES: Final = {TensorFormat.Q5: 128, TensorFormat.Q6: 256}
"""Bytes of high bits of a record."""

SCALE_BYTES: Final = {
    TensorFormat.Q4: 32,
    TensorFormat.Q5: 32,
    TensorFormat.Q6: 32,
    TensorFormat.W8: 64,
}
"""Bytes of scales of a record."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Where the tiles of one matrix lie in its device storage.

    Attributes:
        format: stored format.
        num_rows: rows N of the whole matrix.
        num_columns: features K.
    """

    format: TensorFormat
    num_rows: int
    num_columns: int

    def __post_init__(self) -> None:
        if self.format not in CODE_BYTES or self.num_rows < 1 or self.num_columns < 1:
            raise ShapeError(
                f"{self.format.name} [{self.num_rows}, {self.num_columns}] is no linear weight"
            )

    @property
    def row_tiles(self) -> int:
        """Tiles along N."""
        return -(-self.num_rows // TILE_ROWS)

    @property
    def k_tiles(self) -> int:
        """Tiles along K."""
        return -(-self.num_columns // TILE_FEATURES)

    @property
    def record_bytes(self) -> int:
        """Bytes of half a tile."""
        return self.scale_offset + SCALE_BYTES.get(self.format, 0)

    @property
    def high_offset(self) -> int:
        """First byte of a record's high bits; codes start at 0."""
        return CODE_BYTES[self.format]

    @property
    def scale_offset(self) -> int:
        """First byte of a record's scales."""
        return self.high_offset + HIGH_BYTES.get(self.format, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.row_tiles * self.k_tiles * 2 * self.record_bytes


def pack_weight(format: TensorFormat, payload: Bytes, num_rows: int, num_columns: int) -> Bytes:
    """Lay a file payload out as device storage, in NumPy."""
    layout = WeightLayout(format, num_rows, num_columns)
    if format is TensorFormat.BF16:
        words = np.zeros((layout.row_tiles * TILE_ROWS, layout.k_tiles * TILE_FEATURES), np.uint16)
        words[:num_rows, :num_columns] = payload.view(np.uint16).reshape(num_rows, num_columns)
        split = _split(words, layout)[..., (0, 4, 1, 5, 2, 6, 3, 7)]
        return _octets(split.transpose(0, 3, 1, 4, 2, 5, 6), layout).reshape(-1)
    planes = split_planes(RowSplitGeometry(format, num_rows, num_columns), payload)
    codec = GROUPED[format]
    codes = np.zeros((layout.row_tiles * TILE_ROWS, layout.k_tiles * TILE_FEATURES), np.int16)
    codes[:num_rows] = unpack_codes(format, planes).reshape(num_rows, -1)
    scales = np.zeros((layout.row_tiles * TILE_ROWS, planes.scales.shape[1]), np.uint16)
    scales[:num_rows] = planes.scales
    per_tile = TILE_FEATURES // codec.group
    tiled = scales.reshape(layout.row_tiles, 2, 8, layout.k_tiles, per_tile)
    parts = [tiled.transpose(0, 3, 1, 2, 4)]
    if format is TensorFormat.W8:
        split = _split(codes.astype(np.int8).view(np.uint8), layout)
        shape = split.shape
        pairs = split.reshape(
            *shape[:4], 2, 2, *shape[5:]
        )  # [row tile, h, r, k tile, w/2, w%2, t, i]
        parts.insert(0, pairs.transpose(0, 3, 1, 4, 2, 6, 5, 7))
    else:
        offset = codes + np.int16(1 << (codec.bits - 1))
        offset[num_rows:] = 0
        split = _split(offset.astype(np.uint8), layout)
        parts[:0] = _five_bit_words(split) if codec.bits == 5 else _nibble_words(split, codec.bits)
    return np.concatenate([_octets(part, layout) for part in parts], axis=-1).reshape(-1)


def _nibble_words(split: npt.NDArray[np.uint8], bits: int) -> list[npt.NDArray[Any]]:
    """Words of lower nibbles [row tile, k tile, h, r, t, w], and of what is above them."""
    nibbles = (split & 15).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    words = np.bitwise_or.reduce(nibbles, axis=-1).transpose(0, 3, 1, 2, 5, 4)
    if bits == 4:
        return [words]
    place, slab = np.arange(8), np.arange(4)
    shift = (2 * (place % 4) + 16 * (place // 4) + (slab % 2 * 8)[:, None]).astype(np.uint32)
    spread = (split >> 4).astype(np.uint32) << shift[:, None, :]  # broadcast over t
    merged = np.bitwise_or.reduce(spread, axis=-1)
    shape = merged.shape
    high = np.bitwise_or.reduce(merged.reshape(*shape[:4], 2, 2, shape[5]), axis=5)
    return [words, high.transpose(0, 3, 1, 2, 5, 4)]


def _five_bit_words(split: npt.NDArray[np.uint8]) -> list[npt.NDArray[Any]]:
    """Words of Q5 as above: [row tile, k tile, h, r, t, w] and [row tile, k tile, h, r, t]."""
    pairs = split.astype(np.uint32)
    pairs = pairs[..., :4] | (pairs[..., 4:] << np.uint32(16))  # [row tile, h, r, k tile, w, t, i]
    shift = 5 * np.arange(3, dtype=np.uint32)
    words = np.bitwise_or.reduce(pairs[..., :3] << shift, axis=-1)
    last = pairs[..., 3]  # [row tile, h, r, k tile, w, t]
    high = np.bitwise_or.reduce(last[..., :3, :] << shift[:, None], axis=-2)
    for bit in range(5):
        spare = ((last[..., 3, :] >> np.uint32(bit)) & np.uint32(0x00010001)) << np.uint32(15)
        if bit < 4:
            words[..., bit, :] |= spare
        else:
            high |= spare
    return [words.transpose(0, 3, 1, 2, 5, 4), high.transpose(0, 3, 1, 2, 4)]


def _split(codes: npt.NDArray[Any], layout: WeightLayout) -> npt.NDArray[Any]:
    """View ``[N, K]`` as [row tile, half, r, k tile, w, t, i]."""
    return codes.reshape(layout.row_tiles, 2, 8, layout.k_tiles, 4, 4, 8)


def _octets(part: npt.NDArray[Any], layout: WeightLayout) -> Bytes:
    """One part of every record, [row tile, k tile, half, bytes]."""
    flat = np.ascontiguousarray(part).reshape(layout.row_tiles, layout.k_tiles, 2, -1)
    return np.asarray(flat).view(np.uint8)
