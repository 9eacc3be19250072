"""Products of many columns with stored weights on Hopper: codes become operands in registers.

Two warpgroups have 64 weight rows each: codes come from memory to registers a weight tile ahead of
their use, become values rounded to bf16, and sums stay in registers over all of K. Columns come in
blocks of 64 features through a ring; one lane asks for them, as there are no registers for a warp
more, two blocks behind the one that is being multiplied, so that it hardly ever waits.

The weights are the left operand, which warpgroups take from registers in the order of m16n8k16,
and that is the order in which tiles are stored (`weight_layout`): no weight passes through shared
memory, and none is expanded in memory. Codes are exact in f32 and so is a code times its scale: a
value is rounded once. While the tensor cores multiply one block the warps decode the next. Of gate
and up rows that are gated at the end, a warp has half a tile of either (`coded_gate`).

A block of the grid stays and takes one tile of products after the other; tiles are numbered in
bands of neighbouring columns, so that those which run together share weights in the second-level
cache. A product that follows another one of the same columns (``follows``) does not wait for it, so
that multiprocessors that have no tile left take those of the next product; it ends after it. An
element's sum is that of 16-feature products in a fixed order of K, whatever the tile: its
bits depend on (format, K) only. Bound by the tensor cores.
"""

from functools import cache
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.coded_columns import make_place, make_refill, make_start
from ninfer.kernels.cuda.coded_output import Ending, make_ending
from ninfer.kernels.cuda.coded_shape import WARPS, Coded
from ninfer.kernels.cuda.coded_weights import EXTRA_WORDS, lane_words, make_decode, make_load
from ninfer.kernels.cuda.column_image import BLOCK_BYTES
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


