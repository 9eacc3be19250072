"""Linear products on CUDA: launchers, and which kernel takes how many columns.

    1..8 columns      `few_linear`: bandwidth-bound, several weights in one launch
    9..32 columns     `wide_linear`: the same bits, where clusters are worth it
    9..128 columns    `skinny_product`: the same bits
    more, on sm_90    `coded_linear`: prefill, weights rounded to bf16, bound by tensor cores
    more, elsewhere   `tile_product`: prefill, exact codes, bound by tensor cores; `skinny_product`
                      where a block has too little shared memory for two stages of a format

`coded_linear` reads columns as `column_image` draws them, the others as `fragments` does; weights
are stored as `weight_layout` draws them. They are constants that products read before their
predecessor has ended: synchronise after `make_resident`.
"""

from collections.abc import Sequence
from typing import Final

from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda import (
    coded_linear,
    column_image,
    few_linear,
    pointwise,
    wide_linear,
    wide_shape,
)
from ninfer.kernels.cuda.column_image import FRAGMENT_COLUMNS, is_image
from ninfer.kernels.cuda.column_pack import THREADS as PACK_THREADS
from ninfer.kernels.cuda.column_pack import make_pack
from ninfer.kernels.cuda.few_shape import MOST_COLUMNS
from ninfer.kernels.cuda.fragments import CHUNK
from ninfer.kernels.cuda.launch import KernelShapes, block_parts, blocks_for, orders
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import RowProduct
from ninfer.kernels.cuda.skinny_product import make_skinny
from ninfer.kernels.cuda.skinny_shape import Skinny
from ninfer.kernels.cuda.tile_product import make_tile_product, tile_grid, tile_shape
from ninfer.kernels.cuda.weight_layout import TILE_ROWS, WeightLayout
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_repack import TILES, make_repack
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat
from ninfer.tensor_formats.geometry import RowSplitGeometry, encoded_bytes

SKINNY_COLUMNS: Final = FRAGMENT_COLUMNS
"""Most columns whose arithmetic is the same as that of one."""

_FEW_ROWS: Final = 1024


def input_bytes(num_columns: int, width: int) -> int:
    """Bytes of a linear input."""
    return column_image.input_bytes(num_columns, width)


def resident_bytes(format: TensorFormat, num_rows: int, num_columns: int) -> int:
    """Bytes of a whole matrix in device residency."""
    return WeightLayout(format, num_rows, num_columns).nbytes


def make_resident(stream: CudaStream, encoded: Tensor, matrix: Matrix) -> None:
    """Repack an encoding; its size must be the format's.

    Raises:
        ShapeError: it is not.
    """
    rows, columns, format = matrix.parent_rows, matrix.num_columns, matrix.format
    if encoded.nbytes != encoded_bytes(format, (rows, columns)):
        raise ShapeError(f"encoded: {encoded.nbytes} bytes for {format.name} [{rows}, {columns}]")
    layout = WeightLayout(format, rows, columns)
    tiles = layout.row_tiles * layout.k_tiles
    source, to = encoded.address, matrix.storage.address
    args: tuple[int, ...]
    if format is TensorFormat.BF16:
        args = (source, to, rows, layout.k_tiles, tiles, columns)
    else:
        geometry = RowSplitGeometry(format, rows, columns)
        args = (
            source,
            source + geometry.high_offset,
            source + geometry.scale_offset,
            to,
            rows,
            layout.k_tiles,
            tiles,
        )
    stream.launch(make_repack(format), (blocks_for(tiles, TILES), 1, 1), args)


