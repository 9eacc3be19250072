"""First half of the chosen experts in decode: gate and up, and what SwiGLU makes of them.

    active[choice, i] = bf16(silu(W_e[i] . x) * (W_e[I + i] . x))       x: column of the choice

One block multiplies the 16 gate rows and the 16 up rows of the same features of one expert with the
tokens that chose it, four at a time (`expert_columns`); then it goes on to the next sixteen
features, as many as the launch says. Rows lie in a ring of one or two such tiles (34 KB each in Q4,
all of K); columns and choices are found once a block, which is what small blocks spend their time
on. Where a block has no room for all of K, rows come by k tiles (`expert_gate_tiles`). Warp p takes
the k tiles p, p + 8, ..; parts are added in order 0..7. The order depends on K alone.

Who chose an expert the block finds out itself (up to eight tokens) or reads in a plan. Both are
known early (`expert_rank`), so that rows are asked for before the predecessor has ended.

Traffic: gate and up rows of each chosen expert once, 2 bytes a choice and feature of results.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.expert_columns import (
    COLUMNS,
    STORED_BYTES,
    UNIT_SLABS,
    make_bring,
    make_choose,
    make_load,
)
from ninfer.kernels.cuda.expert_gate_tiles import (
    make_ask_pair,
    make_multiply_by_tiles,
    make_walk_by_tiles,
)
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED, WARP
from ninfer.kernels.cuda.pointwise import gated
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.tensor import TensorFormat

PARTS: Final = 8
"""Parts of a sum over K, one for each warp; a constant of the arithmetic."""

THREADS: Final = PARTS * WARP

_STRIDE: Final = 2 * TILE_ROWS + 4  # words from column to column of a part
_MOST_BLOCKS: Final = {0: 2, 1: 3, 2: 2}  # by stages: more leave too few registers
_PART_BYTES: Final = COLUMNS * _STRIDE * 4
_MOST_TILES: Final = 8
_STATIC_BYTES: Final = 1024  # of the runtime, beside a block's own

Address = Any
Array = Any
Index = Any


def blocks_together(format: TensorFormat, k_tiles: int, stages: int) -> int:
    """Blocks that share a multiprocessor, where its shared memory has room for them."""
    nbytes = PARTS * _warp_bytes(format, k_tiles, stages) + 2048
    return max(1, min(_MOST_BLOCKS[stages], MULTIPROCESSOR_SHARED // nbytes))


@cache
def make_gate(
    format: TensorFormat, k_tiles: int, steps: int, is_listed: bool, stages: int
) -> Kernel:
    """Grid (width / 16 / `tiles_of_block`, choices or entries of a plan), block (256,).

    Args:
        format: of the weights.
        k_tiles: tiles along K.
        steps: `expert_columns.slot_steps` of the model.
        is_listed: tokens come from a plan; otherwise there are at most eight.
        stages: of the ring, `gate_stages` of the launch.
    """
    stage_bytes = _stage_bytes(format, k_tiles)
    warp_bytes = _warp_bytes(format, k_tiles, stages)
    choose = make_choose(steps, is_listed)
    first, ask_rows = choose.first, _make_ask_rows(format, k_tiles)
    make_walk = _make_walk if stages > 0 else _make_walk_by_tiles
    walk = make_walk(format, k_tiles, stages, choose.choice)

    def gate(
        codes: int,
        base: int,
        sums: int,
        experts: int,
        plan: int,
        order: int,
        out: int,
        width: int,
        num_tokens: int,
        chosen: int,
        out_width: int,
        most: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        expert, count, found = first(experts, plan, num_tokens, chosen, lane)
        if expert >= int32(0):
            block = ptx.shared_address(memory)
            ring = block + uint32(warp) * uint32(warp_bytes)
            up = int32(width >> int32(4))
            tile = int32(cuda.blockIdx.x) * int32(most)
            stop = min(tile + int32(most), up)
            upper = int32(expert) * int32(2) * up
            for stage in range(stages):
                to = ring + uint32(stage * stage_bytes)
                ask_rows(to, codes, upper, tile + int32(stage), stop, up, warp, lane)
            ptx.wait_for_predecessor()
            walk(
                block, ring, codes, base, sums, order, out, upper, tile, stop, up,
                found, count, chosen, out_width, warp, lane,
            )  # fmt: skip

    kind = "listed" if is_listed else "found"
    blocks = blocks_together(format, k_tiles, stages)
    return Kernel(
        f"expert_gate_{format.name.lower()}_{k_tiles}_{steps}_{kind}_{stages}",
        gate,
        (Param.ADDRESS,) * 7 + (Param.I32,) * 5,
        threads=THREADS,
        max_registers=min(128, 65536 // (THREADS * blocks)),
        dynamic_shared_bytes=PARTS * warp_bytes,
        min_blocks=blocks,
    )


def _make_walk(format: TensorFormat, k_tiles: int, stages: int, choice_of: Any) -> Any:
    """Tiles ``tile .. stop - 1``, of which ``stages`` are asked for."""
    stage_bytes = _stage_bytes(format, k_tiles)
    columns_at = stages * stage_bytes
    parts_at = columns_at + tiles_each(k_tiles) * STORED_BYTES
    ask_rows, ask_columns = _make_ask_rows(format, k_tiles), _make_ask_columns(format, k_tiles)
    multiply = _make_multiply(format, k_tiles, stages)
    finish = _make_finish(_warp_bytes(format, k_tiles, stages))
    wait_rows = ptx.wait_copies_1 if stages == 2 else ptx.wait_copies_0

    @device_function
    def walk(
        block: Address,
        ring: Address,
        codes: Address,
        base: Address,
        sums: Address,
        order: Address,
        out: Address,
        upper: Index,
        tile: Index,
        stop: Index,
        up: Index,
        found: Index,
        count: Index,
        chosen: Index,
        out_width: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        columns, parts, here = ring + uint32(columns_at), uint32(parts_at), ring
        total = cuda.local.array(8, float32)
        choice = choice_of(found, order, int32(0), count, lane)
        ask_columns(columns, base, sums, choice, chosen, warp, lane)
        ptx.wait_copies_0()
        while tile < stop:
            done = int32(0)
            while done < count:
                if count > int32(COLUMNS):
                    choice = choice_of(found, order, done, count, lane)
                    ask_columns(columns, base, sums, choice, chosen, warp, lane)
                    ptx.wait_copies_0()
                cuda.syncwarp()
                multiply(here, columns, warp, lane, total)
                cuda.syncwarp()
                _put_part(ring + parts, lane, total)
                done += int32(COLUMNS)
                if done >= count:
                    ask_rows(here, codes, upper, tile + int32(stages), stop, up, warp, lane)
                cuda.syncthreads()  # parts are written here and there by turns: once is enough
                finish(block + parts, out, choice, out_width, tile, lane, warp)
                parts ^= uint32(parts_at ^ (parts_at + _PART_BYTES))
            tile += int32(1)
            if stages == 2:
                here = ring + ring + uint32(stage_bytes) - here
            wait_rows()

    return walk


def _make_walk_by_tiles(format: TensorFormat, k_tiles: int, stages: int, choice_of: Any) -> Any:
    """The same without a stage."""
    columns_at = _row_bytes(format, k_tiles, stages)
    return make_walk_by_tiles(
        columns_at,
        columns_at + tiles_each(k_tiles) * STORED_BYTES,
        _PART_BYTES,
        choice_of,
        _make_ask_columns(format, k_tiles),
        make_multiply_by_tiles(format, k_tiles, PARTS),
        _put_part,
        _make_finish(_warp_bytes(format, k_tiles, stages)),
    )


def tiles_each(k_tiles: int) -> int:
    """Tiles along K of one warp."""
    return -(-k_tiles // PARTS)


def walk_stages(format: TensorFormat, k_tiles: int, block_shared_bytes: int) -> int:
    """Stages of blocks that go on: two where two such blocks share a multiprocessor."""
    fits = PARTS * _warp_bytes(format, k_tiles, 2) + _STATIC_BYTES <= block_shared_bytes
    return 2 if fits and blocks_together(format, k_tiles, 2) >= 2 else 1


def gate_stages(
    format: TensorFormat, k_tiles: int, most_tiles: int, block_shared_bytes: int
) -> int:
    """Stages of blocks of up to ``most_tiles`` tiles; 0 where there is no room for one."""
    if PARTS * _warp_bytes(format, k_tiles, 1) + _STATIC_BYTES > block_shared_bytes:
        return 0
    return walk_stages(format, k_tiles, block_shared_bytes) if most_tiles > 1 else 1


def tiles_of_block(num_tokens: int) -> int:
    """Tiles of sixteen features that a block goes through: about two blocks a multiprocessor."""
    return 1 if num_tokens <= 2 else min(_MOST_TILES, 1 << (num_tokens - 1).bit_length())


def _stage_bytes(format: TensorFormat, k_tiles: int) -> int:
    """A warp's gate and up rows of sixteen features."""
    return tiles_each(k_tiles) * 2 * PAIR_FORMATS[format].tile_bytes


