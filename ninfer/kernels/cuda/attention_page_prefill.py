"""Prefill attention on CUDA where a block has no room for two pages: one page at a time.

The arithmetic is that of `attention_prefill`, and so are its parts. Keys and values have a buffer
each: values come while scores are made, the next keys while values are added. The outputs leave
through the memory of queries and pages. A block of eight warps has 128 queries and 130 KB at 256
components of a head, one of four warps 64 queries and 96 KB. How many there are changes no bit.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.errors import ShapeError
from ninfer.kernels.cuda.attention_output import (
    divided,
    make_put_rows,
    make_write,
    output_line_bytes,
)
from ninfer.kernels.cuda.attention_pages import TILE, wide_words
from ninfer.kernels.cuda.attention_prefill import make_products
from ninfer.kernels.cuda.attention_softmax import UNSEEN, make_weigh, over_quad
from ninfer.kernels.cuda.launch import WARP

WARP_QUERIES: Final = 16
_MOST_WARPS: Final = 8
_LEAST_WARPS: Final = 4


def shared_bytes(head_dim: int, warps: int) -> int:
    """Queries, a page of keys and one of values, or the outputs."""
    queries, line = warps * WARP_QUERIES, output_line_bytes(head_dim)
    return max((queries + 2 * TILE) * 2 * head_dim, queries * line)


def page_warps(head_dim: int, block_shared_bytes: int) -> int:
    """Warps of a block, as many as its shared memory allows.

    Raises:
        ShapeError: it is too little for the fewest.
    """
    for warps in (_MOST_WARPS, _LEAST_WARPS):
        if shared_bytes(head_dim, warps) <= block_shared_bytes:
            return warps
    raise ShapeError(f"heads of {head_dim}: a block has only {block_shared_bytes} bytes")


def _make_load_bf16(head_dim: int, threads: int) -> Any:
    """Function that starts copies of ``num_rows`` rows of bf16, zeros behind ``count``."""
    row_bytes = 2 * head_dim
    pieces = row_bytes // 16
    rows_at_once = threads // pieces  # a multiple of four: swizzles repeat, or turn by four

    @device_function
    def load(to: Any, source: Any, row_stride: Any, num_rows: Any, count: Any) -> None:
        first, piece = (
            uint32(cuda.threadIdx.x) // uint32(pieces),
            uint32(cuda.threadIdx.x) % uint32(pieces),
        )
        target = uint32(to) + first * uint32(row_bytes)
        inside = (piece ^ (first & uint32(7))) << uint32(4)
        at = source + uint64(first) * uint64(row_stride) + uint64(piece) * uint64(16)
        for i in range(num_rows // rows_at_once):
            place = i * rows_at_once
            size = uint32(int32(first) + int32(place) < int32(count)) << uint32(4)
            turned = inside ^ uint32(place % 8 * 16)
            ptx.copy_async_16(target + turned + uint32(place * row_bytes), at, size)
            at += uint64(row_stride) * uint64(rows_at_once)

    return load


def _make_load_int8(head_dim: int, threads: int) -> Any:
    """Function that brings a page of int8 rows as bf16, zeros behind ``count``."""
    row_bytes = 2 * head_dim
    pieces, groups = head_dim // 16, head_dim // 64
    rows_at_once = threads // pieces  # a multiple of eight: swizzles repeat

    @device_function
    def load(to: Any, plane: Any, scales: Any, row: Any, count: Any) -> None:
        first, piece = (
            uint32(cuda.threadIdx.x) // uint32(pieces),
            uint32(cuda.threadIdx.x) % uint32(pieces),
        )
        line = uint32(to) + first * uint32(row_bytes)
        inside = ((piece * uint32(2)) ^ (first & uint32(7))) << uint32(4)
        target, other = line + inside, line + (inside ^ uint32(16))
        at = uint64(row) + uint64(first)
        codes = plane + at * uint64(head_dim) + uint64(piece) * uint64(16)
        steps = scales + (at * uint64(groups) + uint64(piece >> uint32(2))) * uint64(2)
        for i in range(TILE // rows_at_once):
            place = i * rows_at_once
            a, b, c, d, scale = uint32(0), uint32(0), uint32(0), uint32(0), float32(0.0)
            if int32(first) + int32(place) < int32(count):
                a, b, c, d = ptx.load_u32x4(codes + uint64(place * head_dim))
                scale = ptx.f32_of_f16(ptx.load_u16(steps + uint64(place * groups * 2)))
            w0, w1 = wide_words(a, scale)
            w2, w3 = wide_words(b, scale)
            ptx.put_shared_u32x4(target + uint32(place * row_bytes), w0, w1, w2, w3)
            w0, w1 = wide_words(c, scale)
            w2, w3 = wide_words(d, scale)
            ptx.put_shared_u32x4(other + uint32(place * row_bytes), w0, w1, w2, w3)

    return load


def _make_load_page(head_dim: int, is_int8: bool, threads: int) -> Any:
    """Function that starts to bring the rows of a page that are there."""
    row_bytes = 2 * head_dim
    load_bf16 = _make_load_bf16(head_dim, threads)
    load_int8 = _make_load_int8(head_dim, threads)

    @device_function
    def load_page(to: Any, plane: Any, scales: Any, row: Any, count: Any) -> None:
        if is_int8:
            load_int8(to, plane, scales, row, count)
        else:
            load_bf16(to, plane + uint64(row) * uint64(row_bytes), row_bytes, TILE, count)
        ptx.close_copies()

    return load_page


@cache
def make_page_prefill(  # noqa: PLR0915 - one loop, whose state is a lane's registers
    head_dim: int, is_int8: bool, warps: int
) -> Kernel:
    """Grid (query tiles, heads), block (32 warps,); every thread reaches every barrier.

    Args:
        head_dim: components of a head.
        is_int8: cache type.
        warps: `page_warps` of the device.
    """
    row_bytes = 2 * head_dim
    num_queries = warps * WARP_QUERIES
    keys_at = num_queries * row_bytes
    values_at = keys_at + TILE * row_bytes
    line_bytes = output_line_bytes(head_dim)
    num_outputs = head_dim // 2
    load_rows = _make_load_bf16(head_dim, warps * WARP)
    load_page = _make_load_page(head_dim, is_int8, warps * WARP)
    scores, accumulate = make_products(head_dim)
    weigh, put_rows = make_weigh(head_dim), make_put_rows(head_dim, divided)
    write = make_write(head_dim)

    def prefill(  # noqa: PLR0915 - as above
        queries: int,
        projected: int,
        keys: int,
        values: int,
        key_scales: int,
        value_scales: int,
        block_table: int,
        table_rows: int,
        positions: int,
        base: int,
        sums: int,
        num_columns: int,
        num_heads: int,
        num_kv_heads: int,
        table_width: int,
        padded: int,
        factor: float,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        shared = ptx.shared_address(memory)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        first = int32(cuda.gridDim.x - 1 - cuda.blockIdx.x) * int32(num_queries)
        head = int32(cuda.blockIdx.y)
        kv_head = head // int32(num_heads // num_kv_heads)
        block_row = block_table
        block_row += uint64(ptx.load_i32(table_rows)) * uint64(table_width * 4)
        start = ptx.load_i32(positions)
        length = start + min(first + int32(num_queries), int32(num_columns))
        own_first = first + warp * int32(WARP_QUERIES)
        position = start + own_first + (lane >> 2)
        line = queries + (uint64(first) * uint64(num_heads) + uint64(head)) * uint64(row_bytes)
        load_rows(shared, line, num_heads * row_bytes, num_queries, num_columns - first)
        page = ptx.load_i32(block_row)
        row = int32((page * num_kv_heads + kv_head) * int32(TILE))
        load_page(shared + uint32(keys_at), keys, key_scales, row, length)
        o = cuda.local.array(num_outputs, float32)
        s = cuda.local.array(32, float32)
        for i in range(num_outputs):
            o[i] = float32(0.0)
        most0, most1 = float32(UNSEEN), float32(UNSEEN)
        total0, total1 = float32(0.0), float32(0.0)
        own_queries = shared + uint32(warp) * uint32(WARP_QUERIES * row_bytes)
        ptx.wait_copies_0()
        cuda.syncthreads()
        seen = int32(0)
        while seen < length:
            load_page(shared + uint32(values_at), values, value_scales, row, length - seen)
            following = seen + int32(TILE)
            if following < length:
                block_row += uint64(4)
                page = ptx.load_i32(block_row)
                row = int32((page * num_kv_heads + kv_head) * int32(TILE))
            scores(own_queries, shared + uint32(keys_at), lane, s)
            ptx.wait_copies_0()
            cuda.syncthreads()
            if following < length:
                load_page(shared + uint32(keys_at), keys, key_scales, row, length - following)
            most0, most1, total0, total1 = weigh(
                s, o, factor, seen, position, lane, most0, most1, total0, total1
            )
            accumulate(shared + uint32(values_at), lane, s, o)
            ptx.wait_copies_0()
            cuda.syncthreads()
            seen = int32(following)
        total0, total1 = over_quad(total0), over_quad(total1)
        rows = shared + uint32(warp) * uint32(WARP_QUERIES * line_bytes)
        put_rows(rows, o, total0, total1, uint32(lane))
        write(
            rows, projected, base, sums, own_first, num_columns, head, num_heads, num_kv_heads,
            padded, lane,
        )  # fmt: skip

    params = (Param.ADDRESS,) * 11 + (Param.I32,) * 5 + (Param.F32,)
    return Kernel(
        f"attention_page_prefill_{head_dim}_{'int8' if is_int8 else 'bf16'}_{warps}",
        prefill,
        params,
        threads=warps * WARP,
        max_registers=255,
        dynamic_shared_bytes=shared_bytes(head_dim, warps),
    )
