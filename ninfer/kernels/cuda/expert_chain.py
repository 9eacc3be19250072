"""Products of one stored weight tile with a few column tiles, added to a lane's sums.

A group of one scale is a chain of tensor-core products that begins with minus the offset of the
stored codes times the column's group sum, and ends in ``sum += scale * chain``, in f32. The columns
of several slabs are asked for at once, ahead of the tile they meet.
"""

from typing import Any

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.tensor import TensorFormat


def slabs_at_once(column_tiles: int) -> int:
    """Slabs whose columns are asked for together; their words stay in registers."""
    return 4 if column_tiles == 1 else 2


def make_load_columns(column_tiles: int) -> Any:
    """Function that asks for the columns of the slabs from one on."""
    unit = slabs_at_once(column_tiles)

    @device_function
    def load_columns(x_at: Any, slab: Any, x: Any) -> None:
        for i in range(unit):
            for j in range(column_tiles):
                at = 4 * (i * column_tiles + j)
                x[at], x[at + 1], x[at + 2], x[at + 3] = ptx.load_u32x4(
                    x_at[j] + uint64((slab + i) * 512)
                )

    return load_columns


def _make_begin(format: TensorFormat, column_tiles: int) -> Any:
    offset, group_slabs = PAIR_FORMATS[format].offset, PAIR_FORMATS[format].group_slabs

    @device_function
    def begin(chain: Any, total: Any, sum_at: Any, group: Any) -> None:
        for j in range(column_tiles):
            for i in range(4):
                chain[4 * j + i] = float32(0.0)
                if group_slabs == 0:
                    chain[4 * j + i] = total[4 * j + i]
            if offset > 0:
                even = ptx.load_f32(sum_at[2 * j] + uint64(group * 32)) * float32(-offset)
                odd = ptx.load_f32(sum_at[2 * j + 1] + uint64(group * 32)) * float32(-offset)
                chain[4 * j], chain[4 * j + 2] = even, even
                chain[4 * j + 1], chain[4 * j + 3] = odd, odd

    return begin


def _make_end(format: TensorFormat, column_tiles: int) -> Any:
    group_slabs, num_chain = PAIR_FORMATS[format].group_slabs, 4 * column_tiles
    scale = tile_functions(format).scale

    @device_function
    def end(chain: Any, total: Any, group: Any, extra: Any) -> None:
        if group_slabs == 0:
            for i in range(num_chain):
                total[i] = chain[i]
        else:
            upper, lower = scale(extra, group, 0), scale(extra, group, 1)
            for j in range(column_tiles):
                i = 4 * j
                total[i] = ptx.fused_multiply_add(upper, chain[i], total[i])
                total[i + 1] = ptx.fused_multiply_add(upper, chain[i + 1], total[i + 1])
                total[i + 2] = ptx.fused_multiply_add(lower, chain[i + 2], total[i + 2])
                total[i + 3] = ptx.fused_multiply_add(lower, chain[i + 3], total[i + 3])

    return end


def _make_add_slab(format: TensorFormat, column_tiles: int) -> Any:
    unit_slabs, group_slabs = PAIR_FORMATS[format].unit_slabs, PAIR_FORMATS[format].group_slabs
    load_codes, pairs = tile_functions(format).load_codes, tile_functions(format).pairs
    unit = slabs_at_once(column_tiles)
    begin, end = _make_begin(format, column_tiles), _make_end(format, column_tiles)

    @device_function
    def add_slab(
        stored: Any,
        lane: Any,
        slab: Any,
        x: Any,
        sum_at: Any,
        words: Any,
        extra: Any,
        chain: Any,
        total: Any,
    ) -> None:
        if slab % unit_slabs == 0:
            load_codes(stored, lane, slab, words)
        group = slab // max(group_slabs, 1) if group_slabs > 0 else slab // 4
        span = group_slabs if group_slabs > 0 else 4
        if slab % span == 0:
            begin(chain, total, sum_at, group)
        a = cuda.local.array(8, uint32)
        pairs(words, extra, slab, a)
        for j in range(column_tiles):
            at = 4 * (slab % unit * column_tiles + j)
            b0, b1, b2, b3 = x[at], x[at + 1], x[at + 2], x[at + 3]
            i = 4 * j
            c0, c1, c2, c3 = chain[i], chain[i + 1], chain[i + 2], chain[i + 3]
            c0, c1, c2, c3 = ptx.mma_bf16(a[0], a[1], a[2], a[3], b0, b1, c0, c1, c2, c3)
            c0, c1, c2, c3 = ptx.mma_bf16(a[4], a[5], a[6], a[7], b2, b3, c0, c1, c2, c3)
            chain[i], chain[i + 1], chain[i + 2], chain[i + 3] = c0, c1, c2, c3
        if slab % span == span - 1:
            end(chain, total, group, extra)

    return add_slab


def make_add_tile(format: TensorFormat, column_tiles: int) -> Any:
    """Function that adds the products of a tile; ``x`` holds the columns of its first slabs."""
    load_high, load_scales = tile_functions(format).load_high, tile_functions(format).load_scales
    num_chain, unit = 4 * column_tiles, slabs_at_once(column_tiles)
    load_columns = make_load_columns(column_tiles)
    add_slab = _make_add_slab(format, column_tiles)

    @device_function
    def add_tile(stored: Any, lane: Any, x_at: Any, x: Any, sum_at: Any, total: Any) -> None:
        words = cuda.local.array(8, uint32)
        extra = cuda.local.array(8, uint32)
        chain = cuda.local.array(num_chain, float32)
        load_high(stored, lane, extra)
        load_scales(stored, lane, extra)
        add_slab(stored, lane, 0, x, sum_at, words, extra, chain, total)
        add_slab(stored, lane, 1, x, sum_at, words, extra, chain, total)
        if unit == 2:
            load_columns(x_at, 2, x)
        add_slab(stored, lane, 2, x, sum_at, words, extra, chain, total)
        add_slab(stored, lane, 3, x, sum_at, words, extra, chain, total)

    return add_tile
