"""Small functions that kernels of several families call: warp reductions and bf16 chunks.

A chunk is eight consecutive values of a row, the unit of `fragments`. Reductions are butterflies:
every lane ends with the same bits.
"""

from typing import Any

from numba import cuda, float32, int32, int64, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function

Address = Any
F32 = Any
Index = Any
Chunk = Any
"""Eight f32 values."""


@device_function
def warp_sum(value: F32) -> F32:
    """Sum over the 32 lanes."""
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 16)
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 8)
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 4)
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 2)
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)
    return value


@device_function
def from_lane_xor_u64(value: Any, step: Any) -> Any:
    """The u64 value of the lane whose number differs by ``step``."""
    return uint64(cuda.shfl_xor_sync(0xFFFFFFFF, int64(value), step))


@device_function
def from_lane_xor_u32(value: Any, step: Any) -> Any:
    """The u32 value of the lane whose number differs by ``step``."""
    return uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(value), step))


@device_function
def lower_bf16(word: Any) -> F32:
    """Value of the lower bf16 of a word."""
    return ptx.f32_of_bits(word << uint32(16))


@device_function
def upper_bf16(word: Any) -> F32:
    """Value of the upper bf16 of a word."""
    return ptx.f32_of_bits(word & uint32(0xFFFF0000))


@device_function
def load_chunk(row: Address, chunk: Index, width: Index) -> Chunk:
    """Eight bf16 values of a row whose chunks are 16-byte aligned; zeros behind the row."""
    a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
    if int32(chunk) * int32(8) < int32(width):
        a, b, c, d = ptx.load_u32x4(row + uint64(chunk) * uint64(16))
    return (
        lower_bf16(a),
        upper_bf16(a),
        lower_bf16(b),
        upper_bf16(b),
        lower_bf16(c),
        upper_bf16(c),
        lower_bf16(d),
        upper_bf16(d),
    )


@device_function
def load_value(row: Address, index: Index, width: Index) -> F32:
    """One bf16 value of a row; zero behind the row."""
    word = uint32(0)
    if int32(index) < int32(width):
        word = ptx.load_u16(row + uint64(index) * uint64(2))
    return lower_bf16(word)


@device_function
def load_ragged_chunk(row: Address, chunk: Index, width: Index) -> Chunk:
    """`load_chunk` for rows that start anywhere and may end inside a chunk."""
    first = int32(chunk) * int32(8)
    return (
        load_value(row, first, width),
        load_value(row, first + 1, width),
        load_value(row, first + 2, width),
        load_value(row, first + 3, width),
        load_value(row, first + 4, width),
        load_value(row, first + 5, width),
        load_value(row, first + 6, width),
        load_value(row, first + 7, width),
    )


@device_function
def store_ragged_value(row: Address, index: Index, width: Index, value: F32) -> None:
    """Store one value as bf16; nothing behind the row."""
    if int32(index) < int32(width):
        ptx.store_u16(row + uint64(index) * uint64(2), ptx.bf16x2_of_f32(value, float32(0.0)))
