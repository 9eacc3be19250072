"""Products of 9 to 32 columns with up to four weights, by clusters of eight blocks.

`wide_shape` says how the parts of K are shared out, `wide_walk` how a warp makes its part of two
row tiles. Sums go to the block that adds them up while the next turn is made: all meet once in a
turn, behind its products, and nobody waits before the next turn's are made as well. A row's bits
are those of `few_product` and `skinny_product`.

Traffic: every matrix once; an eighth of the columns once for each block; eight sums of every
product from block to block.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import cluster, ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import CudaStream
from ninfer.kernels.cuda.few_shape import SLOTS
from ninfer.kernels.cuda.held_shape import GROUP_SUM_BYTES, K_TILE_BYTES, stage_bytes
from ninfer.kernels.cuda.launch import WARP, block_parts, blocks_for
from ninfer.kernels.cuda.product_output import warp_index
from ninfer.kernels.cuda.row_products import Formats, RowProduct
from ninfer.kernels.cuda.skinny_shape import PARTS
from ninfer.kernels.cuda.weight_layout import TILE_FEATURES
from ninfer.kernels.cuda.wide_shape import (
    BARRIER_BYTES,
    BEGIN_BYTES,
    LEAST_WARPS,
    PAIR,
    PLAN_BYTES,
    SENT_AT,
    TURN_AT,
    WideLaunch,
    choose_launch,
    column_tiles,
    most_warps,
    num_stages,
    offsets,
    ring_bytes,
    sum_bytes,
)
from ninfer.kernels.cuda.wide_sums import find_turn, make_add_up, make_push
from ninfer.kernels.cuda.wide_walk import (
    CURSOR_WORDS,
    SLOT,
    find_pair,
    make_ask,
    make_walk,
)
from ninfer.tensor import LinearInput

_REGISTER_FILE: Final = 65536

Address = Any
Array = Any
Index = Any


def choose(
    stream: CudaStream, x: LinearInput, formats: Formats, products: Sequence[RowProduct]
) -> WideLaunch | None:
    """How the products of one launch would be made; None where they cannot."""
    if not stream.has_clusters:
        return None
    tiles = column_tiles(x.num_columns)
    clusters = stream.num_clusters(make_wide(formats, tiles, num_stages(formats, tiles)[-1]))
    if clusters == 0:
        return None
    return choose_launch(
        formats,
        tiles,
        sum(blocks_for(product.tiles, PAIR) for product in products),
        block_parts(x).padded // TILE_FEATURES,
        clusters,
        stream.shared_bytes,
    )


def launch_wide(
    stream: CudaStream,
    x: LinearInput,
    formats: Formats,
    products: Sequence[RowProduct],
    chosen: WideLaunch,
) -> None:
    """Make products of one launch."""
    base, sums, padded = block_parts(x)
    k_tiles = padded // TILE_FEATURES
    rows: list[int] = []
    end = 0
    for product in reversed(products):  # formats of more bytes come first
        end += blocks_for(product.tiles, PAIR)
        rows += [product.address, product.target, end]
        rows += [product.num_rows, product.width, product.kind(formats)]
    rows += rows[-6:] * (SLOTS - len(products))
    stream.launch(
        make_wide(formats, column_tiles(x.num_columns), chosen.stages),
        (PARTS * min(chosen.clusters, end), 1, 1),
        (base, sums, k_tiles, x.num_columns, end, *chosen[2:5], *rows),
        threads=chosen.warps * WARP,
        shared_bytes=chosen.shared_bytes,
    )


@cache
def make_wide(  # noqa: PLR0915 - one loop, whose state is a lane's registers
    formats: Formats, tiles: int, stages: int = 3
) -> Kernel:
    """Kernel for up to four weights of these formats; clusters of eight blocks, (384,) at most."""
    warp_bytes = ring_bytes(formats, stages)
    threads = most_warps(formats) * WARP
    stage = PAIR * stage_bytes(formats)
    ask = make_ask(formats)
    walk_pair = _choice(tuple(make_walk(format, formats, tiles, stages, ask) for format in formats))
    push, add_up = make_push(tiles), make_add_up(tiles)
    num_sums, slot_bytes = 4 * PAIR * tiles, PARTS * sum_bytes(tiles)
    columns_step = tiles * K_TILE_BYTES
    begins_step = len(offsets(formats)) * tiles * BEGIN_BYTES
    begin = _make_begin(offsets(formats), tiles)

    def wide(  # noqa: PLR0915 - as above
        base: int,
        group_sums: int,
        k_tiles: int,
        num_columns: int,
        total_pairs: int,
        num_warps: int,
        turns: int,
        sums_at: int,
        codes_0: int,
        out_0: int,
        end_0: int,
        rows_0: int,
        width_0: int,
        kind_0: int,
        codes_1: int,
        out_1: int,
        end_1: int,
        rows_1: int,
        width_1: int,
        kind_1: int,
        codes_2: int,
        out_2: int,
        end_2: int,
        rows_2: int,
        width_2: int,
        kind_2: int,
        codes_3: int,
        out_3: int,
        end_3: int,
        rows_3: int,
        width_3: int,
        kind_3: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ptx.release_successor()
        own = ptx.shared_address(shared)
        warp, lane = uint32(warp_index()), uint32(cuda.threadIdx.x) & uint32(31)
        warps = uint32(num_warps)
        part = uint32(uint32(cuda.blockIdx.x) & uint32(PARTS - 1))
        clusters = uint32(uint32(cuda.gridDim.x) // uint32(PARTS))
        pair = int32(uint32(cuda.blockIdx.x) // uint32(PARTS) + warp * clusters)
        stride = int32(clusters * warps)
        count = int32((uint32(k_tiles) + uint32(PARTS - 1) - part) // uint32(PARTS))
        steps = uint32((uint32(k_tiles) + uint32(PARTS - 1)) // uint32(PARTS))
        ends, heights = (end_0, end_1, end_2), (rows_0, rows_1, rows_2, rows_3)
        kinds = (kind_0, kind_1, kind_2, kind_3)
        rows = ((codes_0, codes_1, codes_2, codes_3), ends, heights, kinds)
        targets = (
            (out_0, out_1, out_2, out_3),
            ends,
            heights,
            (width_0, width_1, width_2, width_3),
        )
        plan = uint32(own + warp * uint32(PLAN_BYTES))
        ring = uint32(own + warps * uint32(PLAN_BYTES) + warp * uint32(warp_bytes))
        columns = uint32(own + warps * uint32(PLAN_BYTES + warp_bytes))
        begins = uint32(columns + steps * uint32(columns_step))
        arrived = uint32(begins + steps * uint32(begins_step))
        ptx.put_shared_u32x4(plan, uint32(pair), part, uint32(count), uint32(stride))
        ptx.put_shared_u32x4(plan + uint32(16), columns, begins, arrived, ring)
        place = uint32(own + uint32(sums_at) + warp * uint32(slot_bytes))
        step = uint32(warps * uint32(slot_bytes))
        ptx.put_shared_u32x4(plan + uint32(TURN_AT), uint32(pair), place, step, uint32(stride))
        ptx.sync_warp()
        walk = (int32(k_tiles), lane, int32(total_pairs), plan)
        cursor = cuda.local.array(CURSOR_WORDS, int32)
        source = cuda.local.array(1, uint64)
        for i in range(CURSOR_WORDS):
            cursor[i] = int32(0)
        source[0] = uint64(codes_0)
        cursor[SLOT] = int32(ring)
        thread = uint32(cuda.threadIdx.x)
        warpgroup.init_barrier_if(
            uint32(thread < steps), uint32(arrived + thread * uint32(BARRIER_BYTES)), uint32(1)
        )
        sent = uint32(plan + uint32(SENT_AT) + lane * uint32(BARRIER_BYTES))
        warpgroup.init_barrier_if(uint32(lane < uint32(2)), sent, uint32(1))
        warpgroup.publish_barriers()
        if turns > 1:
            cluster.arrive_cluster()
        for i in range(stages - 1):
            ask(uint32(ring + uint32(i * stage)), cursor, source, walk, rows)
        cuda.syncthreads()
        ptx.wait_for_predecessor()
        there = uint32((uint32(num_columns) + uint32(7)) >> uint32(3))
        who = (warp, warps, lane, part, uint32(count))
        _bring(who, columns, arrived, (base, k_tiles, there, uint32(tiles)))
        begin(who, begins, steps, (group_sums, k_tiles, there))
        cuda.syncthreads()
        if turns > 1:
            cluster.wait_cluster()  # all blocks have barriers
        total = cuda.local.array(num_sums, float32)
        turn = int32(0)
        while turn < int32(turns):
            for i in range(num_sums):
                total[i] = float32(0.0)
            pair = find_turn(plan, turn)
            if pair < int32(total_pairs):
                _, _, _, kind = find_pair(pair, rows)
                walk_pair(kind & int32(15), cursor, source, walk, rows, total)
            if turns == int32(1):
                cluster.release_cluster()  # rings and columns may be written over
                cluster.wait_cluster()
            add_up(
                plan, int32(turn - int32(1)), lane, int32(total_pairs), num_columns, rows, targets
            )
            if find_turn(plan, turn) < int32(total_pairs):
                push(plan, turn, lane, total)
            turn = int32(turn + int32(1))
        add_up(plan, int32(turn - int32(1)), lane, int32(total_pairs), num_columns, rows, targets)

    name = "_".join(format.name.lower() for format in formats)
    weight = (Param.ADDRESS,) * 2 + (Param.I32,) * 4
    return Kernel(
        f"wide_{name}_{8 * tiles}_{stages}",
        wide,
        (Param.ADDRESS,) * 2 + (Param.I32,) * 6 + weight * SLOTS,
        threads=threads,
        max_registers=_REGISTER_FILE // threads // 8 * 8,
        dynamic_shared_bytes=LEAST_WARPS * warp_bytes,
        min_blocks=1,
        cluster_blocks=PARTS,
    )


@device_function
def _bring(who: Any, columns: Address, arrived: Address, operands: Any) -> None:
    """Ask for the columns of the block's part; warps take turns at k tiles."""
    warp, warps, lane, part, count = who
    base, k_tiles, there, tiles = operands
    is_first, is_tile = uint32(lane == uint32(0)), uint32(lane < there)
    nbytes = uint32(there * uint32(K_TILE_BYTES))
    step = warp
    while step < count:
        k = uint64(lane) * uint64(k_tiles) + uint64(part + step * uint32(PARTS))
        barrier = uint32(arrived + step * uint32(BARRIER_BYTES))
        warpgroup.expect_bytes_if(is_first, barrier, nbytes)
        to = uint32(columns + (step * tiles + lane) * uint32(K_TILE_BYTES))
        source = base + k * uint64(K_TILE_BYTES)
        warpgroup.copy_bulk_if(is_tile, to, source, uint32(K_TILE_BYTES), barrier)
        step = uint32(step + warps)


