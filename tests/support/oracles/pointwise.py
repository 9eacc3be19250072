"""Float64 oracle of SwiGLU. Source: model contract 3.7."""

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def swiglu(gate_up: F64) -> F64:
    gate, up = np.split(gate_up, 2, axis=-1)
    small = np.exp(-np.abs(gate))  # never overflows
    sigmoid = np.where(gate >= 0, 1.0, small) / (1 + small)
    return np.asarray(gate * sigmoid * up)
