"""Token choice on the host, in binary64 from the logits on; every row is computed alone.

    candidates (ascending ids)  ->  heap when top_k or top_p is on  ->  min_p  ->  Gumbel argmax

Filters take candidates from a heap, best first and lower id first on ties, until the kept set is
complete: exact for any vocabulary and cheap for the usual short nucleus. Noise and order of the
filters are those of the op's contract.
"""

import math
from typing import Any, Final

import numpy as np

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel, kernel_part
from ninfer.kernels.operand_groups import SamplerSettings
from ninfer.tensor import Tensor

Array = Any

_LARGEST: Final = float(np.finfo(np.float32).max)
_PURPOSE_TARGET: Final = 0
_ONE_ROW: Final = 1  # a row of a real vocabulary takes milliseconds


def count_tokens(
    stream: HostStream, counts: Tensor, slots: Tensor, tokens: Tensor, flags: Tensor
) -> None:
    """Add 1 to ``counts[slots[b], tokens[b]]`` where ``flags[b]``."""
    stream.enqueue(
        _count_tokens,
        host_array(counts),
        host_array(slots),
        host_array(tokens),
        host_array(flags),
    )


def sample(
    stream: HostStream,
    logits: Tensor,
    rows: SamplerSettings,
    counts: Tensor,
    slots: Tensor,
    mask: Tensor,
    addressable: int,
    tokens: Tensor,
) -> None:
    """Choose ``tokens[b]``."""
    operands = (
        logits,
        rows.temperature,
        rows.top_p,
        rows.min_p,
        rows.presence,
        rows.frequency,
        rows.top_k,
        rows.seeds,
        rows.positions,
        counts,
        slots,
        mask,
    )
    stream.enqueue_bands(
        _sample,
        logits.shape[0],
        _ONE_ROW,
        *(host_array(operand) for operand in operands),
        addressable,
        host_array(tokens),
    )


def score(
    stream: HostStream,
    logits: Tensor,
    targets: Tensor,
    addressable: int,
    logprobs: Tensor,
    argmax: Tensor,
) -> None:
    """Write the log-probability of ``targets[t]`` and the most probable id."""
    stream.enqueue_bands(
        _score,
        logits.shape[0],
        _ONE_ROW,
        host_array(logits),
        host_array(targets),
        addressable,
        host_array(logprobs),
        host_array(argmax),
    )


@kernel
def _count_tokens(counts: Array, slots: Array, tokens: Array, flags: Array) -> None:
    """Count, row after row: several rows may name the same slot.

    Raises:
        IndexError: a flagged row's slot or token lies outside the table.
    """
    num_slots, vocabulary = counts.shape
    for row in range(len(slots)):
        if flags[row] == 0:
            continue
        slot, token = slots[row], tokens[row]
        if slot < 0 or slot >= num_slots or token < 0 or token >= vocabulary:
            raise IndexError("a counted token lies outside the table of counts")
        counts[slot, token] += 1


@kernel
def _sample(
    first: int,
    stop: int,
    logits: Array,
    temperature: Array,
    top_p: Array,
    min_p: Array,
    presence: Array,
    frequency: Array,
    top_k: Array,
    seeds: Array,
    positions: Array,
    counts: Array,
    slots: Array,
    mask: Array,
    addressable: int,
    tokens: Array,
) -> None:
    """Choose the tokens of rows ``[first, stop)``.

    Raises:
        IndexError: the slot of a row with a penalty lies outside the table of counts.
    """
    values = np.empty(addressable, np.float64)
    ids = np.empty(addressable, np.int32)
    for row in range(first, stop):
        once, each = np.float64(presence[row]), np.float64(frequency[row])
        slot = slots[row]
        if once == 0.0 and each == 0.0:
            slot = 0
        elif slot < 0 or slot >= len(counts):
            raise IndexError("a sampled row's slot lies outside the table of counts")
        num = _collect(logits[row], counts[slot], once, each, mask[row], values, ids)
        if num == 0:
            tokens[row] = _lowest_permitted(mask[row], addressable)
            continue
        best = 0
        for i in range(1, num):
            if values[i] > values[best]:
                best = i
        if not temperature[row] > 0:
            tokens[row] = ids[best]
            continue
        divisor = np.float64(temperature[row])
        largest = values[best] / divisor
        for i in range(num):
            values[i] /= divisor
        start = _filter(values, ids, num, largest, top_k[row], np.float64(top_p[row]))
        tokens[row] = _draw(
            values,
            ids,
            start,
            num,
            largest,
            np.float64(min_p[row]),
            seeds[row, 0],
            seeds[row, 1],
            positions[row],
        )


@kernel_part
def _finite(logit: Any) -> float:
    """Return the logit; +inf as the largest binary32, NaN as -inf."""
    value = np.float64(logit)
    if value != value:
        return -np.inf
    return min(value, _LARGEST)


@kernel_part
def _is_permitted(mask: Array, token: int) -> bool:
    return bool(mask[token >> 5] >> np.uint32(token & 31) & np.uint32(1))


@kernel_part
def _lowest_permitted(mask: Array, addressable: int) -> int:
    """Return the lowest permitted id, -1 if there is none."""
    for token in range(addressable):
        if _is_permitted(mask, token):
            return token
    return -1


