"""Shapes of the clusters that multiply 9 to 32 columns.

Columns of a whole K do not fit into a multiprocessor, those of an eighth do. So the eight parts of
K, which every product is added up of, are the eight blocks of a cluster: a block brings the columns
of its part once and keeps them, and each of its warps makes its part of two row tiles at a time, so
that columns that it has read from shared memory serve both. When all blocks have made their parts
of a turn's row tiles, each adds up an eighth of the sums, which the others have written into its
shared memory. Nothing here changes a bit of a product.

Shared memory of a block: plans of all warps, their rings, columns [step][column tile], what chains
begin with [offset][step][column tile][group][lane mod 4], a barrier for each step, sums from all
blocks [turn mod 2][warp][part][lane]. A launch of one turn needs the latter only when all its warps
are done with the former, and has them in the same place, behind the plans.
"""

from collections.abc import Iterable
from itertools import product
from typing import Final, NamedTuple

from ninfer.kernels.cuda.held_shape import K_TILE_BYTES, stage_bytes
from ninfer.kernels.cuda.launch import RESERVED_SHARED, WARP, blocks_for
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

MOST_COLUMNS: Final = 32
"""Columns of four tiles of a tensor-core product."""

COLUMN_TILES: Final = (2, 4)
"""Column tiles that kernels are made for."""

PAIR: Final = 2
"""Row tiles that a warp makes at a time."""

BEGIN_BYTES: Final = 128
"""What both groups' chains of a k tile and a column tile begin with: a group sum times an offset,
in the order of a lane's four sums."""

BARRIER_BYTES: Final = 8

PLAN_BYTES: Final = 64
"""A warp's plan (see `wide_walk`)."""

TURN_AT: Final = 32
"""Where the plan has what turns need."""

SENT_AT: Final = 48
"""Where the plan has its two barriers, which sums of even and of odd turns arrive at."""

LEAST_WARPS: Final = 4
_STEADY_WARPS: Final = 10  # from which more are not faster
_STEADY_STAGES: Final = {2: 0.85, 3: 1.0}


class WideLaunch(NamedTuple):
    """How a launch fills the card.

    Attributes:
        clusters: that run at once.
        stages: of a warp's ring.
        warps: of a block.
        turns: of its clusters.
        sums_at: where sums of a turn lie in shared memory.
        shared_bytes: of a block.
    """

    clusters: int
    stages: int
    warps: int
    turns: int
    sums_at: int
    shared_bytes: int


def column_tiles(num_columns: int) -> int:
    """Column tiles of the kernel for so many columns."""
    return next(tiles for tiles in COLUMN_TILES if num_columns <= 8 * tiles)


def most_warps(formats: Iterable[TensorFormat]) -> int:
    """Warps of a block at most, for which registers suffice."""
    return 8 if TensorFormat.Q6 in tuple(formats) else 12


def num_stages(formats: Iterable[TensorFormat], tiles: int) -> tuple[int, ...]:
    """Stages of a warp's ring that kernels are made for.

    Profiles give long weights in five bits: where columns leave room for no more, two.
    """
    is_long = tuple(formats) == (TensorFormat.Q5,) and tiles == COLUMN_TILES[-1]
    return (2, 3) if is_long else (3,)


def ring_bytes(formats: Iterable[TensorFormat], stages: int) -> int:
    """The ring of one warp."""
    return stages * PAIR * stage_bytes(formats)


def offsets(formats: Iterable[TensorFormat]) -> tuple[int, ...]:
    """What stored codes of a launch exceed codes by, each once."""
    every = (PAIR_FORMATS[format].offset for format in formats)
    return tuple(dict.fromkeys(offset for offset in every if offset > 0))


def step_bytes(formats: Iterable[TensorFormat], tiles: int) -> int:
    """Columns of one step, with what chains begin with, and a barrier."""
    return tiles * (K_TILE_BYTES + len(offsets(formats)) * BEGIN_BYTES) + BARRIER_BYTES


def sum_bytes(tiles: int) -> int:
    """A part's sums that one block adds up, of a warp: an eighth, as many in each lane as tiles."""
    return tiles * 4 * WARP


def turn_bytes(tiles: int, warps: int) -> int:
    """Sums of one turn that a block adds up."""
    return warps * PARTS * sum_bytes(tiles)


def choose_launch(
    formats: Iterable[TensorFormat],
    tiles: int,
    pairs: int,
    k_tiles: int,
    clusters: int,
    block_shared_bytes: int,
) -> WideLaunch | None:
    """Choose how many warps a block has, or None where a block has no room.

    Args:
        formats: of the weights.
        tiles: column tiles.
        pairs: pairs of row tiles.
        k_tiles: of a row.
        clusters: that run at once.
        block_shared_bytes: most shared memory of a block.
    """
    several = tuple(formats)
    found: list[tuple[float, WideLaunch]] = []
    for stages, warps in product(
        num_stages(several, tiles), range(LEAST_WARPS, most_warps(several) + 1)
    ):
        turns = blocks_for(pairs, clusters * warps)
        own = warps * (ring_bytes(several, stages) + PLAN_BYTES)
        own += blocks_for(k_tiles, PARTS) * step_bytes(several, tiles)
        own = blocks_for(own, 16) * 16
        sums, plans = turn_bytes(tiles, warps), warps * PLAN_BYTES
        launch = WideLaunch(clusters, stages, warps, turns, plans, max(own, plans + sums))
        if turns > 1:
            launch = WideLaunch(clusters, stages, warps, turns, own, own + 2 * sums)
        fill = pairs / (turns * clusters * warps)
        rate = fill * min(1.0, warps / _STEADY_WARPS) * _STEADY_STAGES[stages]
        if launch.shared_bytes + RESERVED_SHARED <= block_shared_bytes:
            found.append((rate, launch))
    return max(found, key=lambda rated: rated[0])[1] if found else None
