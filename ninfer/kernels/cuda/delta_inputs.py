"""Inputs of one decode column of Gated DeltaNet on CUDA, by one or two warps of their own.

    c = silu(sum_tap w[tap] * x[t - 3 + tap]) ; q, k unit heads of c, v = c
    decay = exp(g) ; beta ; factor = norm * (z * sigmoid(z))

Taps, window and records are asked for before the predecessor has ended, so that behind its end one
trip to the second-level cache is left; what the next fold needs is written from the same registers.
An input warp passes the block's two barriers: inputs are there behind the first one. Query and key
are those of all blocks of a key head. The one of these blocks that arrives last, by a counter,
writes window and record of the shared channels: all others have read them by then, and a load whose
value has been used is over, so that the counter orders nothing else.
"""

import math
from typing import Any, Final, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.delta_columns import (
    DeltaHeads,
    convolve,
    gate_input,
    history_rows,
    log_decay,
    sigmoid,
    unit_scale,
)
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.launch import WARP

_MOST_LATE_HEADS: Final = 32  # value heads


class SharedPlaces(NamedTuple):
    """Where a block's inputs and outputs lie in its shared memory, in bytes; all are f32.

    Attributes:
        unit: query, then key.
        value: values of the head.
        factor: factors of its outputs.
        out_row: its outputs.
        gate: decay and beta.
        end: of all.
    """

    unit: int
    value: int
    factor: int
    out_row: int
    gate: int
    end: int


def shared_places(heads: DeltaHeads) -> SharedPlaces:
    """Lay a block's inputs and outputs out."""
    key_bytes, value_bytes = 8 * heads.key_dim, 4 * heads.value_dim
    gate = key_bytes + 3 * value_bytes
    return SharedPlaces(
        0, key_bytes, key_bytes + value_bytes, key_bytes + 2 * value_bytes, gate, gate + 16
    )


@device_function
def is_last_to_arrive(counter: int, sharing: int, lane: Any) -> Any:
    """Count a block; whether it is the last of those that share, which then starts the count anew.

    All lanes of a warp have the answer.
    """
    before = int32(0)
    if lane == 0:
        before = int32(ptx.fetch_add_u32(counter, uint32(1)))
    is_last = cuda.shfl_sync(0xFFFFFFFF, before, 0) == int32(sharing - 1)
    if is_last and lane == 0:
        ptx.store_u32(counter, uint32(0))
    return is_last


