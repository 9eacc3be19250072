"""First half of a few tokens' chosen experts, which every block ranks by itself.

    active[slot, i] = bf16(silu(W_e[i] . x) * (W_e[I + i] . x))        e: the slot's expert

The same as `expert_gate`, bit for bit, without a launch for the ranking before it. A block
multiplies sixteen gate rows and the sixteen up rows of the same features of one expert with one
token; of more tokens than one it takes the next sixteen features, too: fewer blocks have to rank.
What can be asked for early is: the column before the ranking, all rows right behind it, and each k
tile is multiplied when it has come. Warp p takes the k tiles p, p + 8, ..; parts are added in
order.

The successor is let go when the router's products are complete, not before: so `expert_down_ranked`
may rank early, too.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.expert_columns import make_load_alone
from ninfer.kernels.cuda.expert_rank_block import RANK_BYTES, RANKED_AT, make_rank_block
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.pointwise import gated
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

THREADS: Final = PARTS * WARP

MOST_TILES: Final = 2 * PARTS
"""Most tiles along K: a warp waits for two at most."""

_REGISTERS: Final = 80  # leaves room for `expert_down_ranked` beside two blocks
_UNIT_SLABS: Final = 2
_COLUMN_BYTES: Final = 256 + 16  # of a k tile: chunks, sums of its groups
_PART_BYTES: Final = 2 * TILE_ROWS * 4

Address = Any
Array = Any
Index = Any


@cache
def make_gate_ranked(format: TensorFormat, k_tiles: int, num_experts: int, tiles: int) -> Kernel:
    """Grid (width / 16 / ``tiles``, slots, tokens), block (256,).

    Args:
        format: of the weights.
        k_tiles: tiles along K, up to `MOST_TILES`.
        num_experts: of the router.
        tiles: of sixteen features that a block takes, one or two.
    """
    each, tile_bytes = -(-k_tiles // PARTS), PAIR_FORMATS[format].tile_bytes
    stage_bytes = each * 2 * tile_bytes
    warp_bytes = tiles * stage_bytes + each * _COLUMN_BYTES
    parts_at = PARTS * warp_bytes
    scratch_at = parts_at + tiles * PARTS * _PART_BYTES
    rank_block, bring = make_rank_block(num_experts), _make_bring(format, k_tiles)
    ask, multiply = _make_ask(format, k_tiles), _make_multiply(format, k_tiles)

    def gate(
        codes: int,
        base: int,
        sums: int,
        router: int,
        out: int,
        width: int,
        chosen: int,
        out_width: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        block = ptx.shared_address(memory)
        ring = block + uint32(warp) * uint32(warp_bytes)
        columns = ring + uint32(tiles * stage_bytes)
        scratch = block + uint32(scratch_at)
        ptx.wait_for_predecessor()
        ptx.release_successor()
        token = uint64(cuda.blockIdx.z)
        bring(columns, base + token * uint64(64), sums + token * uint64(4), warp, lane)
        line = router + token * uint64(4 * (num_experts + 1))
        rank_block(line, chosen, warp, lane, scratch)
        at = scratch + uint32(RANKED_AT) + uint32(cuda.blockIdx.y) * uint32(4)
        up, first = int32(width >> int32(4)), int32(cuda.blockIdx.x) * int32(tiles)
        row = int32(ptx.shared_u32(at)) * int32(2) * up
        for t in range(tiles):
            tile = min(int32(first + int32(t)), int32(up - int32(1)))
            ask(ring + uint32(t * stage_bytes), codes, row + tile, up, warp, lane)
        total = cuda.local.array(8, float32)
        for t in range(tiles):
            newer = (tiles - 1 - t) * each
            multiply(ring + uint32(t * stage_bytes), columns, warp, lane, newer, total)
            if lane & int32(3) == int32(0):
                to = block + uint32(parts_at + t * PARTS * _PART_BYTES)
                to += uint32(warp) * uint32(_PART_BYTES)
                to += (uint32(lane) >> uint32(2)) * uint32(4)
                for m in range(2):
                    here = to + uint32(m * TILE_ROWS * 4)
                    ptx.put_shared_f32(here, total[4 * m])
                    ptx.put_shared_f32(here + uint32(32), total[4 * m + 2])
        cuda.syncthreads()
        tile = int32(first + warp)
        if warp < int32(tiles) and tile < up:
            parts = block + uint32(parts_at) + uint32(warp) * uint32(PARTS * _PART_BYTES)
            slot = token * uint64(chosen) + uint64(cuda.blockIdx.y)
            _finish(parts, out + slot * uint64(out_width * int32(2)), tile, lane)

    return Kernel(
        f"expert_gate_ranked_{format.name.lower()}_{k_tiles}_{num_experts}_{tiles}",
        gate,
        (Param.ADDRESS,) * 5 + (Param.I32,) * 3,
        threads=THREADS,
        max_registers=_REGISTERS,
        dynamic_shared_bytes=scratch_at + RANK_BYTES,
        min_blocks=65536 // (THREADS * _REGISTERS),
    )


def _make_bring(format: TensorFormat, k_tiles: int) -> Any:
    """Ask for a warp's k tiles of the column, and the sums of their groups."""
    each, has_sums = -(-k_tiles // PARTS), PAIR_FORMATS[format].offset > 0

    @device_function
    def bring(columns: Address, base: Address, sums: Address, warp: Index, lane: Index) -> None:
        piece = uint32(lane)
        inside = ((piece >> uint32(2)) << uint32(9)) + ((piece & uint32(3)) << uint32(4))
        for i in range(each):
            k = uint32(warp) + uint32(PARTS * i)
            if k < uint32(k_tiles):
                to = columns + uint32(i * _COLUMN_BYTES)
                at = base + uint64(k) * uint64(2048) + uint64(inside)
                is_piece = uint32(piece < uint32(16))
                ptx.copy_async_16_if(to + piece * uint32(16), at, is_piece)
                if has_sums and piece < uint32(2):
                    at = sums + uint64(k) * uint64(64) + uint64(piece * uint32(32))
                    ptx.copy_async_4(to + uint32(256) + piece * uint32(4), at, uint32(4))
        ptx.close_copies()

    return bring


def _make_ask(format: TensorFormat, k_tiles: int) -> Any:
    """Ask for a warp's rows, one group of copies for each of its k tiles."""
    each, tile_bytes = -(-k_tiles // PARTS), PAIR_FORMATS[format].tile_bytes
    copy = tile_functions(format).copy

    @device_function
    def ask(ring: Address, codes: Address, row: Index, up: Index, warp: Index, lane: Index) -> None:
        for i in range(each):
            k = warp + int32(PARTS * i)
            if k < int32(k_tiles):
                place = int32(row * int32(k_tiles) + k)
                here = ring + uint32(2 * i * tile_bytes)
                copy(here, codes, codes, codes, place, lane)
                place = int32(place + up * int32(k_tiles))
                copy(here + uint32(tile_bytes), codes, codes, codes, place, lane)
            ptx.close_copies()

    return ask


def _make_multiply(format: TensorFormat, k_tiles: int) -> Any:
    """Products of a warp's tiles as they come, before ``newer`` copies: one column eight times."""
    each, tile_bytes = -(-k_tiles // PARTS), PAIR_FORMATS[format].tile_bytes
    num_words, num_sums = 4 * _UNIT_SLABS, 2 * unit_groups(format, _UNIT_SLABS)
    load, products = make_load_alone(format, _UNIT_SLABS), make_multiply(format, 2, 1, _UNIT_SLABS)
    make_own_masks = make_masks(format, keeps=True)

    @device_function
    def multiply(
        ring: Address, columns: Address, warp: Index, lane: Index, newer: int, total: Array
    ) -> None:
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for i in range(8):
            total[i] = float32(0.0)
        for i in range(each):
            left = newer + each - 1 - i
            if left == 0:
                ptx.wait_copies_0()
            elif left == 1:
                ptx.wait_copies_1()
            elif left == 2:
                ptx.wait_copies_2()
            else:
                ptx.wait_copies_3()
            ptx.sync_warp()
            if warp + int32(PARTS * i) < int32(k_tiles):
                column = columns + uint32(i * _COLUMN_BYTES)
                for unit in range(4 // _UNIT_SLABS):
                    load(column, column, 256, lane, unit, x, s)
                    products(ring + uint32(2 * i * tile_bytes), lane, unit, x, s, total, masks)

    return multiply


@device_function
def _finish(parts: Address, out: Address, tile: Index, lane: Index) -> None:
    """Add parts in order and gate: a lane for each of the 32 rows."""
    at = parts + uint32(lane) * uint32(4)
    value = ptx.shared_f32(at)
    for part in range(1, PARTS):
        value += ptx.shared_f32(at + uint32(part * _PART_BYTES))
    up = cuda.shfl_xor_sync(0xFFFFFFFF, value, 16)
    active = gated(value, up)
    other = cuda.shfl_xor_sync(0xFFFFFFFF, active, 4)
    if lane & int32(20) == int32(0):
        # Features i and i + 4 of a chunk are one word, the i-th.
        word = tile * int32(8) + (lane >> int32(3)) * int32(4) + (lane & int32(3))
        ptx.store_u32(out + uint64(word * int32(4)), ptx.bf16x2_of_f32(active, other))
