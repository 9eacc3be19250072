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
from ninfer.kernels.cuda.launch import (
    MULTIPROCESSOR_SHARED,
    RESERVED_SHARED,
    blocks_for,
    closing_bytes,
)
from ninfer.kernels.cuda.skinny_shape import PARTS, THREADS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

MOST_COLUMNS: Final = 8
"""Columns of one tile of a tensor-core product."""

RINGED_COLUMNS: Final = (1, 4)
"""Columns that a ring has room for; more come straight from the first-level cache."""

ROW_TILES: Final = (1, 2)
"""Row tiles of a block that kernels are made for."""

SLOTS: Final = 4
"""Most weights of one launch."""

_COLUMN_BYTES: Final = 256  # of one column of a k tile
_SUMS_BYTES: Final = 64  # of a k tile's group sums, all eight columns
_REGISTER_FILE: Final = 65536
_STEADY: Final = {
    (1, 1): 0.45,
    (1, 2): 0.66,
    (1, 3): 0.80,
    (2, 1): 0.60,
    (2, 2): 0.93,
    (2, 3): 0.97,
}
"""By row tiles and places: roughly what of copy bandwidth a long product reaches where no
multiprocessor waits for another; for comparing, measured on an H200."""


@dataclass(frozen=True, slots=True)
class FewShape:
    """How one format is multiplied.

    Attributes:
        format: of the weight.
        row_tiles: tiles of 16 rows of a block.
        ringed_columns: columns that come through the ring, with the weights they meet; 0 where
            they do not.
        stages: k tiles of a warp's ring.
    """

    format: TensorFormat
    row_tiles: int
    ringed_columns: int
    stages: int = 3

    @property
    def weight_bytes(self) -> int:
        """Weights of one stage of a warp."""
        return self.row_tiles * PAIR_FORMATS[self.format].tile_bytes

    @property
    def stage_bytes(self) -> int:
        """Weights of one k tile, and its columns where they come along."""
        sums = _SUMS_BYTES * (self.ringed_columns > 0)
        return self.weight_bytes + self.ringed_columns * _COLUMN_BYTES + sums

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


def shapes_for(
    formats: Sequence[TensorFormat], row_tiles: int, num_columns: int
) -> tuple[FewShape, ...]:
    """How blocks of one launch multiply each format.

    The ring of bf16 weights is large: there is no room for a second row tile or for columns, and
    beside other formats, whose blocks are many, it is shorter.
    """
    columns = ringed_columns(num_columns)
    shapes = []
    for format in formats:
        if format is TensorFormat.BF16:
            shapes.append(FewShape(format, 1, 0, 3 if len(formats) == 1 else 2))
        else:
            is_short = format is TensorFormat.W8 and columns > 0
            shapes.append(FewShape(format, row_tiles, columns, 2 if is_short else 3))
    return tuple(shapes)


def ringed_columns(num_columns: int) -> int:
    """Columns that a ring has room for, for so many; 0 where they do not go through it."""
    return next((most for most in RINGED_COLUMNS if num_columns <= most), 0)


def shared_bytes(formats: Sequence[TensorFormat], row_tiles: int, num_columns: int) -> int:
    """Rings of a block that may meet any of these formats."""
    return PARTS * max(s.warp_bytes for s in shapes_for(formats, row_tiles, num_columns))


def most_places(formats: Sequence[TensorFormat], row_tiles: int, num_columns: int) -> int:
    """Blocks that share a multiprocessor at most, for which kernels leave registers.

    Two row tiles leave them for three blocks where one column meets weights of one format, and are
    worth it where shared memory has room for three rings.
    """
    ring = shared_bytes(formats, row_tiles, num_columns)
    is_light = num_columns == 1 and len(formats) == 1
    has_room = 3 * (ring + RESERVED_SHARED) <= MULTIPROCESSOR_SHARED
    return 3 if row_tiles == 1 or (is_light and has_room) else 2


def most_registers(formats: Sequence[TensorFormat], row_tiles: int, num_columns: int) -> int:
    """Registers of a thread that leave the places their blocks."""
    places = most_places(formats, row_tiles, num_columns)
    return _REGISTER_FILE // (THREADS * places) // 8 * 8


def choose_places(
    tiles: Sequence[tuple[TensorFormat, int]],
    num_columns: int,
    multiprocessors: int,
    multiprocessor_bytes: int,
) -> Places:
    """Choose the blocks that end first: even shares against enough of them in flight.

    Args:
        tiles: format and row tiles of every weight of the launch.
        num_columns: columns.
        multiprocessors: of the device.
        multiprocessor_bytes: shared memory that its blocks can share.
    """
    formats = tuple(dict.fromkeys(format for format, _ in tiles))
    found: list[tuple[float, Places]] = []
    for row_tiles in ROW_TILES:
        ring = shared_bytes(formats, row_tiles, num_columns)
        tall = {s.format: s.row_tiles for s in shapes_for(formats, row_tiles, num_columns)}
        blocks = sum(blocks_for(count, tall[format]) for format, count in tiles)
        fitting = multiprocessor_bytes // (ring + RESERVED_SHARED)
        for places in range(1, min(fitting, most_places(formats, row_tiles, num_columns)) + 1):
            at_once = places * multiprocessors
            fill = blocks / (at_once * blocks_for(blocks, at_once))
            closing = closing_bytes(multiprocessor_bytes, places)
            rate = fill * _STEADY[row_tiles, places]
            found.append((rate, Places(row_tiles, blocks, max(ring, closing))))
    if not found:
        raise InvariantError(f"{multiprocessor_bytes} bytes of shared memory hold no block")
    return max(found, key=lambda rated: rated[0])[1]
