"""File encoding to device residency on CUDA: one warp moves one tile of 16 x 128.

Lane ``4 r + t`` moves chunk t of the slabs of rows r and r + 8. Rows behind the last one become
zeros; features behind the last one are the file's own padding, or zeros for BF16. Runs once for
each matrix at start: it reads 64 to 256 bytes of a row at a time and needs no speed beyond that.
No early release: a product may read weights before its predecessor has ended.
Source: artifact page, section 7; `weight_layout`.
"""

from functools import cache
from typing import Any, Final

from numba import cuda, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.product_output import warp_index
from ninfer.kernels.cuda.weight_layout import CODE_BYTES, HIGH_BYTES, SCALE_BYTES
from ninfer.tensor import TensorFormat

TILES: Final = 8
"""Tiles of one block."""

Address = Any
Index = Any
Word = Any


@device_function
def _nibbles(source: Address, row: Index, k_tiles: Index, k: Index, t: Index, flip: int) -> Any:
    """Words of the four slabs of a chunk column, sign bits flipped where ``flip`` says so."""
    at = source + (uint64(row) * uint64(k_tiles) + uint64(k)) * uint64(64) + uint64(t * 4)
    return (
        ptx.load_u32(at) ^ uint32(flip),
        ptx.load_u32(at + uint64(16)) ^ uint32(flip),
        ptx.load_u32(at + uint64(32)) ^ uint32(flip),
        ptx.load_u32(at + uint64(48)) ^ uint32(flip),
    )


@device_function
def _bits_q5(source: Address, row: Index, k_tiles: Index, k: Index, t: Index) -> Any:
    """Fifth bits of the four slabs, bit i of place i, sign flipped."""
    at = source + (uint64(row) * uint64(k_tiles) + uint64(k)) * uint64(16) + uint64(t)
    return (
        ptx.load_u8(at) ^ uint32(0xFF),
        ptx.load_u8(at + uint64(4)) ^ uint32(0xFF),
        ptx.load_u8(at + uint64(8)) ^ uint32(0xFF),
        ptx.load_u8(at + uint64(12)) ^ uint32(0xFF),
    )


@device_function
def _pair_q5(word: Word, bits: Word, i: int) -> Word:
    """Places i and i + 4 in bits 0..4 and 16..20."""
    low = ((word >> uint32(4 * i)) & uint32(15)) | (((bits >> uint32(i)) & uint32(1)) << uint32(4))
    word, bits = word >> uint32(16), bits >> uint32(4)
    top = ((word >> uint32(4 * i)) & uint32(15)) | (((bits >> uint32(i)) & uint32(1)) << uint32(4))
    return low | (top << uint32(16))


@device_function
def _word_q5(word: Word, bits: Word, spare: Word, bit: int) -> Word:
    """Three pairs, and a bit of the pair that is left."""
    pairs = _pair_q5(word, bits, 0) | (_pair_q5(word, bits, 1) << uint32(5))
    pairs |= _pair_q5(word, bits, 2) << uint32(10)
    return pairs | (((spare >> uint32(bit)) & uint32(0x00010001)) << uint32(15))


@device_function
def _words_q5(
    a: Word,
    b: Word,
    c: Word,
    d: Word,
    high: Address,
    row: Index,
    k_tiles: Index,
    k: Index,
    t: Index,
) -> Any:
    """Nibbles of four slabs and their fifth bits as five words."""
    p, q, r, s = _bits_q5(high, row, k_tiles, k, t)
    last = _pair_q5(d, s, 3)
    e = _pair_q5(a, p, 3) | (_pair_q5(b, q, 3) << uint32(5)) | (_pair_q5(c, r, 3) << uint32(10))
    e |= ((last >> uint32(4)) & uint32(0x00010001)) << uint32(15)
    return (
        _word_q5(a, p, last, 0),
        _word_q5(b, q, last, 1),
        _word_q5(c, r, last, 2),
        _word_q5(d, s, last, 3),
        e,
    )


@device_function
def _high_q6(
    source: Address, row: Index, k_tiles: Index, k: Index, t: Index, first_slab: int
) -> Word:
    """Bit pairs of two slabs: 8 (w % 2) + 2 (i % 4) + 16 (i / 4), sign flipped."""
    at = source + (uint64(row) * uint64(k_tiles) + uint64(k)) * uint64(32) + uint64(t * 2)
    word = uint32(0)
    for w in range(2):
        bits = ptx.load_u16(at + uint64(8 * (first_slab + w))) ^ uint32(0xAAAA)
        word |= ((bits & uint32(255)) | ((bits >> uint32(8)) << uint32(16))) << uint32(8 * w)
    return word


@device_function
def _bf16_pair(row: Address, feature: Index, width: Index) -> Word:
    """Features i and i + 4 of a row; zeros behind the row."""
    word = uint32(0)
    if feature < width:
        word = ptx.load_u16(row + uint64(feature) * uint64(2))
    if feature + int32(4) < width:
        word |= ptx.load_u16(row + uint64(feature + int32(4)) * uint64(2)) << uint32(16)
    return word


