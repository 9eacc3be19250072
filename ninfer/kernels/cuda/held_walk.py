"""How a warp walks over rows whose columns lie in shared memory.

A step is one k tile of a row tile, or one slab of it in bf16: what one stage of the ring holds. The
cursor of copies runs ahead of the products, into the next row tile, which may be of another weight
and format; there it looks up where that one lies. The order of the sum is that of `few_walk`.

What functions hand to one another:

    rows    what weights lie where: addresses of four, ends of the first three in row tiles (the
            fourth takes the rest), kinds of four (see `held_product`)
    walk    what never changes: k tiles of a row, part, lane, k tiles of the part, row tiles of the
            launch, row tiles that all teams make in one turn
    cursor  what changes: steps left to ask for in a row tile, the row tile after it, bytes of a
            step from this lane on, format, the ring's slot that is multiplied, the slot before it
    source  where the lane's next step lies

In bf16 a k tile is four steps of a slab, each 512 bytes of the upper and of the lower record, so
the cursor moves on by 512 bytes three times and then to the first slab of the part's next k tile.
"""

from collections.abc import Sequence
from typing import Any, Final

from numba import cuda, float32, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.format_choice import make_choice
from ninfer.kernels.cuda.group_products import make_begin, make_end, slab_product
from ninfer.kernels.cuda.held_shape import (
    GROUP_SUM_BYTES,
    K_TILE_BYTES,
    num_stages,
    stage_bytes,
    step_bytes,
)
from ninfer.kernels.cuda.skinny_shape import PARTS, WAITS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS, make_masks
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any
Rows = Any

LEFT, NEXT, LIMIT, FORMAT, SLOT, LAST = range(6)  # words of the cursor
CURSOR_WORDS: Final = 6

_BF16_RECORD: Final = PAIR_FORMATS[TensorFormat.BF16].record_bytes


@device_function
def find_rows(tile: Index, rows: Rows) -> Any:
    """Address of a row tile's weight, its number there, and the weight's kind."""
    codes, ends, kinds = rows
    first, code, kind = int32(0), codes[0], kinds[0]
    if tile >= ends[0]:
        first, code, kind = ends[0], codes[1], kinds[1]
    if tile >= ends[1]:
        first, code, kind = ends[1], codes[2], kinds[2]
    if tile >= ends[2]:
        first, code, kind = ends[2], codes[3], kinds[3]
    return code, int32(tile - first), kind


@device_function
def find_target(tile: Index, targets: Any) -> Any:
    """Address, rows and width of what a row tile's products are written to."""
    outs, ends, heights, widths = targets
    out, num_rows, width = outs[0], heights[0], widths[0]
    if tile >= ends[0]:
        out, num_rows, width = outs[1], heights[1], widths[1]
    if tile >= ends[1]:
        out, num_rows, width = outs[2], heights[2], widths[2]
    if tile >= ends[2]:
        out, num_rows, width = outs[3], heights[3], widths[3]
    return out, num_rows, width


@device_function
def next_tile(tile: Index, turn: Index) -> Any:
    """Row tile that a team makes after one: who began with the largest gets what is left last."""
    if tile < turn:
        moved = int32(int32(turn + turn) - int32(tile + int32(1)))
    else:
        moved = int32(tile + turn)
    return moved