def make_channels(channel_bytes: int, dim: int) -> Any:
    """Functions on a head's pairs of channels, of which lanes have pairs 64 channels apart.

    ``first`` is the head's first channel, ``j`` the lane's first pair of it in ``x``, ``w`` and
    ``y``: four inputs, four taps, two results each.

    Returns:
        ``ask(rows, taps, first, lane, j, x, w)`` loads taps and the inputs before the column,
        ``ask_column(line, first, lane, j, x)`` the column's own,
        ``finish(j, x, w, y)`` convolves.
    """
    pairs = -(-dim // (2 * WARP))
    is_whole = dim % (2 * WARP) == 0

    @device_function
    def ask(rows: Any, taps: int, first: Any, lane: Any, j: Any, x: Any, w: Any) -> None:
        r0, r1, r2, _ = rows
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            offset = uint64(int32(first) + at) * uint64(2)
            to = 4 * (j + i)
            for tap in range(4):
                x[to + tap], w[to + tap] = uint32(0), uint32(0)
            if is_whole or at < dim:
                for tap in range(4):
                    w[to + tap] = ptx.load_u32(taps + uint64(tap * channel_bytes) + offset)
                x[to] = ptx.load_u32(r0 + offset)
                x[to + 1] = ptx.load_u32(r1 + offset)
                x[to + 2] = ptx.load_u32(r2 + offset)

    @device_function
    def ask_column(line: int, first: Any, lane: Any, j: Any, x: Any) -> None:
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            if is_whole or at < dim:
                x[4 * (j + i) + 3] = ptx.load_u32(line + uint64(int32(first) + at) * uint64(2))

    @device_function
    def finish(j: Any, x: Any, w: Any, y: Any) -> None:
        for i in range(pairs):
            a, b = 4 * (j + i), 2 * (j + i)
            y[b], y[b + 1] = convolve(
                x[a], x[a + 1], x[a + 2], x[a + 3], w[a], w[a + 1], w[a + 2], w[a + 3]
            )

    return ask, ask_column, finish


def make_keep(channel_bytes: int, dim: int) -> Any:
    """Function that brings a head's window and first record behind the fold, from ``x``."""
    pairs = -(-dim // (2 * WARP))
    is_whole = dim % (2 * WARP) == 0

    @device_function
    def keep(window: int, records: int, first: Any, lane: Any, j: Any, x: Any) -> None:
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            offset = uint64(int32(first) + at) * uint64(2)
            a = 4 * (j + i)
            if is_whole or at < dim:
                ptx.store_u32(window + offset, x[a])
                ptx.store_u32(window + uint64(channel_bytes) + offset, x[a + 1])
                ptx.store_u32(window + uint64(2 * channel_bytes) + offset, x[a + 2])
                ptx.store_u32(records + offset, x[a + 3])

    return keep


def make_pairs(dim: int) -> Any:
    """Functions ``put`` (shared memory) and ``store`` of a head's results, f32."""
    pairs = -(-dim // (2 * WARP))
    is_whole = dim % (2 * WARP) == 0

    @device_function
    def put(target: Any, lane: Any, j: Any, y: Any) -> None:
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            if is_whole or at < dim:
                place = target + (uint32(at) << uint32(2))
                ptx.put_shared_f32x2(place, y[2 * (j + i)], y[2 * (j + i) + 1])

    @device_function
    def store(target: Any, lane: Any, j: Any, y: Any) -> None:
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            if is_whole or at < dim:
                place = target + uint64(at) * uint64(4)
                ptx.store_f32x2(place, y[2 * (j + i)], y[2 * (j + i) + 1])

    return put, store


def make_unit(key_dim: int) -> Any:
    """Function that brings a convolved head in ``y`` from pair ``j`` on to a length."""
    size = 2 * -(-key_dim // (2 * WARP))

    @device_function
    def unit(j: Any, length: float, y: Any) -> None:
        squares = float32(0.0)
        for i in range(size):
            squares = ptx.fused_multiply_add(y[2 * j + i], y[2 * j + i], squares)
        scale = unit_scale(squares, length)
        for i in range(size):
            y[2 * j + i] = ptx.multiply_f32(y[2 * j + i], scale)

    return unit


def make_factors(heads: DeltaHeads) -> Any:
    """Functions of the factors of a head's outputs: ``ask_norm``, ``ask_gates``, ``finish``."""
    value_dim = heads.value_dim
    pairs = -(-value_dim // (2 * WARP))
    gate_bytes = 2 * heads.channels
    is_whole = value_dim % (2 * WARP) == 0

    @device_function
    def ask_norm(norm: int, lane: Any, n: Any) -> None:
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            n[i] = uint32(0)
            if is_whole or at < value_dim:
                n[i] = ptx.load_u32(norm + uint64(at) * uint64(2))

    @device_function
    def ask_gates(line: int, head: Any, lane: Any, z: Any) -> None:
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            z[i] = uint32(0)
            if is_whole or at < value_dim:
                offset = uint64(int32(head) * int32(value_dim) + at) * uint64(2)
                z[i] = ptx.load_u32(line + uint64(gate_bytes) + offset)

    @device_function
    def finish(target: Any, lane: Any, n: Any, z: Any) -> None:
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            z0, z1 = lower_bf16(z[i]), upper_bf16(z[i])
            if is_whole or at < value_dim:
                ptx.put_shared_f32x2(
                    target + (uint32(at) << uint32(2)),
                    lower_bf16(n[i]) * (z0 * sigmoid(z0)),
                    upper_bf16(n[i]) * (z1 * sigmoid(z1)),
                )

    return ask_norm, ask_gates, finish


def releases_late(heads: DeltaHeads) -> bool:
    """Whether the successor starts when the predecessor has ended, and not before.

    What it asks for early is otherwise in the way of what the predecessor still reads: worth 0.7 us
    a layer of 32 value heads for one and two rows, nothing for eight. Not measured for more heads.
    """
    return heads.num_value_heads <= _MOST_LATE_HEADS


def make_input_warp(  # noqa: C901, PLR0915 - steps of one column that share registers
    heads: DeltaHeads, is_wide: bool, writes: bool, does_shared: bool, does_own: bool
) -> Any:
    """Function of one warp, with the block's two barriers.

    Args:
        heads: of the mixer.
        is_wide: decay inputs are f32.
        writes: factors of outputs are needed.
        does_shared: makes query and key.
        does_own: makes values, gates and factors of outputs.
    """
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    key_width, value_width = heads.key_width, heads.value_width
    num_value_heads, num_key_heads = heads.num_value_heads, heads.num_key_heads
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * value_width
    key_pairs, value_pairs = -(-key_dim // (2 * WARP)), -(-value_dim // (2 * WARP))
    is_late = releases_late(heads)
    own_at = 2 * key_pairs if does_shared else 0  # first pair of the values
    num_pairs = own_at + (value_pairs if does_own else 0)
    words, size = 4 * num_pairs, 2 * num_pairs
    query_length = key_dim**-0.5
    places = shared_places(heads)
    value_at, factor_at, gate_at = places.value, places.factor, places.gate
    ask_key, ask_key_column, finish_key = make_channels(channel_bytes, key_dim)
    ask_value, ask_value_column, finish_value = make_channels(channel_bytes, value_dim)
    keep_key, keep_value = make_keep(channel_bytes, key_dim), make_keep(channel_bytes, value_dim)
    put_key, store_key = make_pairs(key_dim)
    put_value, store_value = make_pairs(value_dim)
    unit = make_unit(key_dim)
    ask_norm, ask_gates, finish_factors = make_factors(heads)

    @device_function
    def input_warp(  # noqa: C901, PLR0915 - as above
        line: int,
        window: int,
        records: int,
        folded: Any,
        taps: int,
        ab: int,
        a_log: int,
        dt_bias: int,
        norm: int,
        record_k: int,
        record_v: int,
        record_g: int,
        record_beta: int,
        first_record: Any,
        counters: int,
        row: Any,
        head: Any,
        lane: Any,
        base: Any,
    ) -> None:
        """``base`` is the block's shared address."""
        rows = history_rows(line, window, records, folded, row_bytes, channel_bytes, 0)
        x = cuda.local.array(words, uint32)
        w = cuda.local.array(words, uint32)
        y = cuda.local.array(size, float32)
        n = cuda.local.array(value_pairs, uint32)
        z = cuda.local.array(value_pairs, uint32)
        query = int32(head // sharing) * int32(key_dim)
        key = int32(key_width) + query
        value = int32(2 * key_width) + int32(head) * int32(value_dim)
        slope, bias, a, b = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        g, beta = float32(0.0), float32(0.0)
        if does_shared:
            ask_key(rows, taps, query, lane, 0, x, w)
            ask_key(rows, taps, key, lane, key_pairs, x, w)
        if does_own:
            ask_value(rows, taps, value, lane, own_at, x, w)
            slope = ptx.load_f32(a_log + uint64(head) * uint64(4))
            bias = ptx.load_f32(dt_bias + uint64(head) * uint64(4))
            if writes:
                ask_norm(norm, lane, n)
        ptx.wait_for_predecessor()
        if is_late:
            ptx.release_successor()
        if does_shared:
            ask_key_column(line, query, lane, 0, x)
            ask_key_column(line, key, lane, key_pairs, x)
        if does_own:
            ask_value_column(line, value, lane, own_at, x)
            at = int32(row) * int32(2 * num_value_heads) + int32(head)
            a = gate_input(ab, at, is_wide)
            b = gate_input(ab, at + int32(num_value_heads), is_wide)
            if writes:
                ask_gates(line, head, lane, z)
        if does_shared:
            finish_key(0, x, w, y)
            finish_key(key_pairs, x, w, y)
            unit(0, float32(query_length), y)
            unit(key_pairs, float32(1.0), y)
            put_key(base, lane, 0, y)
            put_key(base + uint32(4 * key_dim), lane, key_pairs, y)
        if does_own:
            finish_value(own_at, x, w, y)
            put_value(base + uint32(value_at), lane, own_at, y)
            keep_value(window, records, value, lane, own_at, x)
            g, beta = log_decay(a, slope, bias), sigmoid(b)
            ptx.put_shared_f32x2(base + uint32(gate_at), float32(math.exp(g)), beta)
            if writes:
                finish_factors(base + uint32(factor_at), lane, n, z)
        cuda.syncthreads()
        # This block has folded its records, and read what it shares.
        if does_own:
            at64 = uint64(first_record) * uint64(num_value_heads) + uint64(head)
            store_value(record_v + at64 * uint64(4 * value_dim), lane, own_at, y)
            is_first = uint32(lane == 0)
            ptx.store_f32_if(is_first, record_g + at64 * uint64(4), g)
            ptx.store_f32_if(is_first, record_beta + at64 * uint64(4), beta)
        if does_shared:
            counter = counters + uint64(row * num_key_heads + head // sharing) * uint64(4)
            if is_last_to_arrive(counter, sharing, lane):
                keep_key(window, records, query, lane, 0, x)
                keep_key(window, records, key, lane, key_pairs, x)
                at64 = uint64(first_record) * uint64(key_width) + uint64(query)
                store_key(record_k + at64 * uint64(4), lane, key_pairs, y)
        cuda.syncthreads()

    return input_warp
