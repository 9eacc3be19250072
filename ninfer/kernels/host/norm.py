"""Offset RMS norm on the host: binary64 inside a column, rounded to binary32 once at the end."""

import math
from typing import Any, Final

import numpy as np

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel
from ninfer.kernels.host.operands import input_array
from ninfer.tensor import LinearInput, Tensor

Array = Any

_BAND_WORK: Final = 1 << 17  # elements that pay for waking a thread


def rms_norm(stream: HostStream, x: Tensor, weight: Tensor, eps: float, out: LinearInput) -> None:
    """Write ``x / sqrt(mean(x^2) + eps) * (1 + weight)``."""
    num_tokens, hidden = x.shape
    stream.enqueue_bands(
        _rms_norm,
        num_tokens,
        _BAND_WORK // max(hidden, 1) + 1,
        host_array(x),
        host_array(weight),
        eps,
        input_array(out),
    )


@kernel
def _rms_norm(first: int, stop: int, x: Array, weight: Array, eps: float, out: Array) -> None:
    """Normalise the columns ``[first, stop)``; squares are added in index order."""
    hidden = x.shape[1]
    factors = np.empty(hidden, np.float32)
    words = factors.view(np.uint32)
    for i in range(hidden):
        words[i] = np.uint32(weight[i]) << np.uint32(16)
    for t in range(first, stop):
        column, result = x[t], out[t]
        total = 0.0
        for i in range(hidden):
            total += np.float64(column[i]) * np.float64(column[i])
        inverse = 1.0 / math.sqrt(total / hidden + eps)
        for i in range(hidden):
            result[i] = np.float64(column[i]) * inverse * (1.0 + np.float64(factors[i]))
