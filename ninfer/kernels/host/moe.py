"""Mixture of experts on the host: routing, and the experts' sum.

    p = softmax(logits) ; k times: best p left, lowest index on ties ; w = p / sum of the chosen
    h[t, slot] = silu(gate_e x_t) * (up_e x_t)                     e = experts[t, slot]
    residual[t] += (w_0 down_e0 h[t, 0] + w_1 down_e1 h[t, 1] + ...) + s_t * shared[t]

Both products go over weight rows: a row is decoded once and multiplied, lane by lane as every
linear product is (`lane_products`), with the columns that chose its expert. A column's products and
the order of their sum do not depend on what the other columns chose. Bands split rows.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel, kernel_part
from ninfer.kernels.host.lane_products import LANES, copy_tails, decode_row, dot_row
from ninfer.kernels.host.operands import input_array, stored_rows
from ninfer.tensor import LinearInput, Matrix, Tensor

Array = npt.NDArray[Any]

_CHUNK_COLUMNS = 256  # bounds the scratch between the products: 4 MB for 8 experts of 512
_BAND_WORK = 1 << 18  # products that pay for waking a thread


def route(
    stream: HostStream, router: Tensor, experts: Tensor, weights: Tensor, shared_gate: Tensor
) -> None:
    """Launch `_route`."""
    stream.enqueue(
        _route,
        host_array(router),
        host_array(experts),
        host_array(weights),
        host_array(shared_gate),
    )


def experts(
    stream: HostStream,
    x: LinearInput,
    gate_up: Matrix,
    down: Matrix,
    experts: Tensor,
    weights: Tensor,
    shared: Tensor,
    shared_gate: Tensor,
    residual: Tensor,
) -> None:
    """Launch `_activate_rows` and `_add_rows` for each chunk of columns."""
    num_columns, chosen = experts.shape
    hidden, width = gate_up.num_columns, down.num_columns
    columns = input_array(x)
    chunk_columns = min(num_columns, _CHUNK_COLUMNS)
    active = np.empty((chunk_columns * chosen, width), np.float32)
    for first in range(0, num_columns, _CHUNK_COLUMNS):
        chunk = slice(first, first + _CHUNK_COLUMNS)
        chunk_experts = host_array(experts)[chunk]
        row_work = chunk_experts.size * 3
        stream.enqueue_bands(
            _activate_rows,
            width,
            _BAND_WORK // (2 * hidden * row_work) + 1,
            *stored_rows(gate_up),
            columns[chunk],
            chunk_experts,
            active,
        )
        stream.enqueue_bands(
            _add_rows,
            hidden,
            _BAND_WORK // (width * row_work) + 1,
            *stored_rows(down),
            active,
            chunk_experts,
            host_array(weights)[chunk],
            host_array(shared)[chunk],
            host_array(shared_gate)[chunk],
            host_array(residual)[chunk],
        )


@kernel_part
def _sigmoid(x: Any) -> Any:
    return np.float32(1.0) / (np.float32(1.0) + np.float32(math.exp(-x)))


@kernel
def _route(router: Array, experts: Array, weights: Array, shared_gate: Array) -> None:
    """Rank the experts of every column."""
    num_experts = router.shape[1] - 1
    chosen = experts.shape[1]
    probabilities = np.empty(num_experts, np.float32)
    for t in range(router.shape[0]):
        logits = router[t]
        largest = logits[0]
        for e in range(num_experts):
            largest = max(largest, logits[e])
        total = np.float32(0.0)
        for e in range(num_experts):
            probabilities[e] = math.exp(logits[e] - largest)
            total += probabilities[e]
        for e in range(num_experts):
            probabilities[e] /= total
        chosen_sum = np.float32(0.0)
        for slot in range(chosen):
            best = 0
            for e in range(num_experts):
                if probabilities[e] > probabilities[best]:
                    best = e
            experts[t, slot] = best
            weights[t, slot] = probabilities[best]
            chosen_sum += probabilities[best]
            probabilities[best] = np.float32(-1.0)
        for slot in range(chosen):
            weights[t, slot] /= chosen_sum
        shared_gate[t] = _sigmoid(logits[num_experts])


@kernel_part
def _group_by_expert(experts: Array, num_experts: int) -> Any:
    """Sort the choices t * k + slot by expert; those of ``e`` are [starts[e], starts[e + 1])."""
    chosen = experts.shape[1]
    starts = np.zeros(num_experts + 1, np.int64)
    for choice in range(experts.size):
        starts[experts[choice // chosen, choice % chosen] + 1] += 1
    for e in range(num_experts):
        starts[e + 1] += starts[e]
    cursor = starts.copy()
    choices = np.empty(experts.size, np.int64)
    for choice in range(experts.size):
        e = experts[choice // chosen, choice % chosen]
        choices[cursor[e]] = choice
        cursor[e] += 1
    return starts, choices


@kernel
def _activate_rows(
    first: int,
    stop: int,
    bits: int,
    base: Array,
    high: Array,
    scales: Array,
    x: Array,
    experts: Array,
    active: Array,
) -> None:
    """Compute elements [first, stop) of each choice's ``active`` row from its gate and up rows."""
    chosen, width = experts.shape[1], active.shape[1]
    num_columns, hidden = x.shape
    padded = (hidden + 127) // 128 * 128
    gate = np.zeros(padded, np.float32)
    up = np.zeros(padded, np.float32)
    codes = np.empty(padded, np.uint8)
    tails = np.empty(num_columns * LANES, np.float32)
    flat = x.reshape(-1)
    copy_tails(flat, num_columns, hidden, tails)
    starts, choices = _group_by_expert(experts, base.shape[0] // (2 * width))
    for i in range(first, stop):
        for e in range(starts.size - 1):
            if starts[e] == starts[e + 1]:
                continue
            n = e * 2 * width + i
            decode_row(bits, base[n], high[n], scales[n], codes, gate)
            n += width
            decode_row(bits, base[n], high[n], scales[n], codes, up)
            for at in range(starts[e], starts[e + 1]):
                choice = choices[at]
                t = choice // chosen
                g = dot_row(gate, flat, t * hidden, tails, t * LANES, hidden)
                u = dot_row(up, flat, t * hidden, tails, t * LANES, hidden)
                active[choice, i] = (g * _sigmoid(g)) * u


@kernel
def _add_rows(
    first: int,
    stop: int,
    bits: int,
    base: Array,
    high: Array,
    scales: Array,
    active: Array,
    experts: Array,
    weights: Array,
    shared: Array,
    shared_gate: Array,
    residual: Array,
) -> None:
    """Add elements [first, stop) of every column's experts to its residual."""
    num_columns, chosen = experts.shape
    num_choices = experts.size
    hidden, width = residual.shape[1], active.shape[1]
    padded = (width + 127) // 128 * 128
    row = np.zeros(padded, np.float32)
    codes = np.empty(padded, np.uint8)
    tails = np.empty(num_choices * LANES, np.float32)
    flat = active.reshape(-1)
    copy_tails(flat, num_choices, width, tails)
    starts, choices = _group_by_expert(experts, base.shape[0] // hidden)
    products = np.empty(num_choices, np.float32)
    for i in range(first, stop):
        for e in range(starts.size - 1):
            if starts[e] == starts[e + 1]:
                continue
            n = e * hidden + i
            decode_row(bits, base[n], high[n], scales[n], codes, row)
            for at in range(starts[e], starts[e + 1]):
                choice = choices[at]
                products[choice] = dot_row(row, flat, choice * width, tails, choice * LANES, width)
        for t in range(num_columns):
            total = np.float32(0.0)
            for slot in range(chosen):
                total += weights[t, slot] * products[t * chosen + slot]
            residual[t, i] += total + shared_gate[t] * shared[t, i]
