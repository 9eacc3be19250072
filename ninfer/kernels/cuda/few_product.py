"""Products of up to eight columns with up to four weights in one launch.

Weights that meet the same columns (the inputs of a mixer, a router and the shared expert) share the
card instead of following one another: each block belongs to one of them. Bandwidth bounds these
products; `few_walk` says how a block works, `few_shape` how blocks fill the card. A row's bits are
those of `skinny_product`, whichever launch, view or block it is computed in.

Traffic: every matrix once; the columns once for each block.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from numba import cuda, int32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.few_shape import (
    MOST_COLUMNS,
    RINGED_COLUMNS,
    ROW_TILES,
    SLOTS,
    FewShape,
    choose_places,
    most_places,
    most_registers,
    ringed_columns,
    shapes_for,
    shared_bytes,
)
from ninfer.kernels.cuda.few_walk import make_run, make_write, part_stride
from ninfer.kernels.cuda.launch import RESERVED_SHARED, block_parts, blocks_for
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT, Formats, RowProduct
from ninfer.kernels.cuda.skinny_shape import PARTS, THREADS
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import LinearInput, TensorFormat

TOGETHER: tuple[Formats, ...] = (
    (TensorFormat.Q4, TensorFormat.Q5),
    (TensorFormat.Q4, TensorFormat.Q5, TensorFormat.BF16),
    (TensorFormat.W8, TensorFormat.BF16),
)
"""Formats that one launch may mix: what the published profiles give the same columns."""

_MODE_AT, _SKIP_AT, _TALL_AT = MODE_AT, SKIP_AT, 12  # row tiles of a block are above a kind

Address = Any
Index = Any


def launch_few(
    stream: CudaStream, x: LinearInput, formats: Formats, products: Sequence[RowProduct]
) -> None:
    """Make products of one launch, whose formats are one or in `TOGETHER`."""
    places = choose_places(
        [(product.format, product.tiles) for product in products],
        x.num_columns,
        stream.num_multiprocessors,
        stream.shared_bytes + RESERVED_SHARED,
    )
    shapes = shapes_for(formats, places.row_tiles, x.num_columns)
    base, sums, padded = block_parts(x)
    args = [base, sums, padded // TILE_FEATURES, x.num_columns]
    end = 0
    for product in products:
        tall = shapes[formats.index(product.format)].row_tiles
        end += blocks_for(product.tiles, tall)
        kind = product.kind(formats) | tall << _TALL_AT
        args += [product.address, product.target, end]
        args += [product.tiles, product.num_rows, product.width, kind]
    args += args[-7:] * (SLOTS - len(products))
    kernel = make_few(formats, places.row_tiles, x.num_columns)
    stream.launch(kernel, (places.blocks, 1, 1), args, shared_bytes=places.shared_bytes)


def declared(held: Sequence[Formats] = ()) -> tuple[Kernel, ...]:
    """Kernels of every format, and of formats that go together.

    Args:
        held: formats whose columns are kept by another kernel where they are many.
    """
    alone = [(format,) for format in PAIR_FORMATS]
    return tuple(
        dict.fromkeys(
            make_few(formats, row_tiles, columns)
            for formats in (*alone, *TOGETHER)
            for columns in (RINGED_COLUMNS if formats in held else (*RINGED_COLUMNS, MOST_COLUMNS))
            for row_tiles in ROW_TILES
        )
    )


def make_few(formats: Formats, row_tiles: int, num_columns: int) -> Kernel:
    """Kernel for up to four weights of these formats."""
    shapes = shapes_for(formats, row_tiles, num_columns)
    tallest = max(shape.row_tiles for shape in shapes)
    ring_bytes = shared_bytes(formats, row_tiles, num_columns)
    return _make_few(shapes, tallest, ring_bytes, ringed_columns(num_columns) or MOST_COLUMNS)


@cache
def _make_few(
    shapes: tuple[FewShape, ...], row_tiles: int, ring_bytes: int, num_columns: int
) -> Kernel:
    """One block for each row block of every weight; block (256,)."""
    warp_bytes = ring_bytes // PARTS
    stride = part_stride(row_tiles)
    run = _choice(tuple(make_run(shape, warp_bytes, stride) for shape in shapes))
    write = make_write(row_tiles, warp_bytes)

    def few(
        base: int,
        sums: int,
        k_tiles: int,
        num_columns: int,
        codes_0: int,
        out_0: int,
        end_0: int,
        tiles_0: int,
        rows_0: int,
        width_0: int,
        kind_0: int,
        codes_1: int,
        out_1: int,
        end_1: int,
        tiles_1: int,
        rows_1: int,
        width_1: int,
        kind_1: int,
        codes_2: int,
        out_2: int,
        end_2: int,
        tiles_2: int,
        rows_2: int,
        width_2: int,
        kind_2: int,
        codes_3: int,
        out_3: int,
        end_3: int,
        tiles_3: int,
        rows_3: int,
        width_3: int,
        kind_3: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ptx.release_successor()
        block = int32(cuda.blockIdx.x)
        first = int32(0)
        codes, tiles, kind = codes_0, tiles_0, kind_0
        if block >= end_0:
            first, codes, tiles, kind = end_0, codes_1, tiles_1, kind_1
        if block >= end_1:
            first, codes, tiles, kind = end_1, codes_2, tiles_2, kind_2
        if block >= end_2:
            first, codes, tiles, kind = end_2, codes_3, tiles_3, kind_3
        own = ptx.shared_address(shared)
        run(
            kind & int32(15), own, codes, int32(block - first), tiles,
            base, sums, k_tiles, num_columns,
        )  # fmt: skip
        # What only the end needs is chosen here, so that it takes no registers before.
        out, rows, width = out_0, rows_0, width_0
        if block >= end_0:
            out, rows, width = out_1, rows_1, width_1
        if block >= end_1:
            out, rows, width = out_2, rows_2, width_2
        if block >= end_2:
            out, rows, width = out_3, rows_3, width_3
        own_rows = ((kind >> int32(_TALL_AT)) & int32(3)) * int32(TILE_ROWS)
        start = int32(block - first) * own_rows - ((kind >> int32(_SKIP_AT)) & int32(15))
        mode = (kind >> int32(_MODE_AT)) & int32(15)
        write(own, out, int32(start), own_rows, rows, width, num_columns, mode)

    formats = tuple(shape.format for shape in shapes)
    name = "_".join(format.name.lower() for format in formats)
    slot = (Param.ADDRESS,) * 2 + (Param.I32,) * 5
    return Kernel(
        f"few_{name}_{16 * row_tiles}x{num_columns}",
        few,
        (Param.ADDRESS,) * 2 + (Param.I32,) * 2 + slot * SLOTS,
        threads=THREADS,
        max_registers=most_registers(formats, row_tiles, num_columns),
        dynamic_shared_bytes=ring_bytes,
        min_blocks=most_places(formats, row_tiles, num_columns),
    )


def _choice(runs: tuple[Callable[..., Any], ...]) -> Any:
    """The function of the block's format, by its number."""
    head = runs[0]
    if len(runs) == 1:

        @device_function
        def only(
            kind: Index, shared: Address, codes: Address, block: Index, tiles: Index,
            base: Address, sums: Address, k_tiles: Index, num_columns: Index,
        ) -> None:  # fmt: skip
            head(shared, codes, block, tiles, base, sums, k_tiles, num_columns)

        return only
    others = _choice(runs[1:])

    @device_function
    def either(
        kind: Index, shared: Address, codes: Address, block: Index, tiles: Index,
        base: Address, sums: Address, k_tiles: Index, num_columns: Index,
    ) -> None:  # fmt: skip
        if kind == int32(0):
            head(shared, codes, block, tiles, base, sums, k_tiles, num_columns)
        else:
            next_kind = int32(kind - int32(1))
            others(next_kind, shared, codes, block, tiles, base, sums, k_tiles, num_columns)

    return either
