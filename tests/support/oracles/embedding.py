"""Oracle of the embedding lookup: rows of the stored values. Source: model contract 3.2."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def gather(values: F64, tokens: Sequence[int]) -> F64:
    """[T, H] of [V, H]."""
    return np.asarray([values[token] for token in tokens]).reshape(len(tokens), values.shape[1])
