"""How a warp walks through its part of K in a skinny product: two ways to bring the columns.

Both multiply in the same order. `make_walk` loads columns from the first-level cache into
registers; `make_ringed_walk` has them copied into the ring, as far ahead as the weights.
"""

from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.group_products import make_load_stored, make_multiply, unit_groups
from ninfer.kernels.cuda.skinny_shape import CHUNK_BYTES, PARTS, WAITS, Skinny, advance
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


def make_walk(shape: Skinny, ask: Any) -> Any:
    """A warp's way through its part; few columns are asked for one unit ahead."""
    format, column_tiles, stages = shape.format, shape.column_tiles, shape.stages
    unit_slabs = min(PAIR_FORMATS[format].unit_slabs, shape.most_slabs)
    units = 4 // unit_slabs
    stage_bytes = shape.stage_bytes
    warp_bytes = stages * stage_bytes
    num_words = 4 * column_tiles * unit_slabs
    num_group_sums = 2 * column_tiles * unit_groups(format, unit_slabs)
    locate = _make_locate(column_tiles)
    load = _make_load_columns(format, column_tiles, unit_slabs)
    take = _make_take(num_words, num_group_sums)
    multiply = make_multiply(format, shape.row_tiles, column_tiles, unit_slabs)
    wait_copies = WAITS[stages]
    is_ahead = column_tiles == 1  # more columns need the registers for themselves

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
        next_x = cuda.local.array(num_words, uint32)
        next_s = cuda.local.array(num_group_sums, float32)
        locate(at, k_tiles, num_columns, lane)
        k = part
        if count > 0 and is_ahead:
            load(at, base, sums, k, 0, lane, x, s)
        slot = uint32(0)
        free = uint32((stages - 1) * stage_bytes)
        for i in range(count):
            for unit in range(units):
                if not is_ahead:
                    cuda.syncwarp()  # keeps loads of the next unit, and their registers, behind it
                    load(at, base, sums, k, unit, lane, x, s)
                elif unit + 1 < units:
                    load(at, base, sums, k, unit + 1, lane, next_x, next_s)
                else:
                    ahead = min(k + int32(PARTS), k_tiles - 1)
                    load(at, base, sums, ahead, 0, lane, next_x, next_s)
                if unit == 0:
                    wait_copies()
                    cuda.syncwarp()
                    ask(ring + free, codes, high, scales, tile, i + (stages - 1), count, lane)
                    ptx.close_copies()
                multiply(ring + slot, lane, unit, x, s, total)
                if is_ahead:
                    take(next_x, next_s, x, s)
            k += int32(PARTS)
            slot = advance(slot, stage_bytes, warp_bytes)
            free = advance(free, stage_bytes, warp_bytes)

    return walk


def make_ringed_walk(shape: Skinny, ask: Any) -> Any:
    """A warp's way through its part; columns lie in the ring behind the weights."""
    format, column_tiles, stages = shape.format, shape.column_tiles, shape.stages
    unit_slabs = min(PAIR_FORMATS[format].unit_slabs, shape.most_slabs)
    units = 4 // unit_slabs
    stage_bytes = shape.stage_bytes
    warp_bytes = stages * stage_bytes
    weight_bytes = shape.row_tiles * PAIR_FORMATS[format].tile_bytes
    num_words = 4 * column_tiles * unit_slabs
    num_group_sums = 2 * column_tiles * unit_groups(format, unit_slabs)
    locate = _make_locate(column_tiles)
    ask_columns = _make_ask_columns(format, column_tiles)
    load = make_load_stored(format, column_tiles, unit_slabs, column_tiles * CHUNK_BYTES)
    multiply = make_multiply(format, shape.row_tiles, column_tiles, unit_slabs)
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
        locate(at, k_tiles, num_columns, lane)
        for stage in range(stages - 1):
            to = ring + uint32(stage * stage_bytes + weight_bytes)
            ask_columns(to, at, base, sums, part, stage, count, lane)
            ptx.close_copies()
        slot = uint32(0)
        free = uint32((stages - 1) * stage_bytes)
        for i in range(count):
            wait_copies()
            cuda.syncwarp()
            ask(ring + free, codes, high, scales, tile, i + (stages - 1), count, lane)
            to = ring + free + uint32(weight_bytes)
            ask_columns(to, at, base, sums, part, i + (stages - 1), count, lane)
            ptx.close_copies()
            for unit in range(units):
                load(ring + slot + uint32(weight_bytes), uint32(0), lane, unit, x, s)
                multiply(ring + slot, lane, unit, x, s, total)
            slot = advance(slot, stage_bytes, warp_bytes)
            free = advance(free, stage_bytes, warp_bytes)

    return walk


def _make_ask_columns(format: TensorFormat, column_tiles: int) -> Any:
    """Ask for the columns of a part's i-th k tile, where it has one."""
    has_sums = PAIR_FORMATS[format].offset > 0

    @device_function
    def ask_columns(
        to: Address,
        at: Array,
        base: Address,
        sums: Address,
        part: Index,
        i: Index,
        count: Index,
        lane: Index,
    ) -> None:
        if i < count:
            k = uint32(part) + uint32(i) * uint32(PARTS)
            for j in range(column_tiles):
                place = to + uint32(j * CHUNK_BYTES) + uint32(lane) * uint32(16)
                source = base + uint64(at[j] + k * uint32(CHUNK_BYTES))
                for w in range(4):
                    ptx.copy_async_16(place + uint32(w * 512), source + uint64(w * 512), uint32(16))
                if has_sums:
                    place = to + uint32(column_tiles * CHUNK_BYTES + j * 64)
                    source = sums + uint64(((at[j] >> uint32(11)) + k) * uint32(64))
                    offset = uint32(lane) * uint32(16)
                    ptx.copy_async_16_if(place + offset, source + uint64(offset), uint32(lane < 4))

    return ask_columns


def _make_take(num_words: int, num_group_sums: int) -> Any:
    """Make the columns that were asked for the present ones."""

    @device_function
    def take(next_x: Array, next_s: Array, x: Array, s: Array) -> None:
        for i in range(num_words):
            x[i] = next_x[i]
        for i in range(num_group_sums):
            s[i] = next_s[i]

    return take


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
