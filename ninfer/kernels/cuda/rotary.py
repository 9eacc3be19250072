"""Cosines and sines of the rotary embedding on CUDA.

    angle of pair j = position on the axis of j * theta^(-2 j / R)

The angle is an f32 product reduced in f64, so that no slow path with local memory is compiled in.
"""

from typing import Any, Final

import numpy as np
from numba import cuda, float32, float64, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function

Address = Any
Array = Any
Index = Any

_TURN_HIGH: Final = 1.5707963267948966  # pi / 2 in two parts
_TURN_LOW: Final = 6.123233995736766e-17


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


def make_ask_angle(rotary_dim: int, theta: float, section: tuple[int, int, int]) -> Any:
    """Function that gives position and frequency of a thread's pair; zeros of a thread without."""
    half = rotary_dim // 2
    frequencies, axes = rope_tables(rotary_dim, theta, section)

    @device_function
    def ask_angle(rope_positions: Address, num_tokens: Index, column: Index) -> Any:
        frequency_table = cuda.const.array_like(frequencies)
        axis_table = cuda.const.array_like(axes)
        pair = int32(cuda.threadIdx.x)
        position, frequency = int32(0), float32(0.0)
        if pair < int32(half):
            at = int32(axis_table[pair]) * int32(num_tokens) + int32(column)
            position = ptx.load_i32(rope_positions + uint64(at) * uint64(4))
            frequency = frequency_table[pair]
        return int32(position), float32(frequency)

    return ask_angle


def make_put_angle(rotary_dim: int) -> Any:
    """Function that writes a thread's cosine, and behind the cosines its sine."""
    half = rotary_dim // 2

    @device_function
    def put_angle(angles: Address, position: Index, frequency: Any) -> None:
        pair = int32(cuda.threadIdx.x)
        if pair < int32(half):
            cosine, sine = cosine_sine(float32(position) * frequency)
            to = angles + uint32(pair) * uint32(4)
            ptx.put_shared_f32(to, cosine)
            ptx.put_shared_f32(to + uint32(4 * half), sine)

    return put_angle


def make_rotate(per_lane: int, rotary_dim: int) -> Any:
    """Function that turns a head, spread over a warp in runs of ``per_lane``, in place."""
    half = rotary_dim // 2
    half_lanes = half // per_lane
    step = min(per_lane, 4)
    get = _make_get(step)

    @device_function
    def rotate(x: Array, angles: Address, lane: Index) -> None:
        others = cuda.local.array(per_lane, float32)
        partner = lane + half_lanes if lane < half_lanes else lane - half_lanes
        for i in range(per_lane):
            others[i] = cuda.shfl_sync(0xFFFFFFFF, x[i], partner & 31)
        if lane < 2 * half_lanes:
            cosines, sines = cuda.local.array(step, float32), cuda.local.array(step, float32)
            own = lane if lane < half_lanes else lane - half_lanes
            at = angles + uint32(own) * uint32(4 * per_lane)
            for first in range(0, per_lane, step):
                get(at + uint32(4 * first), cosines)
                get(at + uint32(4 * (first + half)), sines)
                if lane < half_lanes:
                    for i in range(step):
                        sines[i] = -sines[i]
                for i in range(step):
                    j = first + i
                    x[j] = x[j] * cosines[i] + others[j] * sines[i]

    return rotate


def _make_get(count: int) -> Any:
    """Function that reads so many numbers of shared memory."""

    @device_function
    def get(address: Address, target: Array) -> None:
        if count == 4:
            target[0], target[1], target[2], target[3] = ptx.shared_f32x4(address)
        else:
            for i in range(count):
                target[i] = ptx.shared_f32(address + uint32(4 * i))

    return get
