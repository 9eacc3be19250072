"""How a warp walks over pairs of row tiles whose columns lie in shared memory.

A step is one k tile of both row tiles, or one slab of it in bf16: what one stage of the ring holds.
Columns that a step reads from shared memory meet both row tiles, and weights that it decodes meet
all column tiles. The cursor of copies runs ahead of the products, into the next pair. The order of
a sum is that of `few_walk`.

What functions hand to one another:

    rows    what weights lie where: addresses of four, ends of the first three in pairs of row tiles
            (the fourth takes the rest), rows of four, kinds of four (see `row_products`)
    walk    what never changes: k tiles of a row, lane, pairs of the launch, address of the plan
    plan    a warp's words in shared memory: the next pair to ask for, its part, k tiles of the
            part, pairs that all warps of the card make in one turn; addresses of columns, of what
            chains begin with, of barriers and of its ring
    cursor  what changes: steps left to ask for in a pair, format, the ring's slot that is
            multiplied, bytes from the upper row tile to the lower one
    source  where the lane's next step of the upper row tile lies
"""

from collections.abc import Sequence
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx, warpgroup
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.format_choice import make_choice
from ninfer.kernels.cuda.group_products import slab_product
from ninfer.kernels.cuda.held_shape import (
    K_TILE_BYTES,
    stage_bytes,
    step_bytes,
)
from ninfer.kernels.cuda.row_products import SKIP_AT
from ninfer.kernels.cuda.skinny_shape import PARTS, WAITS
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.kernels.cuda.wide_shape import (
    BARRIER_BYTES,
    BEGIN_BYTES,
    PAIR,
    offsets,
)
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any
Rows = Any

LEFT, FORMAT, SLOT, APART = range(4)  # words of the cursor
CURSOR_WORDS: Final = 4

_BF16_RECORD: Final = PAIR_FORMATS[TensorFormat.BF16].record_bytes


@device_function
def find_pair(pair: Index, rows: Rows) -> Any:
    """Address of a pair's weight, its number there, and the weight's rows and kind."""
    codes, ends, heights, kinds = rows
    first, code, height, kind = int32(0), codes[0], heights[0], kinds[0]
    if pair >= ends[0]:
        first, code, height, kind = ends[0], codes[1], heights[1], kinds[1]
    if pair >= ends[1]:
        first, code, height, kind = ends[1], codes[2], heights[2], kinds[2]
    if pair >= ends[2]:
        first, code, height, kind = ends[2], codes[3], heights[3], kinds[3]
    return code, int32(pair - first), height, kind


