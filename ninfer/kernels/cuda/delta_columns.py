"""Inputs of the Gated DeltaNet recurrence on CUDA: convolution, unit heads and gates of a column.

    c = silu(sum_tap w[tap] * x[t - 3 + tap])        x of earlier calls: folded records, then window
    q = c / sqrt(sum c^2 + 1e-6) / sqrt(Dk) ; k likewise without the last factor ; v = c
    g = -exp(a_log) * softplus(a + dt_bias) ; beta = sigmoid(b)

One warp makes one head, each lane pairs of neighbouring channels; a head's sum of squares is a sum
in each lane and a butterfly. Products and sums have explicit roundings, so that the decode kernel,
which makes its column by the same functions, has the same bits as a prefill. Traffic of a prefill
column is its projected row, 16 bytes a pair of channels from caches, and 4 bytes a channel out.
"""

import math
from functools import cache
from typing import Any, Final, NamedTuple

from numba import cuda, float32, int32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16, warp_sum
from ninfer.kernels.cuda.launch import WARP

TAPS: Final = 4
L2_EPS: Final = 1e-6

_WARPS: Final = 4


class DeltaHeads(NamedTuple):
    """Heads of a mixer, as kernels are specialised on them."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def sharing(self) -> int:
        """Value heads of one key head."""
        return self.num_value_heads // self.num_key_heads

    @property
    def key_width(self) -> int:
        """All key heads together."""
        return self.num_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """All value heads together."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return 2 * self.key_width + self.value_width

    @property
    def digits(self) -> str:
        """The numbers, for kernel names."""
        return "_".join(str(number) for number in self)


@device_function
def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, to 1 unit in the last place; no branch, so that several overlap."""
    return ptx.reciprocal(ptx.add_f32(float32(1.0), float32(math.exp(-x))))


@device_function
def history_address(
    projected: int,
    window: int,
    records: int,
    folded: Any,
    row_bytes: Any,
    channel_bytes: Any,
    index: Any,
) -> Any:
    """Address of convolution input ``index`` of a call; before it records, then the window.

    Args:
        projected: first row of the call.
        window: first row of the sequence's window.
        records: first of the sequence's records.
        folded: records that precede the call.
        row_bytes: of a projected row.
        channel_bytes: of its convolved part.
        index: column, -3 or more.
    """
    if index >= 0:
        return projected + uint64(index) * uint64(row_bytes)
    earlier = int32(index) + int32(folded)
    if earlier >= 0:
        return records + uint64(earlier) * uint64(channel_bytes)
    return window + uint64(earlier + 3) * uint64(channel_bytes)


@device_function
def history_rows(
    projected: int,
    window: int,
    records: int,
    folded: Any,
    row_bytes: Any,
    channel_bytes: Any,
    column: Any,
) -> Any:
    """Addresses of the four inputs of a column's convolution, oldest first."""
    last = int32(column)
    return (
        history_address(
            projected, window, records, folded, row_bytes, channel_bytes, last - int32(3)
        ),
        history_address(
            projected, window, records, folded, row_bytes, channel_bytes, last - int32(2)
        ),
        history_address(
            projected, window, records, folded, row_bytes, channel_bytes, last - int32(1)
        ),
        history_address(projected, window, records, folded, row_bytes, channel_bytes, last),
    )


@device_function
def convolve(x0: Any, x1: Any, x2: Any, x3: Any, w0: Any, w1: Any, w2: Any, w3: Any) -> Any:
    """Convolve and activate a pair of channels; words of inputs and taps, oldest first."""
    first = ptx.fused_multiply_add(lower_bf16(w0), lower_bf16(x0), float32(0.0))
    second = ptx.fused_multiply_add(upper_bf16(w0), upper_bf16(x0), float32(0.0))
    first = ptx.fused_multiply_add(lower_bf16(w1), lower_bf16(x1), first)
    second = ptx.fused_multiply_add(upper_bf16(w1), upper_bf16(x1), second)
    first = ptx.fused_multiply_add(lower_bf16(w2), lower_bf16(x2), first)
    second = ptx.fused_multiply_add(upper_bf16(w2), upper_bf16(x2), second)
    first = ptx.fused_multiply_add(lower_bf16(w3), lower_bf16(x3), first)
    second = ptx.fused_multiply_add(upper_bf16(w3), upper_bf16(x3), second)
    return (
        ptx.multiply_f32(first, sigmoid(first)),
        ptx.multiply_f32(second, sigmoid(second)),
    )


