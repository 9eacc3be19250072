"""Launcher of products of many columns with stored weights on Hopper.

Columns are read where they lie, as an image (`column_image`). Products of the same columns follow
one another without waiting, the largest first, in the tiles that `coded_turns` plans. How a product
is cut, and into which tiles, changes no bit of it.
"""

from collections.abc import Sequence
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.coded_product import make_coded_product
from ninfer.kernels.cuda.coded_shape import WARPS
from ninfer.kernels.cuda.coded_turns import NARROWEST, Request, plan, shapes_for
from ninfer.kernels.cuda.column_image import BLOCK_BYTES, BLOCK_FEATURES
from ninfer.kernels.cuda.fragments import PADDING
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS, WeightLayout
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import LinearInput, Matrix, Tensor

_ENDING_ALIGNMENT: Final = 8  # elements of one piece of 16 bytes


def ending_for(out: Tensor, weight: Matrix, first_column: int, output: Output) -> Ending:
    """Whole pieces of 16 bytes where the output allows it."""
    extents = (weight.num_rows, first_column, out.shape[1], out.address // 2)
    is_aligned = all(extent % _ENDING_ALIGNMENT == 0 for extent in extents)
    if not is_aligned or weight.first_row % TILE_ROWS or output is Output.F32:
        return Ending.ANY
    return Ending.ADD if output is Output.ADD else Ending.BF16


def request_of(weight: Matrix, out: Tensor, first_column: int, output: Output) -> Request:
    """What a plan has to know of a product."""
    row_tiles = blocks_for(weight.first_row + weight.num_rows, TILE_ROWS)
    row_tiles -= weight.first_row // TILE_ROWS
    ending = ending_for(out, weight, first_column, output)
    return Request(weight.format, row_tiles, ending)


def multiply_coded(
    stream: CudaStream, x: LinearInput, products: Sequence[tuple[Matrix, Tensor, int, Output]]
) -> None:
    """Enqueue products of the columns of an image with several weights.

    Args:
        stream: where.
        x: the columns.
        products: weight, output, column of the output where the first row goes, what happens; what
            one writes another neither reads nor writes.
    """
    ordered = sorted(products, key=lambda product: -product[0].num_rows)
    requests = tuple(request_of(*product) for product in ordered)
    k_blocks = blocks_for(x.width, TILE_FEATURES) * (TILE_FEATURES // BLOCK_FEATURES)
    columns = blocks_for(x.num_columns, NARROWEST) * NARROWEST  # fewer plans to make
    plans = plan(requests, k_blocks, columns, stream.num_multiprocessors)
    follows = 0
    for (weight, out, first_column, output), (*_, ending), parts in zip(
        ordered, requests, plans, strict=True
    ):
        layout = WeightLayout(weight.format, weight.parent_rows, weight.num_columns)
        for shape, first_tile, row_tiles in parts:
            # Rows of the first tile may lie before the view's first one.
            skipped = max(0, TILE_ROWS * first_tile - weight.first_row % TILE_ROWS)
            stop = TILE_ROWS * (first_tile + row_tiles) - weight.first_row % TILE_ROWS
            stream.launch(
                make_coded_product(shape, ending),
                shape.grid(row_tiles, x.num_columns, stream.num_multiprocessors),
                (
                    weight.storage.address,
                    x.storage.address,
                    out.address,
                    layout.k_tiles,
                    layout.row_tiles,
                    weight.first_row + skipped,
                    min(stop, weight.num_rows) - skipped,
                    x.num_columns,
                    out.shape[1],
                    first_column + skipped,
                    int(output),
                    follows,
                ),
            )
            follows = 1


def is_gateable(gate_up: Matrix) -> bool:
    """Whether `multiply_gated` takes a weight: whole tiles, and no padding behind its features."""
    is_whole = gate_up.first_row % TILE_ROWS == 0 and gate_up.num_rows % (2 * PADDING) == 0
    return is_whole and bool(shapes_for(gate_up.format, Ending.GATED))


def multiply_gated(stream: CudaStream, x: LinearInput, gate_up: Matrix, out: LinearInput) -> None:
    """Enqueue products of the columns of an image that are gated into another one."""
    layout = WeightLayout(gate_up.format, gate_up.parent_rows, gate_up.num_columns)
    request = Request(gate_up.format, gate_up.num_rows // TILE_ROWS, Ending.GATED)
    k_blocks = layout.k_tiles * (TILE_FEATURES // BLOCK_FEATURES)
    columns = blocks_for(x.num_columns, NARROWEST) * NARROWEST
    (parts,) = plan((request,), k_blocks, columns, stream.num_multiprocessors)
    for follows, (shape, first_tile, row_tiles) in enumerate(parts):
        # Half of a part's rows are gates; its features are whole blocks of the image.
        stream.launch(
            make_coded_product(shape, Ending.GATED),
            shape.grid(row_tiles, x.num_columns, stream.num_multiprocessors),
            (
                gate_up.storage.address,
                x.storage.address,
                out.storage.address + first_tile // WARPS * BLOCK_BYTES,
                layout.k_tiles,
                layout.row_tiles,
                gate_up.first_row + first_tile * TILE_ROWS // 2,
                row_tiles * TILE_ROWS,
                x.num_columns,
                out.width // BLOCK_FEATURES,
                0,
                out.width // TILE_ROWS,
                follows,
            ),
        )


def declared() -> tuple[Kernel, ...]:
    """Kernels of every product."""
    kernels: list[Kernel] = []
    for format in PAIR_FORMATS:
        for ending in Ending:
            kernels += [make_coded_product(shape, ending) for shape in shapes_for(format, ending)]
    return tuple(kernels)
