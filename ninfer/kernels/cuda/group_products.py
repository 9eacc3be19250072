"""Products of a weight tile with column tiles on the tensor cores: the arithmetic of all kernels.

A group of features that share a scale is one chain of m16n8k16 products, begun with what the offset
of the stored codes contributes, then ``total += scale * chain`` in f32. BF16 has no groups: its
chain is the total. A unit is what a kernel holds of the columns at a time: 1, 2 or 4 slabs, at
least a group. Register arrays: ``x[(column tile, slab of unit)][4]``, ``s[(column tile, group of
unit)][2]``, ``total[(row tile, column tile)][4]``.
"""

from typing import Any

from numba import cuda, float32, uint32

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat

Address = Any
Array = Any
Index = Any


def unit_groups(format: TensorFormat, unit_slabs: int) -> int:
    """Chains of one unit."""
    return unit_slabs // (PAIR_FORMATS[format].group_slabs or unit_slabs)


def make_multiply(
    format: TensorFormat,
    row_tiles: int,
    column_tiles: int,
    unit_slabs: int,
) -> Any:
    """Products of a unit: (stored, lane, unit, x, s, total, masks).

    ``stored`` is the first row tile's; ``masks`` are those of `weight_pairs.make_masks`.
    """
    functions = tile_functions(format)
    load_codes, load_high = functions.load_codes, functions.load_high
    load_scales, pairs = functions.load_scales, functions.pairs
    tile_bytes, slabs = PAIR_FORMATS[format].tile_bytes, PAIR_FORMATS[format].unit_slabs
    groups = unit_groups(format, unit_slabs)
    chain_slabs = unit_slabs // groups
    num_chain = 4 * column_tiles
    begin = make_begin(format, column_tiles, groups)
    end = make_end(format, column_tiles)

    @device_function
    def multiply(
        stored: Address, lane: Index, unit: int, x: Array, s: Array, total: Array, masks: Any
    ) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        a = cuda.local.array(8, uint32)
        chain = cuda.local.array(num_chain, float32)
        for m in range(row_tiles):
            tile = stored + uint32(m * tile_bytes)
            load_high(tile, lane, extra)
            load_scales(tile, lane, extra)
            for g in range(groups):
                begin(chain, m, g, s, total)
                for w in range(chain_slabs):
                    place = g * chain_slabs + w
                    slab = unit * unit_slabs + place
                    if place % slabs == 0:
                        load_codes(tile, lane, slab, words)
                    pairs(words, extra, slab, a, masks)
                    for j in range(column_tiles):
                        slab_product(a, x, (j * unit_slabs + place) * 4, chain, j * 4)
                end(chain, m, unit * groups + g, extra, total)

    return multiply


@device_function
def slab_product(a: Array, x: Array, i: int, chain: Array, at: int) -> None:
    """Both products of a slab with one column tile, into four sums."""
    c0, c1, c2, c3 = chain[at], chain[at + 1], chain[at + 2], chain[at + 3]
    c0, c1, c2, c3 = ptx.mma_bf16(a[0], a[1], a[2], a[3], x[i], x[i + 1], c0, c1, c2, c3)
    c0, c1, c2, c3 = ptx.mma_bf16(a[4], a[5], a[6], a[7], x[i + 2], x[i + 3], c0, c1, c2, c3)
    chain[at], chain[at + 1], chain[at + 2], chain[at + 3] = c0, c1, c2, c3


def make_begin(format: TensorFormat, column_tiles: int, groups: int) -> Any:
    """Begin a group's chain: (chain, m, g, s, total)."""
    is_scaled = PAIR_FORMATS[format].group_slabs > 0
    offset = PAIR_FORMATS[format].offset

    @device_function
    def begin(chain: Array, m: int, g: int, s: Array, total: Array) -> None:
        for j in range(column_tiles):
            if not is_scaled:
                for i in range(4):
                    chain[j * 4 + i] = total[(m * column_tiles + j) * 4 + i]
            elif offset > 0:
                i = (j * groups + g) * 2
                even = ptx.multiply_f32(s[i], float32(-offset))
                odd = ptx.multiply_f32(s[i + 1], float32(-offset))
                chain[j * 4], chain[j * 4 + 2] = even, even
                chain[j * 4 + 1], chain[j * 4 + 3] = odd, odd
            else:
                for i in range(4):
                    chain[j * 4 + i] = float32(0.0)

    return begin


def make_end(format: TensorFormat, column_tiles: int) -> Any:
    """Add a group's chain to the totals: (chain, m, group, extra, total)."""
    is_scaled = PAIR_FORMATS[format].group_slabs > 0
    scale = tile_functions(format).scale

    @device_function
    def end(chain: Array, m: int, group: int, extra: Array, total: Array) -> None:
        upper, lower = float32(1.0), float32(1.0)
        if is_scaled:
            upper, lower = scale(extra, group, 0), scale(extra, group, 1)
        for j in range(column_tiles):
            i = (m * column_tiles + j) * 4
            if is_scaled:
                total[i] = ptx.fused_multiply_add(upper, chain[j * 4], total[i])
                total[i + 1] = ptx.fused_multiply_add(upper, chain[j * 4 + 1], total[i + 1])
                total[i + 2] = ptx.fused_multiply_add(lower, chain[j * 4 + 2], total[i + 2])
                total[i + 3] = ptx.fused_multiply_add(lower, chain[j * 4 + 3], total[i + 3])
            else:
                for e in range(4):
                    total[i + e] = chain[j * 4 + e]

    return end


def make_load_stored(format: TensorFormat, column_tiles: int, unit_slabs: int, sums_at: int) -> Any:
    """Chunks of column tiles of one k tile, and ``sums_at`` bytes on their sums, from a ring."""
    has_sums, groups = PAIR_FORMATS[format].offset > 0, unit_groups(format, unit_slabs)

    @device_function
    def load(stored: Address, first: Index, lane: Index, unit: int, x: Array, s: Array) -> None:
        for j in range(column_tiles):
            at = stored + (first + uint32(j)) * uint32(2048) + uint32(lane) * uint32(16)
            for w in range(unit_slabs):
                i = (j * unit_slabs + w) * 4
                place = at + uint32((unit * unit_slabs + w) * 512)
                x[i], x[i + 1], x[i + 2], x[i + 3] = ptx.shared_u32x4(place)
            if has_sums:
                at = stored + uint32(sums_at) + (first + uint32(j)) * uint32(64)
                at += (uint32(lane) & uint32(3)) * uint32(8)
                for g in range(groups):
                    i = (j * groups + g) * 2
                    s[i], s[i + 1] = ptx.shared_f32x2(at + uint32((unit * groups + g) * 32))

    return load


def make_put_sums(row_tiles: int, column_tiles: int, stride: int) -> Any:
    """A warp's totals into shared memory, [column][row] with ``stride`` words to a column."""

    @device_function
    def put_sums(to: Address, lane: Index, total: Array) -> None:
        row = uint32(lane) >> uint32(2)
        column = (uint32(lane) & uint32(3)) * uint32(2)
        for m in range(row_tiles):
            for j in range(column_tiles):
                i = (m * column_tiles + j) * 4
                at = to + (column * uint32(stride) + row) * uint32(4)
                at += uint32((j * 8 * stride + m * 16) * 4)
                ptx.put_shared_f32(at, total[i])
                ptx.put_shared_f32(at + uint32(stride * 4), total[i + 1])
                ptx.put_shared_f32(at + uint32(32), total[i + 2])
                ptx.put_shared_f32(at + uint32(stride * 4 + 32), total[i + 3])

    return put_sums
