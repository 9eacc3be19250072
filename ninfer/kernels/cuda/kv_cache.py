"""Append to the paged key/value cache on CUDA: norm, rotation and store in one kernel.

    q, k = rope(x / sqrt(mean(x^2) + eps) * (1 + w))     rotated pairs (j, j + R/2)
    plane row (page, head, offset) <- k or v              bf16, or int8 codes with f16 scales

One warp owns one head of one column and each lane consecutive components, so that norm, rotation
and group maxima are shuffles; a key's warp also stores its value. Traffic is the projected row once
and the written rows once. Sums are f32 butterflies; the angle is an f32 product reduced in f64, so
that no slow path with local memory is compiled in. Int8 follows the artifact encoder: scale =
f16(maxabs / 127), code = nearest(x * (1 / scale)).
"""

from functools import cache
from typing import Any, Final

import numpy as np
from numba import cuda, float32, float64, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.device_functions import lower_bf16, warp_sum
from ninfer.kernels.cuda.launch import WARP, KernelShapes, blocks_for
from ninfer.kernels.operand_groups import KvPlanes, Rope
from ninfer.tensor import DType, Tensor

PAGE_TOKENS: Final = 64

_WARPS: Final = 8  # heads of one block
_GROUP: Final = 64
_LARGEST_F16: Final = 65504.0
_TURN_HIGH: Final = 1.5707963267948966  # pi / 2 in two parts
_TURN_LOW: Final = 6.123233995736766e-17


