"""Second half of the chosen experts in decode: down, and the sum with everything else.

    residual[t] += sum over slots, in ranking order, of w * (W_e . active[t, slot]) + g * shared[t]

A block computes some features of one token, sixteen at a time: warp s takes slot s (and s + 8, ..)
over all of K, and the block adds the slots in order, so nothing is summed across blocks. All blocks
of a launch are there at once. Rows of the experts are asked for before the predecessor has ended,
as choices are known early (`expert_rank`), and each k tile's place is filled with rows of the next
features as soon as it is multiplied. A column is read once, in its chunks, and the sums of its
groups are made here, by the tree of `fragments`. Where a block has no room for that many rows, they
come in pieces of K (`expert_down_pieces`), with the same bits.

A token's experts are read for each token; tokens of one block row run together, so that an expert
which several chose comes from memory once. Everything is f32; the residual is rounded once.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.expert_columns import make_load_alone
from ninfer.kernels.cuda.expert_down_parts import (
    THREADS,
    WARPS,
    column_bytes,
    load_rest,
    make_add_up,
    make_bring_column,
    put_products,
    row_tiles_of_block,
)
from ninfer.kernels.cuda.expert_down_pieces import make_down_by_pieces
from ninfer.kernels.cuda.fragments import padded_width
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.tensor import Matrix, Tensor, TensorFormat

_MOST_BLOCKS: Final = 4  # of a multiprocessor: more leave too few registers

Address = Any
Array = Any
Index = Any


def slots_each(chosen: int) -> int:
    """Slots of one warp."""
    return -(-chosen // WARPS)


def down_kernel(format: TensorFormat, k_tiles: int, each: int, block_shared_bytes: int) -> Kernel:
    """The kernel that a block has shared memory for: all of K, or the largest pieces."""
    if _is_whole(format, k_tiles, each, block_shared_bytes):
        return make_down(format, k_tiles, each)
    fixed = WARPS * (column_bytes(k_tiles) + each * TILE_ROWS * 4)
    tiles = (block_shared_bytes - fixed) // (WARPS * PAIR_FORMATS[format].tile_bytes)
    return make_down_by_pieces(format, k_tiles, each, max(1, tiles))


def down_groups(kernel: Kernel, num_tokens: int, row_tiles: int, num_multiprocessors: int) -> int:
    """Blocks of a token: as many as there is room for at once."""
    return max(1, min(row_tiles, kernel.min_blocks * num_multiprocessors // num_tokens))


def launch_down(
    stream: CudaStream,
    down: Matrix,
    active: int,
    experts: Tensor,
    weights: Tensor,
    shared: Tensor,
    shared_gate: Tensor,
    residual: Tensor,
) -> None:
    """Add experts, of which ``active`` is the first half, to the residual stream."""
    num_tokens, chosen = experts.shape
    hidden, width = residual.shape[1], down.num_columns
    k_tiles, row_tiles = padded_width(width) // TILE_FEATURES, hidden // TILE_ROWS
    kernel = down_kernel(down.format, k_tiles, slots_each(chosen), stream.shared_bytes)
    stream.launch(
        kernel,
        (num_tokens, down_groups(kernel, num_tokens, row_tiles, stream.num_multiprocessors), 1),
        (
            down.storage.address,
            active,
            experts.address,
            weights.address,
            shared.address,
            shared_gate.address,
            residual.address,
            hidden,
            width,
            chosen,
        ),
    )


@cache
def make_down(format: TensorFormat, k_tiles: int, each: int) -> Kernel:  # noqa: PLR0915 - one pass
    """Grid (tokens, `down_groups`), block (256,).

    Args:
        format: of the weights.
        k_tiles: tiles along K.
        each: `slots_each` of the model.
    """
    tile_bytes, own_column = PAIR_FORMATS[format].tile_bytes, column_bytes(k_tiles)
    slot_bytes, products_bytes = k_tiles * tile_bytes, WARPS * each * TILE_ROWS * 4
    columns_at = WARPS * each * slot_bytes
    products_at = columns_at + WARPS * each * own_column
    shared_bytes = _shared_bytes(format, k_tiles, each)
    blocks = max(1, min(_MOST_BLOCKS, MULTIPROCESSOR_SHARED // (shared_bytes + 2048)))
    ask, add_up = _make_ask(format), make_add_up(WARPS * each)
    bring_column, multiply = make_bring_column(k_tiles), _make_multiply_tile(format, k_tiles)
    make_own_masks = make_masks(format, keeps=True)
    wait_oldest = _make_wait_oldest(each * k_tiles)

    def down(  # noqa: PLR0915 - as above
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
        ring = uint32(block + uint32(warp * int32(each * slot_bytes)))
        column = uint32(block + uint32(columns_at) + uint32(warp * int32(each * own_column)))
        products = uint32(block + uint32(products_at))
        row_tiles = int32(hidden >> int32(4))
        tile, stop = row_tiles_of_block(row_tiles)
        sources = cuda.local.array(each, uint64)
        shares = cuda.local.array(each, float32)
        for i in range(each):
            slot = int32(warp + int32(WARPS * i))
            choice = uint64(first + min(slot, int32(chosen - int32(1))))
            expert = ptx.fresh_i32(experts + choice * uint64(4))
            row = uint64(uint32(int32(expert) * row_tiles + tile)) * uint64(slot_bytes)
            sources[i] = codes + row + uint64(uint32(lane) * uint32(16))
            for k in range(k_tiles):
                to = uint32(ring + uint32(i * slot_bytes + k * tile_bytes))
                ask(to, sources[i] + uint64(k * tile_bytes), uint32(slot < chosen), lane)
        ptx.wait_for_predecessor()
        for i in range(each):
            slot = int32(warp + int32(WARPS * i))
            shares[i] = float32(0.0)
            if slot < chosen:
                shares[i] = ptx.load_f32(weights + uint64(first + slot) * uint64(4))
                bring_column(active, first + slot, width, column + uint32(i * own_column), lane)
        masks = make_own_masks()
        total = cuda.local.array(4, float32)
        while tile < stop:
            rest = load_rest(shared, shared_gate, residual, hidden, tile)
            is_more = uint32(tile + int32(1) < stop)
            for i in range(each):
                slot = int32(warp + int32(WARPS * i))
                sources[i] += uint64(slot_bytes)
                for j in range(4):
                    total[j] = float32(0.0)
                for k in range(k_tiles):
                    to = uint32(ring + uint32(i * slot_bytes + k * tile_bytes))
                    wait_oldest()
                    ptx.sync_warp()
                    multiply(to, column + uint32(i * own_column), k, lane, total, masks)
                    ptx.sync_warp()
                    is_there = is_more & uint32(slot < chosen)
                    ask(to, sources[i] + uint64(k * tile_bytes), is_there, lane)
                if slot >= chosen:
                    for j in range(4):
                        total[j] = float32(0.0)
                to = uint32(products + uint32(4 * TILE_ROWS * WARPS * i))
                put_products(to, warp, lane, shares[i], total)
            cuda.syncthreads()  # products are written here and there by turns: once is enough
            add_up(products, residual, hidden, tile, rest)
            products = uint32(block + uint32(2 * products_at + products_bytes) - products + block)
            tile = int32(tile + int32(1))

    return Kernel(
        f"expert_down_{format.name.lower()}_{k_tiles}_{each}",
        down,
        (Param.ADDRESS,) * 7 + (Param.I32,) * 3,
        threads=THREADS,
        max_registers=min(128, 65536 // (THREADS * blocks)),
        dynamic_shared_bytes=shared_bytes,
        min_blocks=blocks,
    )


def _is_whole(format: TensorFormat, k_tiles: int, each: int, block_shared_bytes: int) -> bool:
    """Whether a block has room for all of K of all slots."""
    return _shared_bytes(format, k_tiles, each) <= block_shared_bytes


def _shared_bytes(format: TensorFormat, k_tiles: int, each: int) -> int:
    """Shared memory of such a block: rows, columns, and products twice."""
    own = k_tiles * PAIR_FORMATS[format].tile_bytes + column_bytes(k_tiles) + 2 * TILE_ROWS * 4
    return WARPS * each * own


def _make_wait_oldest(stages: int) -> Any:
    """Wait for the oldest of so many copies; of more than four, for more than that."""

    @device_function
    def wait_oldest() -> None:
        if stages >= 4:
            ptx.wait_copies_3()
        elif stages == 3:
            ptx.wait_copies_2()
        elif stages == 2:
            ptx.wait_copies_1()
        else:
            ptx.wait_copies_0()

    return wait_oldest


def _make_ask(format: TensorFormat) -> Any:
    """Ask for a k tile of a row tile, if it is there: (to, source of the lane, is_there, lane)."""
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    steps, last = tile_bytes // 512, tile_bytes % 512 // 16

    @device_function
    def ask(to: Address, source: Address, is_there: Any, lane: Index) -> None:
        here = to + uint32(lane) * uint32(16)
        for step in range(steps):
            at = source + uint64(step * 512)
            ptx.copy_weights_16_if(here + uint32(step * 512), at, is_there)
        if last > 0:
            is_last = is_there & uint32(lane < int32(last))
            at = source + uint64(steps * 512)
            ptx.copy_weights_16_if(here + uint32(steps * 512), at, is_last)
        ptx.close_copies()

    return ask


def _make_multiply_tile(format: TensorFormat, k_tiles: int) -> Any:
    """Products of one k tile of a slot: (stored, column, k, lane, total, masks)."""
    num_sums = 2 * unit_groups(format, 4)
    load, products = make_load_alone(format, 4), make_multiply(format, 1, 1, 4)

    @device_function
    def multiply(
        stored: Address, column: Address, k: int, lane: Index, total: Array, masks: Any
    ) -> None:
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(num_sums, float32)
        load(column + uint32(k * 256), column, k_tiles * 256 + k * 8, lane, 0, x, s)
        products(stored, lane, 0, x, s, total, masks)

    return multiply
