"""Shapes of the blocks of a skinny product, and the ring its warps read from.

None of a shape's numbers changes a bit of a product; `PARTS` does, and is a constant.
"""

from dataclasses import dataclass
from typing import Any, Final

from numba import uint32

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.launch import WARP, blocks_for
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

PARTS: Final = 8
"""Parts of a sum over K, one for each warp; a constant of the arithmetic."""

THREADS: Final = PARTS * WARP

WAITS: Final = {  # by stages of a ring: all but the newest copies
    2: ptx.wait_copies_0,
    3: ptx.wait_copies_1,
    4: ptx.wait_copies_2,
    5: ptx.wait_copies_3,
}

CHUNK_BYTES: Final = 2048  # a column tile's chunks of one k tile
MOST_SLABS: Final = 2  # of columns that a lane holds: what registers leave room for

Index = Any


@dataclass(frozen=True, slots=True)
class Skinny:
    """Shape of a block, none of which changes a bit of a product.

    Attributes:
        format: of the weight.
        row_tiles: tiles of 16 rows.
        column_tiles: tiles of 8 columns.
        stages: tiles of a warp's ring, 2 to 5.
        min_blocks: blocks that must fit on a multiprocessor.
    """

    format: TensorFormat
    row_tiles: int
    column_tiles: int
    stages: int
    min_blocks: int

    @property
    def stage_bytes(self) -> int:
        """Tiles of one k of a warp."""
        return self.row_tiles * PAIR_FORMATS[self.format].tile_bytes

    @property
    def shared_bytes(self) -> int:
        """Rings of all warps."""
        return PARTS * self.stages * self.stage_bytes

    def grid(self, row_tiles: int, num_columns: int) -> tuple[int, int, int]:
        """Blocks for so many row tiles and columns; those of one row block are neighbours."""
        return (
            blocks_for(num_columns, 8 * self.column_tiles),
            blocks_for(row_tiles, self.row_tiles),
            1,
        )


@device_function
def advance(slot: Index, step: int, end: int) -> Index:
    """Next place of a ring."""
    moved = slot + uint32(step)
    if moved == uint32(end):
        moved = uint32(0)
    return moved
