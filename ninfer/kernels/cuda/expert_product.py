"""Products of the chosen experts on CUDA: each chosen expert's rows are read once a column group.

    out[choice, n] = W_e[n] . x[column of the choice]        choice = token * k + slot, e its expert

An expert is a row range of one stored parent. A column group are columns that go with one expert:
in decode the tokens, of eight, that chose it, found by each warp from the choices themselves, so
that the grid is fixed; in prefill 32 entries of a list sorted by expert (`expert_plan`). Columns
are gathered in their fragment order, one 16-byte load a lane. Columns of a product never mix, so a
choice's result depends neither on the group nor on its place in it.

Tiles of 16 x 128 pass through a ring of the warp's own, as in `skinny_product`; in decode several
warps share K, whose parts are added in order; their number depends on K alone. Traffic: the chosen
experts' rows, and 4 bytes a choice and row of results.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

WARPS: Final = 8
GROUP_COLUMNS: Final = 8
"""Columns of a decode group."""

BLOCK_COLUMNS: Final = 32
"""Columns of a prefill group."""

_STAGES: Final = 3


def decode_parts(k_tiles: int) -> int:
    """Warps that share K in decode."""
    return 8 if k_tiles >= 8 else 4 if k_tiles >= 4 else 1


def row_tiles_of(rows: int) -> int:
    """Tiles that any expert of so many rows may touch."""
    return -(-rows // TILE_ROWS) + (rows % TILE_ROWS != 0)


def make_chain(format: TensorFormat, column_tiles: int) -> Any:
    """Function that adds the products of one stored tile to a lane's sums."""
    layout = PAIR_FORMATS[format]
    functions = tile_functions(format)
    load_codes, load_high = functions.load_codes, functions.load_high
    load_scales, pairs, scale = functions.load_scales, functions.pairs, functions.scale
    offset, unit_slabs = layout.offset, layout.unit_slabs
    group_slabs = layout.group_slabs
    num_chain = 4 * column_tiles

    @device_function
    def begin(chain: Any, total: Any, sum_at: Any, group: Any) -> None:
        for j in range(column_tiles):
            for i in range(4):
                chain[4 * j + i] = float32(0.0)
                if group_slabs == 0:
                    chain[4 * j + i] = total[4 * j + i]
            if offset > 0:
                even = ptx.load_f32(sum_at[2 * j] + uint64(group * 32)) * float32(-offset)
                odd = ptx.load_f32(sum_at[2 * j + 1] + uint64(group * 32)) * float32(-offset)
                chain[4 * j], chain[4 * j + 2] = even, even
                chain[4 * j + 1], chain[4 * j + 3] = odd, odd

    @device_function
    def end(chain: Any, total: Any, group: Any, extra: Any) -> None:
        if group_slabs == 0:
            for i in range(num_chain):
                total[i] = chain[i]
        else:
            upper, lower = scale(extra, group, 0), scale(extra, group, 1)
            for j in range(column_tiles):
                i = 4 * j
                total[i] = ptx.fused_multiply_add(upper, chain[i], total[i])
                total[i + 1] = ptx.fused_multiply_add(upper, chain[i + 1], total[i + 1])
                total[i + 2] = ptx.fused_multiply_add(lower, chain[i + 2], total[i + 2])
                total[i + 3] = ptx.fused_multiply_add(lower, chain[i + 3], total[i + 3])

    @device_function
    def add_slab(
        stored: Any,
        lane: Any,
        slab: Any,
        x_at: Any,
        sum_at: Any,
        words: Any,
        extra: Any,
        chain: Any,
        total: Any,
    ) -> None:
        if slab % unit_slabs == 0:
            load_codes(stored, lane, slab, words)
        group = slab // max(group_slabs, 1) if group_slabs > 0 else slab // 4
        span = group_slabs if group_slabs > 0 else 4
        if slab % span == 0:
            begin(chain, total, sum_at, group)
        a = cuda.local.array(8, uint32)
        pairs(words, extra, slab, a)
        for j in range(column_tiles):
            b0, b1, b2, b3 = ptx.load_u32x4(x_at[j] + uint64(slab * 512))
            i = 4 * j
            c0, c1, c2, c3 = chain[i], chain[i + 1], chain[i + 2], chain[i + 3]
            c0, c1, c2, c3 = ptx.mma_bf16(a[0], a[1], a[2], a[3], b0, b1, c0, c1, c2, c3)
            c0, c1, c2, c3 = ptx.mma_bf16(a[4], a[5], a[6], a[7], b2, b3, c0, c1, c2, c3)
            chain[i], chain[i + 1], chain[i + 2], chain[i + 3] = c0, c1, c2, c3
        if slab % span == span - 1:
            end(chain, total, group, extra)

    @device_function
    def add_tile(stored: Any, lane: Any, x_at: Any, sum_at: Any, total: Any) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        chain = cuda.local.array(num_chain, float32)
        load_high(stored, lane, extra)
        load_scales(stored, lane, extra)
        add_slab(stored, lane, 0, x_at, sum_at, words, extra, chain, total)
        add_slab(stored, lane, 1, x_at, sum_at, words, extra, chain, total)
        add_slab(stored, lane, 2, x_at, sum_at, words, extra, chain, total)
        add_slab(stored, lane, 3, x_at, sum_at, words, extra, chain, total)

    return add_tile