@cache
def make_repack_nibbles(format: TensorFormat) -> Kernel:
    """Q4, Q5, Q6: one warp for each tile; grid (tiles / 8,), block (256,)."""
    code_bytes, high_bytes = CODE_BYTES[format], HIGH_BYTES.get(format, 0)
    record_bytes = code_bytes + high_bytes + SCALE_BYTES[format]
    flip = 0 if high_bytes else 0x88888888

    def repack(
        codes_in: int,
        high_in: int,
        scales_in: int,
        to: int,
        num_rows: int,
        k_tiles: int,
        tiles: int,
    ) -> None:
        ptx.wait_for_predecessor()
        tile = int32(cuda.blockIdx.x) * int32(TILES) + int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        if tile < tiles:
            k = tile % k_tiles
            first = tile // k_tiles * int32(16)
            record = to + uint64(tile) * uint64(2 * record_bytes)
            for half in range(2):
                row = first + int32(8 * half) + (lane >> int32(2))
                t = lane & int32(3)
                a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
                e, f = uint32(0), uint32(0)
                if row < num_rows:
                    a, b, c, d = _nibbles(codes_in, row, k_tiles, k, t, flip)
                    if high_bytes == 128:
                        a, b, c, d, e = _words_q5(a, b, c, d, high_in, row, k_tiles, k, t)
                    if high_bytes == 256:
                        e = _high_q6(high_in, row, k_tiles, k, t, 0)
                        f = _high_q6(high_in, row, k_tiles, k, t, 2)
                at = record + uint64(half * record_bytes)
                ptx.store_u32x4(at + uint64(lane) * uint64(16), a, b, c, d)
                at += uint64(code_bytes)
                if high_bytes == 128:
                    ptx.store_u32(at + uint64(lane) * uint64(4), e)
                if high_bytes == 256:
                    ptx.store_u32x2(at + uint64(lane) * uint64(8), e, f)
            if lane < 16:
                word = uint32(0)
                if first + lane < num_rows:
                    index = uint64(first + lane) * uint64(k_tiles) + uint64(k)
                    word = ptx.load_u32(scales_in + index * uint64(4))
                at = record + uint64(code_bytes + high_bytes)
                at += uint64(lane >> int32(3)) * uint64(record_bytes)
                ptx.store_u32(at + uint64((lane & int32(7)) * int32(4)), word)

    return _kernel(format, repack, 4, 3)


@cache
def make_repack_bytes() -> Kernel:
    """W8: one warp for each tile; grid (tiles / 8,), block (256,)."""
    code_bytes, scale_bytes = CODE_BYTES[TensorFormat.W8], SCALE_BYTES[TensorFormat.W8]
    record_bytes = code_bytes + scale_bytes

    def repack(
        codes_in: int,
        high_in: int,
        scales_in: int,
        to: int,
        num_rows: int,
        k_tiles: int,
        tiles: int,
    ) -> None:
        ptx.wait_for_predecessor()
        tile = int32(cuda.blockIdx.x) * int32(TILES) + int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        if tile < tiles:
            k = tile % k_tiles
            first = tile // k_tiles * int32(16)
            record = to + uint64(tile) * uint64(2 * record_bytes)
            for part in range(4):  # [half][w / 2]
                row = first + int32(part // 2 * 8) + (lane >> int32(2))
                a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
                if row < num_rows:
                    at = codes_in + (uint64(row) * uint64(k_tiles) + uint64(k)) * uint64(128)
                    at += uint64(part % 2 * 64) + uint64((lane & int32(3)) * 8)
                    a, b = ptx.load_u32x2(at)
                    c, d = ptx.load_u32x2(at + uint64(32))
                at = record + uint64(part // 2 * record_bytes + part % 2 * 512)
                ptx.store_u32x4(at + uint64(lane * 16), a, b, c, d)
            if lane < 16:
                a, b = uint32(0), uint32(0)
                if first + lane < num_rows:
                    index = uint64(first + lane) * uint64(k_tiles) + uint64(k)
                    a, b = ptx.load_u32x2(scales_in + index * uint64(8))
                at = record + uint64(code_bytes)
                at += uint64(lane >> int32(3)) * uint64(record_bytes)
                ptx.store_u32x2(at + uint64((lane & int32(7)) * int32(8)), a, b)

    return _kernel(TensorFormat.W8, repack, 4, 3)


@cache
def make_repack_words() -> Kernel:
    """BF16: one warp for each tile; grid (tiles / 8,), block (256,)."""
    code_bytes = CODE_BYTES[TensorFormat.BF16]

    def repack(words_in: int, to: int, num_rows: int, k_tiles: int, tiles: int, width: int) -> None:
        ptx.wait_for_predecessor()
        tile = int32(cuda.blockIdx.x) * int32(TILES) + int32(warp_index())
        lane = int32(cuda.threadIdx.x) & int32(31)
        if tile < tiles:
            k = tile % k_tiles
            first = tile // k_tiles * int32(16)
            for part in range(8):  # [half][w]
                row = first + int32(part // 4 * 8) + (lane >> int32(2))
                feature = k * int32(128) + int32(part % 4 * 32) + (lane & int32(3)) * int32(8)
                a, b, c, d = uint32(0), uint32(0), uint32(0), uint32(0)
                if row < num_rows:
                    source = words_in + uint64(row) * uint64(width) * uint64(2)
                    a = _bf16_pair(source, feature, width)
                    b = _bf16_pair(source, feature + int32(1), width)
                    c = _bf16_pair(source, feature + int32(2), width)
                    d = _bf16_pair(source, feature + int32(3), width)
                at = to + uint64(tile) * uint64(2 * code_bytes) + uint64(part * 512)
                ptx.store_u32x4(at + uint64(lane * 16), a, b, c, d)

    return _kernel(TensorFormat.BF16, repack, 2, 4)


def make_repack(format: TensorFormat) -> Kernel:
    """The kernel that repacks a format."""
    if format is TensorFormat.W8:
        return make_repack_bytes()
    if format is TensorFormat.BF16:
        return make_repack_words()
    return make_repack_nibbles(format)


def _kernel(format: TensorFormat, function: Any, addresses: int, extents: int) -> Kernel:
    return Kernel(
        f"repack_{format.name.lower()}",
        function,
        (Param.ADDRESS,) * addresses + (Param.I32,) * extents,
        threads=TILES * WARP,
        max_registers=64,
    )
