"""Products of many columns with stored weights on Hopper: codes become operands in registers.

    producer   one warp: blocks of 64 features of 128 or 256 columns, as far ahead as the ring goes
    consumers  two warpgroups of 64 weight rows: codes from memory to registers, a weight tile
               ahead of its use; values rounded to bf16; sums in registers over all of K

The weights are the left operand, which warpgroups take from registers in the order of m16n8k16,
and that is the order in which tiles are stored (`weight_layout`): no weight passes through shared
memory, and none is expanded in memory. Codes are exact in f32 and so is a code times its scale: a
value is rounded once. While the tensor cores multiply one block the warps decode the next.

A block of the grid stays and takes one tile of products after the other; tiles are numbered in
bands of neighbouring columns, so that those which run together share weights in the second-level
cache. An element's sum is that of 16-feature products in a fixed order of K, whatever the tile: its
bits depend on (format, K) only. Bound by the tensor cores.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.coded_output import STAGING_BYTES, Ending, make_ending
from ninfer.kernels.cuda.coded_weights import EXTRA_WORDS, lane_words, make_decode, make_load
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.wide_layout import BLOCK_BYTES, BLOCK_ROWS
from ninfer.tensor import TensorFormat

TILE_ROWS: Final = 128
"""Weight rows of a tile: eight stored tiles, one for each consumer warp."""

THREADS: Final = 9 * 32
_CONSUMER_WARPS: Final = 8
_ALIGNMENT: Final = 1024  # of a swizzled block in shared memory

Address = Any
Array = Any
Index = Any


@dataclass(frozen=True, slots=True)
class Coded:
    """How a product is shared out.

    Attributes:
        format: of the weight.
        column_blocks: blocks of 128 columns in a tile, 1 or 2.
        stages: blocks of 64 features in the ring.
        band: column tiles that are numbered together.
    """

    format: TensorFormat
    column_blocks: int = 2
    stages: int = 6
    band: int = 16

    @property
    def tile_columns(self) -> int:
        """Columns of a tile."""
        return self.column_blocks * BLOCK_ROWS

    @property
    def stage_bytes(self) -> int:
        """The columns of one stage."""
        return self.column_blocks * BLOCK_BYTES

    @property
    def staging_at(self) -> int:
        """Staging of results, behind the ring."""
        return self.stages * self.stage_bytes

    @property
    def full_at(self) -> int:
        """Barriers of stages that have arrived."""
        return self.staging_at + STAGING_BYTES

    @property
    def empty_at(self) -> int:
        """Barriers of stages that consumers are done with."""
        return self.full_at + 8 * self.stages

    @property
    def shared_bytes(self) -> int:
        """All of that, and room to align the ring."""
        return _ALIGNMENT + self.empty_at + 8 * self.stages

    def tiles(self, row_tiles: int, num_columns: int) -> int:
        """Tiles of a product with so many stored tiles of rows."""
        columns = blocks_for(num_columns, self.tile_columns)
        return columns * blocks_for(row_tiles, _CONSUMER_WARPS)

    def grid(self, row_tiles: int, num_columns: int, multiprocessors: int) -> tuple[int, int, int]:
        """One block for each multiprocessor, or for each tile where those are fewer."""
        return (min(self.tiles(row_tiles, num_columns), multiprocessors), 1, 1)


@cache
def make_coded_product(shape: Coded, ending: Ending) -> Kernel:
    """Grid: see `Coded.grid`; block (288,)."""
    stages, full_at, empty_at = shape.stages, shape.full_at, shape.empty_at
    produce, consume = _make_produce(shape), _make_consume(shape, ending)

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
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ring = (ptx.shared_address(shared) + uint32(1023)) & uint32(0xFFFFFC00)
        thread = int32(cuda.threadIdx.x)
        warp = int32(cuda.shfl_sync(0xFFFFFFFF, thread >> int32(5), 0))
        if thread == 0:
            for stage in range(stages):
                warpgroup.init_barrier(ring + uint32(full_at + 8 * stage), uint32(1))
                warpgroup.init_barrier(ring + uint32(empty_at + 8 * stage), uint32(_CONSUMER_WARPS))
            warpgroup.publish_barriers()
        cuda.syncthreads()
        ptx.release_successor()
        row_tiles = ((first_row + num_rows + int32(15)) >> int32(4)) - (first_row >> int32(4))
        if warp == 8:
            ptx.wait_for_predecessor()
            if thread == 256:
                produce(ring, columns, k_tiles, row_tiles, num_columns)
        else:
            consume(
                ring,
                warp,
                weights,
                out,
                k_tiles,
                parent_tiles,
                first_row,
                row_tiles,
                num_rows,
                num_columns,
                out_width,
                first_column,
                mode,
            )

    name = f"coded_{shape.format.name.lower()}_{ending.name.lower()}_{shape.tile_columns}"
    return Kernel(
        f"{name}_{stages}_{shape.band}",
        coded_product,
        (Param.ADDRESS,) * 3 + (Param.I32,) * 8,
        threads=THREADS,
        max_registers=224,
        dynamic_shared_bytes=shape.shared_bytes,
        min_blocks=1,
        is_warpgroup=True,
    )


def _make_place(shape: Coded) -> Any:
    """Tile numbers to column tile and tile of 128 rows: bands of columns, row by row."""
    band = shape.band

    @device_function
    def place(tile: Index, column_tiles: Index, row_blocks: Index) -> Any:
        tiles = uint32(row_blocks) * uint32(band)
        first = ptx.divide_u32(tile, tiles)
        inside = uint32(tile) - first * tiles
        first *= uint32(band)
        width = ptx.smaller_u32(uint32(column_tiles) - first, uint32(band))
        row = ptx.divide_u32(inside, width)
        return int32(first + inside - row * width), int32(row)

    return place


def _make_produce(shape: Coded) -> Any:
    """One lane: columns of every tile into the ring, in the order consumers take them."""
    stages, stage_bytes, column_blocks = shape.stages, shape.stage_bytes, shape.column_blocks
    full_at, empty_at, tile_columns = shape.full_at, shape.empty_at, shape.tile_columns
    place = _make_place(shape)

    @device_function
    def produce(
        ring: Address, columns: Address, k_tiles: Index, row_tiles: Index, num_columns: Index
    ) -> None:
        column_tiles = (num_columns + int32(tile_columns - 1)) >> int32(6 + column_blocks)
        row_blocks = (row_tiles + int32(7)) >> int32(3)
        last = (num_columns - int32(1)) >> int32(7)
        pitch = uint64(k_tiles) * uint64(2 * BLOCK_BYTES)
        tile, slot, parity = int32(cuda.blockIdx.x), uint32(0), uint32(1)
        while tile < column_tiles * row_blocks:
            column, _ = place(tile, column_tiles, row_blocks)
            block = column * int32(column_blocks)
            source = columns + uint64(block) * pitch
            # The second block may have no columns: it is multiplied in vain.
            second = columns + uint64(min(block + int32(1), last)) * pitch
            for _ in range(k_tiles * int32(2)):
                full = ring + uint32(full_at) + slot * uint32(8)
                warpgroup.wait_phase(ring + uint32(empty_at) + slot * uint32(8), parity)
                warpgroup.expect_bytes(full, uint32(stage_bytes))
                to = ring + slot * uint32(stage_bytes)
                warpgroup.copy_bulk(to, source, uint32(BLOCK_BYTES), full)
                source += uint64(BLOCK_BYTES)
                if column_blocks == 2:
                    at = to + uint32(BLOCK_BYTES)
                    warpgroup.copy_bulk(at, second, uint32(BLOCK_BYTES), full)
                    second += uint64(BLOCK_BYTES)
                slot += uint32(1)
                if slot == uint32(stages):
                    slot = uint32(0)
                    parity ^= uint32(1)
            tile += int32(cuda.gridDim.x)

    return produce


def _make_step(shape: Coded) -> Any:
    """Products of one stage with 64 features in registers; the stage before is free then."""
    stages, stage_bytes = shape.stages, shape.stage_bytes
    full_at, empty_at = shape.full_at, shape.empty_at
    descriptor = warpgroup.DESCRIPTOR
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
        if lane == 0 and not is_first:
            before = slot - uint32(1) if slot > uint32(0) else uint32(stages - 1)
            warpgroup.arrive(ring + uint32(empty_at) + before * uint32(8))

    return step


def _make_walk(shape: Coded) -> Any:
    """All of K for one tile: operands of the first half are there, those of the next one after."""
    format, stages = shape.format, shape.stages
    tile_bytes, lane_has = PAIR_FORMATS[format].tile_bytes, lane_words(format)
    words, is_split = lane_has.words, lane_has.is_split
    load, decode, step = make_load(format), make_decode(format), _make_step(shape)

    @device_function
    def walk(
        ring: Address,
        slot: Index,
        parity: Index,
        at: Address,
        next_at: Address,
        k_tiles: Index,
        lane: Index,
        total: Array,
        now: Array,
        extra: Array,
        even: Array,
    ) -> Any:
        then, more = cuda.local.array(words, uint32), cuda.local.array(EXTRA_WORDS, uint32)
        odd = cuda.local.array(16, uint32)
        for k in range(k_tiles):
            at += uint64(tile_bytes)
            if k == k_tiles - 1:
                at = next_at
            # Of the tile at hand, the first half of the features is decoded already.
            if is_split:
                load(at, lane, 0, now, extra)
            else:
                load(at, lane, 0, then, more)
            step(ring, slot, parity, k == 0, lane, total, even)
            slot, parity = _advance(slot, parity, stages)
            decode(now, extra, 1, odd)
            if is_split:
                load(at, lane, 1, now, extra)
            step(ring, slot, parity, 0, lane, total, odd)
            slot, parity = _advance(slot, parity, stages)
            if not is_split:
                for i in range(words):
                    now[i] = then[i]
                for i in range(EXTRA_WORDS):
                    extra[i] = more[i]
            decode(now, extra, 0, even)
        return slot, parity

    return walk


@device_function
def _advance(slot: Index, parity: Index, stages: int) -> Any:
    """Next stage of the ring; its parity turns with every round."""
    slot += uint32(1)
    if slot == uint32(stages):
        slot = uint32(0)
        parity ^= uint32(1)
    return slot, parity


def _make_consume(shape: Coded, ending: Ending) -> Any:
    """A warp: its 16 weight rows of every tile."""
    format, stages, column_blocks = shape.format, shape.stages, shape.column_blocks
    tile_columns, num_sums = shape.tile_columns, shape.tile_columns // 2
    staging_at, empty_at = shape.staging_at, shape.empty_at
    tile_bytes = PAIR_FORMATS[format].tile_bytes
    words, is_split = lane_words(format).words, lane_words(format).is_split
    load, decode = make_load(format), make_decode(format)
    place, walk = _make_place(shape), _make_walk(shape)
    finish = warpgroup.finish_products(tile_columns)
    write = make_ending(ending, column_blocks)

    @device_function
    def consume(
        ring: Address,
        warp: Index,
        weights: Address,
        out: Address,
        k_tiles: Index,
        parent_tiles: Index,
        first_row: Index,
        row_tiles: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        column_tiles = (num_columns + int32(tile_columns - 1)) >> int32(6 + column_blocks)
        row_blocks = (row_tiles + int32(7)) >> int32(3)
        tiles = column_tiles * row_blocks
        lane = int32(cuda.threadIdx.x) & int32(31)
        first_tile = (first_row >> int32(4)) + warp
        pitch = uint64(k_tiles) * uint64(tile_bytes)
        total = cuda.local.array(num_sums, float32)
        now, extra = cuda.local.array(words, uint32), cuda.local.array(EXTRA_WORDS, uint32)
        even = cuda.local.array(16, uint32)
        tile, slot, parity = int32(cuda.blockIdx.x), uint32(0), uint32(0)
        column, row = place(tile, column_tiles, row_blocks)
        at = weights + uint64(min(first_tile + row * int32(8), parent_tiles - 1)) * pitch
        # Weights are constants: they are read before the predecessor has ended.
        load(at, lane, 0, now, extra)
        if is_split:
            load(at, lane, 1, now, extra)
        decode(now, extra, 0, even)
        ptx.wait_for_predecessor()
        while tile < tiles:
            following = tile + int32(cuda.gridDim.x)
            next_column, next_row = column, row
            if following < tiles:
                next_column, next_row = place(following, column_tiles, row_blocks)
            target = min(first_tile + next_row * int32(8), parent_tiles - 1)
            next_at = weights + uint64(target) * pitch
            for i in range(num_sums):
                total[i] = float32(0.0)
            slot, parity = walk(
                ring, slot, parity, at, next_at, k_tiles, lane, total, now, extra, even
            )
            at = next_at
            finish(total)
            if lane == 0:
                before = slot - uint32(1) if slot > uint32(0) else uint32(stages - 1)
                warpgroup.arrive(ring + uint32(empty_at) + before * uint32(8))
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

    return consume
