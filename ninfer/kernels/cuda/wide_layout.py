"""Operands of wide products: bf16 rows as Hopper's warpgroups read them from shared memory.

Both operands, activation columns and expanded weight rows, are rows of K features, K padded as
`fragments` pads it. They are cut into blocks of 128 rows x 64 features, 16 KiB each, the blocks of
the same rows next to each other (``block = row / 128 * K/64 + k / 64``), so that a multiplication
asks for a block by one copy. A block is the image of shared memory with the swizzle over 128 bytes:

    chunk     16 bytes: eight features in the pair order of `fragments`
    address   128 row + 16 (chunk xor row mod 8) inside a block

A core matrix, eight rows of 16 bytes, is spread over all banks that way. The order inside a chunk
is the same in both operands, so it only permutes the features of a sum. Rows behind the last one
are never written and whatever they hold reaches no other row.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import uint32, uint64

from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.fragments import PAIR_ORDER, padded_width

BLOCK_ROWS: Final = 128
BLOCK_FEATURES: Final = 64
BLOCK_BYTES: Final = BLOCK_ROWS * BLOCK_FEATURES * 2

Address = Any
Index = Any


def row_blocks(num_rows: int) -> int:
    """Blocks along the rows."""
    return -(-num_rows // BLOCK_ROWS)


def feature_blocks(width: int) -> int:
    """Blocks along the features."""
    return padded_width(width) // BLOCK_FEATURES


def image_bytes(num_rows: int, width: int) -> int:
    """Bytes of an operand."""
    return row_blocks(num_rows) * feature_blocks(width) * BLOCK_BYTES


@device_function
def image_address(base: Address, k_blocks: Index, row: Index, chunk: Index) -> Address:
    """Address of a chunk: features ``8 chunk .. 8 chunk + 7`` of a row."""
    block = uint64(uint32(row) >> uint32(7)) * uint64(k_blocks) + uint64(uint32(chunk) >> uint32(3))
    swizzled = (uint32(chunk) ^ uint32(row)) & uint32(7)
    inside = ((uint32(row) & uint32(127)) << uint32(7)) + (swizzled << uint32(4))
    return base + block * uint64(BLOCK_BYTES) + uint64(inside)


def image_of(words: npt.NDArray[np.uint16], *, is_plaited: bool = False) -> npt.NDArray[np.uint8]:
    """Lay bf16 words ``[rows, K]`` out as an operand, in NumPy; rows behind the last are zero."""
    num_rows, width = words.shape
    blocks, k_blocks = row_blocks(num_rows), feature_blocks(width)
    wide = np.zeros((blocks * BLOCK_ROWS, k_blocks * BLOCK_FEATURES), np.uint16)
    wide[:num_rows, :width] = words
    chunks = wide.reshape(blocks, BLOCK_ROWS, k_blocks, 8, 8)[..., PAIR_ORDER]
    if is_plaited:  # [.., slab, chunk, pair, 2] to [.., slab, pair, chunk, 2]
        plain = chunks.reshape(blocks, BLOCK_ROWS, k_blocks, 2, 4, 4, 2)
        chunks = plain.transpose(0, 1, 2, 3, 5, 4, 6).reshape(chunks.shape)
    rows, places = np.arange(BLOCK_ROWS)[:, None], np.arange(8)[None, :]
    swizzled = chunks.transpose(0, 2, 1, 3, 4)[:, :, rows, places ^ (rows & 7)]
    return np.ascontiguousarray(swizzled).reshape(-1).view(np.uint8)