def append(
    stream: CudaStream,
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
    """Launch one warp for each query and key head of each column.

    Raises:
        ShapeError: the planes are F32, or a head cannot be split over a warp.
    """
    num_tokens, num_heads, head_dim = queries.shape
    if kv.keys.dtype is DType.F32:
        raise ShapeError("keys: a CUDA cache holds BF16 or I8")
    kernel = make_append(
        head_dim, rope.rotary_dim, rope.theta, rope.section, kv.keys.dtype is DType.I8
    )
    num_kv_heads = kv.keys.shape[1]
    scales = (kv.key_scales, kv.value_scales)
    stream.launch(
        kernel,
        (num_tokens, blocks_for(num_heads + num_kv_heads, _WARPS), 1),
        (
            projected.address,
            query_norm.address,
            key_norm.address,
            rope_positions.address,
            positions.address,
            table_rows.address,
            kv.block_table.address,
            kv.keys.address,
            kv.values.address,
            *(0 if plane is None else plane.address for plane in scales),
            queries.address,
            num_tokens,
            num_heads,
            num_kv_heads,
            kv.block_table.shape[1],
            eps,
        ),
    )


def declared(shapes: KernelShapes) -> tuple[Kernel, ...]:
    """Kernels a model needs: both cache types."""
    return tuple(
        make_append(
            shapes.head_dim, shapes.rotary_dim, shapes.rope_theta, shapes.mrope_section, is_int8
        )
        for is_int8 in (False, True)
    )


def rope_tables(rotary_dim: int, theta: float, section: tuple[int, int, int]) -> tuple[Any, Any]:
    """Frequency (f32) and position axis (i32) of each rotated pair."""
    index = np.arange(rotary_dim // 2)
    frequencies = (theta ** (-2.0 * index / rotary_dim)).astype(np.float32)
    axes = np.zeros(len(index), np.int32)
    for axis in (1, 2):
        axes[(index % 3 == axis) & (index < 3 * section[axis])] = axis
    return frequencies, axes


@device_function
def cosine_sine(angle: Any) -> Any:
    """Cosine and sine of an f32 angle of any size; errors of about one unit.

    The quarter turn is taken out in f64; the rest, at most pi / 4, goes through the polynomials of
    the Cephes library.
    """
    wide = float64(angle)
    turns = ptx.nearest_f64(wide * float64(0.6366197723675814))
    rest = float32((wide - turns * float64(_TURN_HIGH)) - turns * float64(_TURN_LOW))
    square = rest * rest
    sine = float32(-1.9515295891e-4) * square + float32(8.3321608736e-3)
    sine = (sine * square + float32(-1.6666654611e-1)) * square * rest + rest
    cosine = float32(2.443315711809948e-5) * square + float32(-1.388731625493765e-3)
    cosine = (cosine * square + float32(4.166664568298827e-2)) * square * square
    cosine = cosine + (float32(1.0) - float32(0.5) * square)
    quadrant = int32(turns) & int32(3)
    if quadrant & 1:
        cosine, sine = -sine, cosine
    if quadrant & 2:
        cosine, sine = -cosine, -sine
    return cosine, sine


@device_function
def narrow_code(value: Any, inverse: Any) -> Any:
    """Int8 code of a value, as an unsigned byte."""
    code = min(max(ptx.nearest_i32(value * inverse), int32(-127)), int32(127))
    return uint32(code) & uint32(255)


@device_function
def group_scale(largest: Any) -> Any:
    """Binary16 word of the scale of a group, and the reciprocal of its value."""
    word = ptx.f16_of_f32(min(largest / float32(127.0), float32(_LARGEST_F16)))
    if word == uint32(0):
        word = uint32(1)
    inverse = float32(1.0) / ptx.f32_of_f16(word)
    if largest == float32(0.0):
        word = uint32(0)
    return word, inverse


@cache
def make_append(  # noqa: PLR0915 - one pass, whose head is a lane's registers
    head_dim: int,
    rotary_dim: int,
    theta: float,
    section: tuple[int, int, int],
    is_int8: bool,
) -> Kernel:
    """One warp per head; grid (columns, blocks of heads), block (256,); no barrier.

    Raises:
        ShapeError: a head or its rotated half is not split evenly over lanes.
    """
    per_lane = head_dim // WARP
    half = rotary_dim // 2
    if head_dim % WARP or per_lane not in (1, 2, 4, 8) or half % per_lane:
        raise ShapeError(f"heads of {head_dim} with {rotary_dim} rotated components")
    group_lanes = min(_GROUP, head_dim) // per_lane
    groups = -(-head_dim // _GROUP)
    load = _make_load(per_lane)
    turn = _make_turn(head_dim, rotary_dim, theta, section)
    prepare = _make_prepare(head_dim, rotary_dim)
    store_query = _make_words_store(per_lane)
    store = _make_int8_store(per_lane, group_lanes, groups) if is_int8 else _make_store(per_lane)
    width = head_dim * 2
    row_bytes = head_dim if is_int8 else width

    def append_head(
        projected: int,
        query_norm: int,
        key_norm: int,
        rope_positions: int,
        positions: int,
        table_rows: int,
        block_table: int,
        keys: int,
        values: int,
        key_scales: int,
        value_scales: int,
        queries: int,
        num_tokens: int,
        num_heads: int,
        num_kv_heads: int,
        table_width: int,
        eps: float,
    ) -> None:
        ptx.release_successor()
        column = cuda.blockIdx.x
        lane = cuda.threadIdx.x & 31
        head = cuda.blockIdx.y * _WARPS + (cuda.threadIdx.x >> 5)
        # Positions, tables and weights are those of before the round.
        cosines = cuda.local.array(per_lane, float32)
        sines = cuda.local.array(per_lane, float32)
        w = cuda.local.array(per_lane, float32)
        offset = uint64(lane * (2 * per_lane))
        turn(cosines, sines, lane, rope_positions, num_tokens, column)
        load((query_norm if head < num_heads else key_norm) + offset, w)
        place = ptx.load_i32(positions + uint64(column) * uint64(4))
        table_row = ptx.load_i32(table_rows + uint64(column) * uint64(4))
        entry = uint64(table_row) * uint64(table_width) + uint64(place >> 6)
        page = ptx.load_i32(block_table + entry * uint64(4))
        ptx.wait_for_predecessor()
        if head < num_heads + num_kv_heads:
            line = projected + uint64(column) * uint64(2 * (num_heads + num_kv_heads)) * uint64(
                width
            )
            x = cuda.local.array(per_lane, float32)
            load(line + uint64(head) * uint64(width) + offset, x)
            prepare(x, w, cosines, sines, lane, eps)
            if head < num_heads:
                target = uint64(column) * uint64(num_heads) + uint64(head)
                store_query(queries + target * uint64(width) + offset, x)
            else:
                kv_head = head - num_heads
                row = (uint64(page) * uint64(num_kv_heads) + uint64(kv_head)) * uint64(64)
                row += uint64(place & 63)
                store(keys + row * uint64(row_bytes), key_scales, row, lane, x)
                value_head = 2 * num_heads + num_kv_heads + kv_head
                load(line + uint64(value_head) * uint64(width) + offset, x)
                store(values + row * uint64(row_bytes), value_scales, row, lane, x)

    params = (Param.ADDRESS,) * 12 + (Param.I32,) * 4 + (Param.F32,)
    digits = f"{head_dim}_{rotary_dim}_{_number(theta)}_{'_'.join(str(n) for n in section)}"
    name = f"kv_append_{'int8' if is_int8 else 'bf16'}_{digits}"
    return Kernel(name, append_head, params, threads=_WARPS * WARP, max_registers=96)


def _make_turn(head_dim: int, rotary_dim: int, theta: float, section: tuple[int, int, int]) -> Any:
    """Function that gives the cosines and sines of a lane's components."""
    per_lane = head_dim // WARP
    half_lanes = rotary_dim // 2 // per_lane
    frequencies, axes = rope_tables(rotary_dim, theta, section)

    @device_function
    def turn(
        cosines: Any, sines: Any, lane: Any, rope_positions: Any, num_tokens: Any, column: Any
    ) -> None:
        frequency_table = cuda.const.array_like(frequencies)
        axis_table = cuda.const.array_like(axes)
        for i in range(per_lane):
            cosines[i], sines[i] = float32(1.0), float32(0.0)
        if lane < 2 * half_lanes:
            own = lane if lane < half_lanes else lane - half_lanes
            for i in range(per_lane):
                pair = own * per_lane + i
                at = axis_table[pair] * num_tokens + column
                position = ptx.load_i32(rope_positions + uint64(at) * uint64(4))
                cosines[i], sines[i] = cosine_sine(float32(position) * frequency_table[pair])
            if lane < half_lanes:
                for i in range(per_lane):
                    sines[i] = -sines[i]

    return turn


def _make_prepare(head_dim: int, rotary_dim: int) -> Any:
    """Function that normalises and rotates a head, spread over a warp, in place."""
    per_lane = head_dim // WARP
    half_lanes = rotary_dim // 2 // per_lane

    @device_function
    def prepare(x: Any, w: Any, cosines: Any, sines: Any, lane: Any, eps: Any) -> None:
        total = float32(0.0)
        for i in range(per_lane):
            total += x[i] * x[i]
        mean = warp_sum(total) / float32(head_dim)
        inverse = float32(1.0) / ptx.square_root(mean + eps)
        partner = lane + half_lanes if lane < half_lanes else lane - half_lanes
        is_rotated = lane < 2 * half_lanes
        for i in range(per_lane):
            y = x[i] * inverse * (float32(1.0) + w[i])
            other = cuda.shfl_sync(0xFFFFFFFF, y, partner & 31)
            x[i] = y * cosines[i] + other * sines[i] if is_rotated else y

    return prepare


def _number(value: float) -> str:
    return f"{value:g}".replace(".", "p").replace("+", "")


def _make_load(per_lane: int) -> Any:
    """Function that reads a lane's consecutive bf16 values."""

    @device_function
    def load(address: int, target: Any) -> None:
        if per_lane == 8:
            a, b, c, d = ptx.load_u32x4(address)
            target[0], target[1] = lower_bf16(a), ptx.f32_of_bits(a & uint32(0xFFFF0000))
            target[2], target[3] = lower_bf16(b), ptx.f32_of_bits(b & uint32(0xFFFF0000))
            target[4], target[5] = lower_bf16(c), ptx.f32_of_bits(c & uint32(0xFFFF0000))
            target[6], target[7] = lower_bf16(d), ptx.f32_of_bits(d & uint32(0xFFFF0000))
        else:
            for i in range(per_lane):
                target[i] = lower_bf16(ptx.load_u16(address + uint64(2 * i)))

    return load


def _make_words_store(per_lane: int) -> Any:
    """Function that writes a lane's consecutive values as bf16."""

    @device_function
    def store(address: int, x: Any) -> None:
        if per_lane == 8:
            ptx.store_u32x4(
                address,
                ptx.bf16x2_of_f32(x[0], x[1]),
                ptx.bf16x2_of_f32(x[2], x[3]),
                ptx.bf16x2_of_f32(x[4], x[5]),
                ptx.bf16x2_of_f32(x[6], x[7]),
            )
        else:
            for i in range(per_lane):
                word = ptx.bf16x2_of_f32(x[i], float32(0.0))
                ptx.store_u16(address + uint64(2 * i), word)

    return store


def _make_store(per_lane: int) -> Any:
    """Function that writes a head to a bf16 plane row."""
    words = _make_words_store(per_lane)

    @device_function
    def store(plane_row: int, scales: int, row: int, lane: int, x: Any) -> None:
        words(plane_row + uint64(lane * (2 * per_lane)), x)

    return store


def _make_int8_store(per_lane: int, group_lanes: int, groups: int) -> Any:
    """Function that encodes a head into an int8 plane row and its scales."""

    @device_function
    def store(plane_row: int, scales: int, row: int, lane: int, x: Any) -> None:
        largest = float32(0.0)
        for i in range(per_lane):
            largest = max(largest, abs(x[i]))
        if group_lanes == 32:
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 16))
        if group_lanes >= 16:
            largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 8))
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 4))
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 2))
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 1))
        word, inverse = group_scale(largest)
        if lane & (group_lanes - 1) == 0:
            at = row * uint64(groups) + uint64(lane // group_lanes)
            ptx.store_u16(scales + at * uint64(2), word)
        address = plane_row + uint64(lane * per_lane)
        if per_lane == 8:
            low, high = uint32(0), uint32(0)
            for i in range(4):
                low |= narrow_code(x[i], inverse) << uint32(8 * i)
                high |= narrow_code(x[i + 4], inverse) << uint32(8 * i)
            ptx.store_u32x2(address, low, high)
        else:
            for i in range(per_lane):
                ptx.store_u8(address + uint64(i), narrow_code(x[i], inverse))

    return store
