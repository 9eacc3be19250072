"""Shapes of the blocks that keep up to eight columns in shared memory and walk over rows.

One block fills a multiprocessor: its teams of eight warps, the eight parts of K, take row tiles in
turns, and every warp's ring goes on from one row tile to the next. Columns are brought once for
each multiprocessor instead of once for each block of rows, so that eight cost as much as one.
Nothing here changes a bit of a product.
"""

from collections.abc import Iterable
from typing import Final

from ninfer.kernels.cuda.few_shape import RINGED_COLUMNS
from ninfer.kernels.cuda.launch import RESERVED_SHARED
from ninfer.kernels.cuda.skinny_shape import PARTS, THREADS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

TEAMS: Final = 3
"""Teams of a block; each makes one row tile at a time."""

HELD_THREADS: Final = TEAMS * THREADS

PART_BYTES: Final = TILE_ROWS * 8 * 4
"""Sums of one part of a row tile, [row][column] in f32."""

TEAM_BYTES: Final = 2 * PARTS * PART_BYTES
"""Sums of a team: one row tile is added up while the next one is made."""

SLAB_BYTES: Final = 1024
"""A step of bf16: a quarter of a tile, about as many bytes as a tile of four-bit codes."""

K_TILE_BYTES: Final = 2048
"""Columns of a k tile, as they lie in a linear input."""

GROUP_SUM_BYTES: Final = 64
"""Group sums of a k tile."""

_LONG_STEP: Final = 1100  # bytes from which columns of 5120 features leave room for three stages
_MANY_TURNS: Final = 4  # of a team, from which this way is as good for one column: measured


def step_bytes(format: TensorFormat) -> int:
    """Weights of one step of a warp."""
    return SLAB_BYTES if format is TensorFormat.BF16 else PAIR_FORMATS[format].tile_bytes


def stage_bytes(formats: Iterable[TensorFormat]) -> int:
    """A stage of a ring that takes steps of any of these formats."""
    return max(step_bytes(format) for format in formats)


def num_stages(formats: Iterable[TensorFormat]) -> int:
    """Stages of a warp's ring."""
    return 4 if stage_bytes(formats) < _LONG_STEP else 3


def ring_bytes(formats: Iterable[TensorFormat]) -> int:
    """The ring of one warp."""
    return num_stages(formats) * stage_bytes(formats)


def held_bytes(formats: Iterable[TensorFormat], k_tiles: int) -> int:
    """Shared memory of a block: rings, sums, and all columns with their group sums."""
    columns = k_tiles * (K_TILE_BYTES + GROUP_SUM_BYTES)
    return TEAMS * (PARTS * ring_bytes(formats) + TEAM_BYTES) + columns


def has_room(formats: Iterable[TensorFormat], k_tiles: int, block_shared_bytes: int) -> bool:
    """Whether a block can keep the columns of so many k tiles."""
    return held_bytes(formats, k_tiles) + RESERVED_SHARED <= block_shared_bytes


def is_worth_holding(num_columns: int, row_tiles: int, multiprocessors: int) -> bool:
    """Whether held columns are at least as fast as those of `few_product`, where there is room.

    They cost no more for eight than for one, but the last turn takes as long for few row tiles as
    for many.
    """
    turns = row_tiles / (TEAMS * multiprocessors)
    return num_columns > RINGED_COLUMNS[-1] or turns >= _MANY_TURNS
