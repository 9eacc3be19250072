"""The chunked Gated DeltaNet recurrence on CUDA: state in registers, chunk by chunk.

    r = v - e^b (k S) ; u = solution r ; o = e^b (q S) + weights u
    S' = e^(b_end) S + sum_j e^(b_end - b_j) k_j u_j^T

A block owns some columns of one head's state. A warp owns sixteen of its rows as sums of tensor
core products, and sixteen positions and half the columns of everything else; what other warps need
goes through shared memory as high and low bf16 parts (`delta_blocks`), so that every product has an
error near 2^-17. The operands of the next chunk are copied meanwhile. Outputs take the place of the
values. Traffic: `CHUNK_ROWS` and `CHUNK_FACTORS` bytes a chunk for each block of a head, values and
outputs once, the state once each way.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

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
    add_product,
    left_rows,
    left_rows_turned,
    left_triangle,
    put_tile_pairs,
    right_tiles,
    split_pair,
)
from ninfer.kernels.cuda.delta_columns import DeltaHeads
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.product_output import warp_index

_WARPS: Final = WIDTH // 16
_THREADS: Final = _WARPS * WARP
_COPY_BYTES: Final = 16 * _THREADS  # what all threads copy at once
_STAGE_BYTES: Final = CHUNK_ROWS + CHUNK_FACTORS


@device_function
def fetch(stage: Any, rows: Any, factors: Any) -> None:
    """Start the copies of one chunk's operands."""
    at = uint32(cuda.threadIdx.x) << uint32(4)
    for _ in range(CHUNK_ROWS // _COPY_BYTES):
        ptx.copy_async_16(stage + at, rows + uint64(at), uint32(16))
        at += uint32(_COPY_BYTES)
    behind = stage + uint32(CHUNK_ROWS)
    at = uint32(cuda.threadIdx.x) << uint32(4)
    for _ in range(CHUNK_FACTORS // _COPY_BYTES):
        ptx.copy_async_16(behind + at, factors + uint64(at), uint32(16))
        at += uint32(_COPY_BYTES)
    if warp_index() < CHUNK_FACTORS % _COPY_BYTES // (16 * WARP):
        ptx.copy_async_16(behind + at, factors + uint64(at), uint32(16))


@device_function
def add_split(c: Any, n: Any, left: Any, right: Any, low_left: Any, low_right: Any) -> None:
    """Add the products of two neighbouring columns of tiles, the small ones first."""
    h0, h1, h2, h3 = left
    l0, l1, l2, l3 = low_left
    x0, x1, x2, x3 = right
    y0, y1, y2, y3 = low_right
    add_product(c, n, h0, h1, h2, h3, y0, y1)
    add_product(c, n + 4, h0, h1, h2, h3, y2, y3)
    add_product(c, n, l0, l1, l2, l3, x0, x1)
    add_product(c, n + 4, l0, l1, l2, l3, x2, x3)
    add_product(c, n, h0, h1, h2, h3, x0, x1)
    add_product(c, n + 4, h0, h1, h2, h3, x2, x3)


@device_function
def put_split(
    tiles: Any, low: Any, columns: Any, row: Any, column: Any, lane: Any,
    a: Any, b: Any, c: Any, d: Any,
) -> None:  # fmt: skip
    """Store the sums of one product as tiles of high and low parts."""
    upper, upper_low = split_pair(a, b)
    lower, lower_low = split_pair(c, d)
    put_tile_pairs(tiles, columns, row, column, lane, upper, lower)
    put_tile_pairs(low, columns, row, column, lane, upper_low, lower_low)


@cache
def make_scan(heads: DeltaHeads, columns: int) -> Kernel:  # noqa: C901, PLR0915 - one loop over chunks
    """Advance a state over chunks; grid (value heads, WIDTH / columns), block (256,).

    Args:
        heads: of the mixer, of `WIDTH` components.
        columns: of the state that a block owns, 32 or 64.
    """
    sharing, num_key_heads, num_value_heads = (
        heads.sharing, heads.num_key_heads, heads.num_value_heads,
    )  # fmt: skip
    row_bytes = 4 * heads.value_width
    tiles = columns // 8  # of the state
    own_tiles = tiles // 2  # of everything else
    num_state, num_own = 4 * tiles, 4 * own_tiles
    state_at = 2 * _STAGE_BYTES
    state_bytes = WIDTH * columns * 2  # of each part
    tile_bytes = POSITIONS * columns * 2
    rest_at = state_at + 2 * state_bytes
    shared_bytes = rest_at + 2 * tile_bytes
    state_line = 4 * WIDTH

    def scan(  # noqa: C901, PLR0915 - as above
        rows: int,
        factors: int,
        values: int,
        matrices: int,
        slots: int,
        num_chunks: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        shared = ptx.shared_address(memory)
        warp, lane = int32(warp_index()), cuda.threadIdx.x & 31
        head, first = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y) * int32(columns)
        line, pair = uint32(lane) >> uint32(2), (uint32(lane) & uint32(3)) << uint32(1)
        block, half = warp & int32(3), (warp >> int32(2)) * int32(columns // 2)
        rows += uint64(head // int32(sharing)) * uint64(CHUNK_ROWS)
        factors += uint64(head) * uint64(CHUNK_FACTORS)
        fetch(shared, rows, factors)
        ptx.close_copies()

        s = cuda.local.array(num_state, float32)
        v = cuda.local.array(num_own, float32)
        c = cuda.local.array(num_own, float32)
        o = cuda.local.array(num_own, float32)
        slot = ptx.load_i32(slots)
        matrix = uint64(slot) * uint64(num_value_heads) + uint64(head)
        place = matrices + matrix * uint64(WIDTH * state_line)
        place += uint64(uint32(warp * 16) + line) * uint64(state_line)
        place += uint64(uint32(first) + pair) * uint64(4)
        for n in range(tiles):
            at = place + uint64(n * 32)
            s[4 * n], s[4 * n + 1] = ptx.load_f32x2(at)
            s[4 * n + 2], s[4 * n + 3] = ptx.load_f32x2(at + uint64(8 * state_line))
        value = values + uint64(uint32(block * 16) + line) * uint64(row_bytes)
        value += uint64(uint32(head * int32(WIDTH) + first + half) + pair) * uint64(4)

        high, low = shared + uint32(state_at), shared + uint32(state_at + state_bytes)
        rest, rest_low = shared + uint32(rest_at), shared + uint32(rest_at + tile_bytes)
        odd = uint32(0)
        for chunk in range(num_chunks):
            stage = shared + odd * uint32(_STAGE_BYTES)
            odd ^= uint32(1)
            if chunk + 1 < num_chunks:
                rows += uint64(num_key_heads * CHUNK_ROWS)
                factors += uint64(num_value_heads * CHUNK_FACTORS)
                fetch(shared + odd * uint32(_STAGE_BYTES), rows, factors)
            ptx.close_copies()
            for n in range(own_tiles):
                at = value + uint64(n * 32)
                v[4 * n], v[4 * n + 1] = ptx.load_f32x2(at)
                v[4 * n + 2], v[4 * n + 3] = ptx.load_f32x2(at + uint64(8 * row_bytes))
            for n in range(tiles):
                put_split(
                    high, low, columns, warp * 16, n * 8, lane,
                    s[4 * n], s[4 * n + 1], s[4 * n + 2], s[4 * n + 3],
                )  # fmt: skip
            ptx.wait_copies_1()
            cuda.syncthreads()

            # k S and q S
            for i in range(num_own):
                c[i] = float32(0.0)
                o[i] = float32(0.0)
            for step in range(WIDTH // 16):
                k = left_rows(stage, block * 16, step, lane)
                k_low = left_rows(stage + uint32(ROWS_BYTES), block * 16, step, lane)
                q = left_rows(stage + uint32(2 * ROWS_BYTES), block * 16, step, lane)
                q_low = left_rows(stage + uint32(3 * ROWS_BYTES), block * 16, step, lane)
                for n in range(own_tiles // 2):
                    x = right_tiles(high, columns, step, half + n * 16, lane)
                    y = right_tiles(low, columns, step, half + n * 16, lane)
                    add_split(c, 8 * n, k, x, k_low, y)
                    add_split(o, 8 * n, q, x, q_low, y)
            decays = stage + uint32(CHUNK_ROWS + 4 * TRIANGLE_BYTES)
            own_decays = decays + (uint32(block * 16) + line) * uint32(4)
            d0, d1 = ptx.shared_f32(own_decays), ptx.shared_f32(own_decays + uint32(32))
            for n in range(own_tiles):
                i = 4 * n
                put_split(
                    rest, rest_low, columns, block * 16, half + n * 8, lane,
                    v[i] - d0 * c[i], v[i + 1] - d0 * c[i + 1],
                    v[i + 2] - d1 * c[i + 2], v[i + 3] - d1 * c[i + 3],
                )  # fmt: skip
                o[i], o[i + 1] = d0 * o[i], d0 * o[i + 1]
                o[i + 2], o[i + 3] = d1 * o[i + 2], d1 * o[i + 3]
            cuda.syncthreads()

            # u, where the parts of the state were: as it is, then as the state takes it
            for i in range(num_own):
                c[i] = float32(0.0)
            triangle = stage + uint32(CHUNK_ROWS)
            for j in range(block + 1):
                t = left_triangle(triangle, block, j, lane)
                t_low = left_triangle(triangle + uint32(TRIANGLE_BYTES), block, j, lane)
                for n in range(own_tiles // 2):
                    x = right_tiles(rest, columns, j, half + n * 16, lane)
                    y = right_tiles(rest_low, columns, j, half + n * 16, lane)
                    add_split(c, 8 * n, t, x, t_low, y)
            d0 = ptx.shared_f32(own_decays + uint32(4 * POSITIONS))
            d1 = ptx.shared_f32(own_decays + uint32(4 * POSITIONS + 32))
            for n in range(own_tiles):
                i = 4 * n
                put_split(
                    high, high + uint32(tile_bytes), columns, block * 16, half + n * 8, lane,
                    c[i], c[i + 1], c[i + 2], c[i + 3],
                )  # fmt: skip
                put_split(
                    low, low + uint32(tile_bytes), columns, block * 16, half + n * 8, lane,
                    d0 * c[i], d0 * c[i + 1], d1 * c[i + 2], d1 * c[i + 3],
                )  # fmt: skip
            cuda.syncthreads()

            # the state behind the chunk
            end = ptx.shared_f32(decays + uint32(4 * POSITIONS - 4))
            for i in range(num_state):
                s[i] = end * s[i]
            for step in range(POSITIONS // 16):
                k = left_rows_turned(stage, warp * 16, step, lane)
                k_low = left_rows_turned(stage + uint32(ROWS_BYTES), warp * 16, step, lane)
                for n in range(tiles // 2):
                    x = right_tiles(low, columns, step, n * 16, lane)
                    y = right_tiles(low + uint32(tile_bytes), columns, step, n * 16, lane)
                    add_split(s, 8 * n, k, x, k_low, y)
            # outputs
            triangle += uint32(2 * TRIANGLE_BYTES)
            for j in range(block + 1):
                p = left_triangle(triangle, block, j, lane)
                p_low = left_triangle(triangle + uint32(TRIANGLE_BYTES), block, j, lane)
                for n in range(own_tiles // 2):
                    x = right_tiles(high, columns, j, half + n * 16, lane)
                    y = right_tiles(high + uint32(tile_bytes), columns, j, half + n * 16, lane)
                    add_split(o, 8 * n, p, x, p_low, y)
            for n in range(own_tiles):
                at = value + uint64(n * 32)
                ptx.store_f32x2(at, o[4 * n], o[4 * n + 1])
                ptx.store_f32x2(at + uint64(8 * row_bytes), o[4 * n + 2], o[4 * n + 3])
            value += uint64(POSITIONS * row_bytes)
            cuda.syncthreads()
        for n in range(tiles):
            at = place + uint64(n * 32)
            ptx.store_f32x2(at, s[4 * n], s[4 * n + 1])
            ptx.store_f32x2(at + uint64(8 * state_line), s[4 * n + 2], s[4 * n + 3])

    params = (Param.ADDRESS,) * 5 + (Param.I32,)
    return Kernel(
        f"delta_scan_{heads.digits}_{columns}",
        scan,
        params,
        threads=_THREADS,
        max_registers=255,
        dynamic_shared_bytes=shared_bytes,
    )
