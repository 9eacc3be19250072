"""Operands of the chunked Gated DeltaNet prefill: everything of a chunk that needs no state.

With b_i the sum of the log decays of positions 0..i of a chunk of 64:

    A_ij = beta_i e^(b_i - b_j) k_i . k_j   for j < i
    solution = (1 + A)^-1 diag(beta)
    weights_ij = e^(b_i - b_j) q_i . k_j    for j <= i

A block makes one chunk of one key head and of the value heads that share it: convolution, unit
heads and gates in each warp for eight positions, k . k and q . k on the tensor cores, and the
inverse by substitution in f32, one thread a column. Sums of log decays are f64, because differences
of large ones decay almost nothing. Positions behind the last one are zeros and change no state.
Traffic: projected columns once, `delta_blocks.CHUNK_ROWS` and `CHUNK_FACTORS` bytes and f32 values
out. Source: Yang et al., Parallelizing linear transformers with the delta rule, 2024.
"""

import math
from functools import cache
from typing import Any, Final

from numba import cuda, float32, float64, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.delta_blocks import (
    CHUNK_FACTORS,
    CHUNK_ROWS,
    POSITIONS,
    ROWS_BYTES,
    TRIANGLE_BYTES,
    WIDTH,
    split_pair,
    triangle_offset,
)
from ninfer.kernels.cuda.delta_columns import (
    DeltaHeads,
    gate_input,
    history_address,
    log_decay,
    sigmoid,
    unit_scale,
)
from ninfer.kernels.cuda.delta_solve import (
    DOT_BYTES,
    DOT_STRIDE,
    SQUARE_BYTES,
    dots,
    solve,
    where,
)
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.product_output import warp_index

MAX_SHARING: Final = 4
"""Value heads of one key head."""

_WARPS: Final = 8
_OWN: Final = POSITIONS // _WARPS  # positions of a warp
_LOG2_E: Final = math.log2(math.e)


@device_function
def fast_silu(x: Any) -> Any:
    """``x / (1 + exp(-x))`` to a few units in the last place."""
    return x * ptx.reciprocal(float32(1.0) + ptx.power_of_two(x * float32(-_LOG2_E)))


@device_function
def convolve(rows: Any, taps: Any, tap_bytes: Any, offset: Any, x: Any, y: Any) -> None:
    """Four channels of eight positions: y[4 r + c] from addresses of eleven rows."""
    for r in range(_OWN + 3):
        x[2 * r], x[2 * r + 1] = ptx.load_u32x2(rows[r] + offset)
    for i in range(4 * _OWN):
        y[i] = float32(0.0)
    for tap in range(4):
        w, v = ptx.load_u32x2(taps + uint64(tap) * uint64(tap_bytes) + offset)
        w0, w1, w2, w3 = lower_bf16(w), upper_bf16(w), lower_bf16(v), upper_bf16(v)
        for r in range(_OWN):
            a, b = x[2 * (r + tap)], x[2 * (r + tap) + 1]
            y[4 * r] = ptx.fused_multiply_add(w0, lower_bf16(a), y[4 * r])
            y[4 * r + 1] = ptx.fused_multiply_add(w1, upper_bf16(a), y[4 * r + 1])
            y[4 * r + 2] = ptx.fused_multiply_add(w2, lower_bf16(b), y[4 * r + 2])
            y[4 * r + 3] = ptx.fused_multiply_add(w3, upper_bf16(b), y[4 * r + 3])
    for i in range(4 * _OWN):
        y[i] = fast_silu(y[i])


