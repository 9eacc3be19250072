"""Products of 9 to 32 columns: which launches make them, and which way.

`wide_product` makes them where the device has clusters, a block has room for an eighth of the
columns, and row tiles are enough for its warps (`_is_wide`); the others are left to
`skinny_product`.
"""

from collections.abc import Sequence
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda import wide_product
from ninfer.kernels.cuda.few_linear import launch_groups
from ninfer.kernels.cuda.launch import KernelShapes
from ninfer.kernels.cuda.row_products import Formats, RowProduct
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.wide_shape import COLUMN_TILES, WideLaunch, num_stages
from ninfer.tensor import LinearInput, TensorFormat

WIDE: Final[tuple[Formats, ...]] = (
    *((format,) for format in PAIR_FORMATS),
    (TensorFormat.Q4, TensorFormat.Q5, TensorFormat.BF16),
    (TensorFormat.W8, TensorFormat.BF16),
)
"""Formats that kernels are made for; a launch takes the first kernel that knows all of its own."""

_ENOUGH_WARPS: Final = 8
_FEW_TILES: Final = COLUMN_TILES[0]


def multiply_wide(
    stream: CudaStream, x: LinearInput, products: Sequence[RowProduct]
) -> list[RowProduct]:
    """Make products of the same columns, 9 to 32, and return those that are left."""
    left: list[RowProduct] = []
    for own, together in launch_groups(products):
        formats = next(known for known in WIDE if set(own) <= set(known))
        chosen = wide_product.choose(stream, x, formats, together)
        if chosen is None or not _is_wide(x, together, chosen):
            left += together
        else:
            wide_product.launch_wide(stream, x, formats, together, chosen)
    return left


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels that a model can need: any matrix may come in any format."""
    if not shapes.has_clusters:
        return ()
    return tuple(
        wide_product.make_wide(formats, tiles, stages)
        for formats in WIDE
        for tiles in COLUMN_TILES
        for stages in num_stages(formats, tiles)
    )


def _is_wide(x: LinearInput, products: Sequence[RowProduct], chosen: WideLaunch) -> bool:
    """Whether clusters are at least as fast as blocks that bring columns for themselves.

    They are not where few row tiles leave most warps idle, unless one launch saves another, and not
    for six-bit codes with up to 16 columns, whose decoding is what takes time (measured on an
    H200).
    """
    if x.num_columns <= _FEW_TILES * 8 and products[0].format is TensorFormat.Q6:
        return False
    return len(products) > 1 or chosen.warps >= _ENOUGH_WARPS
