"""Operands of wide products made: stored weights to bf16 rows, a linear input to rows.

A warp turns over one tile of weights (16 rows x 128 features) or one tile of columns (8 columns x
128 features). Codes are exact in f32 and so is a code times its binary16 scale: a weight is rounded
once, to bf16. Features behind the last one become whatever is stored: they meet zeros of the
columns. Bound by memory.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.device_functions import lower_bf16, upper_bf16
from ninfer.kernels.cuda.launch import WARP, blocks_for
from ninfer.kernels.cuda.product_output import warp_index
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.weight_tiles import tile_functions
from ninfer.kernels.cuda.wide_layout import image_address
from ninfer.tensor import TensorFormat

WARPS: Final = 8

Address = Any
Array = Any
Index = Any


def expand_grid(row_tiles: int, k_tiles: int) -> tuple[int, int, int]:
    """Blocks for so many tiles."""
    return (blocks_for(k_tiles, WARPS), row_tiles, 1)


@cache
def make_expand(format: TensorFormat) -> Kernel:
    """One warp for each tile; grid `expand_grid`, block (256,)."""
    layout, functions = PAIR_FORMATS[format], tile_functions(format)
    tile_bytes, record_bytes = layout.tile_bytes, layout.record_bytes
    unit_slabs = layout.unit_slabs
    pairs, put_row, load_extra = functions.pairs, _make_put_row(format), _make_load_extra(format)

    def expand(
        codes: int,
        high: int,
        scales: int,
        to: int,
        k_tiles: int,
        first_tile: int,
        first_row: int,
        num_rows: int,
    ) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        k = int32(cuda.blockIdx.x) * int32(WARPS) + int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        row_tile = first_tile + int32(cuda.blockIdx.y)
        if k < k_tiles:
            tile = uint64(row_tile) * uint64(k_tiles) + uint64(k)
            stored = codes + tile * uint64(tile_bytes) + uint64(lane * 16)
            words = cuda.local.array(8, uint32)
            extra = cuda.local.array(8, uint32)
            a = cuda.local.array(8, uint32)
            load_extra(high, scales, tile, lane, extra)
            row = row_tile * int32(16) + (lane >> int32(2)) - first_row
            for slab in range(4):
                if slab % unit_slabs == 0:
                    at = stored + uint64(slab // unit_slabs * 512)
                    words[0], words[1], words[2], words[3] = ptx.once_u32x4(at)
                    at += uint64(record_bytes)
                    words[4], words[5], words[6], words[7] = ptx.once_u32x4(at)
                pairs(words, extra, slab, a)
                chunk = k * int32(16) + int32(4 * slab) + (lane & int32(3))
                put_row(a, extra, slab, 0, to, k_tiles, row, num_rows, chunk)
                put_row(a, extra, slab, 1, to, k_tiles, row + int32(8), num_rows, chunk)

    return Kernel(
        f"expand_{format.name.lower()}",
        expand,
        (Param.ADDRESS,) * 4 + (Param.I32,) * 4,
        threads=WARPS * WARP,
        max_registers=64,
    )


def _make_load_extra(format: TensorFormat) -> Any:
    """High bits and scales of a lane's rows, as `tile_functions` wants them."""
    layout = PAIR_FORMATS[format]
    high_bytes, scale_bytes = layout.high_bytes, layout.scale_bytes
    tile_bytes, record_bytes = layout.tile_bytes, layout.record_bytes

    @device_function
    def load_extra(high: Address, scales: Address, tile: Any, lane: Index, extra: Array) -> None:
        for i in range(8):
            extra[i] = uint32(0)
        at = high + tile * uint64(tile_bytes)
        if high_bytes == 128:
            at += uint64(lane * 4)
            extra[0], extra[2] = ptx.once_u32(at), ptx.once_u32(at + uint64(record_bytes))
        if high_bytes == 256:
            at += uint64(lane * 8)
            extra[0], extra[1] = ptx.once_u32x2(at)
            extra[2], extra[3] = ptx.once_u32x2(at + uint64(record_bytes))
        at = scales + tile * uint64(tile_bytes)
        if scale_bytes == 32:
            at += uint64((lane >> int32(2)) * 4)
            extra[4], extra[6] = ptx.once_u32(at), ptx.once_u32(at + uint64(record_bytes))
        if scale_bytes == 64:
            at += uint64((lane >> int32(2)) * 8)
            extra[4], extra[5] = ptx.once_u32x2(at)
            extra[6], extra[7] = ptx.once_u32x2(at + uint64(record_bytes))

    return load_extra


