"""Weights of one page in prefill attention, whose sums go on from page to page.

    m' = max(m, max s_j) ; c = exp2(m - m') ; p_j = exp2(s_j - m')     s in units of log 2
    l = c l + sum p_j ; a = c a + sum p_j v_j

A lane has two queries, ``upper`` and ``lower``, which stands eight rows further on; of eight
positions, or components, it has two for each. Who multiplies queries with keys and weights with
values, and how pages come, is a kernel's own business. Source: flash attention 2, arXiv 2307.08691.
"""

from typing import Any, Final

from numba import cuda, float32, int32

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.attention_pages import TILE

UNSEEN: Final = float("-inf")
"""Score of a position that a query does not see."""


def make_weigh(head_dim: int) -> Any:
    """Function that turns a page's scores into weights, and brings sums to their new units.

    It takes (scores s, sums o, factor, first key, position of the upper query, lane, maxima so far
    of both queries, sums of weights of both) and returns the new maxima and sums of weights.
    """
    num_fours = head_dim // 8

    @device_function
    def weigh(
        s: Any,
        o: Any,
        factor: Any,
        first_key: Any,
        position: Any,
        lane: Any,
        most0: Any,
        most1: Any,
        total0: Any,
        total1: Any,
    ) -> Any:
        scale_and_hide(s, factor, first_key, position, lane)
        most0, correction0, sum0 = softmax_row(s, 0, most0)
        most1, correction1, sum1 = softmax_row(s, 2, most1)
        total0 = total0 * correction0 + sum0
        total1 = total1 * correction1 + sum1
        for i in range(num_fours):
            o[4 * i] *= correction0
            o[4 * i + 1] *= correction0
            o[4 * i + 2] *= correction1
            o[4 * i + 3] *= correction1
        return most0, most1, total0, total1

    return weigh


@device_function
def scale_and_hide(s: Any, factor: Any, first_key: Any, position: Any, lane: Any) -> None:
    """Bring scores to units of log 2 and hide positions behind the queries' own.

    ``position`` is that of the lane's upper query; the other one stands eight further on.
    """
    for i in range(32):
        s[i] = s[i] * factor
    if int32(first_key) + int32(TILE - 1) > int32(position) - int32(lane >> 2):
        key = int32(first_key) + int32((lane & 3) * 2)
        for i in range(32):
            at = key + int32(i // 4 * 8 + i % 2)
            if at > int32(position) + int32(i // 2 % 2 * 8):
                s[i] = float32(UNSEEN)


@device_function
def softmax_row(s: Any, upper: Any, largest: Any) -> Any:
    """Turn the scores of one query into weights.

    Args:
        s: scores of the lane's two queries, four for each eight positions.
        upper: 0 for the first query, 2 for the second.
        largest: maximum so far.

    Returns:
        The new maximum, the correction and this lane's sum of weights.
    """
    found = largest
    for i in range(8):
        found = max(found, max(s[4 * i + upper], s[4 * i + upper + 1]))
    found = max(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 1))
    found = max(found, cuda.shfl_xor_sync(0xFFFFFFFF, found, 2))
    base = found
    if found == float32(UNSEEN):
        base = float32(0.0)
    total = float32(0.0)
    for i in range(8):
        s[4 * i + upper] = ptx.power_of_two(s[4 * i + upper] - base)
        s[4 * i + upper + 1] = ptx.power_of_two(s[4 * i + upper + 1] - base)
        total += s[4 * i + upper] + s[4 * i + upper + 1]
    return found, ptx.power_of_two(largest - base), total


@device_function
def over_quad(value: Any) -> Any:
    """Sum over the four lanes of a query."""
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)
    return value + cuda.shfl_xor_sync(0xFFFFFFFF, value, 2)
