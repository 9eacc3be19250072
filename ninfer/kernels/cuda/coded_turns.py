"""Which tiles products of the same columns are cut into, so that they end soon together.

Products of a group follow one another without waiting (`coded_product`): a block of the next one
starts on every multiprocessor that has no tile left. So what counts is when each is free, in units
of one stage of 64 features x 256 columns; tiles of fewer columns cost more for each of them, and
pay where larger ones leave multiprocessors idle: with few tiles, or in the last turn of many. There
the last rows of a weight are a launch of their own. No bit depends on any of it.
"""

from collections import Counter
from functools import cache, lru_cache
from typing import Final, NamedTuple

from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.coded_shape import WARPS, Coded
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.tensor import TensorFormat

NARROWEST: Final = 64
"""Columns of the narrowest tile."""

_PRICES: Final = {256: 1.0, 128: 0.8, NARROWEST: 0.67}  # of a stage, by columns of a tile
_START: Final = 2.0  # stages: a block until its first tile
_ENDING: Final = 3.0  # stages, at the price of the tile: results of a tile on their way
_MAX_PLANS: Final = 1024


class Request(NamedTuple):
    """A product of a group.

    Attributes:
        format: of the weight.
        row_tiles: stored tiles of 16 rows.
        ending: how results are written.
    """

    format: TensorFormat
    row_tiles: int
    ending: Ending


class Part(NamedTuple):
    """One launch: rows of a product in tiles of one shape.

    Attributes:
        shape: of the tiles.
        first_tile: first of the product's tiles of 16 rows.
        row_tiles: how many.
    """

    shape: Coded
    first_tile: int
    row_tiles: int


class Turns(NamedTuple):
    """When multiprocessors are free.

    Attributes:
        free: times in rising order, each with a number of multiprocessors.
    """

    free: tuple[tuple[float, int], ...]

    @property
    def end(self) -> float:
        """When the last one is."""
        return self.free[-1][0]

    @property
    def work(self) -> float:
        """Time of all of them together."""
        return sum(time * count for time, count in self.free)

    def after(self, tiles: int, cost: float, start: float) -> "Turns":
        """The same behind a launch of so many tiles, shared out evenly among blocks that stay."""
        blocks = min(tiles, sum(count for _, count in self.free))
        rounds, longer = divmod(tiles, blocks)
        loads = [(longer, rounds + 1), (blocks - longer, rounds)]
        found: Counter[float] = Counter()
        for time, count in self.free:
            rest = count
            for place, (number, load) in enumerate(loads):
                taken = min(rest, number)
                loads[place] = (number - taken, load)
                found[time + start + load * cost] += taken
                rest -= taken
            found[time] += rest
        return Turns(tuple(sorted((+found).items())))

    def room(self, until: float, cost: float, start: float) -> int:
        """Tiles that end by a time."""
        return sum(max(0, int((until - start - at) / cost)) * count for at, count in self.free)


def tiles_of(format: TensorFormat, columns: int) -> Coded:
    """128 weight rows x 64, 128 or 256 columns."""
    stages, band = {256: (6, 4), 128: (8, 8), NARROWEST: (12, 8)}[columns]
    return Coded(format, columns, stages, band)


@cache
def shapes_for(format: TensorFormat, ending: Ending) -> tuple[Coded, ...]:
    """Shapes of tiles that there are kernels for, the largest first."""
    widths: tuple[int, ...] = (256, 128, NARROWEST)
    if ending is Ending.GATED and format is TensorFormat.BF16:
        return ()  # 64 words of weights leave none to what gates sums of 256 columns
    # Sums of 256 columns leave few registers to an ending: to one of any extent, and where a
    # lane holds 64 words of weights to one that adds.
    if ending is Ending.ANY or (ending is Ending.ADD and format is TensorFormat.BF16):
        widths = (128, NARROWEST)
    return tuple(tiles_of(format, columns) for columns in widths)


@lru_cache(maxsize=_MAX_PLANS)
def plan(
    requests: tuple[Request, ...], k_blocks: int, num_columns: int, multiprocessors: int
) -> tuple[tuple[Part, ...], ...]:
    """Parts of each product of a group, in the order in which they are launched."""
    turns = Turns(((0.0, multiprocessors),))
    found = []
    for request in requests:
        parts, turns = _best(request, k_blocks, num_columns, turns)
        found.append(parts)
    return tuple(found)


def _best(
    request: Request, k_blocks: int, num_columns: int, turns: Turns
) -> tuple[tuple[Part, ...], Turns]:
    """Parts of one product that end first; of those that end together the cheapest."""
    rows, options = request.row_tiles, []
    shapes = shapes_for(request.format, request.ending)
    for number, shape in enumerate(shapes):
        choices: list[tuple[Part, ...]] = [(Part(shape, 0, rows),)]
        end = _behind(turns, choices[0], k_blocks, num_columns).end
        cut = _cut(rows, shape, k_blocks, num_columns, turns, end)
        if cut:
            rests = shapes[number + 1 :]
            choices += [(Part(shape, 0, cut), Part(rest, cut, rows - cut)) for rest in rests]
        options += [(parts, _behind(turns, parts, k_blocks, num_columns)) for parts in choices]
    return min(options, key=lambda option: (option[1].end, option[1].work))


def _cost(shape: Coded, k_blocks: int) -> float:
    return _PRICES[shape.tile_columns] * (k_blocks + _ENDING)


def _behind(turns: Turns, parts: tuple[Part, ...], k_blocks: int, num_columns: int) -> Turns:
    for part in parts:
        tiles = part.shape.tiles(part.row_tiles, num_columns)
        turns = turns.after(tiles, _cost(part.shape, k_blocks), _START)
    return turns


def _cut(
    row_tiles: int, shape: Coded, k_blocks: int, num_columns: int, turns: Turns, end: float
) -> int:
    """Stored tiles of rows that end a turn before all of them would; 0 without a rest or them."""
    cost = _cost(shape, k_blocks)
    columns = blocks_for(num_columns, shape.tile_columns)
    cut = turns.room(end - cost, cost, _START) // columns * WARPS
    return cut if cut < row_tiles else 0
