"""First half of the chosen experts in decode: gate and up, and what SwiGLU makes of them.

    active[choice, i] = bf16(silu(W_e[i] . x) * (W_e[I + i] . x))       x: column of the choice

One block multiplies 16 gate rows and the 16 up rows of the same features of one expert with the
tokens that chose it, four at a time (`expert_columns`). All of the rows it needs are asked for at
once and lie in shared memory until the block ends: 34 KB in Q4, four blocks on each multiprocessor,
so that memory is kept busy without a ring; more tokens multiply the same rows again from there.
Warp p takes the k tiles p, p + 8, ..; parts are added in order 0..7. The order depends on K alone.

Who chose an expert the block finds out itself (up to eight tokens) or reads in a plan. The
successor may start once every block has waited for what came before this kernel, choices too.

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
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED, WARP
from ninfer.kernels.cuda.pointwise import gated
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

PARTS: Final = 8
"""Parts of a sum over K, one for each warp; a constant of the arithmetic."""

THREADS: Final = PARTS * WARP

_STRIDE: Final = 2 * TILE_ROWS + 4  # words from column to column of a part
_MOST_BLOCKS: Final = 4  # of a multiprocessor: more leave too few registers
_KEPT: Final = WARP + 1

Address = Any
Array = Any
Index = Any


def blocks_together(format: TensorFormat, k_tiles: int) -> int:
    """Blocks that share a multiprocessor: four where its shared memory has room for them."""
    return max(
        1, min(_MOST_BLOCKS, MULTIPROCESSOR_SHARED // (_shared_bytes(format, k_tiles) + 2048))
    )


@cache
def make_gate(format: TensorFormat, k_tiles: int, steps: int, is_listed: bool) -> Kernel:
    """Grid (width / 16, choices of eight tokens or entries of a plan), block (256,).

    Args:
        format: of the weights.
        k_tiles: tiles along K.
        steps: `expert_columns.slot_steps` of the model.
        is_listed: tokens come from a plan; otherwise there are at most eight.
    """
    each = tiles_each(k_tiles)
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    columns_at = each * 2 * tile_bytes
    warp_bytes = columns_at + each * STORED_BYTES
    choose = make_choose(steps, is_listed)
    first, choice_of = choose.first, choose.choice
    ask_rows, ask_columns = _make_ask_rows(format, k_tiles), _make_ask_columns(format, k_tiles)
    multiply, finish = _make_multiply(format, k_tiles), _make_finish(warp_bytes)

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
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        kept = cuda.shared.array(_KEPT, int32)  # registers are short while products are made
        ptx.wait_for_predecessor()
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        expert, count, found = first(experts, plan, num_tokens, chosen, lane)
        if expert >= int32(0):
            block = ptx.shared_address(memory)
            ring = block + uint32(warp) * uint32(warp_bytes)
            columns = ring + uint32(columns_at)
            row_tile = expert * (width >> int32(3)) + int32(cuda.blockIdx.x)
            ask_rows(ring, codes, row_tile, width >> int32(4), warp, lane)
            if warp == int32(0):
                kept[lane], kept[WARP] = found, count
            choice = choice_of(found, order, int32(0), count, lane)
            ptx.release_successor()
            ask_columns(columns, base, sums, choice, chosen, warp, lane)
            total = cuda.local.array(8, float32)
            done, left = int32(0), int32(1)
            while done < left:
                ptx.wait_copies_0()
                cuda.syncwarp()
                multiply(ring, columns, warp, lane, total)
                cuda.syncwarp()
                _put_part(columns, lane, total)
                cuda.syncthreads()
                found, left = kept[lane], kept[WARP]
                choice = choice_of(found, order, done, left, lane)
                finish(block + uint32(columns_at), out, choice, out_width, lane, warp)
                done += int32(COLUMNS)
                if done < left:
                    cuda.syncthreads()
                    choice = choice_of(found, order, done, left, lane)
                    ask_columns(columns, base, sums, choice, chosen, warp, lane)

    kind = "listed" if is_listed else "found"
    blocks = blocks_together(format, k_tiles)
    return Kernel(
        f"expert_gate_{format.name.lower()}_{k_tiles}_{steps}_{kind}",
        gate,
        (Param.ADDRESS,) * 7 + (Param.I32,) * 4,
        threads=THREADS,
        max_registers=min(128, 65536 // (THREADS * blocks)),
        dynamic_shared_bytes=_shared_bytes(format, k_tiles),
        min_blocks=blocks,
    )


def tiles_each(k_tiles: int) -> int:
    """Tiles along K of one warp."""
    return -(-k_tiles // PARTS)


def _shared_bytes(format: TensorFormat, k_tiles: int) -> int:
    """Rows and columns of a block."""
    return PARTS * tiles_each(k_tiles) * (2 * PAIR_FORMATS[format].tile_bytes + STORED_BYTES)


def _make_ask_rows(format: TensorFormat, k_tiles: int) -> Any:
    """Ask for a warp's tiles: of each k tile the gate rows and the up rows."""
    each, tile_bytes = tiles_each(k_tiles), PAIR_FORMATS[format].tile_bytes
    copy = tile_functions(format).copy

    @device_function
    def ask_rows(
        ring: Address, codes: Address, row_tile: Index, up: Index, warp: Index, lane: Index
    ) -> None:
        for i in range(each):
            k = warp + int32(PARTS * i)
            if k < int32(k_tiles):
                tile = row_tile * int32(k_tiles) + k
                to = ring + uint32(2 * i * tile_bytes)
                copy(to, codes, codes, codes, tile, lane)
                up_tile = tile + up * int32(k_tiles)
                copy(to + uint32(tile_bytes), codes, codes, codes, up_tile, lane)
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


def _make_multiply(format: TensorFormat, k_tiles: int) -> Any:
    """Products of a warp's tiles."""
    each, tile_bytes = tiles_each(k_tiles), PAIR_FORMATS[format].tile_bytes
    num_words, num_sums = 4 * UNIT_SLABS, 2 * unit_groups(format, UNIT_SLABS)
    load, products = make_load(format), make_multiply(format, 2, 1, UNIT_SLABS)

    @device_function
    def multiply(ring: Address, columns: Address, warp: Index, lane: Index, total: Array) -> None:
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_sums, float32)
        for i in range(8):
            total[i] = float32(0.0)
        for i in range(each):
            if warp + int32(PARTS * i) < int32(k_tiles):
                for unit in range(4 // UNIT_SLABS):
                    cuda.syncwarp()  # keeps loads of the next unit, and their registers, behind it
                    load(columns + uint32(i * STORED_BYTES), lane, unit, x, s)
                    products(ring + uint32(2 * i * tile_bytes), lane, unit, x, s, total)

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
        parts: Address, out: Address, choice: Index, out_width: Index, lane: Index, warp: Index
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
                word = int32(cuda.blockIdx.x) * int32(8)
                word += (row >> int32(3)) * int32(4) + (row & int32(3))
                place = uint64(mine) * uint64(out_width * int32(2)) + uint64(word * int32(4))
                ptx.store_u32(out + place, ptx.bf16x2_of_f32(value, other))

    return finish
