"""Error bounds from the format of numbers and the length of sums."""

from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

F32_UNIT = 2.0**-24
"""Half a unit in the last place of a binary32 number near 1."""

F32_TINY = 2.0**-149
"""Smallest binary32 subnormal: the absolute error of one rounding near zero."""


def sum_bound(terms: npt.NDArray[Any], depth: int, axis: int = -1) -> F64:
    """Bound of a binary32 sum of products: every term passes through at most ``depth`` roundings.

    Args:
        terms: exact products in float64.
        depth: additions on the longest path plus one for the product.
        axis: axis that is summed.

    Source: N. Higham, Accuracy and Stability of Numerical Algorithms, 3.1.
    """
    gamma = depth * F32_UNIT / (1 - depth * F32_UNIT)
    count = terms.shape[axis]
    return np.asarray(gamma * np.abs(terms).sum(axis) + 2 * count * F32_TINY, np.float64)