def _row_bytes(format: TensorFormat, k_tiles: int, stages: int) -> int:
    """Rows of a warp: stages, or one k tile."""
    return stages * _stage_bytes(format, k_tiles) or 2 * PAIR_FORMATS[format].tile_bytes


def _warp_bytes(format: TensorFormat, k_tiles: int, stages: int) -> int:
    """Rows, columns and sums of a warp."""
    columns = tiles_each(k_tiles) * STORED_BYTES
    return _row_bytes(format, k_tiles, stages) + columns + 2 * _PART_BYTES


def _make_ask_rows(format: TensorFormat, k_tiles: int) -> Any:
    """Ask for a warp's tiles: of each k tile the gate rows and the up rows."""
    each, tile_bytes = tiles_each(k_tiles), PAIR_FORMATS[format].tile_bytes
    ask_pair = make_ask_pair(format, k_tiles)

    @device_function
    def ask_rows(
        to: Address,
        codes: Address,
        upper: Index,
        tile: Index,
        stop: Index,
        up: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        if tile < stop:
            row = (upper + tile) * int32(k_tiles) + warp
            for i in range(each):
                if warp + int32(PARTS * i) < int32(k_tiles):
                    place = row + int32(PARTS * i)
                    ask_pair(to + uint32(2 * i * tile_bytes), codes, place, up, lane)
        ptx.close_copies()

    return ask_rows


def _make_ask_columns(format: TensorFormat, k_tiles: int) -> Any:
    """Ask for a warp's part of the columns."""
    each, bring = tiles_each(k_tiles), make_bring(format)

    @device_function
    def ask_columns(
        columns: Address,
        base: Address,
        sums: Address,
        choice: Index,
        chosen: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        for i in range(each):
            k = warp + int32(PARTS * i)
            if k < int32(k_tiles):
                to = columns + uint32(i * STORED_BYTES)
                bring(to, base, sums, choice, chosen, k_tiles, k, lane)
        ptx.close_copies()

    return ask_columns


def _make_multiply(format: TensorFormat, k_tiles: int, stages: int) -> Any:
    """Products of a warp's tiles."""
    each, tile_bytes = tiles_each(k_tiles), PAIR_FORMATS[format].tile_bytes
    num_words, num_sums = 4 * UNIT_SLABS, 2 * unit_groups(format, UNIT_SLABS)
    load = make_load(format)
    is_roomy = blocks_together(format, k_tiles, stages) <= 2
    products = make_multiply(format, 2, 1, UNIT_SLABS)
    make_own_masks = make_masks(format, keeps=is_roomy)

    @device_function
    def multiply(ring: Address, columns: Address, warp: Index, lane: Index, total: Array) -> None:
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for i in range(8):
            total[i] = float32(0.0)
        for i in range(each):
            if warp + int32(PARTS * i) < int32(k_tiles):
                for unit in range(4 // UNIT_SLABS):
                    cuda.syncwarp()  # keeps loads of the next unit, and their registers, behind it
                    load(columns + uint32(i * STORED_BYTES), lane, unit, x, s)
                    products(ring + uint32(2 * i * tile_bytes), lane, unit, x, s, total, masks)

    return multiply


@device_function
def _put_part(to: Address, lane: Index, total: Array) -> None:
    """A warp's sums, [column][gate rows, up rows]; half of the lanes have only repetitions."""
    if lane & int32(3) < int32(COLUMNS // 2):
        at = to + (uint32(lane) & uint32(3)) * uint32(2 * _STRIDE * 4)
        at += (uint32(lane) >> uint32(2)) * uint32(4)
        for m in range(2):
            here = at + uint32(m * TILE_ROWS * 4)
            ptx.put_shared_f32(here, total[4 * m])
            ptx.put_shared_f32(here + uint32(_STRIDE * 4), total[4 * m + 1])
            ptx.put_shared_f32(here + uint32(32), total[4 * m + 2])
            ptx.put_shared_f32(here + uint32(_STRIDE * 4 + 32), total[4 * m + 3])


def _make_finish(warp_bytes: int) -> Any:
    """Parts added in order, SwiGLU, two bf16 at a time to the choice's row."""

    @device_function
    def finish(
        parts: Address,
        out: Address,
        choice: Index,
        out_width: Index,
        tile: Index,
        lane: Index,
        warp: Index,
    ) -> None:
        # Two warps: two columns each, a lane for each row.
        if warp < int32(COLUMNS // 2):
            column = warp * int32(2) + (lane >> int32(4))
            row = lane & int32(15)
            mine = int32(cuda.shfl_sync(0xFFFFFFFF, choice, column))
            at = parts + uint32(column * int32(_STRIDE) + row) * uint32(4)
            g, u = ptx.shared_f32(at), ptx.shared_f32(at + uint32(TILE_ROWS * 4))
            for part in range(1, PARTS):
                here = at + uint32(part * warp_bytes)
                g += ptx.shared_f32(here)
                u += ptx.shared_f32(here + uint32(TILE_ROWS * 4))
            value = gated(g, u)
            other = cuda.shfl_xor_sync(0xFFFFFFFF, value, 4)
            if mine >= int32(0) and row & int32(4) == int32(0):
                # Features i and i + 4 of a chunk are one word, the i-th.
                word = tile * int32(8)
                word += (row >> int32(3)) * int32(4) + (row & int32(3))
                place = uint64(mine) * uint64(out_width * int32(2)) + uint64(word * int32(4))
                ptx.store_u32(out + place, ptx.bf16x2_of_f32(value, other))

    return finish
