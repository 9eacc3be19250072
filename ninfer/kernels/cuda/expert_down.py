"""Second half of the chosen experts in decode: down, and the sum with everything else.

    residual[t] += sum over slots, in ranking order, of w * (W_e . active[t, slot]) + g * shared[t]

One block computes 16 features of one token: warp s takes slot s (and s + 8, ..) over all of K, and
the block adds the slots in order, so nothing is summed across blocks. Rows of the experts are asked
for before the predecessor has ended, as choices are known early (`expert_rank`). A column is read
in its chunks, and the sums of its groups are made here, by the tree of `fragments`.
Where a block has no room for that many rows, they come in pieces of K (`make_down_by_pieces`), with
the same bits.

A token's experts are read for each token; tokens of one block row run together, so that an expert
which several chose comes from memory once. Everything is f32; the residual is rounded once.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.device_functions import lower_bf16
from ninfer.kernels.cuda.expert_columns import make_load_alone
from ninfer.kernels.cuda.fragments import pair_sum
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED, WARP
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

WARPS: Final = 8
THREADS: Final = WARPS * WARP

_MOST_BLOCKS: Final = 4  # of a multiprocessor: more leave too few registers

Address = Any
Array = Any
Index = Any


def slots_each(chosen: int) -> int:
    """Slots of one warp."""
    return -(-chosen // WARPS)


def down_kernel(format: TensorFormat, k_tiles: int, each: int, block_shared_bytes: int) -> Kernel:
    """The kernel that a block has shared memory for: all of K, or the largest pieces."""
    whole = make_down(format, k_tiles, each)
    if whole.dynamic_shared_bytes <= block_shared_bytes:
        return whole
    fixed = WARPS * (column_bytes(k_tiles) + each * TILE_ROWS * 4)
    tiles = (block_shared_bytes - fixed) // (WARPS * PAIR_FORMATS[format].tile_bytes)
    return make_down_by_pieces(format, k_tiles, each, max(1, tiles))


@cache
def make_down(format: TensorFormat, k_tiles: int, each: int) -> Kernel:
    """Grid (tokens, hidden / 16), block (256,).

    Args:
        format: of the weights.
        k_tiles: tiles along K.
        each: `slots_each` of the model.
    """
    slot_bytes = k_tiles * PAIR_FORMATS[format].tile_bytes
    own_column = column_bytes(k_tiles)
    columns_at = WARPS * each * slot_bytes
    products_at = columns_at + WARPS * own_column
    shared_bytes = products_at + WARPS * each * TILE_ROWS * 4
    blocks = max(1, min(_MOST_BLOCKS, MULTIPROCESSOR_SHARED // (shared_bytes + 2048)))
    ask = _make_ask(format, k_tiles, each)
    add_up = _make_add_up(WARPS * each)
    bring_column, multiply = make_bring_column(k_tiles), make_column_multiply(format, k_tiles)

    def down(
        codes: int,
        active: int,
        experts: int,
        weights: int,
        shared: int,
        shared_gate: int,
        residual: int,
        hidden: int,
        width: int,
        chosen: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        first = int32(cuda.blockIdx.x) * chosen
        block = ptx.shared_address(memory)
        ring, column = block + uint32(warp * int32(each * slot_bytes)), block + uint32(columns_at)
        column += uint32(warp * int32(own_column))
        ask(ring, codes, experts, first, hidden >> int32(4), chosen, warp, lane)
        ptx.wait_for_predecessor()
        rest = _load_rest(shared, shared_gate, residual, hidden)
        total = cuda.local.array(4, float32)
        for i in range(each):
            slot = warp + int32(WARPS * i)
            weight = float32(0.0)
            for j in range(4):
                total[j] = float32(0.0)
            if slot < chosen:
                weight = ptx.load_f32(weights + uint64(first + slot) * uint64(4))
                bring_column(active, first + slot, width, column, lane)
                ptx.wait_copies_0()
                cuda.syncwarp()
                multiply(ring + uint32(i * slot_bytes), column, lane, total)
                cuda.syncwarp()
            to = block + uint32(products_at + 4 * TILE_ROWS * WARPS * i)
            _put_products(to, warp, lane, weight, total)
        cuda.syncthreads()
        add_up(block + uint32(products_at), residual, hidden, rest)

    return Kernel(
        f"expert_down_{format.name.lower()}_{k_tiles}_{each}",
        down,
        (Param.ADDRESS,) * 7 + (Param.I32,) * 3,
        threads=THREADS,
        max_registers=min(128, 65536 // (THREADS * blocks)),
        dynamic_shared_bytes=shared_bytes,
        min_blocks=blocks,
    )


@cache
def make_down_by_pieces(format: TensorFormat, k_tiles: int, each: int, piece: int) -> Kernel:
    """The same with rows of ``piece`` k tiles of a warp's slot in shared memory at a time."""
    piece_bytes, own_column = piece * PAIR_FORMATS[format].tile_bytes, column_bytes(k_tiles)
    columns_at = WARPS * piece_bytes
    products_at = columns_at + WARPS * own_column
    ask, bring_column = _make_ask_piece(format, k_tiles, piece), make_bring_column(k_tiles)
    multiply = _make_multiply_piece(format, k_tiles, piece)
    add_up = _make_add_up(WARPS * each)

    def down(
        codes: int,
        active: int,
        experts: int,
        weights: int,
        shared: int,
        shared_gate: int,
        residual: int,
        hidden: int,
        width: int,
        chosen: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ptx.release_successor()
        ptx.wait_for_predecessor()
        lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
        first = int32(cuda.blockIdx.x) * chosen
        block = ptx.shared_address(memory)
        rows = block + uint32(warp * int32(piece_bytes))
        column = block + uint32(columns_at) + uint32(warp * int32(own_column))
        rest = _load_rest(shared, shared_gate, residual, hidden)
        total = cuda.local.array(4, float32)
        for i in range(each):
            slot = warp + int32(WARPS * i)
            weight = float32(0.0)
            for j in range(4):
                total[j] = float32(0.0)
            if slot < chosen:
                expert = ptx.load_i32(experts + uint64(first + slot) * uint64(4))
                tile = (expert * (hidden >> int32(4)) + int32(cuda.blockIdx.y)) * int32(k_tiles)
                weight = ptx.load_f32(weights + uint64(first + slot) * uint64(4))
                ask(rows, codes, tile, int32(0), lane)
                bring_column(active, first + slot, width, column, lane)
                k = int32(0)
                while k < int32(k_tiles):
                    ptx.wait_copies_0()
                    cuda.syncwarp()
                    multiply(rows, column, k, lane, total)
                    cuda.syncwarp()
                    k += int32(piece)
                    ask(rows, codes, tile, k, lane)
            to = block + uint32(products_at + 4 * TILE_ROWS * WARPS * i)
            _put_products(to, warp, lane, weight, total)
        cuda.syncthreads()
        add_up(block + uint32(products_at), residual, hidden, rest)

    return Kernel(
        f"expert_down_{format.name.lower()}_{k_tiles}_{each}_by_{piece}",
        down,
        (Param.ADDRESS,) * 7 + (Param.I32,) * 3,
        threads=THREADS,
        max_registers=255,
        dynamic_shared_bytes=products_at + WARPS * each * TILE_ROWS * 4,
        min_blocks=1,
    )


def column_bytes(k_tiles: int) -> int:
    """Chunks of a column, then sums of its groups."""
    return k_tiles * 256 + -(-k_tiles // 2) * 16


def _make_ask_piece(format: TensorFormat, k_tiles: int, piece: int) -> Any:
    """Ask for the k tiles of one piece of a slot's rows, as many as there are."""
    tile_bytes, copy = PAIR_FORMATS[format].tile_bytes, tile_functions(format).copy

    @device_function
    def ask(rows: Address, codes: Address, tile: Index, k: Index, lane: Index) -> None:
        for i in range(piece):
            if k + int32(i) < int32(k_tiles):
                copy(rows + uint32(i * tile_bytes), codes, codes, codes, tile + k + int32(i), lane)
        ptx.close_copies()

    return ask


def _make_ask(format: TensorFormat, k_tiles: int, each: int) -> Any:
    """Ask for the rows of a warp's slots; choices are complete, but may be cached as they were."""
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    slot_bytes = k_tiles * tile_bytes
    copy = tile_functions(format).copy

    @device_function
    def ask(
        ring: Address,
        codes: Address,
        experts: Address,
        first: Index,
        row_tiles: Index,
        chosen: Index,
        warp: Index,
        lane: Index,
    ) -> None:
        for i in range(each):
            slot = warp + int32(WARPS * i)
            if slot < chosen:
                expert = ptx.fresh_i32(experts + uint64(first + slot) * uint64(4))
                tile = (expert * row_tiles + int32(cuda.blockIdx.y)) * int32(k_tiles)
                for k in range(k_tiles):
                    to = ring + uint32(i * slot_bytes + k * tile_bytes)
                    copy(to, codes, codes, codes, tile + int32(k), lane)
        ptx.close_copies()

    return ask


def make_bring_column(k_tiles: int) -> Any:
    """A choice's column to shared memory, chunks as they are, then the sums of its groups."""
    chunks = 16 * k_tiles
    steps = -(-chunks // WARP)

    @device_function
    def bring_column(
        active: Address, choice: Index, width: Index, column: Address, lane: Index
    ) -> None:
        row = active + uint64(choice) * uint64(chunks * 16)
        for step in range(steps):
            chunk = int32(lane) + int32(WARP * step)
            a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
            if chunk * int32(8) < int32(width):
                a, b, c, d = ptx.load_u32x4(row + uint64(chunk) * uint64(16))
            total = (pair_sum(a) + pair_sum(b)) + (pair_sum(c) + pair_sum(d))
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 4)
            if chunk < int32(chunks):
                ptx.put_shared_u32x4(column + uint32(chunk) * uint32(16), a, b, c, d)
                if chunk & int32(7) == int32(0):
                    to = column + uint32(chunks * 16) + uint32(chunk >> int32(3)) * uint32(4)
                    ptx.put_shared_f32(to, total)

    return bring_column


def make_column_multiply(format: TensorFormat, k_tiles: int, *, keeps_masks: bool = True) -> Any:
    """Products of a slot: the same column eight times, of which column 0 is looked at."""
    tile_bytes, num_sums = PAIR_FORMATS[format].tile_bytes, 2 * unit_groups(format, 4)
    load, products = make_load_alone(format, 4), make_multiply(format, 1, 1, 4)
    make_own_masks = make_masks(format, keeps=keeps_masks)

    @device_function
    def multiply(rows: Address, column: Address, lane: Index, total: Array) -> None:
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for i in range(4):
            total[i] = float32(0.0)
        for k in range(k_tiles):
            load(column + uint32(k * 256), column, k_tiles * 256 + k * 8, lane, 0, x, s)
            products(rows + uint32(k * tile_bytes), lane, 0, x, s, total, masks)

    return multiply


def _make_multiply_piece(format: TensorFormat, k_tiles: int, piece: int) -> Any:
    """Products of one piece of a slot, from k tile ``first`` on."""
    tile_bytes, num_sums = PAIR_FORMATS[format].tile_bytes, 2 * unit_groups(format, 4)
    load, products = make_load_alone(format, 4), make_multiply(format, 1, 1, 4)
    make_own_masks = make_masks(format, keeps=True)

    @device_function
    def multiply(rows: Address, column: Address, first: Index, lane: Index, total: Array) -> None:
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(num_sums, float32)
        masks = make_own_masks()
        for i in range(piece):
            k = uint32(first) + uint32(i)
            if k < uint32(k_tiles):
                sums = column + uint32(k_tiles * 256) + k * uint32(8)
                load(column + k * uint32(256), sums, 0, lane, 0, x, s)
                products(rows + uint32(i * tile_bytes), lane, 0, x, s, total, masks)

    return multiply


@device_function
def _put_products(products: Address, warp: Index, lane: Index, weight: Any, total: Array) -> None:
    """Products of a warp's slot times its weight; only those of column 0 count."""
    if lane & int32(3) == int32(0):
        to = products + uint32(warp * int32(TILE_ROWS) + (lane >> int32(2))) * uint32(4)
        ptx.put_shared_f32(to, weight * total[0])
        ptx.put_shared_f32(to + uint32(32), weight * total[2])


def _make_add_up(slots: int) -> Any:
    """Add products of all slots in order, and the rest: (products, residual, hidden, rest)."""

    @device_function
    def add_up(products: Address, residual: Address, hidden: Index, rest: Any) -> None:
        if cuda.threadIdx.x < TILE_ROWS:
            at = products + uint32(cuda.threadIdx.x) * uint32(4)
            value = ptx.shared_f32(at)
            for slot in range(1, slots):
                value += ptx.shared_f32(at + uint32(4 * TILE_ROWS * slot))
            place = _feature_place(hidden)
            ptx.store_u16(residual + place, ptx.bf16x2_of_f32(value + rest, float32(0.0)))

    return add_up


@device_function
def _feature_place(hidden: Index) -> Any:
    """Byte of a thread's feature in a bf16 row of each token."""
    feature = int32(cuda.blockIdx.y) * int32(TILE_ROWS) + int32(cuda.threadIdx.x)
    return (uint64(cuda.blockIdx.x) * uint64(hidden) + uint64(feature)) * uint64(2)


@device_function
def _load_rest(shared: Address, shared_gate: Address, residual: Address, hidden: Index) -> Any:
    """What the slots of a feature are added to; for the block's first sixteen threads."""
    value = float32(0.0)
    if cuda.threadIdx.x < TILE_ROWS:
        gate = ptx.load_f32(shared_gate + uint64(cuda.blockIdx.x) * uint64(4))
        place = _feature_place(hidden)
        own, before = ptx.load_u16(shared + place), ptx.load_u16(residual + place)
        value = gate * lower_bf16(own) + lower_bf16(before)
    return value