def pack(stream: CudaStream, x: Tensor, out: LinearInput) -> None:
    """Round columns to bf16."""
    base, sums, padded = block_parts(out)
    stream.launch(
        make_pack(x.dtype is DType.F32, is_image(out.num_columns, stream.has_warpgroups)),
        (out.num_columns, blocks_for(padded // CHUNK, PACK_THREADS), 1),
        (x.address, base, sums, out.width, padded),
    )


def project(
    stream: CudaStream, x: LinearInput, weight: Matrix, out: Tensor, first_column: int
) -> None:
    """Write ``out[:, first_column + n] = weight[n] . x``."""
    _multiply(stream, x, weight, out, first_column, _stored(out))


def gates_at_once(stream: CudaStream, num_columns: int, gate_up: Matrix) -> bool:
    """Whether the kernel that multiplies so many columns ends in SwiGLU."""
    return is_image(num_columns, stream.has_warpgroups) and coded_linear.is_gateable(gate_up)


def project_gated(
    stream: CudaStream, x: LinearInput, gate_up: Matrix, between: Tensor, out: LinearInput
) -> None:
    """Write ``silu(gate . x) * (up . x)``, in the kernel that multiplies where it can."""
    if gates_at_once(stream, x.num_columns, gate_up):
        coded_linear.multiply_gated(stream, x, gate_up, out)
        return
    project(stream, x, gate_up, between, 0)
    pointwise.swiglu(stream, between, out)


def project_add(stream: CudaStream, x: LinearInput, weight: Matrix, residual: Tensor) -> None:
    """Add ``weight[n] . x`` to ``residual[:, n]``."""
    _multiply(stream, x, weight, residual, 0, Output.ADD)


def project_all(
    stream: CudaStream, x: LinearInput, products: Sequence[tuple[Matrix, Tensor, int]]
) -> None:
    """Write the products of several weights."""
    made = [(weight, out, first, _stored(out)) for weight, out, first in products]
    if x.num_columns <= MOST_COLUMNS:
        few_linear.multiply_few(stream, x, [RowProduct.of(*product) for product in made])
    elif is_image(x.num_columns, stream.has_warpgroups):
        coded_linear.multiply_coded(stream, x, made)
    else:
        rows = [RowProduct.of(*product) for product in made]
        if x.num_columns <= wide_shape.MOST_COLUMNS:
            left = wide_linear.multiply_wide(stream, x, rows)
            made = [one for one, row in zip(made, rows, strict=True) if row in left]
        for product in made:
            _multiply_alone(stream, x, *product)


def skinny_for(format: TensorFormat, num_rows: int) -> Skinny:
    """Shape of the blocks that multiply ``num_rows`` rows with 9 to 128 columns."""
    is_nibble = PAIR_FORMATS[format].slab_words == 1
    row_tiles = 2 if is_nibble and num_rows > _FEW_ROWS else 1
    return Skinny(format, row_tiles, 2, 3, 2)


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: any matrix may come in any format."""
    most = shapes.block_shared_bytes
    kernels = [*few_linear.declared(shapes), *wide_linear.declared(shapes)]
    for to_image in orders(shapes):
        kernels += [make_pack(is_f32, to_image) for is_f32 in (True, False)]
    if shapes.has_warpgroups:
        kernels += coded_linear.declared()
    else:
        shapes_of_tiles = [tile_shape(format, most) for format in PAIR_FORMATS]
        kernels += [make_tile_product(tiles) for tiles in shapes_of_tiles if tiles is not None]
    for format in PAIR_FORMATS:
        kernels.append(make_repack(format))
        shapes_of = [skinny_for(format, rows) for rows in (1, _FEW_ROWS + 1)]
        kernels += [make_skinny(shape) for shape in dict.fromkeys(shapes_of)]
    return tuple(kernels)


def _stored(out: Tensor) -> Output:
    return Output.F32 if out.dtype is DType.F32 else Output.BF16


def _multiply(
    stream: CudaStream,
    x: LinearInput,
    weight: Matrix,
    out: Tensor,
    first_column: int,
    output: Output,
) -> None:
    if x.num_columns <= MOST_COLUMNS:
        few_linear.multiply_few(stream, x, [RowProduct.of(weight, out, first_column, output)])
        return
    if is_image(x.num_columns, stream.has_warpgroups):
        coded_linear.multiply_coded(stream, x, ((weight, out, first_column, output),))
        return
    if x.num_columns <= wide_shape.MOST_COLUMNS:
        row = RowProduct.of(weight, out, first_column, output)
        if not wide_linear.multiply_wide(stream, x, [row]):
            return
    _multiply_alone(stream, x, weight, out, first_column, output)


def _multiply_alone(
    stream: CudaStream,
    x: LinearInput,
    weight: Matrix,
    out: Tensor,
    first_column: int,
    output: Output,
) -> None:
    layout = WeightLayout(weight.format, weight.parent_rows, weight.num_columns)
    first_tile = weight.first_row // TILE_ROWS
    row_tiles = blocks_for(weight.first_row + weight.num_rows, TILE_ROWS) - first_tile
    tiles = tile_shape(weight.format, stream.shared_bytes)
    if x.num_columns <= SKINNY_COLUMNS or tiles is None:
        shape = skinny_for(weight.format, weight.num_rows)
        kernel, grid = make_skinny(shape), shape.grid(row_tiles, x.num_columns)
    else:
        kernel, grid = make_tile_product(tiles), tile_grid(row_tiles, x.num_columns)
    at = weight.storage.address
    base, sums, _ = block_parts(x)
    stream.launch(
        kernel,
        grid,
        (
            at,
            at + layout.high_offset,
            at + layout.scale_offset,
            base,
            sums,
            out.address,
            layout.k_tiles,
            layout.row_tiles,
            weight.first_row,
            weight.num_rows,
            x.num_columns,
            out.shape[1],
            first_column,
            int(output),
        ),
    )
