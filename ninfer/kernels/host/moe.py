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
from ninfer.kernels.host.linear import project
from ninfer.kernels.host.operands import input_array, stored_rows
from ninfer.kernels.host.pointwise import swiglu
from ninfer.kernels.operand_groups import MixtureTensors, MixtureWeights
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


def route_and_gate(
    stream: HostStream,
    router: Tensor,
    gate_up: Tensor,
    experts: Tensor,
    weights: Tensor,
    shared_gate: Tensor,
    hidden: LinearInput,
) -> None:
    """Launch `route`, then the shared expert's `swiglu`."""
    route(stream, router, experts, weights, shared_gate)
    swiglu(stream, gate_up, hidden)


def mix(
    stream: HostStream,
    x: LinearInput,
    router: Tensor,
    shared_gate_up: Tensor,
    weights: MixtureWeights,
    between: MixtureTensors,
    residual: Tensor,
) -> None:
    """Launch `route_and_gate`, the shared expert's down projection, then `experts`."""
    ranked = (between.experts, between.weights, between.shared_gate)
    route_and_gate(stream, router, shared_gate_up, *ranked, between.hidden)
    project(stream, between.hidden, weights.shared_down, between.shared, 0)
    chosen, shares, shared_gate = ranked
    experts(
        stream,
        x,
        weights.gate_up,
        weights.down,
        chosen,
        shares,
        between.shared,
        shared_gate,
        residual,
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
    """Launch `_expert_rows` for both products of each chunk of columns."""
    num_columns, chosen = experts.shape
    hidden, width = gate_up.num_columns, down.num_columns
    num_experts = down.num_rows // hidden
    columns = input_array(x)
    active = np.empty((min(num_columns, _CHUNK_COLUMNS) * chosen, width), np.float32)
    for first in range(0, num_columns, _CHUNK_COLUMNS):
        chunk = slice(first, first + _CHUNK_COLUMNS)
        choices = host_array(experts)[chunk]
        operands = (
            num_experts,
            choices,
            active,
            host_array(weights)[chunk],
            host_array(shared)[chunk],
            host_array(shared_gate)[chunk],
            host_array(residual)[chunk],
        )
        row_work = 3 * choices.size + 1
        stream.enqueue_bands(
            _expert_rows,
            width,
            _BAND_WORK // (2 * hidden * row_work) + 1,
            True,
            *stored_rows(gate_up),
            columns[chunk].reshape(-1),
            hidden,
            *operands,
        )
        stream.enqueue_bands(
            _expert_rows,
            hidden,
            _BAND_WORK // (width * row_work) + 1,
            False,
            *stored_rows(down),
            active.reshape(-1),
            width,
            *operands,
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
def _group_by_expert(experts: Array, starts: Array, choices: Array) -> None:
    """Sort the choices t * k + slot by expert; those of ``e`` are [starts[e], starts[e + 1])."""
    chosen = experts.shape[1]
    num_experts = starts.size - 1
    for e in range(starts.size):
        starts[e] = 0
    for choice in range(choices.size):
        starts[experts[choice // chosen, choice % chosen]] += 1
    end = 0
    for e in range(num_experts):
        end += starts[e]
        starts[e] = end
    starts[num_experts] = end
    for choice in range(choices.size - 1, -1, -1):
        e = experts[choice // chosen, choice % chosen]
        starts[e] -= 1
        choices[starts[e]] = choice


@kernel_part
def _add_experts(
    products: Array, i: int, weights: Array, shared: Array, shared_gate: Array, residual: Array
) -> None:
    """Add element ``i`` of every column's experts, in ranking order, and of its shared one."""
    chosen = weights.shape[1]
    for t in range(residual.shape[0]):
        total = np.float32(0.0)
        for slot in range(chosen):
            total += weights[t, slot] * products[t * chosen + slot]
        residual[t, i] += total + shared_gate[t] * shared[t, i]


@kernel
def _expert_rows(
    first: int,
    stop: int,
    is_gate_up: bool,
    bits: int,
    base: Array,
    high: Array,
    scales: Array,
    x: Array,
    width: int,
    num_experts: int,
    experts: Array,
    active: Array,
    weights: Array,
    shared: Array,
    shared_gate: Array,
    residual: Array,
) -> None:
    """Multiply the rows [first, stop) of every chosen expert with the columns that chose it.

    ``x`` holds, flat, columns of ``width`` features: with gate and up, which become ``active``, one
    for each token; with down, which is added to ``residual``, one for each choice.
    """
    num_choices, chosen = experts.size, experts.shape[1]
    parts, sharing = (2, chosen) if is_gate_up else (1, 1)
    num_columns = num_choices // sharing
    rows_of_part = base.shape[0] // (num_experts * parts)
    padded = (width + 127) // 128 * 128
    rows = np.empty(2 * padded, np.float32)
    for k in range(rows.size):
        rows[k] = np.float32(0.0)  # bf16 rows leave the padding alone
    codes = np.empty(padded, np.uint8)
    tails = np.empty(num_columns * LANES, np.float32)
    copy_tails(x, num_columns, width, tails)
    starts = np.empty(num_experts + 1, np.int64)
    choices = np.empty(num_choices, np.int64)
    _group_by_expert(experts, starts, choices)
    products = np.empty(2 * num_choices, np.float32)
    for i in range(first, stop):
        for e in range(num_experts):
            for part in range(parts if starts[e] < starts[e + 1] else 0):
                n = (e * parts + part) * rows_of_part + i
                row = rows[part * padded : (part + 1) * padded]
                decode_row(bits, base[n], high[n], scales[n], codes, row)
                for at in range(starts[e], starts[e + 1]):
                    column = choices[at] // sharing
                    products[part * num_choices + choices[at]] = dot_row(
                        row, x, column * width, tails, column * LANES, width
                    )
        if is_gate_up:
            for choice in range(num_choices):
                g = products[choice]
                active[choice, i] = (g * _sigmoid(g)) * products[num_choices + choice]
        else:
            _add_experts(products, i, weights, shared, shared_gate, residual)
