"""Matrix blocks of the chunked Gated DeltaNet prefill: how operands lie in memory, and products.

Operands of the tensor cores are pairs of bf16 matrices whose sum is the f32 value to 2^-17; a
product adds high x high, high x low and low x high in f32. Three orders in memory, each free of
bank conflicts for matrix loads of 8 x 8 elements (tiles):

    rows       [2][64 positions][64 components], 16-byte chunk c of row r at c xor (r mod 8)
    triangles  twelve 16 x 16 blocks (i, j) of a 64 x 64 matrix: those on and below the diagonal of
               its 32 x 32 blocks, column after column, each four tiles, row after row
    tiles      [K / 8][N / 8] tiles, rows along K, of the right operand

A chunk of a key head is four matrices in rows: keys high and low, queries high and low. A chunk of
a value head is four triangles and 128 f32 numbers, `CHUNK_FACTORS` bytes (`delta_chunks`).
Knows no algorithm. Source: PTX ISA, fragments of m16n8k16 and ldmatrix.
"""

from typing import Any, Final

from numba import uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16

POSITIONS: Final = 64
"""Positions of a chunk."""

WIDTH: Final = 128
"""Components of keys and of values."""

ROWS_BYTES: Final = POSITIONS * WIDTH * 2
"""One matrix in rows."""

HALF_ROWS_BYTES: Final = ROWS_BYTES // 2
"""Half of its components: rows of 128 bytes."""

TRIANGLE_BYTES: Final = 12 * 512
"""One triangle."""

CHUNK_ROWS: Final = 4 * ROWS_BYTES
"""A chunk of a key head: keys high, keys low, queries high, queries low."""

CHUNK_FACTORS: Final = 4 * TRIANGLE_BYTES + 2 * POSITIONS * 4
"""A chunk of a value head: solution high and low, weights high and low, two rows of decays."""


@device_function
def split_pair(first: Any, second: Any) -> Any:
    """Words of the high and the low parts of two numbers."""
    high = ptx.bf16x2_of_f32(first, second)
    low = ptx.bf16x2_of_f32(first - lower_bf16(high), second - upper_bf16(high))
    return high, low


@device_function
def add_product(c: Any, n: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any) -> None:
    """Add one 16 x 8 x 16 product to sums ``c[n : n + 4]``."""
    c[n], c[n + 1], c[n + 2], c[n + 3] = ptx.mma_bf16(
        a0, a1, a2, a3, b0, b1, c[n], c[n + 1], c[n + 2], c[n + 3]
    )


@device_function
def rows_offset(row: Any, chunk: Any) -> Any:
    """Bytes from the start of a matrix in rows to a 16-byte chunk of a row."""
    at = ((uint32(chunk) >> uint32(3)) * uint32(HALF_ROWS_BYTES)) + (uint32(row) << uint32(7))
    return at + (((uint32(chunk) ^ uint32(row)) & uint32(7)) << uint32(4))


@device_function
def left_rows(matrix: Any, first_row: Any, step: Any, lane: Any) -> Any:
    """Left operand from rows: 16 rows, components ``16 step ..``."""
    row = uint32(first_row) + (uint32(lane) & uint32(15))
    chunk = uint32(step) * uint32(2) + (uint32(lane) >> uint32(4))
    return ptx.load_matrices(uint32(matrix) + rows_offset(row, chunk))


@device_function
def left_rows_turned(matrix: Any, first_component: Any, step: Any, lane: Any) -> Any:
    """Left operand whose rows are components, and whose sum runs over rows ``16 step ..``."""
    part = uint32(lane) >> uint32(3)
    row = uint32(step) * uint32(16) + ((part >> uint32(1)) << uint32(3))
    row += uint32(lane) & uint32(7)
    chunk = (uint32(first_component) >> uint32(3)) + (part & uint32(1))
    return ptx.load_matrices_transposed(uint32(matrix) + rows_offset(row, chunk))