def _make_put_row(format: TensorFormat) -> Any:
    """A chunk of one row: codes times scale, unless the format is bf16 already."""
    layout = PAIR_FORMATS[format]
    group_slabs, offset = layout.group_slabs, float(layout.offset)
    scale = tile_functions(format).scale

    @device_function
    def put_row(
        a: Array,
        extra: Array,
        slab: int,
        is_lower: int,
        to: Address,
        k_tiles: Index,
        row: Index,
        num_rows: Index,
        chunk: Index,
    ) -> None:
        w0, w1, w2, w3 = a[is_lower], a[2 + is_lower], a[4 + is_lower], a[6 + is_lower]
        if group_slabs > 0:
            factor = scale(extra, slab // group_slabs, is_lower)
            w0, w1 = _scaled(w0, offset, factor), _scaled(w1, offset, factor)
            w2, w3 = _scaled(w2, offset, factor), _scaled(w3, offset, factor)
        if row >= 0 and row < num_rows:
            ptx.store_u32x4(image_address(to, k_tiles * 2, row, chunk), w0, w1, w2, w3)

    return put_row


@device_function
def _scaled(pair: Any, offset: float, factor: Any) -> Any:
    """Two bf16 codes, less what they are stored with, times the scale: rounded once."""
    low = ptx.add_f32(lower_bf16(pair), -offset)
    high = ptx.add_f32(upper_bf16(pair), -offset)
    return ptx.bf16x2_of_f32(ptx.multiply_f32(low, factor), ptx.multiply_f32(high, factor))


@cache
def make_widen(is_plaited: bool) -> Kernel:
    """A linear input to rows: one warp for 8 columns x 128 features; block (256,).

    Plaited rows have, of each 32 features, the first pairs of the four chunks in the first 16
    bytes, the second pairs in the next: so a warpgroup reads the order in which lanes hold weights.
    """

    def widen(base: int, to: int, k_tiles: int) -> None:
        ptx.release_successor()
        ptx.wait_for_predecessor()
        k = int32(cuda.blockIdx.x) * int32(WARPS) + int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        column_tile = int32(cuda.blockIdx.y)
        if k < k_tiles:
            tile = uint64(column_tile) * uint64(k_tiles) + uint64(k)
            source = base + tile * uint64(2048) + uint64(lane * 16)
            row = column_tile * int32(8) + (lane >> int32(2))
            chunk = k * int32(16)
            for slab in range(4):
                a, b, c, d = ptx.load_u32x4(source + uint64(512 * slab))
                first = chunk + int32(4 * slab)
                if is_plaited:
                    inside = uint64((lane & int32(3)) * 4)
                    at = image_address(to, k_tiles * 2, row, first)
                    ptx.store_u32(at + inside, a)
                    at = image_address(to, k_tiles * 2, row, first + int32(1))
                    ptx.store_u32(at + inside, b)
                    at = image_address(to, k_tiles * 2, row, first + int32(2))
                    ptx.store_u32(at + inside, c)
                    at = image_address(to, k_tiles * 2, row, first + int32(3))
                    ptx.store_u32(at + inside, d)
                else:
                    at = image_address(to, k_tiles * 2, row, first + (lane & int32(3)))
                    ptx.store_u32x4(at, a, b, c, d)

    return Kernel(
        "plait" if is_plaited else "widen",
        widen,
        (Param.ADDRESS,) * 2 + (Param.I32,),
        threads=WARPS * WARP,
        max_registers=64,
    )
