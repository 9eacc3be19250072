"""Shapes of the blocks whose warps make whole row tiles of up to eight columns.

Nothing here changes a bit of a product.
"""

from typing import Final

from ninfer.kernels.cuda.held_shape import GROUP_SUM_BYTES, K_TILE_BYTES
from ninfer.kernels.cuda.launch import RESERVED_SHARED
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

WARPS: Final = 24
"""Warps of a block, which fills a multiprocessor."""

STAGES: Final = 3
"""K tiles of a warp's ring."""

_TURNS: Final = 4  # of a warp: the last one takes as long for few row tiles as for many


def whole_bytes(format: TensorFormat, k_tiles: int) -> int:
    """Shared memory of a block: rings, and all columns with their group sums."""
    columns = k_tiles * (K_TILE_BYTES + GROUP_SUM_BYTES)
    return WARPS * STAGES * PAIR_FORMATS[format].tile_bytes + columns


def is_whole(
    format: TensorFormat, k_tiles: int, row_tiles: int, multiprocessors: int, shared_bytes: int
) -> bool:
    """Whether whole row tiles of a warp are the best way, and there is room."""
    return (
        k_tiles % PARTS == 0
        and row_tiles >= _TURNS * WARPS * multiprocessors
        and whole_bytes(format, k_tiles) + RESERVED_SHARED <= shared_bytes
    )
