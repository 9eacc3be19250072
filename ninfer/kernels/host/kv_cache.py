"""Paged key/value cache on the host: append, and the reading of one page for attention.

    q, k = rope(x / sqrt(mean(x^2) + eps) * (1 + w))     rotated pairs (j, j + R/2)
    plane row (page, head, offset) <- k or v              f32, bf16 or int8 codes with f16 scales

A plane is handed to the kernels under all three element types at once, with a code that says which
one is real: one compiled kernel serves every cache. Every column is computed alone, sums run in
index order, so that neither the columns of a call nor their split over threads can change a bit.
"""

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ninfer.device import host_array
from ninfer.host.device import HostStream
from ninfer.kernels.host.jit import kernel, kernel_part
from ninfer.kernels.host.lane_products import half_to_f32
from ninfer.kernels.host.words import narrow_bf16, narrow_f16, widen_bf16
from ninfer.kernels.operand_groups import KvPlanes, Rope
from ninfer.tensor import DType, Tensor

Array = npt.NDArray[Any]
Plane = tuple[Array, Array, Array, Array]
"""One plane as rows of f32, of bf16 words and of int8 codes, and its rows of scale words."""

PAGE_TOKENS: Final = 64
PLANE_CODES: Final = {DType.F32: 0, DType.BF16: 1, DType.I8: 2}
_F32, _BF16 = 0, 1
_GROUP = 64
_MIN_COLUMNS = 8  # columns worth a thread


def append(
    stream: HostStream,
    projected: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    eps: float,
    rope: Rope,
    rope_positions: Tensor,
    positions: Tensor,
    table_rows: Tensor,
    kv: KvPlanes,
    queries: Tensor,
) -> None:
    """Launch `_append` over the columns."""
    frequencies, axes = rope_table(rope)
    stream.enqueue_bands(
        _append,
        queries.shape[0],
        _MIN_COLUMNS,
        host_array(projected),
        host_array(query_norm),
        host_array(key_norm),
        np.float32(eps),
        frequencies,
        axes,
        host_array(rope_positions),
        host_array(positions),
        host_array(table_rows),
        host_array(kv.block_table),
        PLANE_CODES[kv.keys.dtype],
        plane_views(kv.keys, kv.key_scales),
        plane_views(kv.values, kv.value_scales),
        kv.keys.shape[1],
        host_array(queries),
    )


def rope_table(rope: Rope) -> tuple[Array, Array]:
    """Frequency (f32) and position axis (i32) of each rotated pair."""
    pairs = rope.rotary_dim // 2
    index = np.arange(pairs)
    frequencies = rope.theta ** (-2.0 * index / rope.rotary_dim)
    axes = np.zeros(pairs, np.int32)
    for axis in (1, 2):
        axes[(index % 3 == axis) & (index < 3 * rope.section[axis])] = axis
    return frequencies.astype(np.float32), axes