@device_function
def put_unit_rows(
    shared: Any, image: Any, first: Any, num_there: Any, length: Any, lane: Any, y: Any
) -> None:
    """Bring a warp's rows to a length and store them, high and low, here and in memory."""
    chunk, half = uint32(lane) >> uint32(1), (uint32(lane) & uint32(1)) << uint32(3)
    for r in range(_OWN):
        i = 4 * r
        squares = y[i] * y[i] + y[i + 1] * y[i + 1] + y[i + 2] * y[i + 2] + y[i + 3] * y[i + 3]
        scale = where(first + int32(r) < num_there, unit_scale(squares, length))
        a, c = split_pair(y[i] * scale, y[i + 1] * scale)
        b, d = split_pair(y[i + 2] * scale, y[i + 3] * scale)
        at = (uint32(first) + uint32(r)) * uint32(2 * WIDTH)
        at += ((chunk ^ uint32(r & 7)) << uint32(4)) + half
        ptx.put_shared_u32x2(shared + at, a, b)
        ptx.put_shared_u32x2(shared + uint32(ROWS_BYTES) + at, c, d)
        ptx.store_u32x2(image + uint64(at), a, b)
        ptx.store_u32x2(image + uint64(ROWS_BYTES) + uint64(at), c, d)


@device_function
def store_parts(address: Any, flag: Any, first: Any, second: Any) -> None:
    """Store two numbers' high and low parts in two triangles, where the flag is set."""
    high, low = split_pair(first, second)
    if flag:
        ptx.store_u32(address, high)
        ptx.store_u32(address + uint64(TRIANGLE_BYTES), low)


@device_function
def sum_before(value: Any, lane: Any) -> Any:
    """Sum over the lanes before this one, in f64."""
    total = value
    for step in (1, 2, 4, 8, 16):
        other = cuda.shfl_up_sync(0xFFFFFFFF, total, step)
        if lane >= step:
            total += other
    return total - value


