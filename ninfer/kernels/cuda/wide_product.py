"""Products of many columns on Hopper: two warpgroups multiply, one warp brings the blocks.

    producer   a lane asks for blocks of 64 features, as far ahead as the ring has room
    consumers  each warpgroup: 64 columns x 128 or 256 weight rows, sums in registers over all of K

A block of the grid stays and takes one tile of 128 columns after the other; tiles are numbered in
bands of neighbouring columns, so that those which run together share both operands in the
second-level cache. Operands lie as `wide_layout` says: weights are bf16 there, expanded by
`wide_expand`. Two blocks may form a cluster: the same weight rows, neighbouring columns; each asks
for half of the weights and the copy reaches both.

An element's sum is that of 16-feature products in order of K, whatever the tile: its bits depend on
(format, K) only. Bound by the tensor cores.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.launch import blocks_for
from ninfer.kernels.cuda.wide_layout import BLOCK_BYTES, BLOCK_ROWS
from ninfer.kernels.cuda.wide_output import STAGING_BYTES, Ending, make_ending

TILE_COLUMNS: Final = BLOCK_ROWS
"""Columns of a tile: one block of the left operand, half of it for each consumer."""

THREADS: Final = 3 * 128
_CONSUMER_WARPS: Final = 8
_ALIGNMENT: Final = 1024  # of a swizzled block in shared memory

Address = Any
Array = Any
Index = Any


@dataclass(frozen=True, slots=True)
class Wide:
    """How a wide product is shared out.

    Attributes:
        row_blocks: blocks of weight rows in a tile, 1 or 2.
        stages: blocks of features in the ring.
        cluster: blocks of the grid that share weight rows, 1 or 2.
        band: column tiles that are numbered together.
    """

    row_blocks: int = 2
    stages: int = 4
    cluster: int = 1
    band: int = 16

    @property
    def tile_rows(self) -> int:
        """Weight rows of a tile."""
        return self.row_blocks * BLOCK_ROWS

    @property
    def stage_bytes(self) -> int:
        """One block of columns and the blocks of weights."""
        return (1 + self.row_blocks) * BLOCK_BYTES

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

    def tiles(self, num_rows: int, num_columns: int) -> int:
        """Tiles of a product, those of a cluster together."""
        columns = blocks_for(num_columns, TILE_COLUMNS * self.cluster) * self.cluster
        return columns * blocks_for(num_rows, self.tile_rows)

    def grid(self, num_rows: int, num_columns: int, multiprocessors: int) -> tuple[int, int, int]:
        """One block for each multiprocessor, or for each tile where those are fewer."""
        most = multiprocessors // self.cluster * self.cluster
        return (min(self.tiles(num_rows, num_columns), most), 1, 1)


@cache
def make_wide_product(shape: Wide, ending: Ending) -> Kernel:
    """Grid: any multiple of the cluster, see `Wide.grid`; block (384,)."""
    stages, cluster, full_at, empty_at = shape.stages, shape.cluster, shape.full_at, shape.empty_at
    arrivals = _CONSUMER_WARPS * cluster
    produce = _make_produce(shape)
    consume = _make_consume(shape, ending)

    def wide_product(
        columns: int,
        weights: int,
        out: int,
        k_blocks: int,
        num_rows: int,
        num_columns: int,
        out_width: int,
        first_column: int,
        mode: int,
    ) -> None:
        shared = cuda.shared.array(0, uint64)
        ring = (ptx.shared_address(shared) + uint32(1023)) & uint32(0xFFFFFC00)
        thread = int32(cuda.threadIdx.x)
        group = int32(cuda.shfl_sync(0xFFFFFFFF, thread >> int32(7), 0))
        if thread == 0:
            for stage in range(stages):
                warpgroup.init_barrier(ring + uint32(full_at + 8 * stage), uint32(1))
                warpgroup.init_barrier(ring + uint32(empty_at + 8 * stage), uint32(arrivals))
            warpgroup.publish_barriers()
        cuda.syncthreads()
        if cluster > 1:
            warpgroup.arrive_in_cluster()
            warpgroup.wait_for_cluster()
        ptx.release_successor()
        ptx.wait_for_predecessor()
        if group == 0:
            if thread == 0:
                produce(ring, columns, weights, k_blocks, num_rows, num_columns)
        else:
            consume(
                ring,
                group - int32(1),
                out,
                k_blocks,
                num_rows,
                num_columns,
                out_width,
                first_column,
                mode,
            )
        if cluster > 1:
            # No block ends while another may still signal it or write to its ring.
            cuda.syncwarp()
            warpgroup.arrive_in_cluster()
            warpgroup.wait_for_cluster()

    return Kernel(
        f"wide_{ending.name.lower()}_{shape.tile_rows}_{stages}_{cluster}_{shape.band}",
        wide_product,
        (Param.ADDRESS,) * 3 + (Param.I32,) * 6,
        threads=THREADS,
        max_registers=168,
        dynamic_shared_bytes=shape.shared_bytes,
        min_blocks=1,
        cluster=cluster,
        is_warpgroup=True,
    )


def _make_place(shape: Wide) -> Any:
    """Tile numbers to first column and first row: bands of columns, row by row."""
    band, tile_rows, cluster = shape.band // shape.cluster, shape.tile_rows, shape.cluster

    @device_function
    def place(tile: Index, column_tiles: Index, row_tiles: Index) -> Any:
        tiles = uint32(row_tiles) * uint32(band)
        first = ptx.divide_u32(tile, tiles)
        inside = uint32(tile) - first * tiles
        first *= uint32(band)
        width = ptx.smaller_u32(uint32(column_tiles) - first, uint32(band))
        row = ptx.divide_u32(inside, width)
        column = first + inside - row * width
        return int32(column * uint32(cluster * 128)), int32(row * uint32(tile_rows))

    return place


@device_function
def _start(cluster: Index) -> Any:
    """First tile of this block, step to the next, and the block's rank in its cluster."""
    block, blocks, shift = int32(cuda.blockIdx.x), int32(cuda.gridDim.x), int32(cluster - 1)
    return block >> shift, blocks >> shift, block & shift


