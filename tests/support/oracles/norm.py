"""Float64 oracle of the offset norm. Source: model contract 3.1."""

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def offset_norm(x: F64, weight: F64, eps: float) -> F64:
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean_square + eps) * (1 + weight))
