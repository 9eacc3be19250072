"""Products of sorted columns with experts on Hopper: weights are decoded into the left operand.

    out[place, n] = W_e[n] . x[column of the place]        e the expert of the plan's entry

A block stays and takes one item after the other: 256 rows of one expert with the columns of one
entry of the plan. Four warpgroups have 64 rows each; a warp decodes the 16 rows of its own, 64
features after the other, into registers, rounded to bf16. A warpgroup waits for its products: the
others use the tensor cores while it decodes, and decode while it does. Sums stay in registers over
all of K. An instruction has as many columns as the entry needs, in steps, and the bits of a column
depend on (format, K) only: its sum is that of 16-feature products in the order of K.

Columns are rows of K features (`expert_rows`), gathered into a ring of stages of 128 features: 64
features are 128 bytes, chunk c of column n at ``128 n + 16 (c xor n mod 8)``, the swizzle that
`warpgroup.DESCRIPTOR` names. A warp's 16 rows are two records of `weight_layout`, upper and lower,
which need not be halves of one tile: for gate and up the upper eight are gate rows and the lower
eight the up rows of the same features, so that a lane holds both. Items of one entry follow one
another and so do entries of one expert: blocks that run together share what they read in the
second-level cache.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.warpgroup_registers import multiply_registers
from ninfer.kernels.cuda.coded_weights import EXTRA_WORDS
from ninfer.kernels.cuda.expert_weights import lane_words, make_load_half, make_rounded
from ninfer.kernels.cuda.expert_wide_output import make_write
from ninfer.kernels.cuda.expert_wide_shape import COLUMNS, THREADS, WARPS, ExpertWide
from ninfer.kernels.cuda.expert_wide_stages import (
    K_TILES,
    NUM_ROWS,
    ORDER,
    PLACE_WORDS,
    PLAN,
    ROWS_OF_THREAD,
    RUN,
    item_behind,
    load_entry,
    make_refill,
    make_start,
    row_block,
)

WIDTHS: Final = (32, 64, 80, 96, 112, 128)
"""Columns of an instruction."""

_SUMS: Final = COLUMNS // 2

Address = Any
Array = Any
Index = Any
Numbers = Any


@cache
def make_expert_wide(shape: ExpertWide) -> Kernel:
    """Grid: a block for each multiprocessor, not more than items; block (512,)."""
    stages, full_at, empty_at = shape.stages, shape.full_at, shape.empty_at
    consume = _make_consume(shape)

    def expert_wide(
        weights: int,
        x: int,
        plan: int,
        order: int,
        out: int,
        k_tiles: int,
        num_rows: int,
        chosen: int,
        row_blocks: int,
        items: int,
        run: int,
    ) -> None:
        memory = cuda.shared.array(0, uint64)
        ring = (ptx.shared_address(memory) + uint32(1023)) & uint32(0xFFFFFC00)
        thread = int32(cuda.threadIdx.x)
        warp = int32(cuda.shfl_sync(0xFFFFFFFF, thread >> int32(5), 0))
        if thread == 0:
            for stage in range(stages):
                # Every thread's columns and every warp's weights.
                warpgroup.init_barrier(ring + uint32(full_at + 8 * stage), uint32(THREADS + WARPS))
                warpgroup.init_barrier(ring + uint32(empty_at + 8 * stage), uint32(WARPS))
            warpgroup.publish_barriers()
        cuda.syncthreads()
        ptx.release_successor()
        ptx.wait_for_predecessor()
        sources = (weights, x, plan, order)
        extents = (k_tiles, num_rows, chosen, row_blocks, items, run)
        consume(ring, warp, sources, out, extents)

    kind = "gate" if shape.is_gate else "down"
    return Kernel(
        f"expert_wide_{kind}_{shape.format.name.lower()}",
        expert_wide,
        (Param.ADDRESS,) * 5 + (Param.I32,) * 6,
        threads=THREADS,
        max_registers=128,
        dynamic_shared_bytes=shape.shared_bytes,
        min_blocks=1,
        is_warpgroup=True,
    )


@cache
def _make_multiply() -> Any:
    """64 features of a tile with as many columns as an item needs; returns at their end."""
    m32, m64, m80, m96, m112, m128 = (
        multiply_registers(width, 4, is_added=True) for width in WIDTHS
    )

    @device_function
    def multiply(count: Index, total: Array, left: Array, right: Any) -> None:
        if count > int32(112):
            m128(total, left, right)
        elif count > int32(96):
            m112(total, left, right)
        elif count > int32(80):
            m96(total, left, right)
        elif count > int32(64):
            m80(total, left, right)
        elif count > int32(32):
            m64(total, left, right)
        else:
            m32(total, left, right)

    return multiply


def _make_step(shape: ExpertWide) -> Any:
    """Products of one stage with the warp's tile; other warps decode meanwhile."""
    stage_bytes, full_at, tile_bytes = shape.stage_bytes, shape.full_at, shape.tile_bytes
    column_bytes, half_bytes = shape.column_bytes, shape.column_bytes // 2
    words, empty_at = lane_words(shape.format), shape.empty_at
    load, decode = make_load_half(shape.format), make_rounded(shape.format)
    multiply = _make_multiply()

    @device_function
    def step(
        ring: Address,
        slot: Index,
        parity: Index,
        count: Index,
        warp: Index,
        lane: Index,
        total: Array,
    ) -> None:
        left = cuda.local.array(16, uint32)
        now, extra = cuda.local.array(words, uint32), cuda.local.array(EXTRA_WORDS, uint32)
        warpgroup.wait_phase(ring + uint32(full_at) + slot * uint32(8), parity)
        ptx.fence_shared_async()
        stage = ring + slot * uint32(stage_bytes)
        stored = stage + uint32(column_bytes) + uint32(warp) * uint32(tile_bytes)
        right = uint64(warpgroup.DESCRIPTOR) + uint64(stage >> uint32(4))
        load(stored, lane, 0, now, extra)
        decode(now, extra, 0, left)
        multiply(count, total, left, right)
        load(stored, lane, 1, now, extra)
        decode(now, extra, 1, left)
        multiply(count, total, left, right + uint64(half_bytes // 16))
        cuda.syncwarp()  # one lane speaks for what all of them have read
        if lane == 0:
            warpgroup.arrive(ring + uint32(empty_at) + slot * uint32(8))

    return step


def _make_consume(shape: ExpertWide) -> Any:
    """A warp: its rows of every item."""
    stages, ahead = shape.stages, shape.ahead
    staging_at, step, write = shape.staging_at, _make_step(shape), make_write(shape.is_gate)
    begin, refill = make_start(shape), make_refill(shape)

    @device_function
    def consume(
        ring: Address, warp: Index, sources: Numbers, out: Address, extents: Numbers
    ) -> None:
        lane = int32(cuda.threadIdx.x) & int32(31)
        total = cuda.local.array(_SUMS, float32)
        place = cuda.local.array(PLACE_WORDS, int32)
        rows = cuda.local.array(ROWS_OF_THREAD, int32)
        offsets = cuda.local.array(ROWS_OF_THREAD, uint32)
        source = cuda.local.array(1, uint64)
        item = int32(cuda.blockIdx.x) * extents[RUN]
        begin(sources, extents, warp, place, rows, offsets, source)
        for _ in range(ahead):
            refill(ring, sources, extents, warp, place, rows, offsets, source)
        _, start, count = load_entry(sources[PLAN], item, extents)
        slot, parity = uint32(0), uint32(0)
        while count > int32(0):
            for i in range(_SUMS):
                total[i] = float32(0.0)
            for _ in range(extents[K_TILES]):
                step(ring, slot, parity, count, warp, lane, total)
                refill(ring, sources, extents, warp, place, rows, offsets, source)
                slot += uint32(1)
                if slot == uint32(stages):
                    slot = uint32(0)
                    parity ^= uint32(1)
            to = out, sources[ORDER], start, count, row_block(item, extents), extents[NUM_ROWS]
            write(ring + uint32(staging_at), to, warp, total)
            item = item_behind(item, extents[RUN])
            _, start, count = load_entry(sources[PLAN], item, extents)

    return consume
