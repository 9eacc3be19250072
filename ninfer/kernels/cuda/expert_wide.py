"""Products of sorted columns with experts on Hopper: weights are decoded into the left operand.

    out[place, n] = W_e[n] . x[column of the place]        e the expert of the plan's entry

A block stays and takes one item after the other: 256 rows of one expert with the columns of one
entry of the plan. Four warpgroups have 64 rows each; a warp decodes its 16 rows, 64 features after
the other, into registers, rounded to bf16. A warpgroup waits for its products: the others use the
tensor cores while it decodes, and decode while it does. One more warpgroup brings columns and
weights (`expert_wide_columns`, `expert_wide_weights`) and has given away most of its registers.
Sums stay in registers over all of K. An instruction has as many columns as the entry needs, in
steps, and the bits of a column depend on (format, K) only: its sum is that of 16-feature products
in the order of K.

Columns are gathered into a ring of stages of 128 features: 64 features are 128 bytes, piece c of
column n at ``128 n + 16 (c xor n mod 8)``, the swizzle that `warpgroup.DESCRIPTOR` names. A warp's
16 rows are two records of `weight_layout`, upper and lower, which need not be halves of one tile:
for gate and up the upper eight are gate rows and the lower eight the up rows of the same features,
so that a lane holds both. Items of one entry follow one another and so do entries of one expert:
blocks that run together share what they read in the second-level cache.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.expert_weights import make_rounded_masks
from ninfer.kernels.cuda.expert_wide_columns import make_bring_columns
from ninfer.kernels.cuda.expert_wide_items import K_TILES, NUM_ROWS, make_following
from ninfer.kernels.cuda.expert_wide_output import make_write
from ninfer.kernels.cuda.expert_wide_shape import (
    BRINGING_REGISTERS,
    COLUMN_WARPS,
    COLUMNS,
    FIRST_REGISTERS,
    MULTIPLYING_REGISTERS,
    THREADS,
    WARPS,
    WEIGHT_WARPS,
    ExpertWide,
)
from ninfer.kernels.cuda.expert_wide_step import make_step
from ninfer.kernels.cuda.expert_wide_weights import make_bring_weights
from ninfer.kernels.cuda.launch import WARP

_ARRIVALS: Final = COLUMN_WARPS * WARP + WEIGHT_WARPS
"""At the barrier of a stage: each lane's columns, each warp's weights."""

Address = Any
Array = Any
Index = Any
Numbers = Any


@cache
def make_expert_wide(shape: ExpertWide) -> Kernel:
    """Grid: a block for each multiprocessor, not more than items; block (640,)."""
    stages, full_at, empty_at = shape.stages, shape.full_at, shape.empty_at
    consume = _make_consume(shape)
    bring_columns, bring_weights = make_bring_columns(shape), make_bring_weights(shape)
    more = warpgroup.more_registers(MULTIPLYING_REGISTERS)
    fewer = warpgroup.fewer_registers(BRINGING_REGISTERS)

    def expert_wide(
        weights: int,
        x: int,
        plan: int,
        order: int,
        out: int,
        k_tiles: int,
        num_rows: int,
        chosen: int,
        first: int,
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
                warpgroup.init_barrier(ring + uint32(full_at + 8 * stage), uint32(_ARRIVALS))
                warpgroup.init_barrier(ring + uint32(empty_at + 8 * stage), uint32(WARP * WARPS))
            warpgroup.publish_barriers()
        cuda.syncthreads()
        ptx.release_successor()
        ptx.wait_for_predecessor()
        sources = (weights, x, plan, order)
        extents = (k_tiles, num_rows, chosen, first, row_blocks, items, run)
        if warp < int32(WARPS):
            more()
            consume(ring, warp, out, extents)
        else:
            fewer()
            if warp < int32(WARPS + COLUMN_WARPS):
                bring_columns(ring, warp - int32(WARPS), sources, extents)
            else:
                bring_weights(ring, warp - int32(WARPS + COLUMN_WARPS), sources, extents)

    kind = "gate" if shape.is_gate else "down"
    return Kernel(
        f"expert_wide_{kind}_{shape.format.name.lower()}",
        expert_wide,
        (Param.ADDRESS,) * 5 + (Param.I32,) * 7,
        threads=THREADS,
        max_registers=FIRST_REGISTERS,
        dynamic_shared_bytes=shape.shared_bytes,
        min_blocks=1,
        is_warpgroup=True,
        is_whole=True,
    )


def _make_consume(shape: ExpertWide) -> Any:
    """A warp that multiplies: its rows of every item."""
    full_at, note_at = shape.full_at, shape.note_at
    staging_at, write, step = shape.staging_at, make_write(shape), make_step(shape)
    make_own_masks, following = make_rounded_masks(shape.format), make_following(shape)
    sums = COLUMNS // 2

    @device_function
    def note_of(ring: Address, slot: Index, parity: Index) -> Any:
        """Count, first place and block of rows of the item that a stage begins."""
        warpgroup.wait_phase(ring + uint32(full_at) + slot * uint32(8), parity)
        count, start, block, _ = ptx.shared_u32x4(ring + uint32(note_at) + slot * uint32(16))
        return int32(count), int32(start), int32(block)

    @device_function
    def consume(ring: Address, warp: Index, out: Address, extents: Numbers) -> None:
        lane = int32(cuda.threadIdx.x) & int32(31)
        total = cuda.local.array(sums, float32)
        slot, parity = uint32(0), uint32(0)
        masks = make_own_masks()
        count, start, block = note_of(ring, slot, parity)
        while count > int32(0):
            for i in range(sums):
                total[i] = float32(0.0)
            for _ in range(extents[K_TILES]):
                step(count, ring, slot, parity, warp, lane, total, masks)
                slot, parity = following(slot, parity)
            to = out, start, count, block, extents[NUM_ROWS]
            write(ring + uint32(staging_at), to, warp, total)
            count, start, block = note_of(ring, slot, parity)

    return consume