def _make_ask(shape: Wide) -> Any:
    """Copies of one stage: a block of columns, one or two of weights."""
    row_blocks, is_shared = shape.row_blocks, shape.cluster > 1 and shape.row_blocks == 2

    @device_function
    def ask(
        to: Address, full: Address, left: Address, right: Address, k_blocks: Index, rank: Index
    ) -> None:
        warpgroup.copy_bulk(to, left, uint32(BLOCK_BYTES), full)
        at = to + uint32(BLOCK_BYTES)
        pitch = uint64(k_blocks) * uint64(BLOCK_BYTES)
        if is_shared:
            at += uint32(rank) * uint32(BLOCK_BYTES)
            source = right + uint64(rank) * pitch
            warpgroup.copy_bulk_to_cluster(at, source, uint32(BLOCK_BYTES), full, uint32(3))
        else:
            warpgroup.copy_bulk(at, right, uint32(BLOCK_BYTES), full)
            if row_blocks == 2:
                at += uint32(BLOCK_BYTES)
                warpgroup.copy_bulk(at, right + pitch, uint32(BLOCK_BYTES), full)

    return ask


def _make_produce(shape: Wide) -> Any:
    """One lane: blocks of every tile into the ring, in the order consumers take them."""
    stages, stage_bytes, cluster = shape.stages, shape.stage_bytes, shape.cluster
    row_blocks, tile_rows = shape.row_blocks, shape.tile_rows
    full_at, empty_at = shape.full_at, shape.empty_at
    place, ask = _make_place(shape), _make_ask(shape)

    @device_function
    def produce(
        ring: Address,
        columns: Address,
        weights: Address,
        k_blocks: Index,
        num_rows: Index,
        num_columns: Index,
    ) -> None:
        column_tiles = (num_columns + int32(cluster * 128 - 1)) >> int32(6 + cluster)
        row_tiles = (num_rows + int32(tile_rows - 1)) >> int32(6 + row_blocks)
        last = (num_columns - int32(1)) >> int32(7)
        tile, step, rank = _start(int32(cluster))
        slot, parity = uint32(0), uint32(1)
        pitch = uint64(k_blocks) * uint64(BLOCK_BYTES)
        while tile < column_tiles * row_tiles:
            column, row = place(tile, column_tiles, row_tiles)
            # The second block of a cluster may have no columns: it multiplies others in vain.
            left = columns + uint64(min((column >> int32(7)) + rank, last)) * pitch
            right = weights + uint64(row >> int32(7)) * pitch
            for _ in range(k_blocks):
                full = ring + uint32(full_at) + slot * uint32(8)
                empty = ring + uint32(empty_at) + slot * uint32(8)
                if cluster > 1:
                    warpgroup.wait_phase_of_cluster(empty, parity)
                else:
                    warpgroup.wait_phase(empty, parity)
                warpgroup.expect_bytes(full, uint32(stage_bytes))
                ask(ring + slot * uint32(stage_bytes), full, left, right, k_blocks, rank)
                left += uint64(BLOCK_BYTES)
                right += uint64(BLOCK_BYTES)
                slot += uint32(1)
                if slot == uint32(stages):
                    slot = uint32(0)
                    parity ^= uint32(1)
            tile += step

    return produce


