"""The shared expert of a few tokens inside launches of the chosen ones.

    shared[t] = bf16(W_shared . bf16(silu(gate) * up))          gate, up: projections of the token

The same as SwiGLU and a linear product behind it, bit for bit: a k tile is a part of every product
there, and parts are added in order. Projections are read past the first-level cache.
"""

from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.group_products import make_load_stored, make_multiply
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.pointwise import gated
from ninfer.kernels.cuda.skinny_shape import CHUNK_BYTES, PARTS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

WARPS: Final = 8
"""Warps of a block of the shared expert, and row tiles."""

_CHUNKS: Final = 16  # of a k tile of a column

Address = Any
Array = Any
Index = Any


def shared_block_bytes(format: TensorFormat, k_tiles: int) -> int:
    """Shared memory of a block: rows of all warps, and columns."""
    return WARPS * k_tiles * PAIR_FORMATS[format].tile_bytes + k_tiles * CHUNK_BYTES


def make_shared_block(  # noqa: PLR0915 - one pass
    format: TensorFormat, k_tiles: int
) -> Any:
    """Eight row tiles for up to eight tokens, by all threads of a block.

    It takes (block's memory, codes, gate_up, out, number of the block, tokens, hidden, width). The
    format is one without sums of columns; it has up to `PARTS` k tiles.
    """
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    row_bytes, columns_at = k_tiles * tile_bytes, WARPS * k_tiles * tile_bytes
    copy, load = tile_functions(format).copy, make_load_stored(format, 1, 4, 0)
    products, make_own_masks = make_multiply(format, 1, 1, 4), make_masks(format, keeps=True)

    @device_function
    def shared_block(
        block: Address,
        codes: Address,
        gate_up: Address,
        out: Address,
        number: Index,
        num_tokens: Index,
        hidden: Index,
        width: Index,
    ) -> None:
        thread = int32(cuda.threadIdx.x)
        lane, warp = int32(thread & int32(31)), int32(thread >> int32(5))
        tile = int32(number * int32(WARPS) + warp)
        is_there = tile < hidden >> int32(4)
        rows = uint32(block + uint32(warp) * uint32(row_bytes))
        if is_there:
            for k in range(k_tiles):
                place = int32(tile * int32(k_tiles) + int32(k))
                copy(rows + uint32(k * tile_bytes), codes, codes, codes, place, lane)
        ptx.close_copies()
        ptx.wait_for_predecessor()
        columns = uint32(block + uint32(columns_at))
        item = thread
        while item < num_tokens * int32(k_tiles * _CHUNKS):
            token = int32(item // int32(k_tiles * _CHUNKS))
            chunk = int32(item - token * int32(k_tiles * _CHUNKS))
            to = columns + uint32(chunk >> int32(2)) * uint32(512)
            to += uint32(token) * uint32(64) + uint32(chunk & int32(3)) * uint32(16)
            line = gate_up + uint64(uint32(token)) * uint64(uint32(width * int32(4)))
            gate_chunk(line, width, chunk, to)
            item = int32(item + int32(WARPS * WARP))
        ptx.wait_copies_0()
        cuda.syncthreads()
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(8, float32)
        total = cuda.local.array(4, float32)
        value = cuda.local.array(4, float32)
        masks = make_own_masks()
        for i in range(4):
            value[i] = float32(-0.0)  # to which adding anything gives that
        for part in range(k_tiles):
            for i in range(4):
                total[i] = float32(0.0)
            load(columns + uint32(part * CHUNK_BYTES), uint32(0), lane, 0, x, s)
            products(rows + uint32(part * tile_bytes), lane, 0, x, s, total, masks)
            for i in range(4):
                value[i] = ptx.add_f32(value[i], total[i])
        if k_tiles < PARTS:  # parts without a tile add zero
            for i in range(4):
                value[i] = ptx.add_f32(value[i], float32(0.0))
        for i in range(4):
            token = int32((lane & int32(3)) * int32(2) + int32(i % 2))
            feature = int32(tile * int32(TILE_ROWS) + (lane >> int32(2)) + int32(i // 2 * 8))
            place = uint64(uint32(int32(token * hidden + feature))) * uint64(2)
            word = ptx.bf16x2_of_f32(value[i], float32(0.0)) & uint32(0xFFFF)
            is_written = uint32(is_there) & uint32(token < num_tokens)
            ptx.store_u16_if(is_written, out + place * uint64(is_written), word)

    return shared_block


@device_function
def gate_chunk(gate_up: Address, width: Index, chunk: Index, to: Address) -> None:
    """Eight gated features, zeros behind the last; features i and i + 4 are one word."""
    w0, w1, w2, w3 = uint32(0), uint32(0), uint32(0), uint32(0)
    if chunk * int32(8) < width:
        row = gate_up + uint64(chunk) * uint64(16)
        g0, g1, g2, g3 = ptx.fresh_u32x4(row)
        u0, u1, u2, u3 = ptx.fresh_u32x4(row + uint64(width) * uint64(2))
        w0 = _pair(lower_bf16(g0), lower_bf16(u0), lower_bf16(g2), lower_bf16(u2))
        w1 = _pair(upper_bf16(g0), upper_bf16(u0), upper_bf16(g2), upper_bf16(u2))
        w2 = _pair(lower_bf16(g1), lower_bf16(u1), lower_bf16(g3), lower_bf16(u3))
        w3 = _pair(upper_bf16(g1), upper_bf16(u1), upper_bf16(g3), upper_bf16(u3))
    ptx.put_shared_u32x4(to, w0, w1, w2, w3)


@device_function
def _pair(gate: Any, up: Any, other_gate: Any, other_up: Any) -> Any:
    return ptx.bf16x2_of_f32(gated(gate, up), gated(other_gate, other_up))
