"""A linear input to the image that warpgroups multiply: order changes, values do not.

A warp turns over one tile of 8 columns x 128 features: of each slab a lane has one chunk of one
column, four pairs, and every pair goes into another piece. Bound by memory.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, int32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.column_image import piece_address
from ninfer.kernels.cuda.device_functions import from_lane_xor_u32
from ninfer.kernels.cuda.fragments import num_tiles
from ninfer.kernels.cuda.launch import WARP, blocks_for
from ninfer.kernels.cuda.product_output import warp_index

WARPS: Final = 8

Index = Any
Word = Any


def plait_grid(num_columns: int, k_tiles: int) -> tuple[int, int, int]:
    """Blocks for so many columns of so many tiles of 128 features."""
    return (blocks_for(k_tiles, WARPS), num_tiles(num_columns), 1)


@device_function
def _turn(lane: Index, a: Word, b: Word, c: Word, d: Word) -> Any:
    """Lane t of four has row t of a square of words; afterwards it has column t."""
    is_odd, is_upper = lane & int32(1) != 0, lane & int32(2) != 0
    e = from_lane_xor_u32(a if is_odd else b, 1)
    f = from_lane_xor_u32(c if is_odd else d, 1)
    a, b = (e, b) if is_odd else (a, e)
    c, d = (f, d) if is_odd else (c, f)
    e = from_lane_xor_u32(a if is_upper else c, 2)
    f = from_lane_xor_u32(b if is_upper else d, 2)
    return (e, f, c, d) if is_upper else (a, b, e, f)


@cache
def make_plait() -> Kernel:
    """One warp for 8 columns x 128 features; grid `plait_grid`, block (256,)."""

    def plait(base: int, to: int, k_tiles: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        k = int32(cuda.blockIdx.x) * int32(WARPS) + int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        column_tile = int32(cuda.blockIdx.y)
        if k < k_tiles:
            tile = uint64(column_tile) * uint64(k_tiles) + uint64(k)
            source = base + tile * uint64(2048) + uint64(lane * 16)
            column = column_tile * int32(8) + (lane >> int32(2))
            for slab in range(4):
                a, b, c, d = ptx.load_u32x4(source + uint64(512 * slab))
                a, b, c, d = _turn(lane, a, b, c, d)
                piece = k * int32(16) + int32(4 * slab) + (lane & int32(3))
                ptx.store_u32x4(piece_address(to, k_tiles * 2, column, piece), a, b, c, d)

    return Kernel(
        "plait",
        plait,
        (Param.ADDRESS,) * 2 + (Param.I32,),
        threads=WARPS * WARP,
        max_registers=64,
    )
