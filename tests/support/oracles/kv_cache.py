"""Float64 oracle of query/key preparation: offset norm and partial interleaved rotation.

Source: model contract 3.1 and 3.3.
"""

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def offset_norm(x: F64, weight: F64, eps: float) -> F64:
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * (1 + weight))


def rotate(
    x: F64,
    positions: npt.NDArray[np.int32],
    theta: float,
    rotary_dim: int,
    section: tuple[int, int, int],
) -> F64:
    """Rotate [T, heads, D] by positions [3, T]."""
    half = rotary_dim // 2
    out = x.copy()
    for j in range(half):
        if j % 3 == 1 and j < 3 * section[1]:
            axis = 1
        elif j % 3 == 2 and j < 3 * section[2]:
            axis = 2
        else:
            axis = 0
        angle = positions[axis].astype(np.float64) * theta ** (-2 * j / rotary_dim)
        cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[:, :, j], x[:, :, j + half]
        out[:, :, j] = a * cosine - b * sine
        out[:, :, j + half] = b * cosine + a * sine
    return out
