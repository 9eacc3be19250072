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
COLUMN_BYTES: Final = CHUNK_BYTES + 64  # with their sums

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
        rings_columns: columns come through the ring too, as far ahead as weights, instead of by
            loads that wait in line behind the copies of weights.
    """

    format: TensorFormat
    row_tiles: int
    column_tiles: int
    stages: int
    min_blocks: int
    rings_columns: bool = False

    @property
    def stage_bytes(self) -> int:
        """Tiles of one k of a warp, and its columns where they come along."""
        weights = self.row_tiles * PAIR_FORMATS[self.format].tile_bytes
        return weights + self.column_tiles * COLUMN_BYTES * self.rings_columns

    @property
    def most_slabs(self) -> int:
        """Slabs of columns that a lane holds: what registers leave room for."""
        return 4 if self.column_tiles == 1 and self.min_blocks < 3 else 2

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