def make_ask(formats: Sequence[TensorFormat]) -> Any:
    """Ask for a warp's next step, if there is one: (to, cursor, source, walk, rows)."""
    sizes = [step_bytes(format) for format in formats]
    pieces = -(-max(sizes) // 512)
    bf16 = formats.index(TensorFormat.BF16) if TensorFormat.BF16 in formats else -1
    tile_bytes_of = make_choice([PAIR_FORMATS[format].tile_bytes for format in formats])
    size_of, least, half = make_choice(sizes), min(sizes), stage_bytes(formats)
    turn_to = _make_turn(formats, bf16)

    @device_function
    def ask(to: Address, cursor: Array, source: Array, walk: Any, rows: Rows) -> None:
        lane = walk[1]
        if cursor[LEFT] == int32(0):
            turn_to(cursor, source, walk, rows)
        is_inside = uint32(cursor[LEFT] > int32(0))
        second = int32(512)
        if bf16 >= 0 and cursor[FORMAT] == int32(bf16):
            second = int32(_BF16_RECORD)
        limit = int32(size_of(cursor[FORMAT]) - int32(lane * uint32(16)))
        for m in range(PAIR):
            at = uint32(to + lane * uint32(16) + uint32(m * half))
            here = source[0]
            if m > 0:
                here = source[0] + uint64(cursor[APART])
            ptx.copy_weights_16_if(at, here, is_inside)
            ptx.copy_weights_16_if(at + uint32(512), here + uint64(second), is_inside)
            for piece in range(2, pieces):
                is_there = is_inside
                if least < (piece + 1) * 512:
                    is_there = is_inside & uint32(limit > int32(piece * 512))
                ptx.copy_weights_16_if(
                    at + uint32(piece * 512), here + uint64(piece * 512), is_there
                )
        ahead = int32(tile_bytes_of(cursor[FORMAT]) * int32(PARTS))
        if bf16 >= 0 and cursor[FORMAT] == int32(bf16):
            ahead = int32(512)
            if (cursor[LEFT] & int32(3)) == int32(1):
                ahead = int32(PARTS * 2 * _BF16_RECORD - 3 * 512)
        source[0] += uint64(ahead)
        cursor[LEFT] = int32(cursor[LEFT] - int32(is_inside))
        ptx.close_copies()

    return ask


def _make_turn(formats: Sequence[TensorFormat], bf16: int) -> Any:
    """Let a cursor of copies go on with the warp's next pair, if there is one.

    What only this needs is read from the plan, so that it takes no registers elsewhere.
    """
    tile_bytes_of = make_choice([PAIR_FORMATS[format].tile_bytes for format in formats])

    @device_function
    def turn_to(cursor: Array, source: Array, walk: Any, rows: Rows) -> None:
        k_tiles, lane, total, plan = walk
        word_0, word_1, word_2, word_3 = ptx.shared_u32x4(plan)
        pair, part, count, stride = int32(word_0), uint32(word_1), int32(word_2), uint32(word_3)
        if pair < total:
            code, own, height, kind = find_pair(pair, rows)
            format = int32(kind & int32(15))
            tile_bytes = tile_bytes_of(format)
            first = int32(own * int32(PAIR))
            tile = uint32(uint32(first) * uint32(k_tiles) + part)
            source[0] = code + uint64(tile) * uint64(tile_bytes) + uint64(lane * uint32(16))
            skipped = int32((kind >> int32(SKIP_AT)) & int32(15))
            cursor[APART] = int32(0)  # a last row tile is alone, and made twice
            if int32(first + int32(1)) * int32(TILE_ROWS) < int32(height + skipped):
                cursor[APART] = int32(int32(k_tiles) * tile_bytes)
            cursor[FORMAT] = format
            cursor[LEFT] = count
            if format == int32(bf16):
                cursor[LEFT] = int32(count * int32(4))
            ptx.sync_warp()  # everybody has read
            ptx.put_shared_u32(plan, uint32(uint32(pair) + stride))

    return turn_to


def make_walk(
    format: TensorFormat, formats: Sequence[TensorFormat], tiles: int, stages: int, ask: Any
) -> Any:
    """Products of one pair: (cursor, source, walk, rows, total)."""
    is_bf16 = format is TensorFormat.BF16
    half = stage_bytes(formats)
    multiply = _make_bf16_step(tiles, half) if is_bf16 else _make_step(format, tiles, half)
    stage = PAIR * half
    whole_ring = stages * stage
    wait_copies = WAITS[stages]
    make_own_masks = make_masks(format, keeps=_keeps_masks(format, formats))
    slabs = 4 if is_bf16 else 1
    columns_step, begins_step = tiles * K_TILE_BYTES, tiles * BEGIN_BYTES
    offset = PAIR_FORMATS[format].offset
    table = offsets(formats).index(offset) if offset else 0

    @device_function
    def walk_pair(cursor: Array, source: Array, walk: Any, rows: Rows, total: Array) -> None:
        k_tiles, lane, _, plan = walk
        masks = make_own_masks()
        columns, begins, barrier, ring = ptx.shared_u32x4(plan + uint32(16))
        n = int32(int32(ptx.shared_u32(plan + uint32(8))) * int32(slabs))
        steps = uint32((uint32(k_tiles) + uint32(PARTS - 1)) // uint32(PARTS))
        x = uint32(columns + lane * uint32(16))
        s = uint32(begins + (lane & uint32(3)) * uint32(16))
        for _ in range(table):
            s = uint32(s + steps * uint32(begins_step))
        while n > int32(0):
            wait_copies()
            ptx.sync_warp()
            slot = uint32(cursor[SLOT])
            last = uint32(slot - uint32(stage))
            if slot == ring:
                last = uint32(ring + uint32(whole_ring - stage))
            ask(last, cursor, source, walk, rows)
            warpgroup.wait_phase(barrier, uint32(0))
            multiply(slot, lane, x, s, total, masks)
            moved = uint32(slot + uint32(stage))
            if moved == uint32(ring + uint32(whole_ring)):
                moved = uint32(ring)
            cursor[SLOT] = int32(moved)
            n = int32(n - int32(1))
            if is_bf16:
                x = uint32(x + uint32(512))
                if (n & int32(3)) == int32(0):
                    x = uint32(x + uint32(columns_step - 2048))
                    barrier = uint32(barrier + uint32(BARRIER_BYTES))
            else:
                x = uint32(x + uint32(columns_step))
                s = uint32(s + uint32(begins_step))
                barrier = uint32(barrier + uint32(BARRIER_BYTES))

    return walk_pair


def _keeps_masks(format: TensorFormat, formats: Sequence[TensorFormat]) -> bool:
    """Whether there are registers for masks."""
    if format is TensorFormat.Q6:
        return False
    return format is not TensorFormat.W8 or len(formats) == 1


def _make_step(format: TensorFormat, tiles: int, half: int) -> Any:
    """Products of a k tile of coded weights: (stored, lane, columns, begins, total, masks)."""
    groups = 4 // PAIR_FORMATS[format].group_slabs
    load, decode = _make_load(format, half), _make_decode(format, half)
    multiply = _make_multiply(format, tiles)
    num_operands = PAIR * PAIR_FORMATS[format].group_slabs * 8

    @device_function
    def step(
        stored: Address, lane: Index, columns: Address, begins: Address, total: Array, masks: Any
    ) -> None:
        words = cuda.local.array(16, uint32)
        extra = cuda.local.array(16, uint32)
        operands = cuda.local.array(num_operands, uint32)
        scales = cuda.local.array(4, float32)
        load(stored, lane, extra)
        for group in range(groups):
            decode(stored, lane, group, words, extra, operands, scales, masks)
            multiply(group, columns, begins, operands, scales, total)

    return step


def _make_load(format: TensorFormat, half: int) -> Any:
    """High bits and scales of both row tiles, eight words each."""
    functions = tile_functions(format)
    load_high, load_scales = functions.load_high, functions.load_scales

    @device_function
    def load(stored: Address, lane: Index, extra: Array) -> None:
        own = cuda.local.array(8, uint32)
        for m in range(PAIR):
            load_high(uint32(stored + uint32(m * half)), lane, own)
            load_scales(uint32(stored + uint32(m * half)), lane, own)
            for i in range(8):
                extra[m * 8 + i] = own[i]

    return load


def _make_decode(format: TensorFormat, half: int) -> Any:
    """Operands and scales of a group of both row tiles.

    Codes are loaded with the first slab of a word: eight words of each row tile.
    """
    functions = tile_functions(format)
    load_codes, pairs, scale = functions.load_codes, functions.pairs, functions.scale
    word_slabs, slabs = PAIR_FORMATS[format].unit_slabs, PAIR_FORMATS[format].group_slabs

    @device_function
    def decode(
        stored: Address,
        lane: Index,
        group: int,
        words: Array,
        extra: Array,
        operands: Array,
        scales: Array,
        masks: Any,
    ) -> None:
        own = cuda.local.array(8, uint32)
        more = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        for m in range(PAIR):
            for i in range(8):
                own[i], more[i] = words[m * 8 + i], extra[m * 8 + i]
            scales[2 * m], scales[2 * m + 1] = scale(more, group, 0), scale(more, group, 1)
            for w in range(slabs):
                slab = group * slabs + w
                if slab % word_slabs == 0:
                    load_codes(uint32(stored + uint32(m * half)), lane, slab, own)
                pairs(own, more, slab, a, masks)
                for i in range(8):
                    operands[(m * slabs + w) * 8 + i] = a[i]
            for i in range(8):
                words[m * 8 + i] = own[i]

    return decode


def _make_multiply(format: TensorFormat, tiles: int) -> Any:
    """Products of a group with all column tiles: (group, columns, begins, operands, scales, total).

    What is read for a column tile meets both row tiles.
    """
    slabs, has_offset = PAIR_FORMATS[format].group_slabs, PAIR_FORMATS[format].offset > 0
    end = _make_end(tiles)

    @device_function
    def multiply(
        group: int, columns: Address, begins: Address, operands: Array, scales: Array, total: Array
    ) -> None:
        a = cuda.local.array(8, uint32)
        x = cuda.local.array(8, uint32)
        start = cuda.local.array(4, float32)
        chain = cuda.local.array(4, float32)
        for i in range(4):
            start[i] = float32(0.0)
        for j in range(tiles):
            for w in range(slabs):
                at = columns + uint32(j * K_TILE_BYTES + (group * slabs + w) * 512)
                x[w * 4], x[w * 4 + 1], x[w * 4 + 2], x[w * 4 + 3] = ptx.shared_u32x4(at)
            if has_offset:
                at = begins + uint32(j * BEGIN_BYTES + group * (BEGIN_BYTES // 2))
                start[0], start[1], start[2], start[3] = ptx.shared_f32x4(at)
            for m in range(PAIR):
                for i in range(4):
                    chain[i] = start[i]
                for w in range(slabs):
                    for i in range(8):
                        a[i] = operands[(m * slabs + w) * 8 + i]
                    slab_product(a, x, w * 4, chain, 0)
                end(chain, m, j, scales, total)

    return multiply


def _make_end(tiles: int) -> Any:
    """Add a group's chain to the totals of a row tile and a column tile."""

    @device_function
    def end(chain: Array, m: int, j: int, scales: Array, total: Array) -> None:
        i = (m * tiles + j) * 4
        upper, lower = scales[2 * m], scales[2 * m + 1]
        total[i] = ptx.fused_multiply_add(upper, chain[0], total[i])
        total[i + 1] = ptx.fused_multiply_add(upper, chain[1], total[i + 1])
        total[i + 2] = ptx.fused_multiply_add(lower, chain[2], total[i + 2])
        total[i + 3] = ptx.fused_multiply_add(lower, chain[3], total[i + 3])

    return end


def _make_bf16_step(tiles: int, half: int) -> Any:
    """Products of one slab of bf16 weights."""
    pairs, num_words = tile_functions(TensorFormat.BF16).pairs, 4 * tiles

    @device_function
    def step(
        stored: Address, lane: Index, columns: Address, begins: Address, total: Array, masks: Any
    ) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        x = cuda.local.array(num_words, uint32)
        for j in range(tiles):
            i = j * 4
            at = columns + uint32(j * K_TILE_BYTES)
            x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.shared_u32x4(at)
        for m in range(PAIR):
            at = stored + uint32(m * half) + lane * uint32(16)
            words[0], words[1], words[2], words[3] = ptx.shared_u32x4(at)
            words[4], words[5], words[6], words[7] = ptx.shared_u32x4(at + uint32(512))
            pairs(words, extra, 0, a, masks)
            for j in range(tiles):
                slab_product(a, x, j * 4, total, (m * tiles + j) * 4)

    return step
