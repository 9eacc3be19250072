"""Int8 pages of one sequence as bf16 pages in scratch memory, for prefill attention on Hopper.

Blocks of prefill attention read every page of their sequence once for 128 queries of one head;
turning codes into bf16 there costs more than the products hide. Here each page is turned once for
all queries and heads, as `attention_wide_int8` turns it, bit for bit, so that `attention_wide` can
read it. Written: pages in order of their positions, and the table that says so. Nothing is written
where the sequence is longer than the limit, which the scratch memory sets.

A warp takes a row at a time, a lane eight codes, and asks for eight rows before it turns the first.
Rows behind the last position are turned as they lie; nobody reads them. Traffic: codes and scales
once, two bytes a code written.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_wide_int8 import scaled_words, split_scale
from ninfer.kernels.cuda.attention_wide_parts import BLOCKS, HEAD_DIM, TILE
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.tensor import Tensor

_THREADS: Final = 256
_WARPS: Final = _THREADS // 32
_ROWS: Final = TILE // _WARPS  # of a warp
_WORDS: Final = 2 * _ROWS  # of a lane, four codes each

POSITION_BYTES: Final = 2 * 2 * HEAD_DIM
"""Scratch memory of a position and key head: its key and its value."""

_ALIGNMENT: Final = 256


class ScratchPages:
    """Where bf16 pages of one sequence lie in scratch memory: their table, keys, values.

    Args:
        scratch: of the stream.
        num_kv_heads: of the model.
        table_width: most pages that a sequence can have.

    Attributes:
        table, keys, values: addresses.
        limit: positions for which there is room.
    """

    def __init__(self, scratch: Tensor, num_kv_heads: int, table_width: int) -> None:
        page_bytes = TILE * POSITION_BYTES * num_kv_heads
        table_bytes = blocks_for(4 * table_width, _ALIGNMENT) * _ALIGNMENT
        pages = min(table_width, max(scratch.nbytes - table_bytes, 0) // page_bytes)
        self.table: Final = scratch.address
        self.keys: Final = self.table + table_bytes
        self.values: Final = self.keys + pages * page_bytes // 2
        self.limit: Final = pages * TILE


@device_function
def expand_page(plane: Any, scales: Any, row: Any, wide: Any, wide_row: Any) -> None:
    """Turn the page of plane row ``row`` into the one of ``wide_row``."""
    thread = uint32(cuda.threadIdx.x)
    lane, warp = thread & uint32(31), thread >> uint32(5)
    at = uint64(row) + uint64(warp)
    source = plane + at * uint64(HEAD_DIM) + uint64(lane << uint32(3))
    steps = scales + at * uint64(2 * BLOCKS) + uint64((lane >> uint32(3)) << uint32(1))
    target = wide + (uint64(wide_row) + uint64(warp)) * uint64(2 * HEAD_DIM)
    target += uint64(lane << uint32(4))
    codes = cuda.local.array(_WORDS, uint32)
    halves = cuda.local.array(_ROWS, uint32)
    for i in range(_ROWS):
        codes[2 * i], codes[2 * i + 1] = ptx.load_u32x2(source + uint64(i * _WARPS * HEAD_DIM))
        halves[i] = ptx.load_u16(steps + uint64(i * _WARPS * 2 * BLOCKS))
    for i in range(_ROWS):
        high, low = split_scale(ptx.f32_of_f16(halves[i]))
        w0, w1 = scaled_words(codes[2 * i], high, low)
        w2, w3 = scaled_words(codes[2 * i + 1], high, low)
        ptx.store_u32x4(target + uint64(i * _WARPS * 2 * HEAD_DIM), w0, w1, w2, w3)


@cache
def make_expand() -> Kernel:
    """Grid (any number of blocks,), block (256,)."""

    def expand(
        keys: int,
        values: int,
        key_scales: int,
        value_scales: int,
        block_table: int,
        table_rows: int,
        positions: int,
        wide_keys: int,
        wide_values: int,
        wide_table: int,
        num_columns: int,
        num_kv_heads: int,
        table_width: int,
        limit: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        block_row = block_table + uint64(ptx.load_i32(table_rows)) * uint64(table_width * 4)
        length = ptx.load_i32(positions) + int32(num_columns)
        units = uint32(0)
        if length <= int32(limit):
            units = (uint32(length + int32(TILE - 1)) >> uint32(6)) * uint32(num_kv_heads)
        unit = uint32(cuda.blockIdx.x)
        while unit < units:
            tile = ptx.divide_u32(unit, uint32(num_kv_heads))
            kv_head = unit - tile * uint32(num_kv_heads)
            page = ptx.load_i32(block_row + uint64(tile) * uint64(4))
            row = (uint64(page) * uint64(num_kv_heads) + uint64(kv_head)) * uint64(TILE)
            wide_row = uint64(unit) * uint64(TILE)
            expand_page(keys, key_scales, row, wide_keys, wide_row)
            expand_page(values, value_scales, row, wide_values, wide_row)
            if kv_head == 0 and int32(cuda.threadIdx.x) == 0:
                ptx.store_u32(wide_table + uint64(tile) * uint64(4), tile)
            unit += uint32(cuda.gridDim.x)

    return Kernel(
        "attention_expand",
        expand,
        (Param.ADDRESS,) * 10 + (Param.I32,) * 4,
        threads=_THREADS,
        max_registers=64,
        min_blocks=4,
    )