@cache
def make_chunk_operands(  # noqa: PLR0915 - stages of one block, parted by barriers
    heads: DeltaHeads, is_wide: bool
) -> Kernel:
    """Make chunks of one sequence; grid (chunks, key heads), block (256,).

    Args:
        heads: of the mixer, of `WIDTH` components.
        is_wide: decay inputs are f32.
    """
    sharing, num_key_heads, num_value_heads = (
        heads.sharing, heads.num_key_heads, heads.num_value_heads,
    )  # fmt: skip
    key_width, value_width = heads.key_width, heads.value_width
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * value_width
    query_length = WIDTH**-0.5
    num_rows, num_words, num_channels = _OWN + 3, 2 * _OWN + 6, 4 * _OWN
    # The matrices A of the value heads come to lie over the rows, their inverses behind.
    dots_at = max(CHUNK_ROWS, sharing * SQUARE_BYTES)
    inverses_at = sharing * SQUARE_BYTES
    sums_at = max(dots_at + 2 * DOT_BYTES, inverses_at + sharing * SQUARE_BYTES)
    betas_at = sums_at + sharing * POSITIONS * 8
    shared_bytes = betas_at + sharing * POSITIONS * 4

    def chunk_operands(  # noqa: PLR0915 - as above
        projected: int,
        ab: int,
        taps: int,
        a_log: int,
        dt_bias: int,
        windows: int,
        record_x: int,
        slots: int,
        folds: int,
        rows_out: int,
        factors_out: int,
        values_out: int,
        first_column: int,
        num_columns: int,
        num_records: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        shared = ptx.shared_address(memory)
        warp, lane = warp_index(), cuda.threadIdx.x & 31
        chunk, key_head = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        slot = ptx.load_i32(slots)
        folded = ptx.load_i32(folds)
        window = windows + uint64(slot) * uint64(3 * channel_bytes)
        records = record_x + uint64(slot) * uint64(num_records) * uint64(channel_bytes)
        first = int32(first_column) + chunk * int32(POSITIONS)
        num_there = int32(num_columns) - first

        # Convolution and unit heads of the warp's positions.
        rows = cuda.local.array(num_rows, uint64)
        x = cuda.local.array(num_words, uint32)
        y = cuda.local.array(num_channels, float32)
        own = int32(warp) * int32(_OWN)
        for r in range(_OWN + 3):
            index = min(first + own + int32(r) - int32(3), int32(num_columns) - int32(1))
            rows[r] = history_address(
                projected, window, records, folded, row_bytes, channel_bytes, index
            )
        image = rows_out + (uint64(chunk) * uint64(num_key_heads) + uint64(key_head)) * uint64(
            CHUNK_ROWS
        )
        offset = uint64(key_head) * uint64(2 * WIDTH) + uint64(lane) * uint64(8)
        convolve(rows, taps, channel_bytes, offset + uint64(2 * key_width), x, y)
        put_unit_rows(shared, image, own, num_there, float32(1.0), lane, y)
        convolve(rows, taps, channel_bytes, offset, x, y)
        put_unit_rows(
            shared + uint32(2 * ROWS_BYTES), image + uint64(2 * ROWS_BYTES), own, num_there,
            float32(query_length), lane, y,
        )  # fmt: skip
        for s in range(sharing):
            head = key_head * int32(sharing) + int32(s)
            offset = uint64(4 * key_width) + uint64(head) * uint64(2 * WIDTH)
            convolve(rows, taps, channel_bytes, offset + uint64(lane) * uint64(8), x, y)
            at = uint64(chunk * int32(POSITIONS) + own) * uint64(4 * value_width)
            at += uint64(head) * uint64(4 * WIDTH) + uint64(lane) * uint64(16)
            for r in range(_OWN):
                is_there = own + int32(r) < num_there
                ptx.store_f32x4(
                    values_out + at + uint64(r * 4 * value_width),
                    where(is_there, y[4 * r]), where(is_there, y[4 * r + 1]),
                    where(is_there, y[4 * r + 2]), where(is_there, y[4 * r + 3]),
                )  # fmt: skip
        # Gates: a warp for each value head, two positions a lane.
        if warp < sharing:
            head = key_head * int32(sharing) + int32(warp)
            at = uint64(head) * uint64(4)
            log_a, bias = ptx.load_f32(a_log + at), ptx.load_f32(dt_bias + at)
            place = int32(lane) * int32(2)
            line = min(first + place, int32(num_columns) - int32(1)) * int32(2 * num_value_heads)
            g0 = log_decay(gate_input(ab, line + head, is_wide), log_a, bias)
            beta0 = sigmoid(gate_input(ab, line + int32(num_value_heads) + head, is_wide))
            line = min(first + place + int32(1), int32(num_columns) - int32(1))
            line = line * int32(2 * num_value_heads)
            g1 = log_decay(gate_input(ab, line + head, is_wide), log_a, bias)
            beta1 = sigmoid(gate_input(ab, line + int32(num_value_heads) + head, is_wide))
            g0, beta0 = where(place < num_there, g0), where(place < num_there, beta0)
            g1 = where(place + int32(1) < num_there, g1)
            beta1 = where(place + int32(1) < num_there, beta1)
            both = float64(g0) + float64(g1)
            b0 = sum_before(both, lane) + float64(g0)
            b1 = b0 + float64(g1)
            end = cuda.shfl_sync(0xFFFFFFFF, b1, 31)
            at = uint32(sums_at) + (uint32(warp * POSITIONS) + uint32(place)) * uint32(8)
            ptx.put_shared_f64(shared + at, b0)
            ptx.put_shared_f64(shared + at + uint32(8), b1)
            at = uint32(betas_at) + (uint32(warp * POSITIONS) + uint32(place)) * uint32(4)
            ptx.put_shared_f32x2(shared + at, beta0, beta1)
            out = factors_out + (uint64(chunk) * uint64(num_value_heads) + uint64(head)) * uint64(
                CHUNK_FACTORS
            )
            out += uint64(4 * TRIANGLE_BYTES) + uint64(place) * uint64(4)
            ptx.store_f32x2(out, math.exp(float32(b0)), math.exp(float32(b1)))
            out += uint64(4 * POSITIONS)
            ptx.store_f32x2(out, math.exp(float32(end - b0)), math.exp(float32(end - b1)))
        cuda.syncthreads()

        # k . k and q . k, blocks on and below the diagonal.
        c = cuda.local.array(8, float32)
        item = warp
        while item < 20:
            is_query = item >= 10
            b = item - 10 if is_query else item
            i = int32(b >= 1) + int32(b >= 3) + int32(b >= 6)
            j = b - i * (i + 1) // 2
            left = shared + (uint32(2 * ROWS_BYTES) if is_query else uint32(0))
            out = shared + uint32(dots_at) + (uint32(DOT_BYTES) if is_query else uint32(0))
            dots(left, shared, out, i, j, lane, c)
            item += _WARPS
        cuda.syncthreads()

        # Matrices and weights of each value head: a warp makes a row, a lane two columns.
        column = uint32(lane) * uint32(2)
        for s in range(sharing):
            sums = shared + uint32(sums_at) + uint32(s * POSITIONS * 8)
            c0, c1 = ptx.shared_f64x2(sums + column * uint32(8))
            out = (
                factors_out
                + (
                    uint64(chunk) * uint64(num_value_heads)
                    + uint64(key_head * int32(sharing) + int32(s))
                )
                * uint64(CHUNK_FACTORS)
                + uint64(2 * TRIANGLE_BYTES)
            )
            for r in range(_OWN):
                i = uint32(r * _WARPS) + uint32(warp)
                own_sum = ptx.shared_f64(sums + i * uint32(8))
                beta = ptx.shared_f32(
                    shared + uint32(betas_at) + (uint32(s * POSITIONS) + i) * uint32(4)
                )
                at = shared + uint32(dots_at) + (i * uint32(DOT_STRIDE) + column) * uint32(4)
                k0, k1 = ptx.shared_f32x2(at)
                q0, q1 = ptx.shared_f32x2(at + uint32(DOT_BYTES))
                d0 = math.exp(float32(own_sum - c0))
                d1 = math.exp(float32(own_sum - c1))
                at = shared + uint32(s * SQUARE_BYTES) + (i * uint32(64) + column) * uint32(4)
                ptx.put_shared_f32x2(
                    at,
                    where(column < i, beta * (d0 * k0)),
                    where(column + uint32(1) < i, beta * (d1 * k1)),
                )
                store_parts(
                    out + triangle_offset(i, column),
                    column >> uint32(4) <= i >> uint32(4),
                    where(column <= i, d0 * q0),
                    where(column + uint32(1) <= i, d1 * q1),
                )
        cuda.syncthreads()

        z = cuda.local.array(16, float32)
        if warp < 2 * sharing:
            s = warp >> 1
            solve(
                shared + uint32(s * SQUARE_BYTES),
                shared + uint32(inverses_at) + uint32(s * SQUARE_BYTES),
                (warp & 1) * 32 + lane,
                z,
            )
        cuda.syncthreads()
        for s in range(sharing):
            at = uint32(betas_at) + uint32(s * POSITIONS * 4) + column * uint32(4)
            beta0, beta1 = ptx.shared_f32x2(shared + at)
            out = factors_out + (
                uint64(chunk) * uint64(num_value_heads)
                + uint64(key_head * int32(sharing) + int32(s))
            ) * uint64(CHUNK_FACTORS)
            for r in range(_OWN):
                i = uint32(r * _WARPS) + uint32(warp)
                at = uint32(inverses_at) + uint32(s * SQUARE_BYTES)
                at += (i * uint32(64) + column) * uint32(4)
                a, b = ptx.shared_f32x2(shared + at)
                store_parts(
                    out + triangle_offset(i, column),
                    column >> uint32(4) <= i >> uint32(4),
                    a * beta0,
                    b * beta1,
                )

    params = (Param.ADDRESS,) * 12 + (Param.I32,) * 3
    name = f"delta_chunks_{heads.digits}_{'f32' if is_wide else 'bf16'}"
    return Kernel(
        name,
        chunk_operands,
        params,
        threads=_WARPS * WARP,
        max_registers=128,
        dynamic_shared_bytes=shared_bytes,
        min_blocks=2,
    )