@device_function
def convolved_pair(rows: Any, taps: int, channel_bytes: Any, channel: Any) -> Any:
    """Convolve and activate channels ``channel`` (even) and ``channel + 1`` of a column."""
    r0, r1, r2, r3 = rows
    offset = uint64(channel) * uint64(2)
    tap = taps + offset
    step = uint64(channel_bytes)
    x0, x1 = ptx.load_u32(r0 + offset), ptx.load_u32(r1 + offset)
    x2, x3 = ptx.load_u32(r2 + offset), ptx.load_u32(r3 + offset)
    w0, w1 = ptx.load_u32(tap), ptx.load_u32(tap + step)
    w2, w3 = ptx.load_u32(tap + step * uint64(2)), ptx.load_u32(tap + step * uint64(3))
    return convolve(x0, x1, x2, x3, w0, w1, w2, w3)


@device_function
def unit_scale(squares: Any, length: float) -> Any:
    """Factor that brings a head to a length; ``squares`` is this lane's sum."""
    total = ptx.add_f32(warp_sum(squares), float32(L2_EPS))
    return float32(length) / ptx.square_root(total)


@device_function
def gate_input(ab: int, index: Any, is_wide: bool) -> Any:
    """Element of the decay inputs, f32 or bf16."""
    if is_wide:
        return ptx.load_f32(ab + uint64(index) * uint64(4))
    return lower_bf16(ptx.load_u16(ab + uint64(index) * uint64(2)))


@device_function
def log_decay(a: Any, a_log: Any, dt_bias: Any) -> Any:
    """``-exp(a_log) * softplus(a + dt_bias)``; softplus is the identity beyond 20."""
    x = ptx.add_f32(a, dt_bias)
    soft = x
    if x <= float32(20.0):
        soft = float32(math.log1p(float32(math.exp(x))))
    return ptx.multiply_f32(-float32(math.exp(a_log)), soft)


