"""Dot products of a chunk's rows, and the inverse of a unit lower triangle, in shared memory.

Dot products are those of high and low bf16 parts on the tensor cores (`delta_blocks`). The inverse
of 1 + A, A strictly lower and 64 x 64, is found column by column: a thread holds sixteen unknowns,
takes what they contribute from all rows below, and goes on to the next sixteen. Knows no model.
"""

from typing import Any, Final

from numba import float32, int32, uint32

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.delta_blocks import (
    POSITIONS,
    ROWS_BYTES,
    WIDTH,
    add_product,
    left_rows,
    right_rows,
)

DOT_STRIDE: Final = 72
"""Floats from row to row of dot products: pairs of one product find other banks."""

DOT_BYTES: Final = POSITIONS * DOT_STRIDE * 4
"""Dot products of all rows with all rows."""

SQUARE_BYTES: Final = POSITIONS * POSITIONS * 4
"""A matrix of f32 without gaps."""


@device_function
def where(flag: Any, value: Any) -> Any:
    """The value, or 0 where the flag is not set; whatever the value is."""
    result = float32(0.0)
    if flag:
        result = value
    return result


@device_function
def either(flag: Any, first: Any, second: Any) -> Any:
    """The first value where the flag is set, and the second elsewhere."""
    result = second
    if flag:
        result = first
    return result


@device_function
def dots(left: Any, right: Any, out: Any, i: Any, j: Any, lane: Any, c: Any) -> None:
    """Dot products of rows ``16 i ..`` and ``16 j ..`` of two pairs of matrices."""
    for n in range(8):
        c[n] = float32(0.0)
    for step in range(WIDTH // 16):
        h0, h1, h2, h3 = left_rows(left, i * 16, step, lane)
        l0, l1, l2, l3 = left_rows(left + uint32(ROWS_BYTES), i * 16, step, lane)
        x0, x1, x2, x3 = right_rows(right, j * 16, step, lane)
        y0, y1, y2, y3 = right_rows(right + uint32(ROWS_BYTES), j * 16, step, lane)
        add_product(c, 0, h0, h1, h2, h3, y0, y1)
        add_product(c, 4, h0, h1, h2, h3, y2, y3)
        add_product(c, 0, l0, l1, l2, l3, x0, x1)
        add_product(c, 4, l0, l1, l2, l3, x2, x3)
        add_product(c, 0, h0, h1, h2, h3, x0, x1)
        add_product(c, 4, h0, h1, h2, h3, x2, x3)
    row = uint32(i) * uint32(16) + (uint32(lane) >> uint32(2))
    column = uint32(j) * uint32(16) + ((uint32(lane) & uint32(3)) << uint32(1))
    at = out + (row * uint32(DOT_STRIDE) + column) * uint32(4)
    ptx.put_shared_f32x2(at, c[0], c[1])
    ptx.put_shared_f32x2(at + uint32(32), c[4], c[5])
    at += uint32(8 * DOT_STRIDE * 4)
    ptx.put_shared_f32x2(at, c[2], c[3])
    ptx.put_shared_f32x2(at + uint32(32), c[6], c[7])


@device_function
def minus_row(line: Any, x: Any, value: Any, quads: Any) -> Any:
    """``value`` minus the product of ``4 quads`` numbers of a row with ``x``."""
    a, b, c, d = value, float32(0.0), float32(0.0), float32(0.0)
    for i in range(quads):
        p, q, r, s = ptx.shared_f32x4(line + uint32(i * 16))
        a = ptx.fused_multiply_add(-p, x[4 * i], a)
        b = ptx.fused_multiply_add(-q, x[4 * i + 1], b)
        c = ptx.fused_multiply_add(-r, x[4 * i + 2], c)
        d = ptx.fused_multiply_add(-s, x[4 * i + 3], d)
    return (a + c) + (b + d)


@device_function
def held(at: Any, is_there: Any) -> Any:
    """A number of shared memory, or 0 where there is none yet."""
    value = float32(0.0)
    if is_there:
        value = ptx.shared_f32(at)
    return value


@device_function
def solve(matrix: Any, out: Any, first_column: Any, column: Any, x: Any) -> None:
    """One column of the inverse of 1 + a strictly lower matrix, sixteen unknowns at a time.

    Rows before the first column of the warp are left alone. Stores follow the loads of several
    rows, which the assembler does not move across them.
    """
    own = out + uint32(column) * uint32(4)
    start = int32(first_column) >> int32(4)
    for j in range(start, POSITIONS // 16):
        line = matrix + uint32(j) * uint32(16 * 64 * 4 + 64)
        first = uint32(j) * uint32(16)
        top = own + first * uint32(256)
        unit = int32(column) - int32(first)
        for r in range(16):
            x[r] = where(unit == r, float32(1.0)) + held(top + uint32(r * 256), j > start)
        for r in range(1, 5):
            x[r] = minus_row(line + uint32(r * 256), x, x[r], 1)
        for r in range(5, 9):
            x[r] = minus_row(line + uint32(r * 256), x, x[r], 2)
        for r in range(9, 13):
            x[r] = minus_row(line + uint32(r * 256), x, x[r], 3)
        for r in range(13, 16):
            x[r] = minus_row(line + uint32(r * 256), x, x[r], 4)
        for r in range(16):
            ptx.put_shared_f32(top + uint32(r * 256), x[r])
        for four in range(4, POSITIONS // 4 - 4 * j):
            at, below = top + uint32(four) * uint32(1024), line + uint32(four) * uint32(1024)
            a = minus_row(below, x, held(at, j > start), 4)
            b = minus_row(below + uint32(256), x, held(at + uint32(256), j > start), 4)
            c = minus_row(below + uint32(512), x, held(at + uint32(512), j > start), 4)
            d = minus_row(below + uint32(768), x, held(at + uint32(768), j > start), 4)
            ptx.put_shared_f32(at, a)
            ptx.put_shared_f32(at + uint32(256), b)
            ptx.put_shared_f32(at + uint32(512), c)
            ptx.put_shared_f32(at + uint32(768), d)
