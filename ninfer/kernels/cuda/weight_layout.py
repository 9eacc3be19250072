"""Order of stored weights on the device: fragment-major, one region for each format.

A matrix ``[N, K]`` is padded to whole tiles of 16 rows x 128 features and stored as planes, each
starting at a multiple of 256 bytes; inside a plane tiles follow one another, those of one row tile
first (``tile = row_tile * K/128 + k_tile``). Row 8 h + r of a tile has half h and lanes 4 r + t;
feature 32 w + 8 t + i of a tile has slab w, lane part t and place i (as in `fragments`).

    plane    bytes of a tile        order                        what a lane holds
    Q4       1024                   [half][lane][16]             word w: nibble i of it
    Q5, Q6   1024                   as Q4, lower four bits       word w: nibble i of it
    W8       2048                   [w / 2][half][lane][16]      byte 8 (w % 2) + i
    BF16     4096                   [w][half][lane][16]          pairs 0,4 1,5 2,6 3,7
    Q5 high  256                    [half][lane][4]              bit 4 w + i % 4 + 16 (i / 4)
    Q6 high  512                    [half][lane][w / 2][4]       two bits from 8 (w % 2)
                                                                 + 2 (i % 4) + 16 (i / 4)
    scales   64, W8: 128            [half][r][128 / group]       binary16

Nibbles and high bits are stored with the sign bit flipped (code + 8, 16 or 32; W8 keeps two's
complement), which is the offset a product subtracts by the sums of `fragments`. One warp load of a
half is 512 contiguous bytes. Padding has zero scales (BF16: zero words).
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
PLANE_ALIGNMENT: Final = 256

CODE_BYTES: Final = {
    TensorFormat.Q4: 1024,
    TensorFormat.Q5: 1024,
    TensorFormat.Q6: 1024,
    TensorFormat.W8: 2048,
    TensorFormat.BF16: 4096,
}
HIGH_BYTES: Final = {TensorFormat.Q5: 256, TensorFormat.Q6: 512}
SCALE_BYTES: Final = {
    TensorFormat.Q4: 64,
    TensorFormat.Q5: 64,
    TensorFormat.Q6: 64,
    TensorFormat.W8: 128,
}

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Where the planes of one matrix lie in its device storage.

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
    def high_offset(self) -> int:
        """First byte of the plane of high bits; codes start at 0."""
        return self._plane(CODE_BYTES[self.format])

    @property
    def scale_offset(self) -> int:
        """First byte of the scales."""
        return self.high_offset + self._plane(HIGH_BYTES.get(self.format, 0))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.scale_offset + self._plane(SCALE_BYTES.get(self.format, 0))

    def _plane(self, tile_bytes: int) -> int:
        size = self.row_tiles * self.k_tiles * tile_bytes
        return -(-size // PLANE_ALIGNMENT) * PLANE_ALIGNMENT


def pack_weight(format: TensorFormat, payload: Bytes, num_rows: int, num_columns: int) -> Bytes:
    """Lay a file payload out as device storage, in NumPy."""
    layout = WeightLayout(format, num_rows, num_columns)
    storage = np.zeros(layout.nbytes, np.uint8)
    if format is TensorFormat.BF16:
        words = np.zeros((layout.row_tiles * TILE_ROWS, layout.k_tiles * TILE_FEATURES), np.uint16)
        words[:num_rows, :num_columns] = payload.view(np.uint16).reshape(num_rows, num_columns)
        split = _split(words, layout)[..., (0, 4, 1, 5, 2, 6, 3, 7)]
        _put(storage, 0, split.transpose(0, 3, 4, 1, 2, 5, 6))
        return storage
    planes = split_planes(RowSplitGeometry(format, num_rows, num_columns), payload)
    codec = GROUPED[format]
    codes = np.zeros((layout.row_tiles * TILE_ROWS, layout.k_tiles * TILE_FEATURES), np.int16)
    codes[:num_rows] = unpack_codes(format, planes).reshape(num_rows, -1)
    scales = np.zeros((layout.row_tiles * TILE_ROWS, planes.scales.shape[1]), np.uint16)
    scales[:num_rows] = planes.scales
    per_tile = TILE_FEATURES // codec.group
    tiled = scales.reshape(layout.row_tiles, TILE_ROWS, layout.k_tiles, per_tile)
    _put(storage, layout.scale_offset, tiled.transpose(0, 2, 1, 3))
    if format is TensorFormat.W8:
        split = _split(codes.astype(np.int8).view(np.uint8), layout)
        shape = split.shape
        pairs = split.reshape(
            *shape[:4], 2, 2, *shape[5:]
        )  # [row tile, h, r, k tile, w/2, w%2, t, i]
        _put(storage, 0, pairs.transpose(0, 3, 4, 1, 2, 6, 5, 7))
        return storage
    offset = codes + np.int16(1 << (codec.bits - 1))
    offset[num_rows:] = 0
    split = _split(offset.astype(np.uint8), layout)
    nibbles = (split & 15).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    words32 = np.bitwise_or.reduce(nibbles, axis=-1)  # [row tile, h, r, k tile, w, t]
    _put(storage, 0, words32.transpose(0, 3, 1, 2, 5, 4))
    if format in HIGH_BYTES:
        _put(
            storage, layout.high_offset, _high_words((split >> 4).astype(np.uint8), codec.bits - 4)
        )
    return storage


def _high_words(high: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint32]:
    """Words of high bits, [row tile, k tile, h, r, t, bits].

    Args:
        high: [row tile, h, r, k tile, w, t, i].
        bits: of each code, 1 or 2.
    """
    place = np.arange(8)
    within = bits * (place % 4) + 16 * (place // 4)
    per_word = 4 // bits  # slabs of one word
    slab = np.arange(4)
    shift = (within[None, :] + (slab % per_word)[:, None] * 4 * bits).astype(np.uint32)
    spread = high.astype(np.uint32) << shift[:, None, :]  # broadcast over t
    merged = np.bitwise_or.reduce(spread, axis=-1)
    shape = merged.shape
    words = np.bitwise_or.reduce(merged.reshape(*shape[:4], bits, per_word, shape[5]), axis=5)
    return np.asarray(words.transpose(0, 3, 1, 2, 5, 4), np.uint32)


def _split(codes: npt.NDArray[Any], layout: WeightLayout) -> npt.NDArray[Any]:
    """View ``[N, K]`` as [row tile, half, r, k tile, w, t, i]."""
    return codes.reshape(layout.row_tiles, 2, 8, layout.k_tiles, 4, 4, 8)


def _put(storage: Bytes, offset: int, part: npt.NDArray[Any]) -> None:
    flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    storage[offset : offset + flat.size] = flat