def make_unit_head(key_dim: int) -> Any:
    """Function that makes a query or key head of a column in the calling warp.

    A lane's pairs of channels are 64 apart; ``values`` takes them.
    """
    pairs = -(-key_dim // (2 * WARP))
    is_whole = key_dim % (2 * WARP) == 0

    @device_function
    def unit_head(
        rows: Any,
        taps: int,
        channel_bytes: Any,
        first_channel: Any,
        length: float,
        lane: Any,
        values: Any,
    ) -> None:
        squares = float32(0.0)
        for i in range(pairs):
            at = int32(i * 64) + int32(lane) * int32(2)
            values[2 * i], values[2 * i + 1] = float32(0.0), float32(0.0)
            if is_whole or at < key_dim:
                values[2 * i], values[2 * i + 1] = convolved_pair(
                    rows, taps, channel_bytes, int32(first_channel) + at
                )
            squares = ptx.fused_multiply_add(values[2 * i], values[2 * i], squares)
            squares = ptx.fused_multiply_add(values[2 * i + 1], values[2 * i + 1], squares)
        scale = unit_scale(squares, length)
        for i in range(2 * pairs):
            values[i] = ptx.multiply_f32(values[i], scale)

    return unit_head


@cache
def make_columns(  # noqa: PLR0915 - three kinds of tasks of one column
    heads: DeltaHeads, is_wide: bool
) -> Kernel:
    """Make columns of one sequence; grid (columns, key heads), block (128,); no barrier.

    Args:
        heads: of the mixer.
        is_wide: decay inputs are f32.
    """
    key_dim, value_dim, sharing = heads.key_dim, heads.value_dim, heads.sharing
    key_width, value_width = heads.key_width, heads.value_width
    num_value_heads = heads.num_value_heads
    channel_bytes = 2 * heads.channels
    row_bytes = channel_bytes + 2 * value_width
    pairs = -(-key_dim // (2 * WARP))
    size = 2 * pairs
    shared_values = sharing * value_dim
    value_tasks = -(-shared_values // (2 * WARP))
    query_length = key_dim**-0.5
    unit_head = make_unit_head(key_dim)

    def columns(
        projected: int,
        ab: int,
        taps: int,
        a_log: int,
        dt_bias: int,
        windows: int,
        record_x: int,
        slots: int,
        folds: int,
        queries: int,
        keys: int,
        values_out: int,
        gates: int,
        first_column: int,
        num_records: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        lane = cuda.threadIdx.x & 31
        place = cuda.blockIdx.x
        column = int32(place) + int32(first_column)
        key_head = cuda.blockIdx.y
        slot = ptx.load_i32(slots)
        folded = ptx.load_i32(folds)
        window = windows + uint64(slot) * uint64(3 * channel_bytes)
        records = record_x + uint64(slot) * uint64(num_records) * uint64(channel_bytes)
        rows = history_rows(projected, window, records, folded, row_bytes, channel_bytes, column)
        values = cuda.local.array(size, float32)
        task = cuda.threadIdx.x >> 5
        while task < 3 + value_tasks:
            if task < 2:
                length = float32(query_length) if task == 0 else float32(1.0)
                first = task * key_width + key_head * key_dim
                unit_head(rows, taps, channel_bytes, first, length, lane, values)
                target = queries if task == 0 else keys
                base = int32(place) * int32(key_width) + int32(key_head) * int32(key_dim)
                for i in range(pairs):
                    at = i * 64 + lane * 2
                    if at < key_dim:
                        address = target + uint64(base + at) * uint64(4)
                        ptx.store_f32x2(address, values[2 * i], values[2 * i + 1])
            elif task < 2 + value_tasks:
                at = (task - 2) * 64 + lane * 2
                if at < shared_values:
                    inside = int32(key_head) * int32(shared_values) + int32(at)
                    first_value, second_value = convolved_pair(
                        rows, taps, channel_bytes, int32(2 * key_width) + inside
                    )
                    address = values_out + uint64(
                        int32(place) * int32(value_width) + inside
                    ) * uint64(4)
                    ptx.store_f32x2(address, first_value, second_value)
            elif lane < sharing:
                head = int32(key_head) * int32(sharing) + int32(lane)
                row = int32(column) * int32(2 * num_value_heads)
                offset = uint64(head) * uint64(4)
                g = log_decay(
                    gate_input(ab, row + head, is_wide),
                    ptx.load_f32(a_log + offset),
                    ptx.load_f32(dt_bias + offset),
                )
                beta = sigmoid(gate_input(ab, row + int32(num_value_heads) + head, is_wide))
                target = gates + uint64(int32(place) * int32(num_value_heads) + head) * uint64(8)
                ptx.store_f32x2(target, float32(math.exp(g)), beta)
            task += _WARPS

    params = (Param.ADDRESS,) * 13 + (Param.I32,) * 2
    name = f"delta_columns_{heads.digits}_{'f32' if is_wide else 'bf16'}"
    return Kernel(name, columns, params, threads=_WARPS * WARP, max_registers=96)


@cache
def make_window(heads: DeltaHeads) -> Kernel:
    """Bring a window behind the call's columns; grid (blocks of channels,), block (128,)."""
    channels = heads.channels
    channel_bytes = 2 * channels
    row_bytes = channel_bytes + 2 * heads.value_width

    def advance_window(
        projected: int,
        windows: int,
        record_x: int,
        slots: int,
        folds: int,
        num_columns: int,
        num_records: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        channel = cuda.blockIdx.x * 128 + cuda.threadIdx.x
        if channel < channels:
            slot = ptx.load_i32(slots)
            folded = ptx.load_i32(folds)
            window = windows + uint64(slot) * uint64(3 * channel_bytes)
            records = record_x + uint64(slot) * uint64(num_records) * uint64(channel_bytes)
            move_window(
                projected, window, records, folded, row_bytes, channel_bytes, num_columns, channel
            )

    params = (Param.ADDRESS,) * 5 + (Param.I32,) * 2
    name = f"delta_window_{heads.digits}"
    return Kernel(name, advance_window, params, threads=128, max_registers=32)


@device_function
def move_window(
    projected: int,
    window: int,
    records: int,
    folded: Any,
    row_bytes: Any,
    channel_bytes: Any,
    passed: Any,
    channel: Any,
) -> None:
    """Bring one channel of a window behind the folded records and ``passed`` columns."""
    offset = uint64(channel) * uint64(2)
    last = int32(passed)
    a = history_address(
        projected, window, records, folded, row_bytes, channel_bytes, last - int32(3)
    )
    b = history_address(
        projected, window, records, folded, row_bytes, channel_bytes, last - int32(2)
    )
    c = history_address(
        projected, window, records, folded, row_bytes, channel_bytes, last - int32(1)
    )
    first = ptx.load_u16(a + offset)
    second = ptx.load_u16(b + offset)
    third = ptx.load_u16(c + offset)
    ptx.store_u16(window + offset, first)
    ptx.store_u16(window + uint64(channel_bytes) + offset, second)
    ptx.store_u16(window + uint64(2 * channel_bytes) + offset, third)
