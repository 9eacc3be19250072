"""Prefill attention on CUDA: 128 queries of one head against tiles of 64 cached positions.

    m' = max(m, max s_j) ; c = exp2(m - m') ; p_j = exp2(s_j - m')     s in units of log 2
    l = c l + sum p_j ; a = c a + sum p_j v_j ; out = a / l * sigmoid(gate)

Eight warps own sixteen queries each; their outputs stay in registers while pages pass through two
buffers in shared memory, as 16-byte chunks c of row r at c xor (r mod 8), so that matrix loads find
no bank conflict. Int8 pages become bf16 on their way in. Tiles are pages, that is fixed absolute
positions, and positions behind a query's own add nothing: a query's result does not depend on where
its chunk begins or ends. Blocks of late queries, which have most to do, start first. Traffic: the
cached rows once for each block, from the second-level cache mostly; 4 D FLOP a query and position.
Source: flash attention 2, arXiv 2307.08691.
"""

from functools import cache
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.attention_output import (
    divided,
    make_put_rows,
    make_write,
    output_line_bytes,
)
from ninfer.kernels.cuda.attention_pages import (
    THREADS,
    TILE,
    TILE_QUERIES,
    make_load_queries,
    make_load_tile,
)
from ninfer.kernels.cuda.attention_softmax import UNSEEN, make_weigh, over_quad
from ninfer.kernels.cuda.column_image import order_suffix


