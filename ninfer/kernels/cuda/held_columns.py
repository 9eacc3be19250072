"""How the columns of a product of up to eight, and their group sums, come into shared memory.

All of them, a k tile at a time; rows then pass by them (`held_product`, `whole_product`).
"""

from typing import Any

from numba import int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.held_shape import GROUP_SUM_BYTES, K_TILE_BYTES

Address = Any
Index = Any


@device_function
def bring_columns(
    k_tile: Index,
    lane: Index,
    columns: Address,
    base: Address,
    sums: Address,
    group_sums: Address,
    num_columns: Index,
) -> None:
    """Ask for the columns of a k tile, of those that exist, and for their group sums."""
    exists = uint32(int32(lane >> uint32(2)) < num_columns)
    to = columns + k_tile * uint32(K_TILE_BYTES) + lane * uint32(16)
    at = base + uint64(k_tile) * uint64(K_TILE_BYTES) + uint64(lane * uint32(16))
    for slab in range(4):
        ptx.copy_weights_16_if(to + uint32(slab * 512), at + uint64(slab * 512), exists)
    to = sums + k_tile * uint32(GROUP_SUM_BYTES) + lane * uint32(16)
    at = group_sums + uint64(k_tile) * uint64(GROUP_SUM_BYTES) + uint64(lane * uint32(16))
    ptx.copy_weights_16_if(to, at, uint32(lane < uint32(GROUP_SUM_BYTES // 16)))
