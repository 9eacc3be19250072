"""Shapes of the blocks that multiply up to eight columns, and how many share a multiprocessor.

A block is eight warps, the eight parts of K, and one or two row tiles. What bounds these products
beside bandwidth is how evenly blocks fill the card: the places that a launch gives a multiprocessor
are as many as its blocks need and no more, because a multiprocessor with a free place takes a
second block while another one has none. Shared memory that nobody uses closes the rest. Neither the
shape nor the places change a bit of a product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ninfer.errors import InvariantError
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.kernels.cuda.skinny_shape import PARTS, THREADS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

MOST_COLUMNS: Final = 8
"""Columns of one tile of a tensor-core product."""

RINGED_COLUMNS: Final = 4
"""Up to so many columns travel through the ring; more come straight from the first-level cache."""

ROW_TILES: Final = (1, 2)
"""Row tiles of a block that kernels are made for."""

SLOTS: Final = 4
"""Most weights of one launch."""

_COLUMN_BYTES: Final = 256  # of one column of a k tile
_SUMS_BYTES: Final = 64  # of a k tile's group sums, all eight columns
_RESERVED_BYTES: Final = 1024  # that a block takes beside its own
_REGISTER_FILE: Final = 65536
_MOST_PLACES: Final = {1: 3, 2: 2}  # by row tiles: what registers leave room for


@dataclass(frozen=True, slots=True)
class FewShape:
    """How one format is multiplied.

    Attributes:
        format: of the weight.
        row_tiles: tiles of 16 rows of a block.
        rings_columns: columns come through the ring, with the weights they meet.
    """

    format: TensorFormat
    row_tiles: int
    rings_columns: bool

    @property
    def stages(self) -> int:
        """K tiles of a warp's ring."""
        return 2 if self.format is TensorFormat.W8 and self.rings_columns else 3

    @property
    def weight_bytes(self) -> int:
        """Weights of one stage of a warp."""
        return self.row_tiles * PAIR_FORMATS[self.format].tile_bytes

    @property
    def stage_bytes(self) -> int:
        """Weights of one k tile, and its columns where they come along."""
        columns = RINGED_COLUMNS * _COLUMN_BYTES + _SUMS_BYTES
        return self.weight_bytes + columns * self.rings_columns

    @property
    def warp_bytes(self) -> int:
        """The ring of one warp."""
        return self.stages * self.stage_bytes


class Places(NamedTuple):
    """How a launch fills multiprocessors.

    Attributes:
        row_tiles: of a block, where the format has the choice.
        blocks: of the whole launch.
        shared_bytes: of a block, so that no more than wanted share a multiprocessor.
    """

    row_tiles: int
    blocks: int
    shared_bytes: int


def shape_for(format: TensorFormat, row_tiles: int, num_columns: int) -> FewShape:
    """How a block multiplies; bf16 weights leave no room for a second tile or for columns."""
    if format is TensorFormat.BF16:
        return FewShape(format, 1, False)
    return FewShape(format, row_tiles, num_columns <= RINGED_COLUMNS)


def shared_bytes(formats: Sequence[TensorFormat], row_tiles: int, num_columns: int) -> int:
    """Rings of a block that may meet any of these formats."""
    return PARTS * max(shape_for(f, row_tiles, num_columns).warp_bytes for f in formats)


def most_registers(row_tiles: int) -> int:
    """Registers of a thread that leave the places their blocks."""
    return _REGISTER_FILE // (THREADS * _MOST_PLACES[row_tiles]) // 8 * 8


def least_blocks(row_tiles: int) -> int:
    """Blocks that share a multiprocessor at the declared registers."""
    return _MOST_PLACES[row_tiles]


def choose_places(
    tiles: Sequence[tuple[TensorFormat, int]],
    num_columns: int,
    multiprocessors: int,
    multiprocessor_bytes: int,
) -> Places:
    """Choose the blocks that fill the card best; of equals, those with most in flight.

    Args:
        tiles: format and row tiles of every weight of the launch.
        num_columns: columns.
        multiprocessors: of the device.
        multiprocessor_bytes: shared memory that its blocks can share.
    """
    formats = [format for format, _ in tiles]
    best: tuple[tuple[float, int, int], Places] | None = None
    for row_tiles in ROW_TILES:
        blocks = sum(
            blocks_for(count, shape_for(format, row_tiles, num_columns).row_tiles)
            for format, count in tiles
        )
        ring = shared_bytes(formats, row_tiles, num_columns)
        most = min(_MOST_PLACES[row_tiles], multiprocessor_bytes // (ring + _RESERVED_BYTES))
        places = max(1, min(most, blocks_for(blocks, multiprocessors)))
        at_once = places * multiprocessors
        fill = blocks / (at_once * blocks_for(blocks, at_once))
        # One more block shall not fit; what is left serves columns as first-level cache.
        closing = multiprocessor_bytes // (places + 1) // 128 * 128 + 128 - _RESERVED_BYTES
        score = (round(fill, 1), row_tiles * places, places)
        if most > 0 and (best is None or score > best[0]):
            best = score, Places(row_tiles, blocks, max(ring, closing))
    if best is None:
        raise InvariantError(f"{multiprocessor_bytes} bytes of shared memory hold no block")
    return best[1]
