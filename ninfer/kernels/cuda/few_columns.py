"""How a warp walks through its part of K in a product of up to eight columns.

Two ways to bring the columns, one order of products: through the ring, as far ahead as the weights
they meet, or by loads from the first-level cache, one k tile ahead. Source: `few_walk`.
"""

from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.few_shape import FewShape
from ninfer.kernels.cuda.group_products import (
    make_begin,
    make_end,
    make_multiply,
    slab_product,
    unit_groups,
)
from ninfer.kernels.cuda.skinny_shape import CHUNK_BYTES, PARTS, WAITS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions

Address = Any
Array = Any
Index = Any

_SUMS_STEP: Final = 64  # bytes of the group sums of a k tile


def make_ringed_walk(shape: FewShape, ask: Any) -> Any:
    """A warp's way through its part; columns lie in the ring behind the weights."""
    format, stages = shape.format, shape.stages
    stage_bytes, ring_bytes = shape.stage_bytes, shape.warp_bytes
    unit_slabs = PAIR_FORMATS[format].unit_slabs
    units, num_words = 4 // unit_slabs, 4 * unit_slabs
    num_group_sums = 2 * unit_groups(format, unit_slabs)
    ask_columns, load = _make_ask_columns(shape), _make_load_stored(shape)
    piece_offset, piece_exists = _make_piece(shape.ringed_columns)
    multiply = make_multiply(format, shape.row_tiles, 1, unit_slabs)
    make_own_masks = make_masks(format, keeps=True)
    wait_copies = WAITS[stages]

    @device_function
    def walk(
        ring: Address,
        source: Array,
        base: Address,
        sums: Address,
        part: Index,
        count: Index,
        num_columns: Index,
        lane: Index,
        total: Array,
    ) -> None:
        x = cuda.local.array(num_words, uint32)
        s = cuda.local.array(num_group_sums, float32)
        masks = make_own_masks()
        exists = piece_exists(lane, num_columns)
        at = base + uint64(part) * uint64(CHUNK_BYTES) + uint64(piece_offset(lane))
        sums_from = sums + uint64(part) * uint64(_SUMS_STEP) + uint64(lane * uint32(16))
        chunk, pair = _own_places(lane, num_columns)
        left = count
        mine = uint32(ring + lane * uint32(16))
        for stage in range(stages - 1):
            to = uint32(mine + uint32(stage * stage_bytes))
            ask_columns(to, at, sums_from, lane, uint32(left > int32(0)), exists)
            at += uint64(PARTS * CHUNK_BYTES)
            sums_from += uint64(PARTS * _SUMS_STEP)
            left = int32(left - int32(1))
            ptx.close_copies()
        last = uint32(ring + uint32((stages - 1) * stage_bytes))
        slot, end, n = ring, uint32(ring + uint32(ring_bytes)), count
        while n > int32(0):
            wait_copies()
            ptx.sync_warp()
            is_inside = uint32(left > int32(0))
            to = uint32(last + lane * uint32(16))
            ask(to, source, lane, is_inside)
            ask_columns(to, at, sums_from, lane, is_inside, exists)
            at += uint64(PARTS * CHUNK_BYTES)
            sums_from += uint64(PARTS * _SUMS_STEP)
            left = int32(left - int32(1))
            ptx.close_copies()
            for unit in range(units):
                load(uint32(slot + chunk), uint32(slot + pair), unit, x, s)
                multiply(slot, lane, unit, x, s, total, masks)
            last = slot
            slot = _next_slot(slot, stage_bytes, ring, end)
            n = int32(n - int32(1))

    return walk


def make_direct_walk(shape: FewShape, ask: Any) -> Any:
    """A warp's way through its part; columns are loaded ahead, into the same registers."""
    stages, stage_bytes, ring_bytes = shape.stages, shape.stage_bytes, shape.warp_bytes
    load, multiply = _make_load(shape), _make_multiply_ahead(shape)
    make_own_masks = make_masks(shape.format, keeps=True)
    wait_copies = WAITS[stages]

    @device_function
    def walk(
        ring: Address,
        source: Array,
        base: Address,
        sums: Address,
        part: Index,
        count: Index,
        num_columns: Index,
        lane: Index,
        total: Array,
    ) -> None:
        x = cuda.local.array(16, uint32)
        s = cuda.local.array(4, float32)
        masks = make_own_masks()
        own_chunk, own_pair = _own_places(lane, num_columns)
        chunk = base + uint64(part) * uint64(CHUNK_BYTES) + uint64(own_chunk)
        pair = sums + uint64(part) * uint64(_SUMS_STEP) + uint64(own_pair)
        left = int32(count - int32(stages - 1))
        n = count
        if n > int32(0):
            load(chunk, pair, x, s)
        slot = ring
        last = uint32(ring + uint32((stages - 1) * stage_bytes))
        end = uint32(ring + uint32(ring_bytes))
        while n > int32(0):
            wait_copies()
            ptx.sync_warp()
            ask(uint32(last + lane * uint32(16)), source, lane, uint32(left > int32(0)))
            left = int32(left - int32(1))
            ptx.close_copies()
            if n > int32(1):  # the last k tile is loaded once more
                chunk += uint64(PARTS * CHUNK_BYTES)
                pair += uint64(PARTS * _SUMS_STEP)
            multiply(slot, lane, chunk, pair, x, s, total, masks)
            last = slot
            slot = _next_slot(slot, stage_bytes, ring, end)
            n = int32(n - int32(1))

    return walk


