"""Which products a block makes with everything asked for at once, and how many share the card.

Nothing here changes a bit of a product.
"""

from typing import Final

from ninfer.kernels.cuda.few_shape import RINGED_COLUMNS
from ninfer.kernels.cuda.launch import RESERVED_SHARED
from ninfer.kernels.cuda.row_products import Formats
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

NARROW: Final[tuple[Formats, ...]] = (
    (TensorFormat.W8,),
    (TensorFormat.W8, TensorFormat.BF16),
)
"""Formats of a launch that kernels are made for: those that profiles give narrow weights."""

MOST_PLACES: Final = 3
"""Blocks of a multiprocessor where there are more row tiles than those."""

STEPS: Final = {1: (2, 4), MOST_PLACES: (2,)}
"""K tiles of a part that kernels are made for, by blocks of a multiprocessor."""


def warp_bytes(formats: Formats, steps: int) -> int:
    """What a warp asks for at once."""
    return steps * max(PAIR_FORMATS[format].tile_bytes for format in formats)


def narrow_places(
    formats: Formats, k_tiles: int, row_tiles: int, num_columns: int, multiprocessors: int
) -> int:
    """Blocks of a multiprocessor; 0 where another way is better.

    One row tile a multiprocessor at most is a matter of latency, as long as columns are few. Of
    more row tiles, asking for half of them at a time is better until columns are many: measured.
    """
    places = 1 if row_tiles <= multiprocessors else MOST_PLACES
    is_better = (num_columns <= RINGED_COLUMNS[-1]) == (places == 1)
    is_made = formats in NARROW and k_tiles % PARTS == 0 and k_tiles // PARTS in STEPS[places]
    return places if is_made and is_better else 0


def has_room(formats: Formats, k_tiles: int, places: int, block_shared_bytes: int) -> bool:
    """Whether so many blocks share a multiprocessor."""
    need = PARTS * warp_bytes(formats, k_tiles // PARTS) + RESERVED_SHARED
    return places * need <= block_shared_bytes + RESERVED_SHARED
