"""Linear products on the host: weight rows are decoded to binary32, then multiplied lane by lane.

A linear input is plain f32 ``[num_columns, width]`` and a resident matrix is its file encoding.
Four weight rows at a time are decoded into a scratch that stays in cache while every column passes
by; a row's arithmetic is the same in a group of four, alone, and in any band (`lane_products`).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel
from ninfer.kernels.host.lane_products import (
    LANES,
    copy_tails,
    decode_row,
    dot_four_rows,
    dot_row,
)
from ninfer.kernels.host.operands import input_array, stored_rows
from ninfer.kernels.host.pointwise import swiglu
from ninfer.tensor import LinearInput, Matrix, Tensor, TensorFormat
from ninfer.tensor_formats.geometry import encoded_bytes

Array = Any

_BAND_WORK: Final = 1 << 18
"""Products that pay for waking a thread (about 50 microseconds, Zen 3)."""


def input_bytes(num_columns: int, width: int) -> int:
    """Bytes of a linear input: one f32 for each feature."""
    return 4 * num_columns * width


def resident_bytes(format: TensorFormat, num_rows: int, num_columns: int) -> int:
    """Bytes of a resident matrix: its encoded size."""
    return encoded_bytes(format, (num_rows, num_columns))


def make_resident(stream: HostStream, encoded: Tensor, matrix: Matrix) -> None:
    """Copy the encoding."""
    stream.copy(matrix.storage, encoded)


def pack(stream: HostStream, x: Tensor, out: LinearInput) -> None:
    """Copy f32 columns."""
    stream.copy(out.storage, x)


def project(
    stream: HostStream, x: LinearInput, weight: Matrix, out: Tensor, first_column: int
) -> None:
    """Write ``out[:, first_column + n] = weight[n] . x``."""
    _enqueue(stream, x, weight, out, first_column, is_added=False)


def project_all(
    stream: HostStream, x: LinearInput, products: Sequence[tuple[Matrix, Tensor, int]]
) -> None:
    """Write the products of several weights, one after another."""
    for weight, out, first_column in products:
        project(stream, x, weight, out, first_column)


def gates_at_once(stream: HostStream, num_columns: int, gate_up: Matrix) -> bool:
    """Never: products are stored before they are gated."""
    return False


def project_gated(
    stream: HostStream, x: LinearInput, gate_up: Matrix, between: Tensor, out: LinearInput
) -> None:
    """Write ``silu(gate . x) * (up . x)`` by way of the products."""
    project(stream, x, gate_up, between, 0)
    swiglu(stream, between, out)


def project_add(stream: HostStream, x: LinearInput, weight: Matrix, residual: Tensor) -> None:
    """Add ``weight[n] . x`` to ``residual[:, n]``."""
    _enqueue(stream, x, weight, residual, 0, is_added=True)


def _enqueue(
    stream: HostStream,
    x: LinearInput,
    weight: Matrix,
    out: Tensor,
    first_column: int,
    *,
    is_added: bool,
) -> None:
    min_rows = _BAND_WORK // (weight.num_columns * (x.num_columns + 3)) + 4
    stream.enqueue_bands(
        _project_rows,
        weight.num_rows,
        min_rows,
        *stored_rows(weight),
        input_array(x),
        host_array(out),
        first_column,
        is_added,
    )


@kernel
def _project_rows(
    first: int,
    stop: int,
    bits: int,
    base: Array,
    high: Array,
    scales: Array,
    x: Array,
    out: Array,
    first_column: int,
    is_added: bool,
) -> None:
    """Compute the products of the rows ``[first, stop)`` with every column."""
    num_columns, width = x.shape
    padded = (width + 127) // 128 * 128
    rows = np.zeros(4 * padded, np.float32)
    codes = np.empty(padded, np.uint8)
    tails = np.empty(num_columns * LANES, np.float32)
    flat = x.reshape(-1)
    copy_tails(flat, num_columns, width, tails)
    row = first
    while row < stop:
        count = 4 if row + 4 <= stop else 1
        for i in range(count):
            n = row + i
            decode_row(
                bits, base[n], high[n], scales[n], codes, rows[i * padded : (i + 1) * padded]
            )
        for t in range(num_columns):
            target = out[t, first_column + row : first_column + row + count]
            if count == 4:
                totals = dot_four_rows(rows, padded, flat, t * width, tails, t * LANES, width)
                for i in range(4):
                    target[i] = target[i] + totals[i] if is_added else totals[i]
            else:
                total = dot_row(rows, flat, t * width, tails, t * LANES, width)
                target[0] = target[0] + total if is_added else total
        row += count