def _make_begin(every: Sequence[int], tiles: int) -> Any:
    """Group sums times each offset, as chains begin: (who, begins, steps, operands).

    Warps take turns at k tiles and column tiles; half a warp has the 16 sums of one.
    """
    num_tables, shift = len(every), tiles.bit_length() - 1
    factors = np.array([*every, 0], np.float32)

    @device_function
    def begin(who: Any, begins: Address, steps: Index, operands: Any) -> None:
        warp, warps, lane, part, count = who
        group_sums, k_tiles, there = operands
        element, half = uint32(lane & uint32(15)), uint32(lane >> uint32(4))
        place = uint32((element >> uint32(3)) * uint32(BEGIN_BYTES // 2))
        place = uint32(place + ((element & uint32(7)) >> uint32(1)) * uint32(16))
        place = uint32(place + (element & uint32(1)) * uint32(4) + half * uint32(8))
        item = warp
        while item < count * uint32(tiles):
            step, tile = uint32(item >> uint32(shift)), uint32(item & uint32(tiles - 1))
            tile = ptx.smaller_u32(tile, there - uint32(1))  # behind the last are none
            k = uint64(tile) * uint64(k_tiles) + uint64(part + step * uint32(PARTS))
            at = group_sums + k * uint64(GROUP_SUM_BYTES) + uint64(element * uint32(4))
            value = ptx.load_f32(at)
            to = uint32(begins + item * uint32(BEGIN_BYTES) + place)
            for table in range(num_tables):
                product = ptx.multiply_f32(value, float32(-factors[table]))
                ptx.put_shared_f32(to, product)
                to = uint32(to + steps * uint32(tiles * BEGIN_BYTES))
            item = uint32(item + warps)

    @device_function
    def nothing(who: Any, begins: Address, steps: Index, operands: Any) -> None:
        pass

    return begin if num_tables else nothing


def _choice(walks: tuple[Callable[..., Any], ...]) -> Any:
    """The walk over a pair, by the number of its format."""
    head = walks[0]
    if len(walks) == 1:

        @device_function
        def only(
            format: Index, cursor: Array, source: Array, walk: Any, rows: Any, total: Array
        ) -> None:
            head(cursor, source, walk, rows, total)

        return only
    others = _choice(walks[1:])

    @device_function
    def either(
        format: Index, cursor: Array, source: Array, walk: Any, rows: Any, total: Array
    ) -> None:
        if format == int32(0):
            head(cursor, source, walk, rows, total)
        else:
            others(int32(format - int32(1)), cursor, source, walk, rows, total)

    return either
