"""Launcher of wide products: columns and weights into scratch memory, then tensor cores.

    widen     a piece of the columns      ->  rows of bf16
    expand    a slab of the weight rows   ->  rows of bf16
    multiply  piece x slab                ->  output

Pieces and slabs are as large as the stream's scratch memory allows; usually there is one of each.
How a product is cut changes no bit of it.
"""

from typing import Final, NamedTuple

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda import fragments
from ninfer.kernels.cuda.launch import block_parts, blocks_for
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS, WeightLayout
from ninfer.kernels.cuda.wide_expand import expand_grid, make_expand, make_widen
from ninfer.kernels.cuda.wide_layout import BLOCK_FEATURES, BLOCK_ROWS, image_bytes
from ninfer.kernels.cuda.wide_output import Ending
from ninfer.kernels.cuda.wide_product import Wide, make_wide_product
from ninfer.tensor import LinearInput, Matrix, Tensor, TensorFormat

WIDE: Final = Wide(row_blocks=2, stages=4)
NARROW: Final = Wide(row_blocks=1, stages=6)
"""Tiles of half the rows: for few rows, or where whole tiles leave multiprocessors idle."""

_NARROW_COST: Final = 0.55  # of a tile of `NARROW`, in tiles of `WIDE`
_ENDING_ALIGNMENT: Final = 8  # elements of one piece of 16 bytes
_SLAB_ALIGNMENT: Final = 2 * BLOCK_ROWS


class Cut(NamedTuple):
    """Sizes of the parts of a product: columns of a piece, rows of a slab."""

    piece: int
    slab: int


def cut(scratch_bytes: int, num_rows: int, num_columns: int, width: int) -> Cut:
    """Cut a product so that a piece and a slab fit into scratch memory.

    Raises:
        ShapeError: one block of each does not fit.
    """
    block = image_bytes(BLOCK_ROWS, width)
    most = scratch_bytes // block
    wanted = -(-num_columns // BLOCK_ROWS)
    piece = min(wanted, most // 2)
    slab = (most - piece) // 2 * _SLAB_ALIGNMENT
    if piece < 1 or slab < 1:
        raise ShapeError(f"scratch: {scratch_bytes} bytes are too few for rows of {width}")
    pieces, slabs = -(-wanted // piece), -(-num_rows // slab)
    even = -(-num_rows // (slabs * _SLAB_ALIGNMENT)) * _SLAB_ALIGNMENT
    return Cut(-(-wanted // pieces) * BLOCK_ROWS, even)


def shape_for(num_rows: int, num_columns: int, multiprocessors: int) -> Wide:
    """Tiles that end first; the bits of a product do not depend on the choice."""
    turns = [-(-shape.tiles(num_rows, num_columns) // multiprocessors) for shape in (WIDE, NARROW)]
    return NARROW if turns[1] * _NARROW_COST < turns[0] else WIDE


def ending_for(out: Tensor, num_rows: int, first_column: int, output: Output) -> Ending:
    """Whole pieces of 16 bytes where the output allows it."""
    extents = (num_rows, first_column, out.shape[1], out.address // 2)
    is_aligned = all(extent % _ENDING_ALIGNMENT == 0 for extent in extents)
    if not is_aligned or output is Output.F32:
        return Ending.ANY
    return Ending.ADD if output is Output.ADD else Ending.BF16


def multiply_wide(
    stream: CudaStream,
    x: LinearInput,
    weight: Matrix,
    out: Tensor,
    first_column: int,
    output: Output,
) -> None:
    """Enqueue a product of any number of columns.

    Raises:
        ShapeError: the stream has too little scratch memory.
    """
    base, _, padded = block_parts(x)
    k_tiles = padded // TILE_FEATURES
    piece, slab = cut(stream.scratch.nbytes, weight.num_rows, x.num_columns, x.width)
    columns = stream.scratch.address
    weights = columns + image_bytes(piece, x.width)
    for column in range(0, x.num_columns, piece):
        count = min(piece, x.num_columns - column)
        source = base + column * padded * 2
        tiles = fragments.num_tiles(count)
        stream.launch(make_widen(False), expand_grid(tiles, k_tiles), (source, columns, k_tiles))
        for row in range(0, weight.num_rows, slab):
            rows = min(slab, weight.num_rows - row)
            _expand(stream, weight, row, rows, weights)
            shape = shape_for(rows, count, stream.num_multiprocessors)
            stream.launch(
                make_wide_product(shape, ending_for(out, weight.num_rows, first_column, output)),
                shape.grid(rows, count, stream.num_multiprocessors),
                (
                    columns,
                    weights,
                    out.address + column * out.shape[1] * out.dtype.itemsize,
                    k_tiles * (TILE_FEATURES // BLOCK_FEATURES),
                    rows,
                    count,
                    out.shape[1],
                    first_column + row,
                    int(output),
                ),
            )


def declared() -> tuple[Kernel, ...]:
    """Kernels of every wide product."""
    products = [make_wide_product(shape, ending) for shape in (WIDE, NARROW) for ending in Ending]
    formats = (f for f in TensorFormat if f not in (TensorFormat.FP32, TensorFormat.I32))
    return (make_widen(False), *(make_expand(format) for format in formats), *products)


def _expand(stream: CudaStream, weight: Matrix, row: int, num_rows: int, to: int) -> None:
    """Bring rows ``[row, row + num_rows)`` of a view into scratch memory."""
    layout = WeightLayout(weight.format, weight.parent_rows, weight.num_columns)
    first_row = weight.first_row + row
    first_tile = first_row // TILE_ROWS
    row_tiles = blocks_for(first_row + num_rows, TILE_ROWS) - first_tile
    at = weight.storage.address
    stream.launch(
        make_expand(weight.format),
        expand_grid(row_tiles, layout.k_tiles),
        (
            at,
            at + layout.high_offset,
            at + layout.scale_offset,
            to,
            layout.k_tiles,
            first_tile,
            first_row,
            num_rows,
        ),
    )