def _make_multiply_ahead(shape: FewShape) -> Any:
    """Products of a k tile; a slab's columns make room for the next k tile's."""
    format, row_tiles = shape.format, shape.row_tiles
    functions = tile_functions(format)
    load_codes, load_high = functions.load_codes, functions.load_high
    load_scales, pairs = functions.load_scales, functions.pairs
    tile_bytes, word_slabs = PAIR_FORMATS[format].tile_bytes, PAIR_FORMATS[format].unit_slabs
    chain_slabs = PAIR_FORMATS[format].group_slabs or 4
    has_sums = PAIR_FORMATS[format].offset > 0
    begin, end = make_begin(format, 1, 4 // chain_slabs), make_end(format, 1)
    last_tile = row_tiles - 1

    @device_function
    def multiply(
        stored: Address,
        lane: Index,
        chunk: Address,
        pair: Address,
        x: Array,
        s: Array,
        total: Array,
        masks: Any,
    ) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        chain = cuda.local.array(4, float32)
        for m in range(row_tiles):
            tile = stored + uint32(m * tile_bytes)
            load_high(tile, lane, extra)
            load_scales(tile, lane, extra)
            for slab in range(4):
                group = slab // chain_slabs
                if slab % chain_slabs == 0:
                    begin(chain, m, group, s, total)
                    if has_sums and m == last_tile:
                        _load_sums(pair, group, s)
                if slab % word_slabs == 0:
                    load_codes(tile, lane, slab, words)
                pairs(words, extra, slab, a, masks)
                slab_product(a, x, slab * 4, chain, 0)
                if m == last_tile:
                    _load_chunk(chunk, slab, x)
                if (slab + 1) % chain_slabs == 0:
                    end(chain, m, group, extra, total)

    return multiply


@device_function
def _load_chunk(chunk: Address, slab: int, x: Array) -> None:
    i = slab * 4
    x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.load_u32x4(chunk + uint64(slab * 512))


@device_function
def _load_sums(pair: Address, group: int, s: Array) -> None:
    s[group * 2], s[group * 2 + 1] = ptx.load_f32x2(pair + uint64(group * 32))


@device_function
def _own_places(lane: Index, num_columns: Index) -> Any:
    """Offsets of a lane's chunk in a slab and of its sums; absent columns read the last one."""
    column = ptx.smaller_u32(lane >> uint32(2), uint32(num_columns - 1))
    quad = uint32(lane & uint32(3))
    return uint32(column * uint32(64) + quad * uint32(16)), uint32(quad * uint32(8))


@device_function
def _next_slot(slot: Index, step: int, ring: Index, end: Index) -> Any:
    moved = uint32(slot + uint32(step))
    if moved == end:
        moved = uint32(ring)
    return moved


def _make_piece(columns: int) -> tuple[Any, Any]:
    """What a lane brings of a k tile: its offset in memory, and whether its column exists."""
    slab_lanes = 4 * columns

    @device_function
    def piece_offset(lane: Index) -> Any:
        slab = uint32(lane // uint32(slab_lanes))
        piece = uint32(lane - slab * uint32(slab_lanes))
        return uint32(slab * uint32(512) + piece * uint32(16))

    @device_function
    def piece_exists(lane: Index, num_columns: Index) -> Any:
        column = uint32((lane % uint32(slab_lanes)) >> uint32(2))
        return uint32(column < uint32(num_columns)) & uint32(lane < uint32(4 * slab_lanes))

    return piece_offset, piece_exists


def _make_ask_columns(shape: FewShape) -> Any:
    """Ask for the columns of a k tile, of each slab what the ring has room for."""
    has_sums, columns = PAIR_FORMATS[shape.format].offset > 0, shape.ringed_columns
    weight_bytes = shape.weight_bytes
    sums_at = weight_bytes + columns * 256
    steps = -(-columns * 16 // 32)
    slabs = 32 // (4 * columns)  # of one step

    @device_function
    def ask_columns(
        to: Address, base: Address, sums: Address, lane: Index, is_inside: Index, exists: Index
    ) -> None:
        is_asked = is_inside & exists
        for step in range(steps):
            at = to + uint32(weight_bytes + step * 512)
            source = base + uint64(step * slabs * 512)
            if columns == 1:
                ptx.copy_weights_16_if(at, source, is_asked)
            else:
                ptx.copy_columns_16_if(at, source, is_asked)
        if has_sums:
            at = to + uint32(sums_at)
            ptx.copy_weights_16_if(at, sums, is_inside & uint32(lane < uint32(4)))

    return ask_columns


def _make_load_stored(shape: FewShape) -> Any:
    """Chunks and group sums of a unit from the ring."""
    unit_slabs = PAIR_FORMATS[shape.format].unit_slabs
    groups = unit_groups(shape.format, unit_slabs)
    has_sums = PAIR_FORMATS[shape.format].offset > 0
    weight_bytes = shape.weight_bytes
    slab_bytes = shape.ringed_columns * 64
    sums_at = weight_bytes + 4 * slab_bytes

    @device_function
    def load(chunk: Address, pair: Address, unit: int, x: Array, s: Array) -> None:
        for w in range(unit_slabs):
            i = w * 4
            at = chunk + uint32(weight_bytes + (unit * unit_slabs + w) * slab_bytes)
            x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.shared_u32x4(at)
        if has_sums:
            for g in range(groups):
                at = pair + uint32(sums_at + (unit * groups + g) * 32)
                s[g * 2], s[g * 2 + 1] = ptx.shared_f32x2(at)

    return load


def _make_load(shape: FewShape) -> Any:
    """Chunks and group sums of a k tile from memory."""
    has_sums = PAIR_FORMATS[shape.format].offset > 0

    @device_function
    def load(chunk: Address, pair: Address, x: Array, s: Array) -> None:
        for slab in range(4):
            _load_chunk(chunk, slab, x)
        if has_sums:
            for group in range(2):
                _load_sums(pair, group, s)

    return load