def _make_release(shape: Wide) -> Any:
    """A warp is done with a stage: so it says to every block that fills it."""
    cluster, empty_at = shape.cluster, shape.empty_at

    @device_function
    def release(ring: Address, slot: Index, lane: Index) -> None:
        empty = ring + uint32(empty_at) + slot * uint32(8)
        if cluster > 1:
            if lane < 2:
                warpgroup.arrive_at(empty, uint32(lane))
        elif lane == 0:
            warpgroup.arrive(empty)

    return release


def _make_consume(shape: Wide, ending: Ending) -> Any:
    """A warpgroup: its half of every tile."""
    stages, stage_bytes, cluster = shape.stages, shape.stage_bytes, shape.cluster
    row_blocks, tile_rows, num_sums = shape.row_blocks, shape.tile_rows, shape.tile_rows // 2
    staging_at, full_at = shape.staging_at, shape.full_at
    descriptor = warpgroup.DESCRIPTOR
    multiply = warpgroup.multiply_block(tile_rows)
    finish = warpgroup.finish_products(tile_rows)
    place, release = _make_place(shape), _make_release(shape)
    write = make_ending(ending, row_blocks)

    @device_function
    def consume(
        ring: Address,
        group: Index,
        out: Address,
        k_blocks: Index,
        num_rows: Index,
        num_columns: Index,
        out_width: Index,
        first_column: Index,
        mode: Index,
    ) -> None:
        column_tiles = (num_columns + int32(cluster * 128 - 1)) >> int32(6 + cluster)
        row_tiles = (num_rows + int32(tile_rows - 1)) >> int32(6 + row_blocks)
        lane = int32(cuda.threadIdx.x) & int32(31)
        warp = (int32(cuda.threadIdx.x) >> int32(5)) & int32(3)
        staging = ring + uint32(staging_at) + uint32(group * int32(4) + warp) * uint32(4096)
        total = cuda.local.array(num_sums, float32)
        tile, step, rank = _start(int32(cluster))
        slot, parity = uint32(0), uint32(0)
        while tile < column_tiles * row_tiles:
            column, row = place(tile, column_tiles, row_tiles)
            for i in range(num_sums):
                total[i] = float32(0.0)
            before = slot
            for k in range(k_blocks):
                full = ring + uint32(full_at) + slot * uint32(8)
                if cluster > 1:
                    warpgroup.wait_phase_of_cluster(full, parity)
                else:
                    warpgroup.wait_phase(full, parity)
                at = ring + slot * uint32(stage_bytes)
                left = uint64((at + uint32(group) * uint32(8192)) >> uint32(4))
                right = uint64((at + uint32(BLOCK_BYTES)) >> uint32(4))
                multiply(total, uint64(descriptor) + left, uint64(descriptor) + right)
                if k > 0:
                    release(ring, before, lane)
                before = slot
                slot += uint32(1)
                if slot == uint32(stages):
                    slot = uint32(0)
                    parity ^= uint32(1)
            finish(total)
            release(ring, before, lane)
            token = column + rank * int32(128) + group * int32(64) + warp * int32(16)
            write(
                staging, out, total, token, row, num_rows, num_columns, out_width, first_column,
                mode,
            )  # fmt: skip
            tile += step

    return consume