def make_products(head_dim: int) -> Any:
    """Functions ``scores(queries, keys, lane, s)`` and ``accumulate(values, lane, s, o)``."""
    row_bytes = 2 * head_dim
    steps = head_dim // 16

    @device_function
    def scores(queries: Any, keys: Any, lane: Any, s: Any) -> None:
        for i in range(32):
            s[i] = float32(0.0)
        seven = uint32(lane) & uint32(7)
        query_line = uint32(queries) + (uint32(lane) & uint32(15)) * uint32(row_bytes)
        query_at = ((uint32(lane) >> uint32(4)) ^ seven) << uint32(4)
        key_row = seven + ((uint32(lane) >> uint32(4)) << uint32(3))
        key_line = uint32(keys) + key_row * uint32(row_bytes)
        key_at = (((uint32(lane) >> uint32(3)) & uint32(1)) ^ seven) << uint32(4)
        for step in range(steps):
            turn = uint32(step % 4 * 32)
            far = uint32(step // 4 * 128)
            a0, a1, a2, a3 = ptx.load_matrices(query_line + (query_at ^ turn) + far)
            at = key_line + (key_at ^ turn) + far
            for block in range(4):
                x0, x1, x2, x3 = ptx.load_matrices(at + uint32(block * 16 * row_bytes))
                i = block * 8
                s[i], s[i + 1], s[i + 2], s[i + 3] = ptx.mma_bf16(
                    a0, a1, a2, a3, x0, x1, s[i], s[i + 1], s[i + 2], s[i + 3]
                )
                s[i + 4], s[i + 5], s[i + 6], s[i + 7] = ptx.mma_bf16(
                    a0, a1, a2, a3, x2, x3, s[i + 4], s[i + 5], s[i + 6], s[i + 7]
                )

    @device_function
    def accumulate_rows(values: Any, lane: Any, s: Any, block: Any, o: Any) -> None:
        i = block * 8
        a0 = ptx.bf16x2_of_f32(s[i], s[i + 1])
        a1 = ptx.bf16x2_of_f32(s[i + 2], s[i + 3])
        a2 = ptx.bf16x2_of_f32(s[i + 4], s[i + 5])
        a3 = ptx.bf16x2_of_f32(s[i + 6], s[i + 7])
        row = (uint32(lane) & uint32(15)) + uint32(block * 16)
        line = uint32(values) + row * uint32(row_bytes)
        at = ((uint32(lane) >> uint32(4)) ^ (uint32(lane) & uint32(7))) << uint32(4)
        for j in range(steps):
            x0, x1, x2, x3 = ptx.load_matrices_transposed(
                line + (at ^ uint32(j % 4 * 32)) + uint32(j // 4 * 128)
            )
            n = 8 * j
            o[n], o[n + 1], o[n + 2], o[n + 3] = ptx.mma_bf16(
                a0, a1, a2, a3, x0, x1, o[n], o[n + 1], o[n + 2], o[n + 3]
            )
            o[n + 4], o[n + 5], o[n + 6], o[n + 7] = ptx.mma_bf16(
                a0, a1, a2, a3, x2, x3, o[n + 4], o[n + 5], o[n + 6], o[n + 7]
            )

    @device_function
    def accumulate(values: Any, lane: Any, s: Any, o: Any) -> None:
        accumulate_rows(values, lane, s, 0, o)
        accumulate_rows(values, lane, s, 1, o)
        accumulate_rows(values, lane, s, 2, o)
        accumulate_rows(values, lane, s, 3, o)

    return scores, accumulate


@cache
def make_prefill(  # noqa: PLR0915 - one loop, whose state is a lane's registers
    head_dim: int, is_int8: bool, to_image: bool
) -> Kernel:
    """Grid (query tiles, heads), block (256,); every thread reaches every barrier."""
    row_bytes = 2 * head_dim
    plane_bytes = TILE * row_bytes
    buffers_at = TILE_QUERIES * row_bytes
    line_bytes = output_line_bytes(head_dim)
    shared_bytes = buffers_at + max(4 * plane_bytes, TILE_QUERIES * line_bytes)
    num_outputs = head_dim // 2
    load_queries = make_load_queries(head_dim)
    load_tile = make_load_tile(head_dim, is_int8)
    scores, accumulate = make_products(head_dim)
    weigh, put_rows = make_weigh(head_dim), make_put_rows(head_dim, divided)
    write = make_write(head_dim, to_image)

    def prefill(
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
        first = int32(cuda.gridDim.x - 1 - cuda.blockIdx.x) * int32(TILE_QUERIES)
        head = int32(cuda.blockIdx.y)
        kv_head = head // int32(num_heads // num_kv_heads)
        table_row = ptx.load_i32(table_rows)
        block_row = block_table + uint64(table_row) * uint64(table_width * 4)
        start = ptx.load_i32(positions)
        stop = min(first + int32(TILE_QUERIES), int32(num_columns))
        length = start + stop
        own_first = first + warp * int32(16)
        position = start + own_first + (lane >> 2)
        buffer = shared + uint32(buffers_at)
        load_queries(shared, queries, first, num_columns, head, num_heads)
        load_tile(
            buffer, keys, values, key_scales, value_scales, block_row, 0, num_kv_heads, kv_head,
            length,
        )  # fmt: skip
        o = cuda.local.array(num_outputs, float32)
        s = cuda.local.array(32, float32)
        for i in range(num_outputs):
            o[i] = float32(0.0)
        most0, most1 = float32(UNSEEN), float32(UNSEEN)
        total0, total1 = float32(0.0), float32(0.0)
        own_queries = shared + uint32(warp) * uint32(16 * row_bytes)
        tiles = (length + int32(TILE - 1)) // int32(TILE)
        odd = uint32(0)
        for tile in range(tiles):
            here = buffer + odd * uint32(2 * plane_bytes)
            odd ^= uint32(1)
            load_tile(
                buffer + odd * uint32(2 * plane_bytes),
                keys, values, key_scales, value_scales, block_row, tile + 1, num_kv_heads, kv_head,
                length,
            )  # fmt: skip
            ptx.wait_copies_1()
            cuda.syncthreads()
            scores(own_queries, here, lane, s)
            most0, most1, total0, total1 = weigh(
                s, o, factor, tile * TILE, position, lane, most0, most1, total0, total1
            )
            accumulate(here + uint32(plane_bytes), lane, s, o)
            cuda.syncthreads()
        ptx.wait_copies_0()
        total0, total1 = over_quad(total0), over_quad(total1)
        rows = buffer + uint32(warp) * uint32(16 * line_bytes)
        put_rows(rows, o, total0, total1, uint32(lane))
        write(
            rows, projected, base, sums, own_first, num_columns, head, num_heads, num_kv_heads,
            padded, lane,
        )  # fmt: skip

    params = (Param.ADDRESS,) * 11 + (Param.I32,) * 5 + (Param.F32,)
    return Kernel(
        f"attention_prefill_{head_dim}_{'int8' if is_int8 else 'bf16'}{order_suffix(to_image)}",
        prefill,
        params,
        threads=THREADS,
        max_registers=255,
        dynamic_shared_bytes=shared_bytes,
    )