@device_function
def right_rows(matrix: Any, first_row: Any, step: Any, lane: Any) -> Any:
    """Right operands of two products from rows: their columns are rows ``first_row .. + 15``."""
    part = uint32(lane) >> uint32(3)
    row = uint32(first_row) + ((part >> uint32(1)) << uint32(3)) + (uint32(lane) & uint32(7))
    chunk = uint32(step) * uint32(2) + (part & uint32(1))
    return ptx.load_matrices(uint32(matrix) + rows_offset(row, chunk))


@device_function
def right_tiles(tiles: Any, columns: Any, step: Any, first_column: Any, lane: Any) -> Any:
    """Right operands of two products: 16 rows along K, two tiles of columns.

    Args:
        tiles: address of tiles of ``columns`` columns.
        columns: of the matrix.
        step: sixteen along K.
        first_column: a multiple of 16.
        lane: of the warp.
    """
    part = uint32(lane) >> uint32(3)
    line = uint32(step) * uint32(2) + (part & uint32(1))
    place = (uint32(first_column) >> uint32(3)) + (part >> uint32(1))
    tile = line * (uint32(columns) >> uint32(3)) + place
    return ptx.load_matrices_transposed(
        uint32(tiles) + (tile << uint32(7)) + ((uint32(lane) & uint32(7)) << uint32(4))
    )


@device_function
def put_tile_pairs(
    tiles: Any, columns: Any, first_row: Any, first_column: Any, lane: Any, upper: Any, lower: Any
) -> None:
    """Store words of sums of one product as tiles: rows r and r + 8 of 16, eight columns."""
    at = (uint32(first_row) >> uint32(3)) * (uint32(columns) >> uint32(3))
    at += uint32(first_column) >> uint32(3)
    at = uint32(tiles) + (at << uint32(7)) + (uint32(lane) << uint32(2))
    ptx.put_shared_u32(at, upper)
    ptx.put_shared_u32(at + (uint32(columns) << uint32(4)), lower)


@device_function
def left_triangle(triangle: Any, i: Any, j: Any, lane: Any) -> Any:
    """Left operand: block (i, j) of a triangle."""
    part = uint32(lane) >> uint32(3)
    at = uint32(triangle) + (triangle_block(i, j) << uint32(9))
    at += ((part & uint32(1)) << uint32(8)) + ((part >> uint32(1)) << uint32(7))
    return ptx.load_matrices(at + ((uint32(lane) & uint32(7)) << uint32(4)))


@device_function
def triangle_block(i: Any, j: Any) -> Any:
    """Number of block (i, j) of a triangle."""
    return (uint32(j) + uint32(j > 0)) * uint32(2) + uint32(i)


@device_function
def triangle_offset(row: Any, column: Any) -> Any:
    """Bytes from the start of a triangle to an element of one of its blocks."""
    i, j = uint32(row) >> uint32(4), uint32(column) >> uint32(4)
    tile = ((uint32(row) >> uint32(2)) & uint32(2)) + ((uint32(column) >> uint32(3)) & uint32(1))
    inside = ((uint32(row) & uint32(7)) << uint32(4)) + ((uint32(column) & uint32(7)) << uint32(1))
    return uint64((triangle_block(i, j) << uint32(9)) + (tile << uint32(7)) + inside)


@device_function
def place_of(slot: Any, lane: Any) -> Any:
    """Row and first of four columns of a lane in a triangle whose diagonal blocks are 32 x 32.

    Slots are 8 with four of the upper rows, then 16 with two of the lower; two neighbouring rows
    of a tile are 32 bytes in memory.
    """
    row = (uint32(slot) << uint32(2)) + (uint32(lane) >> uint32(3))
    column = uint32(lane) & uint32(7)
    if slot >= 8:
        row = (uint32(slot) << uint32(1)) + (uint32(lane) >> uint32(4)) + uint32(16)
        column = uint32(lane) & uint32(15)
    return row, column << uint32(2)


@device_function
def store_parts(address: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    """Store four numbers' high and low parts in two triangles."""
    first, first_low = split_pair(a, b)
    second, second_low = split_pair(c, d)
    ptx.store_u32x2(address, first, second)
    ptx.store_u32x2(address + uint64(TRIANGLE_BYTES), first_low, second_low)
