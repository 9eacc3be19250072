"""Items of `expert_wide`, entry and rows of each, and the ring that their stages go through.

Items are row blocks of entries. A block of the grid takes runs of so many items of one entry, one
run after the other, until an entry has no columns.
"""

from typing import Any

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.expert_plan import ENTRY_BYTES
from ninfer.kernels.cuda.expert_wide_shape import ExpertWide

# What a kernel is called with: addresses, and extents.
WEIGHTS, X, PLAN, ORDER = range(4)
K_TILES, NUM_ROWS, CHOSEN, FIRST, ROW_BLOCKS, ITEMS, RUN = range(7)

Address = Any
Index = Any
Numbers = Any
"""A tuple as above."""


@device_function
def load_entry(plan: Address, item: Index, extents: Numbers) -> Any:
    """Expert, start and count of an item's entry; no columns behind the last item."""
    last = int32(extents[ITEMS] - int32(1))
    entry = ptx.divide_u32(uint32(min(item, last)), uint32(extents[ROW_BLOCKS]))
    at = plan + uint64(entry) * uint64(ENTRY_BYTES)
    expert = ptx.load_i32(at)
    start = ptx.load_i32(at + uint64(4))
    count = ptx.load_i32(at + uint64(8))
    return expert, start, count if item <= last else int32(0)


@device_function
def row_block(item: Index, extents: Numbers) -> Index:
    """Which 256 rows an item is about."""
    blocks = extents[ROW_BLOCKS]
    return int32(item - int32(ptx.divide_u32(uint32(item), uint32(blocks))) * blocks)


@device_function
def item_behind(item: Index, turn: Index, run: Index) -> Any:
    """The item that a block takes next, and its turn: those of a run, then its next run.

    Blocks change places with every turn, so that who had the larger items gets the smaller ones.
    """
    following = int32(item + int32(1))
    if following & int32(run - int32(1)) == 0:
        turn = int32(turn + int32(1))
        place, last = int32(cuda.blockIdx.x), int32(cuda.gridDim.x - int32(1))
        place = int32(last - place) if turn & int32(1) else place
        following = int32(int32(turn * int32(last + int32(1)) + place) * run)
    return following, int32(turn)


@device_function
def wait_empty(empty: Address, slot: Index, parity: Index) -> None:
    """Wait until a place of the ring is free."""
    warpgroup.wait_phase(empty + slot * uint32(8), parity)


def make_following(shape: ExpertWide) -> Any:
    """Make ``(slot, parity)``: the place of the ring behind one."""
    stages = shape.stages

    @device_function
    def following(slot: Index, parity: Index) -> Any:
        """The next place of the ring, and the parity of its barriers."""
        behind = uint32(slot + uint32(1))
        is_around = behind == uint32(stages)
        return uint32(0) if is_around else behind, uint32(parity ^ uint32(is_around))

    return following
