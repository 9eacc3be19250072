"""SwiGLU on the host, element by element in binary32."""

import math
from typing import Any, Final

import numpy as np

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel
from ninfer.kernels.host.operands import input_array
from ninfer.tensor import LinearInput, Tensor

Array = Any

_BAND_WORK: Final = 1 << 15  # elements that pay for waking a thread: an exponential each


def swiglu(stream: HostStream, gate_up: Tensor, out: LinearInput) -> None:
    """Write ``silu(first half) * second half``."""
    stream.enqueue_bands(
        _swiglu,
        out.num_columns,
        _BAND_WORK // max(out.width, 1) + 1,
        host_array(gate_up),
        input_array(out),
    )


@kernel
def _swiglu(first: int, stop: int, gate_up: Array, out: Array) -> None:
    """Fill the columns ``[first, stop)``; exp overflows to infinity, where silu is -0."""
    width = out.shape[1]
    one = np.float32(1.0)
    for t in range(first, stop):
        gate, up, result = gate_up[t, :width], gate_up[t, width:], out[t]
        for i in range(width):
            result[i] = gate[i] / (one + math.exp(-gate[i])) * up[i]
