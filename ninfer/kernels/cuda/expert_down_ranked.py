"""Second half of a few tokens' experts: down of the chosen, the shared expert, and the sum.

    residual += sum over slots, in ranking order, of w * (W_e . active[slot])
                + g * bf16(W_shared . bf16(silu(gate) * up))

The same as `expert_down` behind a product of the shared expert, bit for bit. A block has sixteen
features of one token. Warps 0..7 rank it and take a slot each. The others take the shared expert: a
warp gates the features of its k tiles and multiplies them, which is a part of every linear product;
the parts are added in order.

All of that except the columns of the chosen experts happens before the predecessor,
`expert_gate_ranked`, has ended: it lets this kernel start only when the router's launch, which
wrote logits and projections, is complete. They are read past the first-level cache.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.device_functions import lower_bf16
from ninfer.kernels.cuda.expert_columns import make_load_alone
from ninfer.kernels.cuda.expert_down_parts import (
    WARPS,
    column_bytes,
    make_bring_column,
    make_column_multiply,
)
from ninfer.kernels.cuda.expert_rank_block import (
    RANK_BYTES,
    RANKED_AT,
    gate_share,
    make_rank_block,
    weight_of,
)
from ninfer.kernels.cuda.expert_shared import gate_chunk
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

SHARED_WARPS: Final = 4
"""Warps of the shared expert, and most tiles along its K."""

THREADS: Final = (WARPS + SHARED_WARPS) * WARP

_REGISTERS: Final = 64  # so that a block fits beside two of `expert_gate_ranked`
_DECLARED_THREADS: Final = 512  # of which two blocks leave a thread so many
_UNIT_SLABS: Final = 2
_MANY_HIGH_BYTES: Final = 256  # of a format that needs registers for one tile at a time
_ROW_BYTES: Final = TILE_ROWS * 4

Address = Any
Array = Any
Index = Any


@cache
def make_down_ranked(  # noqa: PLR0915 - one pass
    format: TensorFormat,
    k_tiles: int,
    shared_format: TensorFormat,
    shared_tiles: int,
    num_experts: int,
) -> Kernel:
    """Grid (hidden / 16, tokens), block (384,).

    Args:
        format: of the experts' weights.
        k_tiles: tiles along K of an expert.
        shared_format: of the shared expert's weight, one without sums of columns.
        shared_tiles: tiles along its K, up to `SHARED_WARPS`.
        num_experts: of the router.
    """
    slot_bytes, own_column = k_tiles * PAIR_FORMATS[format].tile_bytes, column_bytes(k_tiles)
    columns_at = WARPS * slot_bytes
    shared_at = columns_at + WARPS * own_column
    shared_each = PAIR_FORMATS[shared_format].tile_bytes + 256
    products_at = shared_at + shared_tiles * shared_each
    gate_at = products_at + (WARPS + SHARED_WARPS) * _ROW_BYTES
    scratch_at = gate_at + 16
    rank_block, make_part = make_rank_block(num_experts), _make_part(shared_format, shared_tiles)
    ask, bring_column = _make_ask(format, k_tiles), make_bring_column(k_tiles)
    multiply, finish = _make_multiply(format, k_tiles), _make_finish(shared_tiles)
    if PAIR_FORMATS[format].high_bytes >= _MANY_HIGH_BYTES:
        multiply = make_column_multiply(format, k_tiles, keeps_masks=False)

    def down(
        codes: int,
        shared_codes: int,
        active: int,
        router: int,
        gate_up: int,
        residual: int,
        hidden: int,
        width: int,
        shared_width: int,
        chosen: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        block = ptx.shared_address(memory)
        line = router + uint64(cuda.blockIdx.y) * uint64(4 * (num_experts + 1))
        to = block + uint32(products_at) + uint32(warp) * uint32(_ROW_BYTES)
        to += (uint32(lane) >> uint32(2)) * uint32(4)
        upper, lower = float32(0.0), float32(0.0)
        if warp >= int32(WARPS):
            part = int32(warp - int32(WARPS))
            stored = block + uint32(shared_at) + uint32(part) * uint32(shared_each)
            projected = gate_up + _rows_before(int32(shared_width * int32(2)))
            upper, lower = make_part(stored, shared_codes, projected, shared_width, part, lane)
            if warp == int32(WARPS) and lane == int32(0):
                logit = ptx.fresh_f32(line + uint64(4 * num_experts))
                ptx.put_shared_f32(block + uint32(gate_at), gate_share(logit))
            ptx.wait_for_predecessor()
        else:
            ring = block + uint32(warp) * uint32(slot_bytes)
            column = block + uint32(columns_at) + uint32(warp) * uint32(own_column)
            scratch = block + uint32(scratch_at)
            rank_block(line, chosen, warp, lane, scratch)
            weight = float32(0.0)
            total = cuda.local.array(4, float32)
            for j in range(4):
                total[j] = float32(0.0)
            if warp < chosen:
                at = scratch + uint32(RANKED_AT) + uint32(warp) * uint32(4)
                ask(ring, codes, int32(ptx.shared_u32(at)), hidden >> int32(4), lane)
                weight = weight_of(scratch, chosen, warp)
            ptx.wait_for_predecessor()
            if warp < chosen:
                choice = int32(int32(cuda.blockIdx.y) * chosen + (cuda.threadIdx.x >> 5))
                bring_column(active, choice, width, column, lane)
                ptx.wait_copies_0()
                cuda.syncwarp()
                multiply(ring, column, lane, total)
            upper, lower = weight * total[0], weight * total[2]
        if lane & int32(3) == int32(0):
            ptx.put_shared_f32(to, upper)
            ptx.put_shared_f32(to + uint32(32), lower)
        own = residual + _rows_before(hidden)
        finish(own, block + uint32(products_at), block + uint32(gate_at))

    name = f"{format.name}_{k_tiles}_{shared_format.name}_{shared_tiles}_{num_experts}".lower()
    return Kernel(
        f"expert_down_ranked_{name}",
        down,
        (Param.ADDRESS,) * 6 + (Param.I32,) * 4,
        threads=_DECLARED_THREADS,
        max_registers=_REGISTERS,
        dynamic_shared_bytes=scratch_at + RANK_BYTES,
        min_blocks=65536 // (_DECLARED_THREADS * _REGISTERS),
    )


@device_function
def _rows_before(extent: Index) -> Any:
    """Bytes of the bf16 rows of tokens before the block's."""
    return uint64(uint32(cuda.blockIdx.y)) * uint64(uint32(extent * int32(2)))


