"""Weights of `expert_wide` on their way into shared memory: tiles of 16 rows, each by a lane."""

from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.expert_wide_items import (
    K_TILES,
    NUM_ROWS,
    PLAN,
    RUN,
    WEIGHTS,
    item_behind,
    load_entry,
    make_following,
    row_block,
    wait_empty,
)
from ninfer.kernels.cuda.expert_wide_shape import (
    COLUMN_BYTES,
    WARPS,
    WEIGHT_WARPS,
    ExpertWide,
)

_TILES: Final = WARPS // WEIGHT_WARPS  # of a warp

Address = Any
Index = Any
Numbers = Any
"""A tuple of `expert_wide_items`."""


def make_bring_weights(shape: ExpertWide) -> Any:
    """Make ``(ring, warp, sources, extents)``: what the warps do that bring weights."""
    stage_bytes, full_at, empty_at = shape.stage_bytes, shape.full_at, shape.empty_at
    following, is_gate, tile_bytes = make_following(shape), shape.is_gate, shape.tile_bytes

    @device_function
    def first_tile(
        weights: Address, extents: Numbers, expert: Index, item: Index, tile: Index
    ) -> Any:
        """Address of the first weights of a tile of an item."""
        row_tiles, block = extents[NUM_ROWS] >> int32(4), row_block(item, extents)
        row_tile = expert * row_tiles + block * int32(WARPS) + tile
        if is_gate:
            is_up = tile // int32(WARPS // 2)
            row_tile += is_up * (row_tiles >> int32(1)) - is_up * int32(WARPS // 2)
            row_tile -= block * int32(WARPS // 2)
        return weights + uint64(row_tile) * uint64(extents[K_TILES]) * uint64(tile_bytes)

    @device_function
    def bring_weights(ring: Address, warp: Index, sources: Numbers, extents: Numbers) -> None:
        lane, k_tiles = uint32(cuda.threadIdx.x) & uint32(31), extents[K_TILES]
        tile = warp * int32(_TILES) + int32(min(lane, uint32(_TILES - 1)))
        empty = ring + uint32(empty_at)
        item, turn = int32(int32(cuda.blockIdx.x) * extents[RUN]), int32(0)
        expert, _, count = load_entry(sources[PLAN], item, extents)
        slot, parity = uint32(0), uint32(1)
        while count > int32(0):
            source = first_tile(sources[WEIGHTS], extents, expert, item, tile)
            item, turn = item_behind(item, turn, extents[RUN])
            expert, _, count = load_entry(sources[PLAN], item, extents)
            for _ in range(k_tiles):
                wait_empty(empty, slot, parity)
                full = ring + uint32(full_at) + slot * uint32(8)
                if lane == uint32(0):
                    warpgroup.expect_bytes(full, uint32(_TILES * tile_bytes))
                cuda.syncwarp()
                if lane < uint32(_TILES):
                    to = ring + slot * uint32(stage_bytes) + uint32(COLUMN_BYTES)
                    to += uint32(tile) * uint32(tile_bytes)
                    warpgroup.copy_bulk(to, source, uint32(tile_bytes), full)
                cuda.syncwarp()
                source += uint64(tile_bytes)
                slot, parity = following(slot, parity)
        if lane == uint32(0):
            wait_empty(empty, slot, parity)
            warpgroup.arrive(ring + uint32(full_at) + slot * uint32(8))

    return bring_weights
