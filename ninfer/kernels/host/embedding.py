"""Embedding lookup on the host: one stored row is decoded for each token."""

from typing import Any, Final

import numpy as np

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel
from ninfer.kernels.host.lane_products import decode_row
from ninfer.kernels.host.operands import stored_rows
from ninfer.tensor import Matrix, Tensor

Array = Any

_MIN_TOKENS: Final = 64  # a row takes a few microseconds, waking a thread about 50


def gather(stream: HostStream, table: Matrix, tokens: Tensor, out: Tensor) -> None:
    """Decode ``out[t] = table[tokens[t]]``."""
    stream.enqueue_bands(
        _gather,
        tokens.size,
        _MIN_TOKENS,
        *stored_rows(table),
        host_array(tokens),
        host_array(out),
    )


@kernel
def _gather(
    first: int,
    stop: int,
    bits: int,
    base: Array,
    high: Array,
    scales: Array,
    tokens: Array,
    out: Array,
) -> None:
    """Fill the rows ``[first, stop)`` of ``out``.

    Raises:
        IndexError: a token has no row.
    """
    width = out.shape[1]
    padded = (width + 127) // 128 * 128
    row = np.empty(padded, np.float32)
    codes = np.empty(padded, np.uint8)
    for t in range(first, stop):
        token = tokens[t]
        if token < 0 or token >= len(base):
            raise IndexError("a token id lies outside the embedding table")
        decode_row(bits, base[token], high[token], scales[token], codes, row)
        for i in range(width):
            out[t, i] = row[i]
