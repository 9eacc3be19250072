"""Gated DeltaNet on the host: one recurrence, column by column, for prefill, decode and fold.

For a key head and the value heads that share it, with S the matrix of a value head:

    c = silu(sum_tap w[tap] * x[t - 3 + tap])        x of earlier calls comes from the window
    q = q / sqrt(sum q^2 + 1e-6) / sqrt(Dk) ; k = k / sqrt(sum k^2 + 1e-6)
    r = (e^g S)^T k ; u = beta (v - r) ; S' = e^g S + k u^T ; o = S'^T q
    out = norm * (o / sqrt(mean(o^2) + eps)) * (z * sigmoid(z))

Prefill stores S'; decode only uses it, element by element, and records (x, k, v, g, beta), from
which a later fold stores the very same S'. Work items are (row, key head); an item owns its heads'
part of matrices, window, records and output, so that items can run on any thread. Sums run in index
order and nothing crosses columns but S and x: chunks, rows and threads cannot change a bit. The
inner loops run over the value dimension, which is contiguous in S.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel, kernel_part
from ninfer.kernels.host.operands import input_array
from ninfer.kernels.host.words import widen_bf16
from ninfer.kernels.operand_groups import MixerDims, MixerState, MixerWeights
from ninfer.tensor import LinearInput, Tensor

Array = npt.NDArray[Any]

_TAPS = 4
_L2_EPS = np.float32(1e-6)
_ONE = np.float32(1.0)
_BAND_WORK = 1 << 17  # matrix elements to pass over (about 40 us) that are worth a thread


def decode(
    stream: HostStream,
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    dims: MixerDims,
    state: MixerState,
    slots: Tensor,
    fold: Tensor,
    eps: float,
    out: LinearInput,
) -> None:
    """Launch `_advance` with one recorded column for each slot."""
    _launch(stream, projected, ab, weights, dims, state, slots, fold, eps, out, is_recorded=True)


def prefill(
    stream: HostStream,
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    dims: MixerDims,
    state: MixerState,
    slot: Tensor,
    fold: Tensor,
    eps: float,
    out: LinearInput,
) -> None:
    """Launch `_advance` with every column for one slot."""
    _launch(stream, projected, ab, weights, dims, state, slot, fold, eps, out, is_recorded=False)


def _launch(
    stream: HostStream,
    projected: Tensor,
    ab: Tensor,
    weights: MixerWeights,
    dims: MixerDims,
    state: MixerState,
    slots: Tensor,
    fold: Tensor,
    eps: float,
    out: LinearInput,
    *,
    is_recorded: bool,
) -> None:
    num_rows = slots.shape[0]
    num_columns = projected.shape[0] // max(num_rows, 1)
    item_work = num_columns * state.matrices.size // (state.matrices.shape[0] * dims.num_key_heads)
    records = state.record_x.shape[:2]
    shared_width = dims.num_value_heads // dims.num_key_heads * dims.value_dim
    stream.enqueue_bands(
        _advance,
        num_rows * dims.num_key_heads,
        _BAND_WORK // max(item_work, 1) + 1,
        num_columns,
        is_recorded,
        host_array(projected),
        host_array(ab),
        host_array(weights.convolution),
        host_array(weights.a_log),
        host_array(weights.dt_bias),
        host_array(weights.norm),
        host_array(state.matrices),
        host_array(state.window),
        host_array(state.record_x),
        host_array(state.record_k.reshape(*records, dims.num_key_heads, dims.key_dim)),
        host_array(state.record_v.reshape(*records, dims.num_key_heads, shared_width)),
        host_array(state.record_g),
        host_array(state.record_beta),
        host_array(slots),
        host_array(fold),
        np.float32(eps),
        input_array(out),
    )


@kernel_part
def _sigmoid(x: Any) -> Any:
    return _ONE / (_ONE + np.float32(math.exp(-x)))


@kernel_part
def _softplus(x: Any) -> Any:
    """Compute log(1 + e^x), which is x itself to float32 precision beyond 20."""
    if x > np.float32(20.0):
        return x
    return np.float32(math.log1p(np.float32(math.exp(x))))


@kernel_part
def _column(x: Array, records: Array, window: Array, folded: int, index: int) -> Any:
    """Convolution input ``index`` of the call; before it come folded records and the window."""
    if index >= 0:
        return x[index]
    index += folded
    if index >= 0:
        return records[index]
    return window[index + _TAPS - 1]


@kernel_part
def _convolve(
    x: Array,
    records: Array,
    window: Array,
    folded: int,
    taps: Array,
    t: int,
    first: int,
    out: Array,
    at: int,
    size: int,
) -> None:
    """Convolve and activate channels [first, first + size) of column ``t`` into ``out[at:]``."""
    for i in range(size):
        out[at + i] = np.float32(0.0)
    for tap in range(_TAPS):
        row, words = _column(x, records, window, folded, t + tap - (_TAPS - 1)), taps[tap]
        for i in range(size):
            out[at + i] += widen_bf16(words[first + i]) * row[first + i]
    for i in range(at, at + size):
        out[i] *= _sigmoid(out[i])


@kernel_part
def _scale_to_unit(x: Array, at: int, size: int, length: Any) -> None:
    """Bring the head ``x[at : at + size]`` to a length."""
    total = np.float32(0.0)
    for i in range(at, at + size):
        total += x[i] * x[i]
    scale = length / np.sqrt(total + _L2_EPS)
    for i in range(at, at + size):
        x[i] *= scale


@kernel_part
def _delta(matrix: Array, decay: Any, beta: Any, heads: Array, v_at: int, u: Array) -> None:
    """Compute u = beta (v - (decay S)^T k); k follows q in ``heads``, v starts at ``v_at``."""
    key_dim = matrix.shape[0]
    for j in range(u.size):
        u[j] = np.float32(0.0)
    for i in range(key_dim):
        key, row = heads[key_dim + i], matrix[i]
        for j in range(u.size):
            u[j] += (row[j] * decay) * key
    for j in range(u.size):
        u[j] = beta * (heads[v_at + j] - u[j])


@kernel_part
def _read_updated(matrix: Array, decay: Any, heads: Array, u: Array, out: Array) -> None:
    """Compute out = (decay S + k u^T)^T q, leaving S alone."""
    key_dim = matrix.shape[0]
    for j in range(u.size):
        out[j] = np.float32(0.0)
    for i in range(key_dim):
        query, key, row = heads[i], heads[key_dim + i], matrix[i]
        for j in range(u.size):
            out[j] += (row[j] * decay + key * u[j]) * query


@kernel_part
def _store_update(matrix: Array, decay: Any, heads: Array, u: Array) -> None:
    """Store S = decay S + k u^T."""
    key_dim = matrix.shape[0]
    for i in range(key_dim):
        key, row = heads[key_dim + i], matrix[i]
        for j in range(u.size):
            row[j] = row[j] * decay + key * u[j]


@kernel_part
def _write_gated(o: Array, norm: Array, z: Array, z_at: int, eps: Any, out: Array, at: int) -> None:
    """Normalise one value head, weight it and gate it into ``out[at:]``."""
    total = np.float32(0.0)
    for i in range(o.size):
        total += o[i] * o[i]
    inverse = _ONE / np.sqrt(total / np.float32(o.size) + eps)
    for i in range(o.size):
        gate = z[z_at + i] * _sigmoid(z[z_at + i])
        out[at + i] = (widen_bf16(norm[i]) * (o[i] * inverse)) * gate


@kernel_part
def _copy(source: Array, start: int, out: Array, at: int, size: int) -> None:
    for i in range(size):
        out[at + i] = source[start + i]


@kernel_part
def _move_window(
    window: Array, x: Array, records: Array, folded: int, is_recorded: bool, first: int, size: int
) -> None:
    """Bring channels [first, first + size) of the window before the next column to be folded.

    That is behind the folded records, and behind ``x`` too unless its columns are recorded, which
    then happens here. Window rows only move down: going up overwrites nothing that is still needed.
    """
    passed = 0 if is_recorded else x.shape[0]
    for row in range(_TAPS - 1):
        source = _column(x, records, window, folded, passed + row - (_TAPS - 1))
        _copy(source, first, window[row], first, size)
    if is_recorded:
        for t in range(x.shape[0]):
            _copy(x[t], first, records[t], first, size)


@kernel
def _advance(
    first: int,
    stop: int,
    num_columns: int,
    is_recorded: bool,
    projected: Array,
    ab: Array,
    taps: Array,
    a_log: Array,
    dt_bias: Array,
    norm: Array,
    matrices: Array,
    windows: Array,
    record_x: Array,
    record_k: Array,
    record_v: Array,
    record_g: Array,
    record_beta: Array,
    slots: Array,
    folds: Array,
    eps: Any,
    out: Array,
) -> None:
    """Work items [first, stop); item = row * key heads + key head.

    Column t of a row is a recorded one for -fold <= t < 0, then one of the call.
    """
    num_value_heads, key_dim, value_dim = matrices.shape[1:]
    num_key_heads, width = record_v.shape[2:]
    z_column = windows.shape[2]
    # An item's part of a column: its query, its key, the values that share them.
    heads = np.empty(2 * key_dim + width, np.float32)
    at = (0, key_dim, 2 * key_dim)
    sizes = (key_dim, key_dim, width)
    u = np.empty(value_dim, np.float32)
    o = np.empty(value_dim, np.float32)
    for item in range(first, stop):
        row, key_head = item // num_key_heads, item % num_key_heads
        slot, folded = slots[row], folds[row]
        x = projected[row * num_columns : (row + 1) * num_columns]
        window, records = windows[slot], record_x[slot]
        begin = (
            key_head * key_dim,
            (num_key_heads + key_head) * key_dim,
            2 * num_key_heads * key_dim + key_head * width,
        )
        for t in range(-folded, num_columns):
            column, record = row * num_columns + t, t + folded
            if t < 0:
                _copy(record_k[slot, record, key_head], 0, heads, key_dim, key_dim)
                _copy(record_v[slot, record, key_head], 0, heads, at[2], width)
            else:
                for i in range(3):
                    _convolve(x, records, window, folded, taps, t, begin[i], heads, at[i], sizes[i])
                _scale_to_unit(heads, 0, key_dim, _ONE / np.sqrt(np.float32(key_dim)))
                _scale_to_unit(heads, key_dim, key_dim, _ONE)
            for place in range(0, width, value_dim):
                head = (key_head * width + place) // value_dim
                matrix = matrices[slot, head]
                if t < 0:
                    g, beta = record_g[slot, record, head], record_beta[slot, record, head]
                else:
                    a = ab[column, head] + dt_bias[head]
                    g = -np.float32(math.exp(a_log[head])) * _softplus(a)
                    beta = _sigmoid(ab[column, num_value_heads + head])
                decay = np.float32(math.exp(g))
                _delta(matrix, decay, beta, heads, at[2] + place, u)
                if t >= 0:
                    _read_updated(matrix, decay, heads, u, o)
                    z_at = z_column + head * value_dim
                    _write_gated(
                        o, norm, projected[column], z_at, eps, out[column], head * value_dim
                    )
                if t < 0 or not is_recorded:
                    _store_update(matrix, decay, heads, u)
                else:
                    record_g[slot, t, head], record_beta[slot, t, head] = g, beta
            if t >= 0 and is_recorded:
                _copy(heads, key_dim, record_k[slot, t, key_head], 0, key_dim)
                _copy(heads, at[2], record_v[slot, t, key_head], 0, width)
        for i in range(3):
            _move_window(window, x, records, folded, is_recorded, begin[i], sizes[i])
