"""The end of prefill attention: sums become outputs, are gated, and leave as a linear input.

    out = a / l * sigmoid(gate)

A lane has the sums of two queries (`attention_softmax`). A warp puts its sixteen rows into shared
memory, as f32, and takes them up again in chunks of `fragments`, or pieces of `column_image`.
"""

import math
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.column_image import array_storer
from ninfer.kernels.cuda.device_functions import load_chunk


def output_line_bytes(head_dim: int) -> int:
    """Bytes of a query's row in shared memory; four numbers wider, against bank conflicts."""
    return 4 * (head_dim + 4)


@device_function
def divided(value: Any, total: Any) -> Any:
    """A sum by the sum of its weights."""
    return value / total


@device_function
def multiplied(value: Any, inverse: Any) -> Any:
    """A sum times the reciprocal of the sum of its weights."""
    return value * inverse


def make_put_rows(head_dim: int, normalised: Any) -> Any:
    """Function that puts a warp's sixteen rows into shared memory, for `make_write`.

    Args:
        head_dim: components of a head.
        normalised: `divided` or `multiplied`: what becomes of a sum with ``upper`` or ``lower``.
    """
    line_bytes, num_fours = output_line_bytes(head_dim), head_dim // 8

    @device_function
    def put_rows(rows: Any, o: Any, upper: Any, lower: Any, lane: Any) -> None:
        line = rows + (uint32(lane) >> uint32(2)) * uint32(line_bytes)
        line += (uint32(lane) & uint32(3)) << uint32(3)
        for i in range(num_fours):
            at = line + uint32(i * 32)
            ptx.put_shared_f32x2(at, normalised(o[4 * i], upper), normalised(o[4 * i + 1], upper))
            at += uint32(8 * line_bytes)
            ptx.put_shared_f32x2(
                at, normalised(o[4 * i + 2], lower), normalised(o[4 * i + 3], lower)
            )
        cuda.syncwarp()

    return put_rows


def make_write(head_dim: int, to_image: bool = False) -> Any:
    """Function that gates a warp's rows and writes them as part of a linear input."""
    chunks = head_dim // 8
    line_bytes = output_line_bytes(head_dim)
    store = array_storer(to_image)

    @device_function
    def write(
        rows: Any,
        projected: Any,
        base: Any,
        sums: Any,
        first_column: Any,
        num_columns: Any,
        head: Any,
        num_heads: Any,
        num_kv_heads: Any,
        padded: Any,
        lane: Any,
    ) -> None:
        x = cuda.local.array(8, float32)
        for row in range(16):
            column = int32(first_column) + int32(row)
            is_column = column < num_columns
            chunk = int32(head * chunks + lane)
            for i in range(8):
                x[i] = float32(0.0)
            if is_column and lane < chunks:
                heads = uint64(num_heads + num_kv_heads) * uint64(head_dim * 2)
                gates = projected + uint64(column) * heads * uint64(2) + heads
                g = load_chunk(gates, chunk, num_heads * head_dim)
                at = rows + uint32(row * line_bytes) + uint32(lane * 32)
                x[0], x[1], x[2], x[3] = ptx.shared_f32x4(at)
                x[4], x[5], x[6], x[7] = ptx.shared_f32x4(at + uint32(16))
                for i in range(8):
                    x[i] *= ptx.reciprocal(float32(1.0) + math.exp(-g[i]))
            is_padding = head == num_heads - 1 and chunk * 8 < padded
            store(
                base,
                sums,
                uint32(padded),
                column,
                chunk,
                is_column and (lane < chunks or is_padding),
                x,
            )

    return write
