"""Columns as Hopper's warpgroups read them from shared memory: the other order of a linear input.

Products of more than `FRAGMENT_COLUMNS` columns read an image where the device has warpgroups
(`is_image`); all others read the order of `fragments`. An image has ``padded_width(K) / 64`` blocks
for each 128 columns and no sums behind it. The storage of a linear input has room for either order
from its address on (`input_bytes`).

A column has K features, padded with zeros as `fragments` pads them. Columns are cut into blocks of
128 x 64 features, 16 KiB each, the blocks of the same columns next to each other
(``block = column / 128 * K/64 + k / 64``), so that a product asks for a block by one copy. A block
is the image of shared memory with the swizzle over 128 bytes:

    address   128 column + 16 (piece xor column mod 8) inside a block
    piece     4 w + j: of slab w, 32 features, the j-th pairs of its four chunks

A chunk's pairs are 0,4 1,5 2,6 3,7 (`fragments`). So 16 features of a product are two pieces, in
the order in which lanes hold weights as the operand of m16n8k16 (`weight_pairs`): it only permutes
the features of a sum. Eight columns of a piece are spread over all banks. Columns behind the last
one are never written and whatever they hold reaches no other column.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import uint32, uint64

from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import fragments
from ninfer.kernels.cuda.fragments import PAIR_ORDER, padded_width

FRAGMENT_COLUMNS: Final = 128
"""Most columns of a linear input that has the order of `fragments` on every device."""

BLOCK_COLUMNS: Final = 128
BLOCK_FEATURES: Final = 64
BLOCK_BYTES: Final = BLOCK_COLUMNS * BLOCK_FEATURES * 2

_SLAB_PIECES: Final = 4

Address = Any
Index = Any


def is_image(num_columns: int, has_warpgroups: bool) -> bool:
    """Whether a linear input of so many columns is stored as an image."""
    return has_warpgroups and num_columns > FRAGMENT_COLUMNS


def input_bytes(num_columns: int, width: int) -> int:
    """Bytes of a linear input in whichever order; more columns never need fewer."""
    nbytes = fragments.input_bytes(num_columns, width)
    if num_columns > FRAGMENT_COLUMNS:
        nbytes = max(nbytes, image_bytes(num_columns, width))
    return nbytes


def image_bytes(num_columns: int, width: int) -> int:
    """Bytes of an image."""
    blocks = -(-num_columns // BLOCK_COLUMNS) * (padded_width(width) // BLOCK_FEATURES)
    return blocks * BLOCK_BYTES


@device_function
def piece_address(base: Address, k_blocks: Index, column: Index, piece: Index) -> Address:
    """Address of a piece of 16 bytes; eight pieces follow one another in a block of features."""
    block = uint64(uint32(column) >> uint32(7)) * uint64(k_blocks)
    block += uint64(uint32(piece) >> uint32(3))
    swizzled = (uint32(piece) ^ uint32(column)) & uint32(7)
    inside = ((uint32(column) & uint32(127)) << uint32(7)) + (swizzled << uint32(4))
    return base + block * uint64(BLOCK_BYTES) + uint64(inside)


def image_of(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Lay bf16 words ``[T, K]`` out as an image, in NumPy; columns behind the last are zero."""
    num_columns, width = words.shape
    blocks = -(-num_columns // BLOCK_COLUMNS)
    k_blocks = padded_width(width) // BLOCK_FEATURES
    wide = np.zeros((blocks * BLOCK_COLUMNS, k_blocks * BLOCK_FEATURES), np.uint16)
    wide[:num_columns, :width] = words
    chunks = wide.reshape(blocks, BLOCK_COLUMNS, k_blocks, 2, _SLAB_PIECES, 8)[..., PAIR_ORDER]
    pairs = chunks.reshape(*chunks.shape[:-1], 4, 2)  # [.., slab, chunk, pair, 2]
    pieces = pairs.swapaxes(4, 5).reshape(blocks, BLOCK_COLUMNS, k_blocks, 8, 8)
    rows, places = np.arange(BLOCK_COLUMNS)[:, None], np.arange(8)[None, :]
    swizzled = pieces.transpose(0, 2, 1, 3, 4)[:, :, rows, places ^ (rows & 7)]
    return np.ascontiguousarray(swizzled).reshape(-1).view(np.uint8)


def words_of(
    storage: npt.NDArray[np.uint8], num_columns: int, width: int
) -> npt.NDArray[np.uint16]:
    """Read an image back: bf16 words ``[T, padded K]``."""
    blocks = -(-num_columns // BLOCK_COLUMNS)
    k_blocks = padded_width(width) // BLOCK_FEATURES
    shape = (blocks, k_blocks, BLOCK_COLUMNS, 8, 8)
    swizzled = storage[: image_bytes(num_columns, width)].view(np.uint16).reshape(shape)
    rows, places = np.arange(BLOCK_COLUMNS)[:, None], np.arange(8)[None, :]
    pieces = swizzled[:, :, rows, places ^ (rows & 7)].transpose(0, 2, 1, 3, 4)
    pairs = pieces.reshape(*pieces.shape[:3], 2, 4, _SLAB_PIECES, 2)  # [.., slab, pair, chunk, 2]
    chunks = pairs.swapaxes(4, 5).reshape(*pieces.shape[:3], 2, _SLAB_PIECES, 8)
    words = chunks[..., np.argsort(PAIR_ORDER)].reshape(-1, k_blocks * BLOCK_FEATURES)
    return words[:num_columns]
