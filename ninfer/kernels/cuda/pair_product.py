"""Products of up to eight columns with one long weight of few row tiles, by pairs of blocks.

`pair_shape` says which warp makes which part of which row tile. A block keeps the columns of its
parts, which come by bulk copies with a barrier for each k tile. A row tile is added up by one of
the blocks; the other one's warps write their sums into its shared memory before both meet. A row's
bits are those of `few_product`.

Traffic: the matrix once; half of the columns once for each block.

What functions hand to one another:

    unit      which part it is: row tile of the pair, part of the block, number of the block
    places    where it is made: the warp's ring, columns and group sums of the block, its barriers
    operands  weights, row tiles, columns, group sums, k tiles, number of columns
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import cluster, ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.few_walk import make_ask
from ninfer.kernels.cuda.held_shape import GROUP_SUM_BYTES, K_TILE_BYTES, PART_BYTES
from ninfer.kernels.cuda.held_walk import make_step
from ninfer.kernels.cuda.launch import block_parts, blocks_for
from ninfer.kernels.cuda.pair_shape import (
    BARRIER_BYTES,
    HOME_TILES,
    LONG_TILES,
    OWN_PARTS,
    PAIR_THREADS,
    PAIR_TILES,
    STAGES,
    columns_at,
    has_room,
    pair_bytes,
    sums_at,
)
from ninfer.kernels.cuda.product_output import load_before, store_after, warp_index
from ninfer.kernels.cuda.row_products import MODE_AT, SKIP_AT, RowProduct
from ninfer.kernels.cuda.skinny_shape import PARTS, WAITS
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES, TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.tensor import LinearInput, TensorFormat

PAIRED: Final = (TensorFormat.Q5,)
"""Formats that kernels are made for: those that profiles give long weights of few row tiles."""

_REGISTERS: Final = 65536 // PAIR_THREADS // 8 * 8
_SLABS: Final = 4  # of a k tile
_COLUMN_BYTES: Final = K_TILE_BYTES // _SLABS // 8  # of a slab
_STEP_COLUMNS: Final = OWN_PARTS * K_TILE_BYTES
_STEP_SUMS: Final = OWN_PARTS * GROUP_SUM_BYTES
_STEP_BARRIERS: Final = OWN_PARTS * BARRIER_BYTES

Address = Any
Array = Any
Index = Any


def launch_pairs(stream: CudaStream, x: LinearInput, product: RowProduct) -> None:
    """Make the products of one weight, whose format is in `PAIRED`, and `has_room` for it."""
    base, sums, padded = block_parts(x)
    k_tiles = padded // TILE_FEATURES
    stream.launch(
        make_pair(product.format),
        (2 * blocks_for(product.tiles, PAIR_TILES), 1, 1),
        (
            base, sums, k_tiles, x.num_columns,
            product.address, product.target, product.tiles, product.num_rows, product.width,
            product.kind((product.format,)),
        ),
        shared_bytes=pair_bytes(product.format, k_tiles),
    )  # fmt: skip


def declared(block_shared_bytes: int) -> tuple[Kernel, ...]:
    """Kernels of every format that a device may have room for."""
    room = [format for format in PAIRED if has_room(format, LONG_TILES, block_shared_bytes)]
    return tuple(make_pair(format) for format in room)


@cache
def make_pair(format: TensorFormat) -> Kernel:
    """Kernel for one weight; clusters of two blocks (640,)."""
    ring_bytes, columns_from = STAGES * PAIR_FORMATS[format].tile_bytes, columns_at(format)
    walk, write = _make_walk(format), _make_write(format)

    def pair(
        base: int,
        group_sums: int,
        k_tiles: int,
        num_columns: int,
        codes: int,
        out: int,
        tiles: int,
        rows: int,
        width: int,
        kind: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ptx.release_successor()
        own = ptx.shared_address(shared)
        warp = uint32(warp_index())
        block = uint32(cuda.blockIdx.x) & uint32(1)
        tile, part = uint32(warp // uint32(OWN_PARTS)), uint32(warp % uint32(OWN_PARTS))
        first = uint32((uint32(cuda.blockIdx.x) >> uint32(1)) * uint32(PAIR_TILES) + tile)
        steps = uint32((uint32(k_tiles) + uint32(PARTS - 1)) // uint32(PARTS))
        columns = uint32(own + uint32(columns_from))
        sums = uint32(columns + steps * uint32(_STEP_COLUMNS))
        arrived = uint32(sums + steps * uint32(_STEP_SUMS))
        unit = (tile, part, block)
        places = (uint32(own + warp * uint32(ring_bytes)), columns, sums, arrived)
        total = cuda.local.array(4, float32)
        walk(
            unit,
            places,
            first,
            steps,
            (codes, tiles, base, group_sums, k_tiles, num_columns),
            total,
        )
        target = (out, rows, width, num_columns, kind)
        write(unit, own, places[0], first, target, total)

    return Kernel(
        f"pair_{format.name.lower()}",
        pair,
        (Param.ADDRESS,) * 2 + (Param.I32,) * 2 + (Param.ADDRESS,) * 2 + (Param.I32,) * 4,
        threads=PAIR_THREADS,
        max_registers=_REGISTERS,
        dynamic_shared_bytes=pair_bytes(format, 1),
        min_blocks=1,
        cluster_blocks=2,
    )


def _make_walk(format: TensorFormat) -> Any:
    """A warp's way through its part: (unit, places, first, steps, operands, total).

    Waits for the predecessor by itself. The order of the sum is that of `few_walk`.
    """
    stage_bytes = PAIR_FORMATS[format].tile_bytes
    ask, multiply, make_own_masks = (
        make_ask(format, 1),
        make_step(format),
        make_masks(format, keeps=True),
    )
    wait_copies = WAITS[STAGES]

    @device_function
    def walk(
        unit: Any, places: Any, first: Index, steps: Index, operands: Any, total: Array
    ) -> None:
        _, own_part, block = unit
        ring, columns, sums, arrived = places
        codes, tiles, _, _, k_tiles, _ = operands
        part = uint32(block * uint32(OWN_PARTS) + own_part)
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        source = cuda.local.array(1, uint64)
        at = uint32(ptx.smaller_u32(first, uint32(tiles - 1)) * uint32(k_tiles) + part)
        source[0] = codes + uint64(at) * uint64(stage_bytes) + uint64(lane * uint32(16))
        n = int32((uint32(k_tiles) + uint32(PARTS - 1) - part) // uint32(PARTS))
        left = n
        for stage in range(STAGES - 1):
            to = uint32(ring + lane * uint32(16) + uint32(stage * stage_bytes))
            ask(to, source, lane, uint32(left > int32(0)))
            left = int32(left - int32(1))
            ptx.close_copies()
        _make_barriers(arrived, steps)
        masks = make_own_masks()
        ptx.wait_for_predecessor()
        _bring(unit, places, part, uint32(n), operands)
        x = uint32(columns + own_part * uint32(K_TILE_BYTES) + lane * uint32(16))
        s = uint32(sums + own_part * uint32(GROUP_SUM_BYTES) + (lane & uint32(3)) * uint32(8))
        barrier = uint32(arrived + own_part * uint32(BARRIER_BYTES))
        for i in range(4):
            total[i] = float32(0.0)
        slot, end = ring, uint32(ring + uint32(STAGES * stage_bytes))
        last = uint32(end - uint32(stage_bytes))
        while n > int32(0):
            wait_copies()
            ptx.sync_warp()
            ask(uint32(last + lane * uint32(16)), source, lane, uint32(left > int32(0)))
            left = int32(left - int32(1))
            ptx.close_copies()
            warpgroup.wait_phase(barrier, uint32(0))
            multiply(slot, lane, x, s, total, masks)
            x, s = uint32(x + uint32(_STEP_COLUMNS)), uint32(s + uint32(_STEP_SUMS))
            barrier = uint32(barrier + uint32(_STEP_BARRIERS))
            last, slot = slot, uint32(slot + uint32(stage_bytes))
            if slot == end:
                slot = ring
            n = int32(n - int32(1))
        ptx.wait_copies_0()
        ptx.sync_warp()

    return walk


@device_function
def _make_barriers(arrived: Address, steps: Index) -> None:
    """Barriers of k tiles, which columns arrive at."""
    thread = uint32(cuda.threadIdx.x)
    is_there = uint32(thread < steps * uint32(OWN_PARTS))
    at = uint32(arrived + thread * uint32(BARRIER_BYTES))
    warpgroup.init_barrier_if(is_there, at, uint32(1))
    warpgroup.publish_barriers()
    cluster.arrive_cluster()
    cuda.syncthreads()


@device_function
def _bring(unit: Any, places: Any, part: Index, count: Index, operands: Any) -> None:
    """Ask for columns and group sums of the part; warps of its row tiles take turns at k tiles."""
    tile, own_part, _ = unit
    _, columns, sums, arrived = places
    _, _, base, group_sums, _, num_columns = operands
    lane = uint32(cuda.threadIdx.x) & uint32(31)
    is_first, is_slab = uint32(lane == uint32(0)), uint32(lane < uint32(_SLABS))
    slab_bytes = uint32(uint32(num_columns) * uint32(_COLUMN_BYTES))
    nbytes = uint32(uint32(_SLABS) * slab_bytes + uint32(GROUP_SUM_BYTES))
    own_slab = uint32(lane * uint32(K_TILE_BYTES // _SLABS))
    step = tile
    while step < count:
        k = uint64(part + step * uint32(PARTS))
        place = uint32(step * uint32(OWN_PARTS) + own_part)
        barrier = uint32(arrived + place * uint32(BARRIER_BYTES))
        warpgroup.expect_bytes_if(is_first, barrier, nbytes)
        to = uint32(columns + place * uint32(K_TILE_BYTES) + own_slab)
        source = base + k * uint64(K_TILE_BYTES) + uint64(own_slab)
        warpgroup.copy_bulk_if(is_slab, to, source, slab_bytes, barrier)
        to = uint32(sums + place * uint32(GROUP_SUM_BYTES))
        source = group_sums + k * uint64(GROUP_SUM_BYTES)
        warpgroup.copy_bulk_if(is_first, to, source, uint32(GROUP_SUM_BYTES), barrier)
        step = uint32(step + uint32(PAIR_TILES))


def _make_write(format: TensorFormat) -> Any:
    """The end of a warp: (unit, own, ring, first, target, total).

    Sums go into its ring, or to the block that adds up the row tile. When both blocks have met, the
    warps of the row tile add parts in order, each lane its own element.
    """
    ring_bytes, sums_from = STAGES * PAIR_FORMATS[format].tile_bytes, sums_at(format)

    @device_function
    def write(
        unit: Any,
        own: Address,
        ring: Address,
        first: Index,
        target: Any,
        total: Array,
    ) -> None:
        tile, part, block = unit
        out, rows, width, num_columns, kind = target
        lane = uint32(cuda.threadIdx.x) & uint32(31)
        is_adding = uint32(tile < uint32(HOME_TILES)) ^ block
        own_row = int32(lane & uint32(TILE_ROWS - 1))
        column = int32(part * uint32(2) + (lane >> uint32(4)))
        row = int32(first) * int32(TILE_ROWS) + own_row
        row = int32(row - ((kind >> int32(SKIP_AT)) & int32(15)))
        mode = (kind >> int32(MODE_AT)) & int32(15)
        is_inside = (
            is_adding & uint32(row >= int32(0)) & uint32(row < rows) & uint32(column < num_columns)
        )
        element = uint64(column) * uint64(width) + uint64(row)
        before = load_before(out, element, is_inside, mode)
        index = uint32(tile - uint32(HOME_TILES) * uint32(tile >= uint32(HOME_TILES)))
        there = uint32(own + uint32(sums_from) + index * uint32(OWN_PARTS * PART_BYTES))
        cluster.wait_cluster()  # the other block has started
        if is_adding == uint32(0):
            at = uint32(there + part * uint32(PART_BYTES) + lane * uint32(8))
            _put_there(cluster.map_shared(at, block ^ uint32(1)), total)
        else:
            _put_here(uint32(ring + lane * uint32(8)), total)
        cluster.release_cluster()
        cluster.wait_cluster()
        if is_adding != uint32(0):
            offset = uint32(own_row * int32(32) + column * int32(4))
            here = uint32(ring - part * uint32(ring_bytes) + offset)
            value = _sum_parts(here, uint32(there + offset), uint32(ring_bytes), block)
            store_after(out, element, is_inside, mode, value, before)

    return write


@device_function
def _put_here(at: Address, total: Array) -> None:
    """A warp's sums, [row][column]; ``at`` is the lane's place."""
    ptx.put_shared_f32x2(at, total[0], total[1])
    ptx.put_shared_f32x2(at + uint32(PART_BYTES // 2), total[2], total[3])


@device_function
def _put_there(at: Address, total: Array) -> None:
    """The same in the other block."""
    cluster.put_there_f32x2(at, total[0], total[1])
    cluster.put_there_f32x2(at + uint32(PART_BYTES // 2), total[2], total[3])


@device_function
def _sum_parts(here: Address, there: Address, here_step: Index, block: Index) -> Any:
    """All parts of an element in order; the first block has the first half of them."""
    low, low_step, high, high_step = here, here_step, there, uint32(PART_BYTES)
    if block != uint32(0):
        low, low_step, high, high_step = there, uint32(PART_BYTES), here, here_step
    value = ptx.shared_f32(low)
    for p in range(1, OWN_PARTS):
        value += ptx.shared_f32(low + uint32(p) * low_step)
    for p in range(PARTS - OWN_PARTS):
        value += ptx.shared_f32(high + uint32(p) * high_step)
    return value