def make_ask(formats: Sequence[TensorFormat]) -> Any:
    """Ask for a warp's next step, if there is one: (to, cursor, source, walk, rows).

    ``walk`` is (k tiles of a row, part, lane, steps of a row tile, row tiles, row tiles between
    turns).
    """
    sizes = [step_bytes(format) for format in formats]
    steps = -(-max(sizes) // 512)
    bf16 = formats.index(TensorFormat.BF16) if TensorFormat.BF16 in formats else -1
    size_of = make_choice(sizes)
    tile_bytes_of = make_choice([PAIR_FORMATS[format].tile_bytes for format in formats])
    least = min(sizes)

    @device_function
    def ask(to: Address, cursor: Array, source: Array, walk: Any, rows: Rows) -> None:
        k_tiles, part, lane, count, total_tiles, turn = walk
        if cursor[LEFT] == int32(0) and cursor[NEXT] < total_tiles:
            code, own, kind = find_rows(cursor[NEXT], rows)
            format = int32(kind & int32(15))
            tile_bytes = tile_bytes_of(format)
            tile = uint32(uint32(own) * uint32(k_tiles) + part)
            source[0] = code + uint64(tile) * uint64(tile_bytes) + uint64(lane * uint32(16))
            cursor[FORMAT] = format
            cursor[LIMIT] = int32(size_of(format) - int32(lane * uint32(16)))
            cursor[LEFT] = count
            if format == int32(bf16):
                cursor[LEFT] = int32(count * int32(4))
            cursor[NEXT] = next_tile(cursor[NEXT], turn)
        is_inside = uint32(cursor[LEFT] > int32(0))
        at = to + lane * uint32(16)
        ptx.copy_weights_16_if(at, source[0], is_inside)
        second = int32(512)
        if bf16 >= 0 and cursor[FORMAT] == int32(bf16):
            second = int32(_BF16_RECORD)
        ptx.copy_weights_16_if(at + uint32(512), source[0] + uint64(second), is_inside)
        for step in range(2, steps):
            is_there = is_inside
            if least < (step + 1) * 512:
                is_there = is_inside & uint32(cursor[LIMIT] > int32(step * 512))
            ptx.copy_weights_16_if(
                at + uint32(step * 512), source[0] + uint64(step * 512), is_there
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


def make_walk(format: TensorFormat, formats: Sequence[TensorFormat], ask: Any) -> Any:
    """Products of one row tile: (ring, cursor, source, walk, rows, columns, sums, total)."""
    is_bf16 = format is TensorFormat.BF16
    multiply = _make_bf16_step() if is_bf16 else make_step(format)
    stage = stage_bytes(formats)
    whole_ring = num_stages(formats) * stage
    wait_copies = WAITS[num_stages(formats)]
    make_own_masks = make_masks(format, keeps=True)
    slabs = 4 if is_bf16 else 1

    @device_function
    def walk_rows(
        ring: Address,
        cursor: Array,
        source: Array,
        walk: Any,
        rows: Rows,
        columns: Address,
        sums: Address,
        total: Array,
    ) -> None:
        lane, masks = walk[2], make_own_masks()
        n = int32(walk[3] * int32(slabs))
        x, s = uint32(columns), uint32(sums)
        while n > int32(0):
            wait_copies()
            ptx.sync_warp()
            ask(uint32(cursor[LAST]), cursor, source, walk, rows)
            slot = uint32(cursor[SLOT])
            multiply(slot, lane, x, s, total, masks)
            cursor[LAST] = int32(slot)
            moved = uint32(slot + uint32(stage))
            if moved == uint32(ring + uint32(whole_ring)):
                moved = uint32(ring)
            cursor[SLOT] = int32(moved)
            n = int32(n - int32(1))
            if is_bf16:
                x = uint32(x + uint32(512))
                if (n & int32(3)) == int32(0):
                    x = uint32(x + uint32(PARTS * K_TILE_BYTES - 2048))
            else:
                x = uint32(x + uint32(PARTS * K_TILE_BYTES))
                s = uint32(s + uint32(PARTS * GROUP_SUM_BYTES))

    return walk_rows


def make_step(format: TensorFormat) -> Any:
    """Products of a k tile of coded weights with columns in shared memory."""
    functions = tile_functions(format)
    load_codes, load_high = functions.load_codes, functions.load_high
    load_scales, pairs = functions.load_scales, functions.pairs
    word_slabs = PAIR_FORMATS[format].unit_slabs
    chain_slabs = PAIR_FORMATS[format].group_slabs
    has_sums = PAIR_FORMATS[format].offset > 0
    begin, end = make_begin(format, 1, 1), make_end(format, 1)

    @device_function
    def step(
        stored: Address, lane: Index, columns: Address, sums: Address, total: Array, masks: Any
    ) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        x = cuda.local.array(4, uint32)
        s = cuda.local.array(2, float32)
        chain = cuda.local.array(4, float32)
        load_high(stored, lane, extra)
        load_scales(stored, lane, extra)
        for slab in range(4):
            group = slab // chain_slabs
            if slab % chain_slabs == 0:
                if has_sums:
                    s[0], s[1] = ptx.shared_f32x2(sums + uint32(group * 32))
                begin(chain, 0, 0, s, total)
            if slab % word_slabs == 0:
                load_codes(stored, lane, slab, words)
            x[0], x[1], x[2], x[3] = ptx.shared_u32x4(columns + uint32(slab * 512))
            pairs(words, extra, slab, a, masks)
            slab_product(a, x, 0, chain, 0)
            if (slab + 1) % chain_slabs == 0:
                end(chain, 0, group, extra, total)

    return step


def _make_bf16_step() -> Any:
    """Products of one slab of bf16 weights."""
    pairs = tile_functions(TensorFormat.BF16).pairs

    @device_function
    def step(
        stored: Address, lane: Index, columns: Address, sums: Address, total: Array, masks: Any
    ) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        x = cuda.local.array(4, uint32)
        at = stored + lane * uint32(16)
        words[0], words[1], words[2], words[3] = ptx.shared_u32x4(at)
        words[4], words[5], words[6], words[7] = ptx.shared_u32x4(at + uint32(512))
        x[0], x[1], x[2], x[3] = ptx.shared_u32x4(columns)
        pairs(words, extra, 0, a, masks)
        slab_product(a, x, 0, total, 0)

    return step
