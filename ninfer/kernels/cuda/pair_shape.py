"""Shapes of the pairs of blocks that share row tiles evenly, in products of up to eight columns.

What a launch shares out is a part of a row tile: a warp's sum over the k tiles p, p + 8, p + 16..
Where row tiles are few, whole ones leave multiprocessors idle: 320 on 132 are two or three each. A
pair of blocks on two multiprocessors makes five, each block half of the parts of all of them:

    warp 4 t + i of the first block    row tile t, part i
    warp 4 t + i of the second         row tile t, part 4 + i

So a block meets half of the columns, and has room for them. Each block adds up about half of the
row tiles. One block fills a multiprocessor and each of its warps makes one part. Nothing here
changes a bit of a product.

Shared memory of a block: rings of all warps, sums from the other block [row tile][part], columns
and group sums of its k tiles [step][part], a barrier for each of them.
"""

from typing import Final

from ninfer.kernels.cuda.held_shape import GROUP_SUM_BYTES, K_TILE_BYTES, PART_BYTES
from ninfer.kernels.cuda.launch import RESERVED_SHARED, WARP, blocks_for
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

PAIR_TILES: Final = 5
"""Row tiles of a pair of blocks."""

HOME_TILES: Final = (PAIR_TILES + 1) // 2
"""Row tiles that the first block adds up, the first ones; the second one those that are left."""

OWN_PARTS: Final = PARTS // 2
"""Parts that a block makes."""

PAIR_WARPS: Final = PAIR_TILES * OWN_PARTS
"""Warps of a block."""

PAIR_THREADS: Final = PAIR_WARPS * WARP

STAGES: Final = 3
"""Stages of a warp's ring. More are slower: what is asked for before the predecessor has ended is
in the way of its own last loads (measured with four and five)."""

BARRIER_BYTES: Final = 8

LONG_TILES: Final = 96
"""K tiles from which pairs are chosen. Their blocks start when two multiprocessors are free, those
of other kernels one by one. With 136 k tiles they gain a twentieth at one column and an eighth at
eight, with 48 nothing in a round (measured on an H200); between lies no measurement."""


def sums_at(format: TensorFormat) -> int:
    """Where sums from the other block lie."""
    return PAIR_WARPS * STAGES * PAIR_FORMATS[format].tile_bytes


def columns_at(format: TensorFormat) -> int:
    """Where columns lie."""
    return sums_at(format) + HOME_TILES * OWN_PARTS * PART_BYTES


def pair_bytes(format: TensorFormat, k_tiles: int) -> int:
    """Shared memory of a block."""
    own = blocks_for(k_tiles, PARTS) * OWN_PARTS
    return columns_at(format) + own * (K_TILE_BYTES + GROUP_SUM_BYTES + BARRIER_BYTES)


def has_room(format: TensorFormat, k_tiles: int, block_shared_bytes: int) -> bool:
    """Whether a device can hold the blocks."""
    return pair_bytes(format, k_tiles) + RESERVED_SHARED <= block_shared_bytes


def is_worth_pairing(row_tiles: int, k_tiles: int, multiprocessors: int) -> bool:
    """Whether one pair of blocks on every two multiprocessors is just enough, and pays."""
    pairs = multiprocessors // 2
    return k_tiles >= LONG_TILES and pairs > 0 and blocks_for(row_tiles, pairs) == PAIR_TILES
