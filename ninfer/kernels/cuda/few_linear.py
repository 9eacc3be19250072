"""Products of one to eight columns: which launches make them, and which way.

Weights of the same columns go together where there is a kernel for their formats. `held_product`
brings the columns once for each multiprocessor and keeps them; `few_product` brings them again for
each block of rows, which is better where they are few and rows are not many. `pair_product` shares
out the row tiles of one long weight where whole ones would leave multiprocessors idle, and
`whole_product` gives a warp row tiles of its own where there are very many. `narrow_product` asks
for all of a short weight at once.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda import (
    few_product,
    held_product,
    narrow_product,
    narrow_shape,
    pair_product,
    pair_shape,
)
from ninfer.kernels.cuda.few_product import TOGETHER, launch_few
from ninfer.kernels.cuda.few_shape import SLOTS
from ninfer.kernels.cuda.fragments import padded_width
from ninfer.kernels.cuda.held_product import HELD, launch_held
from ninfer.kernels.cuda.held_shape import has_room, is_worth_holding
from ninfer.kernels.cuda.launch import KernelShapes, fitting
from ninfer.kernels.cuda.narrow_product import launch_narrow
from ninfer.kernels.cuda.pair_product import PAIRED, launch_pairs
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import Formats, RowProduct, formats_of
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.whole_product import WHOLE, launch_whole, make_whole
from ninfer.kernels.cuda.whole_shape import is_whole
from ninfer.tensor import LinearInput

_ORDER: Final = tuple(PAIR_FORMATS)
"""Formats as `TOGETHER` and `HELD` order them."""


def multiply_few(stream: CudaStream, x: LinearInput, products: Sequence[RowProduct]) -> None:
    """Make products of the same columns, eight at most, in as few launches as kernels allow.

    Without a column nothing is launched: lanes of kernels look at the last one for those that are
    missing.
    """
    if x.num_columns == 0:
        return
    for formats, chosen in launch_groups(products):
        if _is_whole(stream, x, chosen):
            launch_whole(stream, x, chosen[0])
        elif _is_paired(stream, x, chosen):
            launch_pairs(stream, x, chosen[0])
        elif places := _narrow_places(stream, x, formats, chosen):
            launch_narrow(stream, x, formats, chosen, places)
        elif _is_held(stream, x, formats, chosen):
            launch_held(stream, x, formats, chosen)
        else:
            launch_few(stream, x, formats, chosen)


def launch_groups(products: Sequence[RowProduct]) -> Iterator[tuple[Formats, list[RowProduct]]]:
    """Products that go together, and their formats in the order of kernels."""
    waiting = sorted(products, key=lambda product: _ORDER.index(product.format))
    while waiting:
        formats = formats_of(waiting)
        if formats not in TOGETHER and len(formats) > 1:
            formats = formats[:1]
        chosen = [product for product in waiting if product.format in formats][:SLOTS]
        waiting = [product for product in waiting if product not in chosen]
        yield formats_of(chosen), chosen


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels that a model can need: any matrix may come in any format."""
    most = shapes.block_shared_bytes
    widths = (
        shapes.hidden,
        shapes.num_heads * shapes.head_dim,
        shapes.num_value_heads * shapes.value_dim,
        shapes.intermediate or shapes.shared_width,
    )
    least, hidden = (padded_width(width) // TILE_FEATURES for width in (min(widths), shapes.hidden))
    held = [held_product.make_held(formats) for formats in HELD if has_room(formats, least, most)]
    few = few_product.declared(
        # Formats go together only where columns are those of the residual stream.
        [formats for formats in HELD if len(formats) > 1 and has_room(formats, hidden, most)]
    )
    pairs = pair_product.declared(most) if shapes.has_clusters else ()
    whole = fitting([make_whole(format) for format in WHOLE], most)
    narrow = narrow_product.declared(most)
    return (*fitting(few, most), *held, *pairs, *whole, *narrow)


def _is_whole(stream: CudaStream, x: LinearInput, products: Sequence[RowProduct]) -> bool:
    first, k_tiles = products[0], padded_width(x.width) // TILE_FEATURES
    return (
        len(products) == 1
        and first.format in WHOLE
        and first.output is not Output.ADD
        and is_whole(
            first.format, k_tiles, first.tiles, stream.num_multiprocessors, stream.shared_bytes
        )
    )


def _narrow_places(
    stream: CudaStream, x: LinearInput, formats: Formats, products: Sequence[RowProduct]
) -> int:
    k_tiles, tiles = padded_width(x.width) // TILE_FEATURES, sum(one.tiles for one in products)
    places = narrow_shape.narrow_places(
        formats, k_tiles, tiles, x.num_columns, stream.num_multiprocessors
    )
    return places * narrow_shape.has_room(formats, k_tiles, places, stream.shared_bytes)


def _is_paired(stream: CudaStream, x: LinearInput, products: Sequence[RowProduct]) -> bool:
    first, k_tiles = products[0], padded_width(x.width) // TILE_FEATURES
    return (
        stream.has_clusters
        and len(products) == 1
        and first.format in PAIRED
        and pair_shape.has_room(first.format, k_tiles, stream.shared_bytes)
        and pair_shape.is_worth_pairing(first.tiles, k_tiles, stream.num_multiprocessors)
    )


def _is_held(
    stream: CudaStream, x: LinearInput, formats: Formats, products: Sequence[RowProduct]
) -> bool:
    tiles = sum(product.tiles for product in products)
    return (
        formats in HELD
        and has_room(formats, padded_width(x.width) // TILE_FEATURES, stream.shared_bytes)
        and is_worth_holding(x.num_columns, tiles, stream.num_multiprocessors)
    )
