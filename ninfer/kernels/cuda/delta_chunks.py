"""Operands of the chunked Gated DeltaNet prefill: everything of a chunk that needs no state.

With b_i the sum of the log decays of positions 0..i of a chunk of 64:

    A_ij = beta_i e^(b_i - b_j) k_i . k_j   for j < i
    solution = (1 + A)^-1 diag(beta)
    weights_ij = e^(b_i - b_j) q_i . k_j    for j <= i

A block makes one chunk of one key head and of the value heads that share it: convolution, unit
heads and gates in each warp for four positions, k . k and q . k on the tensor cores, and the
inverse by substitution in f32, one thread a column. Sums of log decays are f64 and in units of
log 2, because differences of large ones decay almost nothing; decays are within 2^-21. Positions
behind the last one have no keys, queries and betas and change no state.
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
    place_of,
    rows_offset,
    split_pair,
    store_parts,
    triangle_offset,
)
from ninfer.kernels.cuda.delta_columns import (
    L2_EPS,
    DeltaHeads,
    gate_input,
    history_address,
    log_decay,
    sigmoid,
)
from ninfer.kernels.cuda.delta_solve import (
    DOT_BYTES,
    DOT_STRIDE,
    SQUARE_BYTES,
    dots,
    either,
    solve,
    where,
)
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.product_output import warp_index

MAX_SHARING: Final = 4
"""Value heads of one key head."""

_WARPS: Final = 16  # enough to hide one another's waits
_OWN: Final = POSITIONS // _WARPS  # positions of a warp
_SLOTS: Final = 24  # of warps over a triangle, see `place_of`
_LOG2_E: Final = math.log2(math.e)


@device_function
def fast_silu(x: Any) -> Any:
    """``x / (1 + exp(-x))`` to a few units in the last place."""
    return x * ptx.reciprocal(float32(1.0) + ptx.power_of_two(x * float32(-_LOG2_E)))


@device_function
def convolve(taps: Any, tap_bytes: Any, x: Any, y: Any) -> None:
    """Four channels of a warp's positions: y[4 r + c] from words of those and of three before."""
    for i in range(4 * _OWN):
        y[i] = float32(0.0)
    for tap in range(4):
        w, v = ptx.load_u32x2(taps + uint64(tap) * uint64(tap_bytes))
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
    squares = cuda.local.array(_OWN, float32)
    for r in range(_OWN):
        i = 4 * r
        squares[r] = y[i] * y[i] + y[i + 1] * y[i + 1] + y[i + 2] * y[i + 2] + y[i + 3] * y[i + 3]
    # Lanes of each eight sum up a row: the upper half of the warp the last two, and so on.
    is_upper, is_odd = lane >= 16, (lane & 8) != 0
    even = either(is_upper, squares[2], squares[0])
    even += cuda.shfl_xor_sync(0xFFFFFFFF, either(is_upper, squares[0], squares[2]), 16)
    odd = either(is_upper, squares[3], squares[1])
    odd += cuda.shfl_xor_sync(0xFFFFFFFF, either(is_upper, squares[1], squares[3]), 16)
    total = either(is_odd, odd, even)
    total += cuda.shfl_xor_sync(0xFFFFFFFF, either(is_odd, even, odd), 8)
    for step in (4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
    own_scale = where(
        int32(lane) >> int32(3) < num_there, length / ptx.square_root(total + float32(L2_EPS))
    )
    for r in range(_OWN):
        i = 4 * r
        scale = cuda.shfl_sync(0xFFFFFFFF, own_scale, 8 * r)
        a, c = split_pair(y[i] * scale, y[i + 1] * scale)
        b, d = split_pair(y[i + 2] * scale, y[i + 3] * scale)
        at = rows_offset(uint32(first) + uint32(r), chunk) + half
        ptx.put_shared_u32x2(shared + at, a, b)
        ptx.put_shared_u32x2(shared + uint32(ROWS_BYTES) + at, c, d)
        ptx.store_u32x2(image + uint64(at), a, b)
        ptx.store_u32x2(image + uint64(ROWS_BYTES) + uint64(at), c, d)


@device_function
def decay(log: Any) -> Any:
    """Two to the power of a sum."""
    return ptx.power_of_two(float32(log))


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
def make_chunk_operands(  # noqa: C901, PLR0915 - stages of one block, parted by barriers
    heads: DeltaHeads, is_wide: bool
) -> Kernel:
    """Make chunks of one sequence; grid (chunks, key heads), block (512,).

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
    num_turns = -(-_SLOTS * sharing // _WARPS)
    num_words, num_channels = 2 * _OWN + 6, 4 * _OWN
    # The matrices A of the value heads come to lie over the rows, their inverses behind.
    dots_at = max(CHUNK_ROWS, sharing * SQUARE_BYTES)
    inverses_at = sharing * SQUARE_BYTES
    sums_at = max(dots_at + 2 * DOT_BYTES, inverses_at + sharing * SQUARE_BYTES)
    betas_at = sums_at + sharing * POSITIONS * 8
    shared_bytes = betas_at + sharing * POSITIONS * 4

    @device_function
    def load_inputs(
        projected: int,
        windows: int,
        record_x: int,
        slots: int,
        folds: int,
        num_records: Any,
        index: Any,
        last: Any,
        offset: Any,
        x: Any,
    ) -> None:
        """Words of columns from ``index`` on, and of three before; behind the last that one's."""
        if index >= 3 and index + int32(_OWN) <= last:
            at = projected + uint64(index - int32(3)) * uint64(row_bytes) + offset
            for r in range(_OWN + 3):
                x[2 * r], x[2 * r + 1] = ptx.load_u32x2(at + uint64(r * row_bytes))
        else:
            slot, folded = ptx.load_i32(slots), ptx.load_i32(folds)
            window = windows + uint64(slot) * uint64(3 * channel_bytes)
            records = record_x + uint64(slot) * uint64(num_records) * uint64(channel_bytes)
            for r in range(_OWN + 3):
                row = history_address(
                    projected, window, records, folded, row_bytes, channel_bytes,
                    min(index + int32(r) - int32(3), last),
                )  # fmt: skip
                x[2 * r], x[2 * r + 1] = ptx.load_u32x2(row + offset)

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
        first = int32(first_column) + chunk * int32(POSITIONS)

        # Convolution and unit heads of the warp's positions.
        x = cuda.local.array(num_words, uint32)
        y = cuda.local.array(num_channels, float32)
        own = int32(warp) * int32(_OWN)
        index, last = first + own, int32(num_columns) - int32(1)
        image = rows_out + (uint64(chunk) * uint64(num_key_heads) + uint64(key_head)) * uint64(
            CHUNK_ROWS
        )
        offset = uint64(key_head) * uint64(2 * WIDTH) + uint64(lane) * uint64(8)
        offset += uint64(2 * key_width)
        load_inputs(projected, windows, record_x, slots, folds, num_records, index, last, offset, x)
        convolve(taps + offset, channel_bytes, x, y)
        put_unit_rows(shared, image, own, last + int32(1) - index, float32(1.0), lane, y)
        offset -= uint64(2 * key_width)
        load_inputs(projected, windows, record_x, slots, folds, num_records, index, last, offset, x)
        convolve(taps + offset, channel_bytes, x, y)
        put_unit_rows(
            shared + uint32(2 * ROWS_BYTES), image + uint64(2 * ROWS_BYTES), own,
            last + int32(1) - index, float32(query_length), lane, y,
        )  # fmt: skip
        # Not unrolled: one value head after another needs few registers.
        for s in range(int32(ptx.kept_u32(uint32(sharing)))):
            head = key_head * int32(sharing) + int32(s)
            offset = uint64(4 * key_width) + uint64(head) * uint64(2 * WIDTH)
            offset += uint64(lane) * uint64(8)
            load_inputs(
                projected, windows, record_x, slots, folds, num_records, index, last, offset, x
            )
            convolve(taps + offset, channel_bytes, x, y)
            at = uint64(chunk * int32(POSITIONS) + own) * uint64(4 * value_width)
            at += uint64(head) * uint64(4 * WIDTH) + uint64(lane) * uint64(16)
            for r in range(_OWN):
                ptx.store_f32x4(
                    values_out + at + uint64(r * 4 * value_width),
                    y[4 * r], y[4 * r + 1], y[4 * r + 2], y[4 * r + 3],
                )  # fmt: skip
        cuda.syncthreads()

        # k . k and q . k, blocks on and below the diagonal.
        sums = cuda.local.array(8, float32)
        item = warp
        while item < 20:
            is_query = item >= 10
            b = item - 10 if is_query else item
            i = int32(b >= 1) + int32(b >= 3) + int32(b >= 6)
            j = b - i * (i + 1) // 2
            left = shared + (uint32(2 * ROWS_BYTES) if is_query else uint32(0))
            out = shared + uint32(dots_at) + (uint32(DOT_BYTES) if is_query else uint32(0))
            dots(left, shared, out, i, j, lane, sums)
            item += _WARPS
        # Gates: one of the last warps for each value head, two positions a lane.
        gate = int32(warp) - int32(_WARPS - sharing)
        if gate >= 0:
            head = key_head * int32(sharing) + gate
            at = uint64(head) * uint64(4)
            log_a, bias = ptx.load_f32(a_log + at), ptx.load_f32(dt_bias + at)
            place, num_there = int32(lane) * int32(2), int32(num_columns) - first
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
            g0, g1 = float64(g0) * _LOG2_E, float64(g1) * _LOG2_E
            b0 = sum_before(g0 + g1, lane) + g0
            b1 = b0 + g1
            end = cuda.shfl_sync(0xFFFFFFFF, b1, 31)
            at = uint32(sums_at) + (uint32(gate) * uint32(POSITIONS) + uint32(place)) * uint32(8)
            ptx.put_shared_f64(shared + at, b0)
            ptx.put_shared_f64(shared + at + uint32(8), b1)
            at = uint32(betas_at) + (uint32(gate) * uint32(POSITIONS) + uint32(place)) * uint32(4)
            ptx.put_shared_f32x2(shared + at, beta0, beta1)
            out = factors_out + (uint64(chunk) * uint64(num_value_heads) + uint64(head)) * uint64(
                CHUNK_FACTORS
            )
            out += uint64(4 * TRIANGLE_BYTES) + uint64(place) * uint64(4)
            ptx.store_f32x2(out, decay(b0), decay(b1))
            out += uint64(4 * POSITIONS)
            ptx.store_f32x2(out, decay(end - b0), decay(end - b1))
        cuda.syncthreads()

        # Matrices and weights of each value head: a lane makes four columns of a row.
        slot, s = int32(warp), int32(0)
        for _ in range(int32(ptx.kept_u32(uint32(num_turns)))):
            if s < int32(sharing):
                i, column = place_of(slot, lane)
                at = shared + uint32(sums_at) + uint32(s) * uint32(POSITIONS * 8)
                own_sum = ptx.shared_f64(at + i * uint32(8))
                at += column * uint32(8)
                c0, c1 = ptx.shared_f64x2(at)
                c2, c3 = ptx.shared_f64x2(at + uint32(16))
                d0, d1 = decay(own_sum - c0), decay(own_sum - c1)
                d2, d3 = decay(own_sum - c2), decay(own_sum - c3)
                at = shared + uint32(dots_at) + (i * uint32(DOT_STRIDE) + column) * uint32(4)
                k0, k1, k2, k3 = ptx.shared_f32x4(at)
                q0, q1, q2, q3 = ptx.shared_f32x4(at + uint32(DOT_BYTES))
                at = shared + uint32(betas_at) + uint32(s) * uint32(POSITIONS * 4)
                beta = ptx.shared_f32(at + i * uint32(4))
                behind = int32(i) - int32(column)
                at = shared + uint32(s) * uint32(SQUARE_BYTES)
                ptx.put_shared_f32x4(
                    at + (i * uint32(64) + column) * uint32(4),
                    where(behind > 0, beta * (d0 * k0)), where(behind > 1, beta * (d1 * k1)),
                    where(behind > 2, beta * (d2 * k2)), where(behind > 3, beta * (d3 * k3)),
                )  # fmt: skip
                out = factors_out + (
                    uint64(chunk) * uint64(num_value_heads) + uint64(key_head * int32(sharing) + s)
                ) * uint64(CHUNK_FACTORS)
                store_parts(
                    out + uint64(2 * TRIANGLE_BYTES) + triangle_offset(i, column),
                    where(behind >= 0, d0 * q0), where(behind >= 1, d1 * q1),
                    where(behind >= 2, d2 * q2), where(behind >= 3, d3 * q3),
                )  # fmt: skip
            slot += int32(_WARPS)
            if slot >= int32(_SLOTS):
                slot -= int32(_SLOTS)
                s += int32(1)
        cuda.syncthreads()

        z = cuda.local.array(16, float32)
        if warp < 2 * sharing:
            s = warp >> 1
            solve(
                shared + uint32(s) * uint32(SQUARE_BYTES),
                shared + uint32(inverses_at) + uint32(s) * uint32(SQUARE_BYTES),
                (warp & 1) * 32,
                (warp & 1) * 32 + lane,
                z,
            )
        cuda.syncthreads()
        slot, s = int32(warp), int32(0)
        for _ in range(int32(ptx.kept_u32(uint32(num_turns)))):
            if s < int32(sharing):
                i, column = place_of(slot, lane)
                at = shared + uint32(betas_at) + uint32(s) * uint32(POSITIONS * 4)
                beta0, beta1, beta2, beta3 = ptx.shared_f32x4(at + column * uint32(4))
                at = shared + uint32(inverses_at) + uint32(s) * uint32(SQUARE_BYTES)
                a, b, c, d = ptx.shared_f32x4(at + (i * uint32(64) + column) * uint32(4))
                out = factors_out + (
                    uint64(chunk) * uint64(num_value_heads) + uint64(key_head * int32(sharing) + s)
                ) * uint64(CHUNK_FACTORS)
                store_parts(
                    out + triangle_offset(i, column), a * beta0, b * beta1, c * beta2, d * beta3
                )
            slot += int32(_WARPS)
            if slot >= int32(_SLOTS):
                slot -= int32(_SLOTS)
                s += int32(1)

    params = (Param.ADDRESS,) * 12 + (Param.I32,) * 3
    name = f"delta_chunks_{heads.digits}_{'f32' if is_wide else 'bf16'}"
    return Kernel(
        name,
        chunk_operands,
        params,
        threads=_WARPS * WARP,
        max_registers=64,
        dynamic_shared_bytes=shared_bytes,
        min_blocks=2,
    )