def plane_views(plane: Tensor, scales: Tensor | None) -> Plane:
    """View a plane's rows of ``head_dim`` elements under each element type."""
    head_dim = plane.shape[-1]

    def rows_of(dtype: DType) -> Array:
        rows = plane.nbytes // (head_dim * dtype.itemsize)
        return host_array(Tensor(plane.address, dtype, (rows, head_dim)))

    if scales is None:
        words = np.zeros((1, 1), np.uint16)
    else:
        groups = scales.shape[-1]
        shape = (scales.size // groups, groups)
        words = host_array(Tensor(scales.address, DType.BF16, shape))  # bare 16-bit words
    return rows_of(DType.F32), rows_of(DType.BF16), rows_of(DType.I8), words


@kernel_part
def _normalise_rotate(
    x: Array, at: int, weight: Array, eps: Any, cosines: Array, sines: Array, out: Array
) -> None:
    """Norm and rotation of the head ``x[at:]``."""
    total = np.float32(0.0)
    for i in range(out.size):
        total += x[at + i] * x[at + i]
    inverse = np.float32(1.0) / np.sqrt(total / np.float32(out.size) + eps)
    for i in range(out.size):
        out[i] = (x[at + i] * inverse) * (np.float32(1.0) + widen_bf16(weight[i]))
    half = cosines.size
    for j in range(half):
        first, second = out[j], out[j + half]
        out[j] = first * cosines[j] - second * sines[j]
        out[j + half] = second * cosines[j] + first * sines[j]


@kernel_part
def _store_int8(x: Array, at: int, codes: Array, scales: Array) -> None:
    """Encode the head ``x[at:]`` in groups of 64: scale = f16(maxabs / 127), by its reciprocal."""
    for group in range(scales.size):
        first, stop = group * _GROUP, min((group + 1) * _GROUP, codes.size)
        largest = np.float32(0.0)
        for i in range(first, stop):
            largest = max(largest, abs(x[at + i]))
        word = max(narrow_f16(largest / np.float32(127.0)), np.uint16(1))
        inverse = np.float32(1.0) / half_to_f32(word)
        scales[group] = word if largest > np.float32(0.0) else np.uint16(0)
        for i in range(first, stop):
            code = np.rint(x[at + i] * inverse)
            codes[i] = np.int8(min(max(code, np.float32(-127.0)), np.float32(127.0)))


@kernel_part
def _store(code: int, plane: Plane, row: int, x: Array, at: int) -> None:
    """Write the head ``x[at:]`` of one position."""
    if code == _F32:
        target = plane[0][row]
        for i in range(target.size):
            target[i] = x[at + i]
    elif code == _BF16:
        words = plane[1][row]
        for i in range(words.size):
            words[i] = narrow_bf16(x[at + i])
    else:
        _store_int8(x, at, plane[2][row], plane[3][row])


@kernel_part
def load_rows(code: int, plane: Plane, first_row: int, num_rows: int, out: Array) -> None:
    """Read ``num_rows`` consecutive positions of one head as f32; rows behind are not touched."""
    for row in range(num_rows):
        target = out[row]
        if code == _F32:
            source = plane[0][first_row + row]
            for i in range(target.size):
                target[i] = source[i]
        elif code == _BF16:
            words = plane[1][first_row + row]
            for i in range(target.size):
                target[i] = widen_bf16(words[i])
        else:
            codes = plane[2][first_row + row]
            for group in range(plane[3].shape[1]):
                scale = half_to_f32(plane[3][first_row + row, group])
                for i in range(group * _GROUP, min((group + 1) * _GROUP, target.size)):
                    target[i] = scale * np.float32(codes[i])


@kernel
def _append(
    first: int,
    stop: int,
    projected: Array,
    query_norm: Array,
    key_norm: Array,
    eps: Any,
    frequencies: Array,
    axes: Array,
    rope_positions: Array,
    positions: Array,
    table_rows: Array,
    block_table: Array,
    code: int,
    keys: Plane,
    values: Plane,
    num_kv_heads: int,
    queries: Array,
) -> None:
    """Columns [first, stop): norm and rotate queries and keys, store keys and values."""
    num_heads, head_dim = queries.shape[1:]
    value_column = (2 * num_heads + num_kv_heads) * head_dim
    planes = (keys, values)
    cosines = np.empty(frequencies.size, np.float32)
    sines = np.empty(frequencies.size, np.float32)
    key = np.empty(head_dim, np.float32)
    for t in range(first, stop):
        column = projected[t]
        for j in range(frequencies.size):
            angle = np.float32(rope_positions[axes[j], t]) * frequencies[j]
            cosines[j] = math.cos(angle)
            sines[j] = math.sin(angle)
        page = block_table[table_rows[t], positions[t] // PAGE_TOKENS]
        for head in range(num_heads + num_kv_heads):
            kv_head = head - num_heads
            weight = query_norm if kv_head < 0 else key_norm
            rotated = queries[t, head] if kv_head < 0 else key
            _normalise_rotate(column, head * head_dim, weight, eps, cosines, sines, rotated)
            if kv_head >= 0:
                row = (page * num_kv_heads + kv_head) * PAGE_TOKENS + positions[t] % PAGE_TOKENS
                for which in range(2):
                    source, at = (key, 0)
                    if which == 1:
                        source, at = (column, value_column + kv_head * head_dim)
                    _store(code, planes[which], row, source, at)