@kernel_part
def _collect(
    logits: Array,
    counts: Array,
    once: float,
    each: float,
    mask: Array,
    values: Array,
    ids: Array,
) -> int:
    """List the permitted ids with a finite penalised logit, ascending; return how many."""
    has_penalty = once != 0.0 or each != 0.0
    num = 0
    for token in range(len(ids)):
        if not _is_permitted(mask, token):
            continue
        value = _finite(logits[token])
        if has_penalty and counts[token] > 0:
            value -= once + each * counts[token]
        if value > -np.inf:
            values[num] = value
            ids[num] = token
            num += 1
    return num


@kernel_part
def _filter(values: Array, ids: Array, num: int, largest: float, top_k: int, top_p: float) -> int:
    """Apply top_k, then top_p to the first ``num`` candidates, whose largest value is given.

    They are reordered; the kept ones are those from the returned index on, the best one last.
    """
    has_top_k, has_top_p = 0 < top_k < num, top_p < 1.0
    if not has_top_k and not has_top_p:
        return 0
    total = 0.0
    if has_top_p and not has_top_k:
        for i in range(num):
            total += math.exp(values[i] - largest)
    for root in range(num // 2 - 1, -1, -1):
        _sift_down(values, ids, root, num)
    size = num
    start = num
    if has_top_k:
        while start > num - top_k:
            size = _pop(values, ids, size)
            start -= 1
            total += math.exp(values[start] - largest)
        if not has_top_p:
            return start
    needed = top_p * total
    reached = 0.0
    kept = num
    while kept > 0:
        kept -= 1
        if kept < size:
            size = _pop(values, ids, size)
        reached += math.exp(values[kept] - largest)
        if reached >= needed:
            break
    return kept


@kernel_part
def _pop(values: Array, ids: Array, size: int) -> int:
    """Move the best of the heap ``[0, size)`` behind it; return the heap's new size."""
    last = size - 1
    values[0], values[last] = values[last], values[0]
    ids[0], ids[last] = ids[last], ids[0]
    _sift_down(values, ids, np.int64(0), last)  # a literal would be compiled once more
    return last


@kernel_part
def _sift_down(values: Array, ids: Array, root: int, size: int) -> None:
    """Restore the heap below ``root``: a parent is larger, or equal with a lower id."""
    value, token = values[root], ids[root]
    while True:
        child = 2 * root + 1
        if child >= size:
            break
        right = child + 1
        if right < size and _is_before(values[right], ids[right], values[child], ids[child]):
            child = right
        if _is_before(value, token, values[child], ids[child]):
            break
        values[root], ids[root] = values[child], ids[child]
        root = child
    values[root], ids[root] = value, token


@kernel_part
def _is_before(value: float, token: int, other_value: float, other_token: int) -> bool:
    return value > other_value or (value == other_value and token < other_token)


@kernel_part
def _draw(
    values: Array,
    ids: Array,
    start: int,
    stop: int,
    largest: float,
    min_p: float,
    seed_low: int,
    seed_high: int,
    position: int,
) -> int:
    """Return the id with the largest sum of log-probability and noise among those min_p keeps."""
    floor = min(min_p, 1.0)
    best, best_id = -np.inf, np.int32(-1)
    for i in range(start, stop):
        if floor > 0.0 and math.exp(values[i] - largest) < floor:
            continue
        u = _uniform(position, ids[i], _PURPOSE_TARGET, seed_low, seed_high)
        total = values[i] - math.log(-math.log(u))
        if best_id < 0 or _is_before(total, ids[i], best, best_id):
            best, best_id = total, ids[i]
    return int(best_id)


@kernel_part
def _uniform(position: int, token: int, purpose: int, seed_low: int, seed_high: int) -> float:
    """Return a number in (0, 1) from word 0 of Philox4x32-10."""
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0, c1 = np.uint64(np.uint32(position)), np.uint64(np.uint32(token))
    c2, c3 = np.uint64(np.uint32(purpose)), np.uint64(0)
    k0, k1 = np.uint64(seed_low), np.uint64(seed_high)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (p1 >> shift) ^ c1 ^ k0, p1 & low
        c2, c3 = (p0 >> shift) ^ c3 ^ k1, p0 & low
        k0 = (k0 + np.uint64(0x9E3779B9)) & low
        k1 = (k1 + np.uint64(0xBB67AE85)) & low
    return (np.float64(c0 >> np.uint64(9)) + 0.5) * 2.0**-23


@kernel
def _score(
    first: int,
    stop: int,
    logits: Array,
    targets: Array,
    addressable: int,
    logprobs: Array,
    argmax: Array,
) -> None:
    """Score the rows ``[first, stop)``."""
    for row in range(first, stop):
        line = logits[row]
        largest, best = -np.inf, 0
        for token in range(addressable):
            value = _finite(line[token])
            if value > largest:
                largest, best = value, token
        argmax[row] = best
        target = targets[row]
        if target < 0 or target >= addressable or largest == -np.inf:
            logprobs[row] = -np.inf
            continue
        total = 0.0
        for token in range(addressable):
            total += math.exp(_finite(line[token]) - largest)
        logprobs[row] = (_finite(line[target]) - largest) - math.log(total)
