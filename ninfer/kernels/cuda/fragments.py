"""Order of activation columns on the device: a linear input as tensor cores eat it.

Columns come in tiles of 8, features in slabs of 32; K is padded to a multiple of 128 with zeros.

    storage   [tiles][K/32 slabs][8 columns][4 chunks][8 features] bf16, then
              [tiles][K/64 groups][8 columns] f32, the sum of the group's bf16 values
    chunk     16 bytes: features 0,4, 1,5, 2,6, 3,7 of the chunk (a pair is one 32-bit word)

Lane ``4 n + t`` of a warp reads chunk t of column n of a slab with one 16-byte load, 512 contiguous
bytes for the warp: words 0, 1 are the B operand of one m16n8k16 product, words 2, 3 of the next. So
one slab is two products, and every product stays inside a group of 32 features, which is what the
scales of W8 need; two slabs are a group of 64 (Q4, Q5, Q6). A weight fragment must give lane
``4 r + t`` features ``8 t .. 8 t + 7`` of the slab in the same pairs: nibbles 0 and 4, 1 and 5, 2
and 6, 3 and 7 of one word of eight 4-bit codes.

A group's sum serves codes that are stored with an offset: ``sum (q + c) x = sum q x + c sum x``. It
is a fixed tree, ((0+4)+(1+5))+((2+6)+(3+7)) in each chunk, then pairs, fours and eights of chunks:
every producer gives the same bits. Columns behind the last one of a block are never written and
whatever they hold reaches no other column.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function

TILE_COLUMNS: Final = 8
"""Columns of one tile: the n of m16n8k16."""

CHUNK: Final = 8
"""Consecutive features of one column that lie in 16 consecutive bytes."""

SLAB: Final = 32
"""Features of one slab; 512 bytes in a tile."""

GROUP: Final = 64
"""Features whose values are summed."""

PADDING: Final = 128
"""The width is padded to a multiple of this."""

PAIR_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Features of a chunk in the order of its sixteen-bit words."""

Address = Any
F32 = Any
Index = Any


def padded_width(width: int) -> int:
    """Features of a column, padding included."""
    return -(-width // PADDING) * PADDING


def num_tiles(num_columns: int) -> int:
    """Tiles of a block."""
    return -(-num_columns // TILE_COLUMNS)


def fragment_bytes(num_columns: int, width: int) -> int:
    """Bytes of the bf16 part of a block; the sums start here."""
    return num_tiles(num_columns) * padded_width(width) * TILE_COLUMNS * 2


def input_bytes(num_columns: int, width: int) -> int:
    """Bytes of a block, sums included."""
    sums = num_tiles(num_columns) * (padded_width(width) // GROUP) * TILE_COLUMNS * 4
    return fragment_bytes(num_columns, width) + sums


@device_function
def chunk_address(base: Address, padded: Index, column: Index, chunk: Index) -> Address:
    """Address of a chunk: 16 bytes, features ``8 chunk .. 8 chunk + 7`` of a column."""
    tile = uint32(column) >> uint32(3)
    offset = (
        ((uint32(chunk) >> uint32(2)) << uint32(9))
        + ((uint32(column) & uint32(7)) << uint32(6))
        + ((uint32(chunk) & uint32(3)) << uint32(4))
    )
    return base + uint64(tile) * uint64(padded * 16) + uint64(offset)


@device_function
def sum_address(sums: Address, padded: Index, column: Index, group: Index) -> Address:
    """Address of the f32 sum of features ``64 group .. 64 group + 63`` of a column."""
    tile = uint32(column) >> uint32(3)
    offset = (uint32(group) << uint32(5)) + ((uint32(column) & uint32(7)) << uint32(2))
    return sums + uint64(tile) * uint64(padded >> 1) + uint64(offset)


@device_function
def store_chunk(
    base: Address,
    sums: Address,
    padded: Index,
    column: Index,
    chunk: Index,
    is_inside: Any,
    x0: F32,
    x1: F32,
    x2: F32,
    x3: F32,
    x4: F32,
    x5: F32,
    x6: F32,
    x7: F32,
) -> None:
    """Round eight features to bf16 and store them, and the sum of their group.

    All 32 lanes take part; lanes 8i..8i+7 hold the eight chunks of one group, in order. ``base``
    and ``sums`` are the two parts of the block, ``is_inside`` says whether this lane's chunk exists
    (the same for all lanes of a group), and the values are zeros in the padding.
    """
    w0 = ptx.bf16x2_of_f32(x0, x4)
    w1 = ptx.bf16x2_of_f32(x1, x5)
    w2 = ptx.bf16x2_of_f32(x2, x6)
    w3 = ptx.bf16x2_of_f32(x3, x7)
    total = (pair_sum(w0) + pair_sum(w1)) + (pair_sum(w2) + pair_sum(w3))
    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 4)
    if is_inside:
        ptx.store_u32x4(chunk_address(base, padded, column, chunk), w0, w1, w2, w3)
        if int32(chunk) & 7 == 0:
            group = int32(chunk) >> 3
            ptx.store_f32(sum_address(sums, padded, column, group), float32(total))


@device_function
def pair_sum(word: Any) -> F32:
    """Sum of the two bf16 values of a word."""
    return ptx.f32_of_bits(word << uint32(16)) + ptx.f32_of_bits(word & uint32(0xFFFF0000))


def pack_columns(words: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint8]:
    """Lay bf16 words ``[T, K]`` out as a block, in NumPy; columns behind the last are zero."""
    num_columns, width = words.shape
    padded, tiles = padded_width(width), num_tiles(num_columns)
    wide = np.zeros((tiles * TILE_COLUMNS, padded), np.uint16)
    wide[:num_columns, :width] = words
    chunks = wide.reshape(tiles, TILE_COLUMNS, padded // SLAB, SLAB // CHUNK, CHUNK)
    fragments = chunks[..., PAIR_ORDER].transpose(0, 2, 1, 3, 4)
    values = (wide.astype(np.uint32) << np.uint32(16)).view(np.float32)
    tree = values.reshape(tiles, TILE_COLUMNS, padded // GROUP, CHUNK, CHUNK)
    tree = tree[..., :4] + tree[..., 4:]
    tree = (tree[..., 0] + tree[..., 1]) + (tree[..., 2] + tree[..., 3])
    for _ in range(3):
        tree = tree[..., 0::2] + tree[..., 1::2]
    sums = np.ascontiguousarray(tree[..., 0].transpose(0, 2, 1))
    flat = np.ascontiguousarray(fragments).reshape(-1).view(np.uint8)
    return np.concatenate([flat, sums.reshape(-1).view(np.uint8)])


def unpack_columns(
    storage: npt.NDArray[np.uint8], num_columns: int, width: int
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32]]:
    """Read a block back: bf16 words ``[T, padded K]`` and sums ``[T, padded K / 64]``."""
    padded, tiles = padded_width(width), num_tiles(num_columns)
    split = fragment_bytes(num_columns, width)
    shape = (tiles, padded // SLAB, TILE_COLUMNS, SLAB // CHUNK, CHUNK)
    words = storage[:split].view(np.uint16).reshape(shape).transpose(0, 2, 1, 3, 4)
    plain = words[..., np.argsort(PAIR_ORDER)].reshape(-1, padded)
    sums = storage[split:].view(np.float32).reshape(tiles, padded // GROUP, TILE_COLUMNS)
    return plain[:num_columns], sums.transpose(0, 2, 1).reshape(-1, padded // GROUP)[:num_columns]
