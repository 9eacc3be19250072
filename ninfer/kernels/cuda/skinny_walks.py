"""How a warp walks through its part of K in a skinny product.

Columns are loaded from the first-level cache, where warps of a multiprocessor find one another's.
"""

from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.group_products import make_multiply, unit_groups
from ninfer.kernels.cuda.skinny_shape import MOST_SLABS, PARTS, WAITS, Skinny, advance
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


def make_walk(shape: Skinny, ask: Any) -> Any:
    """A warp's way through its part; columns of a unit are loaded where they are used."""
    format, column_tiles, stages = shape.format, shape.column_tiles, shape.stages
    unit_slabs = min(PAIR_FORMATS[format].unit_slabs, MOST_SLABS)
    units = 4 // unit_slabs
    stage_bytes = shape.stage_bytes
    warp_bytes = stages * stage_bytes
    num_words = 4 * column_tiles * unit_slabs
    num_group_sums = 2 * column_tiles * unit_groups(format, unit_slabs)
    locate = _make_locate(column_tiles)
    load = _make_load_columns(format, column_tiles, unit_slabs)
    multiply = make_multiply(format, shape.row_tiles, column_tiles, unit_slabs)
    make_own_masks = make_masks(format)
    wait_copies = WAITS[stages]

    @device_function
    def walk(
        ring: Address,
        codes: Address,
        high: Address,
        scales: Address,
        tile: Array,
        base: Address,
        sums: Address,
        k_tiles: Index,
        part: Index,
        count: Index,
        num_columns: Index,
        lane: Index,
        total: Array,
    ) -> None:
        at = cuda.local.array(column_tiles, uint32)
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_group_sums, float32)
        masks = make_own_masks()
        locate(at, k_tiles, num_columns, lane)
        k = part
        slot = uint32(0)
        free = uint32((stages - 1) * stage_bytes)
        for i in range(count):
            for unit in range(units):
                cuda.syncwarp()  # keeps loads of the next unit, and their registers, behind it
                load(at, base, sums, k, unit, lane, x, s)
                if unit == 0:
                    wait_copies()
                    cuda.syncwarp()
                    ask(ring + free, codes, high, scales, tile, i + (stages - 1), count, lane)
                    ptx.close_copies()
                multiply(ring + slot, lane, unit, x, s, total, masks)
            k += int32(PARTS)
            slot = advance(slot, stage_bytes, warp_bytes)
            free = advance(free, stage_bytes, warp_bytes)

    return walk


def _make_locate(column_tiles: int) -> Any:
    """Offset of the lane's chunk in each column tile; at most 128 columns."""

    @device_function
    def locate(at: Array, k_tiles: Index, num_columns: Index, lane: Index) -> None:
        column = uint32(lane) >> uint32(2)
        quad = uint32(lane) & uint32(3)
        last = uint32(num_columns - 1)
        first = uint32(cuda.blockIdx.x) * uint32(column_tiles)
        for j in range(column_tiles):
            block = ptx.smaller_u32(first + uint32(j), last >> uint32(3))
            inside = ptx.smaller_u32(block * uint32(8) + column, last) & uint32(7)
            place = inside * uint32(64) + quad * uint32(16)
            at[j] = block * uint32(k_tiles) * uint32(2048) + place

    return locate


def _make_load_columns(format: TensorFormat, column_tiles: int, unit_slabs: int) -> Any:
    """Ask for the chunks of a unit, and for the sums of its groups."""
    has_sums, groups = PAIR_FORMATS[format].offset > 0, unit_groups(format, unit_slabs)

    @device_function
    def load(
        at: Array,
        base: Address,
        sums: Address,
        k: Index,
        unit: int,
        lane: Index,
        x: Array,
        s: Array,
    ) -> None:
        for j in range(column_tiles):
            chunk = base + uint64(at[j] + uint32(k) * uint32(2048))
            for w in range(unit_slabs):
                i = (j * unit_slabs + w) * 4
                place = chunk + uint64((unit * unit_slabs + w) * 512)
                x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.load_u32x4(place)
            if has_sums:
                tile = (at[j] >> uint32(11)) + uint32(k)
                quad = (uint32(lane) & uint32(3)) * uint32(8)
                pair = sums + uint64(tile * uint32(64) + quad)
                for g in range(groups):
                    i = (j * groups + g) * 2
                    s[i], s[i + 1] = ptx.load_f32x2(pair + uint64((unit * groups + g) * 32))

    return load
