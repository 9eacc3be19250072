"""Float64 oracle of the offset norm and SwiGLU. Source: model contract 3.1 and 3.7."""

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def offset_norm(x: F64, weight: F64, eps: float) -> F64:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean_square + eps) * (1 + weight))


def swiglu(gate_up: F64) -> F64:
    gate, up = np.split(gate_up, 2, axis=-1)
    positive = 1 / (1 + np.exp(-np.abs(gate)))
    sigmoid = np.where(gate >= 0, positive, 1 - positive)
    tail = np.exp(np.minimum(gate, 0)) * positive  # what 1 - positive cancels to for large -gate
    return np.asarray(gate * np.where(gate >= 0, sigmoid, tail) * up)
