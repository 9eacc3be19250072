"""How products of coded weights are shared out: tiles, the ring in shared memory, the grid."""

from dataclasses import dataclass
from typing import Final

from ninfer.kernels.cuda.coded_output import STAGING_BYTES
from ninfer.kernels.cuda.column_image import BLOCK_COLUMNS, BLOCK_FEATURES
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.tensor import TensorFormat

WARPS: Final = 8
"""Warps of a block; each has one stored tile of 16 rows at a time."""

_ALIGNMENT: Final = 1024  # of a swizzled block in shared memory


@dataclass(frozen=True, slots=True)
class Coded:
    """How a product is shared out.

    Attributes:
        format: of the weight.
        tile_columns: columns of a tile: 64, 128 or 256.
        stages: blocks of 64 features in the ring, three at least.
        band: column tiles that are numbered together.
    """

    format: TensorFormat
    tile_columns: int = 256
    stages: int = 6
    band: int = 4

    @property
    def column_blocks(self) -> int:
        """Blocks of an image, each of 128 columns, that a tile takes columns of."""
        return blocks_for(self.tile_columns, BLOCK_COLUMNS)

    @property
    def copy_bytes(self) -> int:
        """What a tile takes of a block, in one piece."""
        return min(self.tile_columns, BLOCK_COLUMNS) * BLOCK_FEATURES * 2

    @property
    def stage_bytes(self) -> int:
        """The columns of one stage."""
        return self.column_blocks * self.copy_bytes

    @property
    def staging_at(self) -> int:
        """Staging of results, behind the ring."""
        return self.stages * self.stage_bytes

    @property
    def full_at(self) -> int:
        """Barriers of stages that have arrived."""
        return self.staging_at + STAGING_BYTES

    @property
    def empty_at(self) -> int:
        """Barriers of stages that consumers are done with."""
        return self.full_at + 8 * self.stages

    @property
    def shared_bytes(self) -> int:
        """All of that, and room to align the ring."""
        return _ALIGNMENT + self.empty_at + 8 * self.stages

    def tiles(self, row_tiles: int, num_columns: int) -> int:
        """Tiles of a product with so many stored tiles of rows."""
        columns = blocks_for(num_columns, self.tile_columns)
        return columns * blocks_for(row_tiles, WARPS)

    def grid(self, row_tiles: int, num_columns: int, multiprocessors: int) -> tuple[int, int, int]:
        """One block for each multiprocessor, or for each tile where those are fewer."""
        return (min(self.tiles(row_tiles, num_columns), multiprocessors), 1, 1)