@cache
def make_coded_product(shape: Coded, ending: Ending) -> Kernel:
    """Grid: see `Coded.grid`; block (256,)."""
    stages, full_at, empty_at = shape.stages, shape.full_at, shape.empty_at
    consume = _make_consume(shape, ending)

    def coded_product(
        weights: int,
        columns: int,
        out: int,
        k_tiles: int,
        parent_tiles: int,
        first_row: int,
        num_rows: int,
        num_columns: int,
        out_width: int,
        first_column: int,
        mode: int,
        follows: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ring = (ptx.shared_address(shared) + uint32(1023)) & uint32(0xFFFFFC00)
        thread = int32(cuda.threadIdx.x)
        warp = int32(cuda.shfl_sync(0xFFFFFFFF, thread >> int32(5), 0))
        if thread == 0:
            for stage in range(stages):
                warpgroup.init_barrier(ring + uint32(full_at + 8 * stage), uint32(1))
                warpgroup.init_barrier(ring + uint32(empty_at + 8 * stage), uint32(WARPS))
            warpgroup.publish_barriers()
        cuda.syncthreads()
        consume(
            ring,
            warp,
            weights,
            columns,
            out,
            k_tiles,
            parent_tiles,
            first_row,
            num_rows,
            num_columns,
            out_width,
            first_column,
            mode,
            follows,
        )

    name = f"coded_{shape.format.name.lower()}_{ending.name.lower()}_{shape.tile_columns}"
    return Kernel(
        f"{name}_{stages}_{shape.band}",
        coded_product,
        (Param.ADDRESS,) * 3 + (Param.I32,) * 9,
        threads=WARPS * WARP,
        max_registers=255,
        dynamic_shared_bytes=shape.shared_bytes,
        min_blocks=1,
        is_warpgroup=True,
    )


def _make_release(shape: Coded) -> Any:
    """The warp is done with the stage before one."""
    stages, empty_at = shape.stages, shape.empty_at

    @device_function
    def release(ring: Address, slot: Index, lane: Index) -> None:
        before = slot - uint32(1) if slot > uint32(0) else uint32(stages - 1)
        if lane == 0:
            warpgroup.arrive(ring + uint32(empty_at) + before * uint32(8))

    return release


def _make_step(shape: Coded) -> Any:
    """Products of one stage with 64 features in registers; the stage before is free then."""
    stage_bytes, full_at, descriptor = shape.stage_bytes, shape.full_at, warpgroup.DESCRIPTOR
    release = _make_release(shape)
    multiply = warpgroup.multiply_registers(shape.tile_columns)

    @device_function
    def step(
        ring: Address,
        slot: Index,
        parity: Index,
        is_first: int,
        lane: Index,
        total: Array,
        left: Array,
    ) -> None:
        warpgroup.wait_phase(ring + uint32(full_at) + slot * uint32(8), parity)
        right = uint64((ring + slot * uint32(stage_bytes)) >> uint32(4))
        multiply(total, left, uint64(descriptor) + right)
        if not is_first:
            release(ring, slot, lane)

    return step


@device_function
def _advance(slot: Index, parity: Index, stages: int) -> Any:
    """Next stage of the ring; its parity turns with every round."""
    slot += uint32(1)
    if slot == uint32(stages):
        slot = uint32(0)
        parity ^= uint32(1)
    return slot, parity


def _make_walk(shape: Coded) -> Any:
    """All of K for one tile: operands of the first half are there, those of the next one after."""
    format, stages = shape.format, shape.stages
    tile_bytes, lane_has = PAIR_FORMATS[format].tile_bytes, lane_words(format)
    words, is_split = lane_has.words, lane_has.is_split
    load, decode = make_load(format), make_decode(format)
    step, refill = _make_step(shape), make_refill(shape)

    @device_function
    def walk(
        ring: Address,
        slot: Index,
        parity: Index,
        at: Address,
        next_at: Address,
        apart: Address,
        k_tiles: Index,
        lane: Index,
        total: Array,
        now: Array,
        extra: Array,
        even: Array,
        columns: Address,
        column_tiles: Index,
        row_blocks: Index,
        last: Index,
        ahead: Array,
        place: Array,
    ) -> Any:
        then, more = cuda.local.array(words, uint32), cuda.local.array(EXTRA_WORDS, uint32)
        odd = cuda.local.array(16, uint32)
        k_blocks = k_tiles * int32(2)
        pitch = uint64(k_blocks) * uint64(BLOCK_BYTES)
        for k in range(k_tiles):
            at += uint64(tile_bytes)
            if k == k_tiles - 1:
                at = next_at
            # Of the tile at hand, the first half of the features is decoded already.
            if is_split:
                load(at, apart, lane, 0, now, extra)
            else:
                load(at, apart, lane, 0, then, more)
            step(ring, slot, parity, k == 0, lane, total, even)
            refill(
                ring, slot, columns, column_tiles, row_blocks, last, pitch, k_blocks, ahead, place
            )
            slot, parity = _advance(slot, parity, stages)
            decode(now, extra, 1, odd)
            if is_split:
                load(at, apart, lane, 1, now, extra)
            step(ring, slot, parity, 0, lane, total, odd)
            refill(
                ring, slot, columns, column_tiles, row_blocks, last, pitch, k_blocks, ahead, place
            )
            slot, parity = _advance(slot, parity, stages)
            if not is_split:
                for i in range(words):
                    now[i] = then[i]
                for i in range(EXTRA_WORDS):
                    extra[i] = more[i]
            decode(now, extra, 0, even)
        return slot, parity

    return walk


def _make_tile_address(format: TensorFormat, is_gated: bool) -> Any:
    """Where the first of a warp's stored tiles lies; rows behind the last read the last.

    Of gate and up a warp has half a tile of either: `_make_apart` says how far up lies from gate.
    """
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    record_bytes = tile_bytes // 2

    @device_function
    def tile_address(
        weights: Address, warp: Index, first_tile: Index, row: Index, parent_tiles: Index,
        k_tiles: Index,
    ) -> Address:  # fmt: skip
        if is_gated:
            stored = first_tile + row * int32(4) + (warp >> int32(1))
            weights += uint64(warp & int32(1)) * uint64(record_bytes)
        else:
            stored = min(first_tile + row * int32(8) + warp, parent_tiles - int32(1))
        return weights + uint64(stored) * uint64(k_tiles) * uint64(tile_bytes)

    return tile_address


@device_function
def _begin(follows: Index) -> None:
    """The columns are complete; for a product that follows they are when it starts."""
    if follows == 0:
        ptx.wait_for_predecessor()
    ptx.release_successor()


def _make_apart(format: TensorFormat, is_gated: bool) -> Any:
    """Bytes from a warp's upper rows to its lower ones; of gates ``mode`` counts stored tiles."""
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    record_bytes = tile_bytes // 2

    @device_function
    def apart(mode: Index, k_tiles: Index) -> Address:
        if is_gated:
            return uint64(mode) * uint64(k_tiles) * uint64(tile_bytes)
        return uint64(record_bytes)

    return apart


def _make_consume(shape: Coded, ending: Ending) -> Any:
    """A warp: its 16 weight rows of every tile."""
    format, staging_at, tile_columns = shape.format, shape.staging_at, shape.tile_columns
    tile_bits, num_sums = tile_columns.bit_length() - 1, tile_columns // 2
    is_gated = ending is Ending.GATED
    tile_address, find_apart = _make_tile_address(format, is_gated), _make_apart(format, is_gated)
    release = _make_release(shape)
    words, is_split = lane_words(format).words, lane_words(format).is_split
    load, decode = make_load(format), make_decode(format)
    find, walk, start = make_place(shape), _make_walk(shape), make_start(shape)
    finish = warpgroup.finish_products(tile_columns)
    write = make_ending(ending, tile_columns)

    @device_function
    def consume(
        ring: Address,
        warp: Index,
        weights: Address,
        columns: Address,
        out: Address,
        k_tiles: Index,
        parent_tiles: Index,
        first_row: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
        follows: Index,
    ) -> None:
        column_tiles = (num_columns + int32(tile_columns - 1)) >> int32(tile_bits)
        row_blocks = ((first_row + num_rows + int32(15)) >> int32(4)) - (first_row >> int32(4))
        row_blocks = (row_blocks + int32(7)) >> int32(3)
        last = (num_columns - int32(1)) >> int32(7)
        lane = int32(cuda.threadIdx.x) & int32(31)
        first_tile, apart = first_row >> int32(4), find_apart(mode, k_tiles)
        total = cuda.local.array(num_sums, float32)
        now, extra = cuda.local.array(words, uint32), cuda.local.array(EXTRA_WORDS, uint32)
        even = cuda.local.array(16, uint32)
        ahead, place = cuda.local.array(2, uint64), cuda.local.array(3, int32)
        tile, slot, parity = int32(cuda.blockIdx.x), uint32(0), uint32(0)
        column, row = find(tile, column_tiles, row_blocks)
        at = tile_address(weights, warp, first_tile, row, parent_tiles, k_tiles)
        # Weights are constants: they are read before the predecessor has ended.
        load(at, apart, lane, 0, now, extra)
        if is_split:
            load(at, apart, lane, 1, now, extra)
        _begin(follows)
        start(ring, columns, column_tiles, row_blocks, last, k_tiles * int32(2), ahead, place)
        decode(now, extra, 0, even)
        while tile < column_tiles * row_blocks:
            following = tile + int32(cuda.gridDim.x)
            next_column, next_row = column, row
            if following < column_tiles * row_blocks:
                next_column, next_row = find(following, column_tiles, row_blocks)
            next_at = tile_address(weights, warp, first_tile, next_row, parent_tiles, k_tiles)
            for i in range(num_sums):
                total[i] = float32(0.0)
            slot, parity = walk(
                ring,
                slot,
                parity,
                at,
                next_at,
                apart,
                k_tiles,
                lane,
                total,
                now,
                extra,
                even,
                columns,
                column_tiles,
                row_blocks,
                last,
                ahead,
                place,
            )
            at = next_at
            finish(total)
            release(ring, slot, lane)
            write(
                ring + uint32(staging_at),
                out,
                total,
                warp,
                column * int32(tile_columns),
                row * int32(128) - (first_row & int32(15)),
                num_rows,
                num_columns,
                out_width,
                first_column,
                mode,
            )
            tile, column, row = following, next_column, next_row
        # Whoever waits for this product waits for those that it has run beside as well.
        ptx.wait_for_predecessor()

    return consume