@device_function
def slot_of(experts: Any, token: Any, num_tokens: Any, chosen: Any, expert: Any) -> Any:
    """Choice of a token that is an expert; -1 where there is none."""
    found = int32(-1)
    if token < num_tokens:
        for slot in range(chosen):
            choice = int32(token * chosen + slot)
            if ptx.load_i32(experts + uint64(choice) * uint64(4)) == expert:
                found = choice
    return found


@cache
def make_expert_product(format: TensorFormat, parts: int, is_grouped: bool) -> Kernel:
    """Grid (blocks of row tiles, groups, token groups), block (256,).

    In decode ``groups`` are the choices of eight tokens, and the block of the first one of an
    expert works for all; in prefill they are the entries of the plan.

    Args:
        format: of the weights.
        parts: warps that share K, 1, 4 or 8.
        is_grouped: columns come from a plan.
    """
    column_tiles = BLOCK_COLUMNS // 8 if is_grouped else 1
    columns = 8 * column_tiles
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    copy = tile_functions(format).copy
    add_tile = make_chain(format, column_tiles)
    block_tiles = WARPS // parts
    warp_bytes = _STAGES * tile_bytes
    num_totals, num_sums = 4 * column_tiles, 2 * column_tiles
    part_floats = TILE_ROWS * columns
    elements = block_tiles * part_floats

    @device_function
    def find_columns(
        experts: Any, plan: Any, order: Any, num_tokens: Any, chosen: Any, choices: Any
    ) -> Any:
        """Fill ``choices`` (shared) and return the expert, or -1 where there is nothing to do."""
        lane = int32(cuda.threadIdx.x & 31)
        if is_grouped:
            entry = plan + uint64(cuda.blockIdx.y) * uint64(12)
            expert = ptx.load_i32(entry)
            start = ptx.load_i32(entry + uint64(4))
            count = ptx.load_i32(entry + uint64(8))
            i = int32(cuda.threadIdx.x)
            if i < columns:
                choices[i] = int32(-1)
                if i < count:
                    choices[i] = ptx.load_i32(order + uint64(start + i) * uint64(4))
            if count == 0:
                expert = int32(-1)
            return int32(expert)
        first = int32(cuda.blockIdx.z) * int32(GROUP_COLUMNS)
        own = first + int32(cuda.blockIdx.y) // int32(chosen)
        expert = int32(-1)
        if own < num_tokens:
            choice = first * int32(chosen) + int32(cuda.blockIdx.y)
            expert = ptx.load_i32(experts + uint64(choice) * uint64(4))
            found = slot_of(experts, first + (lane & int32(7)), num_tokens, chosen, expert)
            is_earlier = found >= 0 and first + (lane & int32(7)) < own
            if cuda.threadIdx.x < GROUP_COLUMNS:
                choices[cuda.threadIdx.x] = found
            if cuda.any_sync(0xFFFFFFFF, is_earlier):
                expert = int32(-1)
        return int32(expert)

    @device_function
    def locate(
        choices: Any,
        sharing: Any,
        base: Any,
        sums: Any,
        k_tiles: Any,
        k_first: Any,
        lane: Any,
        x_at: Any,
        sum_at: Any,
    ) -> None:
        """Addresses of the lane's chunk of each tile of columns, and of its two columns' sums."""
        for j in range(column_tiles):
            choice = max(choices[8 * j + (lane >> 2)], int32(0))
            column = uint32(choice // int32(sharing))
            at = uint64(column >> uint32(3)) * uint64(k_tiles) + uint64(k_first)
            inside = (column & uint32(7)) * uint32(64) + (uint32(lane) & uint32(3)) * uint32(16)
            x_at[j] = base + at * uint64(2048) + uint64(inside)
            for i in range(2):
                choice = max(choices[8 * j + 2 * (lane & 3) + i], int32(0))
                column = uint32(choice // int32(sharing))
                at = uint64(column >> uint32(3)) * uint64(k_tiles) + uint64(k_first)
                sum_at[2 * j + i] = (
                    sums + at * uint64(64) + uint64((column & uint32(7)) << uint32(2))
                )

    @device_function
    def write(
        shared: Any, choices: Any, out: Any, first_row: Any, num_rows: Any, tile_row: Any
    ) -> None:
        """Add the parts of the block's sums in order and store those of real rows and choices."""
        i = int32(cuda.threadIdx.x)
        while i < elements:
            row_tile = i // int32(part_floats)
            within = i % int32(part_floats)
            column = within // int32(TILE_ROWS)
            row = tile_row + row_tile * int32(TILE_ROWS) + within % int32(TILE_ROWS) - first_row
            at = shared + uint32(row_tile * parts * part_floats + within) * uint32(4)
            value = ptx.shared_f32(at)
            for part in range(1, parts):
                value += ptx.shared_f32(at + uint32(part * part_floats * 4))
            choice = choices[column]
            if choice >= 0 and row >= 0 and row < num_rows:
                place = uint64(choice) * uint64(num_rows) + uint64(row)
                ptx.store_f32(out + place * uint64(4), value)
            i += int32(WARPS * 32)

    def expert_product(
        codes: int,
        high: int,
        scales: int,
        base: int,
        sums: int,
        experts: int,
        plan: int,
        order: int,
        out: int,
        k_tiles: int,
        parent_tiles: int,
        num_rows: int,
        num_tokens: int,
        chosen: int,
        sharing: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        choices = cuda.shared.array(columns, int32)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        shared = ptx.shared_address(memory)
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        expert = find_columns(experts, plan, order, num_tokens, chosen, choices)
        cuda.syncthreads()
        if expert >= 0:
            part = warp % int32(parts)
            k_first = part * int32(k_tiles) // int32(parts)
            count = (part + int32(1)) * int32(k_tiles) // int32(parts) - k_first
            first_row = expert * int32(num_rows)
            block_tile = (first_row >> 4) + int32(cuda.blockIdx.x) * int32(block_tiles)
            row_tile = block_tile + warp // int32(parts)
            tile = min(row_tile, int32(parent_tiles) - int32(1)) * int32(k_tiles) + k_first
            ring = shared + uint32(warp) * uint32(warp_bytes)
            for stage in range(_STAGES - 1):
                if stage < count:
                    to = ring + uint32(stage * tile_bytes)
                    copy(to, codes, high, scales, tile + stage, lane)
                ptx.close_copies()
            x_at = cuda.local.array(column_tiles, uint64)
            sum_at = cuda.local.array(num_sums, uint64)
            locate(choices, sharing, base, sums, k_tiles, k_first, lane, x_at, sum_at)
            total = cuda.local.array(num_totals, float32)
            for i in range(num_totals):
                total[i] = float32(0.0)
            slot, free = uint32(0), uint32((_STAGES - 1) * tile_bytes)
            for k in range(count):
                ptx.wait_copies_1()
                cuda.syncwarp()
                if k + (_STAGES - 1) < count:
                    copy(ring + free, codes, high, scales, tile + k + (_STAGES - 1), lane)
                ptx.close_copies()
                add_tile(ring + slot, lane, x_at, sum_at, total)
                for j in range(column_tiles):
                    x_at[j] += uint64(2048)
                    sum_at[2 * j] += uint64(64)
                    sum_at[2 * j + 1] += uint64(64)
                slot = uint32(slot + uint32(tile_bytes))
                free = uint32(free + uint32(tile_bytes))
                if slot == uint32(warp_bytes):
                    slot = uint32(0)
                if free == uint32(warp_bytes):
                    free = uint32(0)
            ptx.wait_copies_0()
            cuda.syncthreads()
            at = shared + uint32(warp * part_floats + (lane >> 2)) * uint32(4)
            at += (uint32(lane) & uint32(3)) * uint32(2 * TILE_ROWS * 4)
            for j in range(column_tiles):
                here = at + uint32(j * 8 * TILE_ROWS * 4)
                ptx.put_shared_f32(here, total[4 * j])
                ptx.put_shared_f32(here + uint32(TILE_ROWS * 4), total[4 * j + 1])
                ptx.put_shared_f32(here + uint32(32), total[4 * j + 2])
                ptx.put_shared_f32(here + uint32(TILE_ROWS * 4 + 32), total[4 * j + 3])
            cuda.syncthreads()
            write(shared, choices, out, first_row, num_rows, block_tile * int32(TILE_ROWS))

    params = (Param.ADDRESS,) * 9 + (Param.I32,) * 6
    kind = f"{parts}_{'grouped' if is_grouped else 'gathered'}"
    return Kernel(
        f"expert_product_{format.name.lower()}_{kind}",
        expert_product,
        params,
        threads=WARPS * WARP,
        max_registers=255 if is_grouped else 128,
        dynamic_shared_bytes=max(WARPS * warp_bytes, WARPS * part_floats * 4),
        min_blocks=0 if is_grouped else 2,
    )