def _make_finish(shared_tiles: int) -> Any:
    """Add slots in order, then the shared expert, to what is there: (residual, products, gate)."""

    @device_function
    def finish(residual: Address, products: Address, gate: Address) -> None:
        thread = int32(cuda.threadIdx.x)
        feature = int32(cuda.blockIdx.x) * int32(TILE_ROWS) + thread
        place = residual + uint64(feature) * uint64(2)
        before = uint32(0)
        if thread < int32(TILE_ROWS):
            before = ptx.load_u16(place)
        cuda.syncthreads()
        if thread < int32(TILE_ROWS):
            at = products + uint32(thread) * uint32(4)
            value = ptx.shared_f32(at)
            for slot in range(1, WARPS):
                value += ptx.shared_f32(at + uint32(slot * _ROW_BYTES))
            own = ptx.shared_f32(at + uint32(WARPS * _ROW_BYTES))
            for part in range(1, shared_tiles):
                own = ptx.add_f32(own, ptx.shared_f32(at + uint32((WARPS + part) * _ROW_BYTES)))
            if shared_tiles < PARTS:  # parts without a tile add zero
                own = ptx.add_f32(own, float32(0.0))
            own = lower_bf16(ptx.bf16x2_of_f32(own, float32(0.0)))
            rest = ptx.fused_multiply_add(ptx.shared_f32(gate), own, lower_bf16(before))
            ptx.store_u16(place, ptx.bf16x2_of_f32(value + rest, float32(0.0)))

    return finish


def _make_ask(format: TensorFormat, k_tiles: int) -> Any:
    """Ask for the rows of a warp's expert."""
    tile_bytes, copy = PAIR_FORMATS[format].tile_bytes, tile_functions(format).copy

    @device_function
    def ask(ring: Address, codes: Address, expert: Index, row_tiles: Index, lane: Index) -> None:
        tile = (expert * row_tiles + int32(cuda.blockIdx.x)) * int32(k_tiles)
        for k in range(k_tiles):
            copy(ring + uint32(k * tile_bytes), codes, codes, codes, tile + int32(k), lane)
        ptx.close_copies()

    return ask


def _make_multiply(format: TensorFormat, k_tiles: int) -> Any:
    """Products of a slot: the same column eight times, of which column 0 is looked at.

    A tile's products are a chain of latencies, whose gaps those of a second tile fill.
    """
    num_words, num_sums = 4 * _UNIT_SLABS, 2 * unit_groups(format, _UNIT_SLABS)
    tile_bytes, load = PAIR_FORMATS[format].tile_bytes, make_load_alone(format, _UNIT_SLABS)
    products = make_multiply(format, 1, 1, _UNIT_SLABS)
    make_own_masks = make_masks(format)

    @device_function
    def multiply_tile(
        rows: Address, column: Address, sums: Address, lane: Index, total: Array
    ) -> None:
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for unit in range(4 // _UNIT_SLABS):
            load(column, sums, 0, lane, unit, x, s)
            products(rows, lane, unit, x, s, total, masks)

    @device_function
    def multiply(rows: Address, column: Address, lane: Index, total: Array) -> None:
        sums = column + uint32(k_tiles * 256)
        for _ in range(k_tiles // 2):
            multiply_tile(rows, column, sums, lane, total)
            other = rows + uint32(tile_bytes)
            multiply_tile(other, column + uint32(256), sums + uint32(8), lane, total)
            rows += uint32(2 * tile_bytes)
            column += uint32(2 * 256)
            sums += uint32(2 * 8)
        if k_tiles % 2 == 1:
            multiply_tile(rows, column, sums, lane, total)

    return multiply


def _make_part(format: TensorFormat, k_tiles: int) -> Any:
    """One k tile of the shared expert: (stored, codes, gate_up, width, part, lane).

    Sixteen lanes gate a chunk of eight features each.
    """
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    copy, load = tile_functions(format).copy, make_load_alone(format, 4)
    products = make_multiply(format, 1, 1, 4)
    make_own_masks = make_masks(format, keeps=True)

    @device_function
    def make_part(
        stored: Address, codes: Address, gate_up: Address, width: Index, part: Index, lane: Index
    ) -> Any:
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(2, float32)
        total = cuda.local.array(4, float32)
        masks = make_own_masks()
        for i in range(4):
            total[i] = float32(0.0)
        if part < int32(k_tiles):
            tile = int32(cuda.blockIdx.x) * int32(k_tiles) + part
            copy(stored, codes, codes, codes, tile, lane)
            ptx.close_copies()
            column = stored + uint32(tile_bytes)
            if lane < int32(16):
                chunk = int32(part * int32(16) + lane)
                gate_chunk(gate_up, width, chunk, column + uint32(lane) * uint32(16))
            ptx.wait_copies_0()
            ptx.sync_warp()
            load(column, column, 0, lane, 0, x, s)
            products(stored, lane, 0, x, s, total, masks)
        return total[0], total[2]

    return make_part
