"""Launcher of products of many columns with stored weights on Hopper.

Columns are read where they lie, as an image (`column_image`). Into which tiles a product is cut
changes no bit of it.
"""

from collections.abc import Sequence
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.coded_product import make_coded_product
from ninfer.kernels.cuda.coded_shape import Coded
from ninfer.kernels.cuda.column_image import BLOCK_FEATURES
from ninfer.kernels.cuda.fragments import PADDING
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import TILE_ROWS, WeightLayout
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import LinearInput, Matrix, Tensor, TensorFormat

_SMALL_COST: Final = 0.75  # of a tile of 128 columns, in tiles of 256, as measured
# 64 words of operands beside sums of 256 columns leave no registers to gate them.
_GATED_FORMATS: Final = frozenset(PAIR_FORMATS) - {TensorFormat.BF16}
_ENDING_ALIGNMENT: Final = 8  # elements of one piece of 16 bytes


def large_tiles(format: TensorFormat) -> Coded:
    """128 weight rows x 256 columns."""
    return Coded(format, column_blocks=2, stages=6, band=4)


def small_tiles(format: TensorFormat) -> Coded:
    """128 weight rows x 128 columns, where larger ones leave multiprocessors idle."""
    return Coded(format, column_blocks=1, stages=8, band=8)


def shape_for(
    format: TensorFormat, row_tiles: int, num_columns: int, ending: Ending, multiprocessors: int
) -> Coded:
    """Tiles that end first; the bits of a product do not depend on the choice."""
    large, small = large_tiles(format), small_tiles(format)
    turns = [blocks_for(s.tiles(row_tiles, num_columns), multiprocessors) for s in (large, small)]
    # Sums of 256 columns leave no registers for an ending of any extent.
    if ending is Ending.ANY or turns[1] * _SMALL_COST < turns[0]:
        return small
    return large


def ending_for(out: Tensor, weight: Matrix, first_column: int, output: Output) -> Ending:
    """Whole pieces of 16 bytes where the output allows it."""
    extents = (weight.num_rows, first_column, out.shape[1], out.address // 2)
    is_aligned = all(extent % _ENDING_ALIGNMENT == 0 for extent in extents)
    if not is_aligned or weight.first_row % TILE_ROWS or output is Output.F32:
        return Ending.ANY
    return Ending.ADD if output is Output.ADD else Ending.BF16


def multiply_coded(
    stream: CudaStream, x: LinearInput, products: Sequence[tuple[Matrix, Tensor, int, Output]]
) -> None:
    """Enqueue products of the columns of an image with several weights.

    Args:
        stream: where.
        x: the columns.
        products: weight, output, column of the output where the first row goes, what happens.
    """
    for product in products:
        _multiply(stream, x, *product)


def is_gateable(gate_up: Matrix) -> bool:
    """Whether `multiply_gated` takes a weight: whole tiles, and no padding behind its features."""
    is_whole = gate_up.first_row % TILE_ROWS == 0 and gate_up.num_rows % (2 * PADDING) == 0
    return is_whole and gate_up.format in _GATED_FORMATS


def multiply_gated(stream: CudaStream, x: LinearInput, gate_up: Matrix, out: LinearInput) -> None:
    """Enqueue products of the columns of an image that are gated into another one."""
    k_blocks = out.width // BLOCK_FEATURES
    _enqueue(stream, x, gate_up, Ending.GATED, (out.storage.address, k_blocks, 0, Output.BF16))


def _multiply(
    stream: CudaStream,
    x: LinearInput,
    weight: Matrix,
    out: Tensor,
    first_column: int,
    output: Output,
) -> None:
    """Enqueue one product."""
    ending = ending_for(out, weight, first_column, output)
    _enqueue(stream, x, weight, ending, (out.address, out.shape[1], first_column, output))


def _enqueue(
    stream: CudaStream,
    x: LinearInput,
    weight: Matrix,
    ending: Ending,
    target: tuple[int, int, int, Output],
) -> None:
    """Enqueue a product; ``target``: address of the output, its width, first column, what to do."""
    layout = WeightLayout(weight.format, weight.parent_rows, weight.num_columns)
    row_tiles = blocks_for(weight.first_row + weight.num_rows, TILE_ROWS)
    row_tiles -= weight.first_row // TILE_ROWS
    shape = shape_for(weight.format, row_tiles, x.num_columns, ending, stream.num_multiprocessors)
    address, width, first_column, output = target
    stream.launch(
        make_coded_product(shape, ending),
        shape.grid(row_tiles, x.num_columns, stream.num_multiprocessors),
        (
            weight.storage.address,
            x.storage.address,
            address,
            layout.k_tiles,
            layout.row_tiles,
            weight.first_row,
            weight.num_rows,
            x.num_columns,
            width,
            first_column,
            int(output),
        ),
    )


def declared() -> tuple[Kernel, ...]:
    """Kernels of every product."""
    kernels = []
    for format in PAIR_FORMATS:
        for ending in Ending:
            if ending is Ending.GATED and format not in _GATED_FORMATS:
                continue
            kernels.append(make_coded_product(small_tiles(format), ending))
            if ending is not Ending.ANY:
                kernels.append(make_coded_product(large_tiles(format), ending))
    return tuple(kernels)
