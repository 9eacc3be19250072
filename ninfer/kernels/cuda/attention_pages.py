"""Pages and queries of prefill attention on their way to shared memory.

Rows of 2 D bytes, 16-byte chunk c of row r at c xor (r mod 8), so that matrix loads find no bank
conflict. Bf16 comes by asynchronous copies; int8 codes become bf16 with their scales on the way.
Rows behind the last position are zeros, never read.
"""

from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.launch import WARP

TILE_QUERIES: Final = 128
TILE: Final = 64
THREADS: Final = 8 * WARP


@device_function
def code_pair(word: Any) -> Any:
    """Two bf16 values of the int8 codes in bytes 0 and 2 of a word: (128 + low) - (128 + sign)."""
    low = (word & uint32(0x007F007F)) | uint32(0x43004300)
    sign = (word & uint32(0x00800080)) | uint32(0x43004300)
    return ptx.multiply_add_bf16x2(sign, uint32(0xBF80BF80), low)


@device_function
def wide_words(word: Any, scale: Any) -> Any:
    """Two words of bf16 from four codes, in order."""
    even, odd = code_pair(word), code_pair(word >> uint32(8))
    a, c = lower_bf16(even) * scale, upper_bf16(even) * scale
    b, d = lower_bf16(odd) * scale, upper_bf16(odd) * scale
    return ptx.bf16x2_of_f32(a, b), ptx.bf16x2_of_f32(c, d)


def make_page_loads(head_dim: int, is_int8: bool) -> Any:
    """Function that brings one page of keys or values of a head into a buffer."""
    row_bytes = 2 * head_dim
    pieces = row_bytes // 16
    groups = head_dim // 64
    code_pieces = head_dim // 16

    @device_function
    def load_bf16(buffer: Any, plane: Any, scales: Any, row: Any, count: Any) -> None:
        source = plane + uint64(row) * uint64(row_bytes)
        source += uint64(cuda.threadIdx.x) * uint64(16)
        for i in range(TILE * pieces // THREADS):
            index = uint32(i * THREADS) + uint32(cuda.threadIdx.x)
            place, piece = index // uint32(pieces), index % uint32(pieces)
            size = uint32(16) if int32(place) < int32(count) else uint32(0)
            swizzled = (piece ^ (place & uint32(7))) << uint32(4)
            target = uint32(buffer) + place * uint32(row_bytes) + swizzled
            ptx.copy_async_16(target, source + uint64(i * THREADS * 16), size)

    @device_function
    def load_int8(buffer: Any, plane: Any, scales: Any, row: Any, count: Any) -> None:
        index = uint32(cuda.threadIdx.x)
        while index < uint32(TILE * code_pieces):
            place, piece = index // uint32(code_pieces), index % uint32(code_pieces)
            a, b, c, d, scale = uint32(0), uint32(0), uint32(0), uint32(0), float32(0.0)
            if int32(place) < int32(count):
                at = uint64(row) + uint64(place)
                a, b, c, d = ptx.load_u32x4(
                    plane + at * uint64(head_dim) + uint64(piece) * uint64(16)
                )
                group = at * uint64(groups) + uint64(piece >> uint32(2))
                scale = ptx.f32_of_f16(ptx.load_u16(scales + group * uint64(2)))
            line = uint32(buffer) + place * uint32(row_bytes)
            w0, w1 = wide_words(a, scale)
            w2, w3 = wide_words(b, scale)
            swizzled = ((piece * uint32(2)) ^ (place & uint32(7))) << uint32(4)
            ptx.put_shared_u32x4(line + swizzled, w0, w1, w2, w3)
            w0, w1 = wide_words(c, scale)
            w2, w3 = wide_words(d, scale)
            ptx.put_shared_u32x4(line + (swizzled ^ uint32(16)), w0, w1, w2, w3)
            index += uint32(THREADS)

    return load_int8 if is_int8 else load_bf16


def make_load_queries(head_dim: int) -> Any:
    """Function that brings a tile of queries of one head."""
    row_bytes = 2 * head_dim
    pieces = row_bytes // 16

    @device_function
    def load_queries(
        base: Any, queries: Any, first: Any, num_columns: Any, head: Any, num_heads: Any
    ) -> None:
        index = uint32(cuda.threadIdx.x)
        while index < uint32(TILE_QUERIES * pieces):
            place, piece = index // uint32(pieces), index % uint32(pieces)
            column = int32(first) + int32(place)
            size = uint32(16) if column < num_columns else uint32(0)
            column = min(column, int32(num_columns) - int32(1))
            at = uint64(column) * uint64(num_heads) + uint64(head)
            target = base + place * uint32(row_bytes)
            target += (piece ^ (place & uint32(7))) << uint32(4)
            source = queries + at * uint64(row_bytes) + uint64(piece) * uint64(16)
            ptx.copy_async_16(target, source, size)
            index += uint32(THREADS)

    return load_queries


def make_load_tile(head_dim: int, is_int8: bool) -> Any:
    """Function that brings a page of keys and, behind it, one of values."""
    plane_bytes = TILE * 2 * head_dim
    load_page = make_page_loads(head_dim, is_int8)

    @device_function
    def load_tile(
        buffer: Any,
        keys: Any,
        values: Any,
        key_scales: Any,
        value_scales: Any,
        block_row: Any,
        tile: Any,
        num_kv_heads: Any,
        kv_head: Any,
        length: Any,
    ) -> None:
        if tile * TILE < length:
            page = ptx.load_i32(block_row + uint64(tile) * uint64(4))
            row = (uint64(page) * uint64(num_kv_heads) + uint64(kv_head)) * uint64(TILE)
            count = int32(length) - int32(tile) * int32(TILE)
            load_page(buffer, keys, key_scales, row, count)
            load_page(buffer + uint32(plane_bytes), values, value_scales, row, count)
        ptx.close_copies()

    return load_tile
