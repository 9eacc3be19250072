"""Weight rows to binary32, and their products with activation columns; inlined by host kernels.

    value[k]  = f32(scale of k's group) * f32(code[k])
    lane[l]   = ((w[l] * x[l] + w[l + 16] * x[l + 16]) + w[l + 32] * x[l + 32]) + ...
    product   = fixed tree over the lanes: halves are added until one is left

Every step rounds to binary32 by itself; nothing is fused or reordered. The order depends on the
width K only, so that a product is the same bit for bit whatever else is computed beside it. Lanes
and groups are spelled as LLVM vectors: the compiler keeps them in registers of any width and needs
no licence to reassociate. K beyond a multiple of `LANES` is filled up with zeros on both sides.

Numba's on-disk cache notices changes of a kernel's own file only: after a change here, delete the
cached kernels. Source: artifact page, section 7.2.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ninfer.kernels.host.jit import kernel_part

Array = Any

LANES: Final = 16
"""Partial sums of one product."""

_EXPANDED: Final = 32  # codes that one `_expand_codes` turns into values: the smallest group
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INDEX = ir.IntType(32)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, to: Any) -> Any:
    """Point at element ``offset`` of a flat array, as a vector type."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), to.as_pointer())


def _splat(builder: Any, value: Any, count: int) -> Any:
    """Repeat a scalar in every element of a vector."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _INDEX(0))
    zeros = ir.Constant(ir.VectorType(_INDEX, count), [0] * count)
    return builder.shuffle_vector(first, first, zeros)


def _add_lanes(builder: Any, vector: Any) -> Any:
    """Add the upper half of a vector to the lower one until a scalar is left."""
    width = LANES // 2
    while width:
        picks = ir.VectorType(_INDEX, width)
        low = builder.shuffle_vector(vector, vector, ir.Constant(picks, list(range(width))))
        upper = ir.Constant(picks, list(range(width, 2 * width)))
        vector = builder.fadd(low, builder.shuffle_vector(vector, vector, upper))
        width //= 2
    return builder.extract_element(vector, _INDEX(0))


def _make_dot_rows(num_rows: int) -> Callable[..., Any]:
    """Make the product of ``num_rows`` decoded rows with one column.

    The result is called as ``dot(rows, stride, x, start, tail, tail_start, width)`` and returns a
    tuple of ``num_rows`` f32: row ``i`` is ``rows[i * stride :]``, the column is ``x[start :]`` up
    to the last multiple of `LANES` below ``width``, and ``tail[tail_start :]`` after that. All
    arrays are flat f32; rows and tail are zero behind the width.
    """

    @intrinsic
    def dot(
        typing: Any, rows: Any, stride: Any, x: Any, start: Any, tail: Any, at: Any, width: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            rows, stride, x, start, tail, tail_start, width = values
            rows_type, _, x_type, _, tail_type, _, _ = signature.args
            index = stride.type
            zero = ir.Constant(_FLOATS, [0.0] * LANES)
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(num_rows)]

            def add_block(start_in_row: Any, column: Any) -> None:
                column_lanes = builder.load(column, align=4)
                for row, total in enumerate(sums):
                    offset = builder.add(builder.mul(stride, index(row)), start_in_row)
                    weights = _pointer(context, builder, rows_type, rows, offset, _FLOATS)
                    product = builder.fmul(builder.load(weights, align=4), column_lanes)
                    builder.store(builder.fadd(builder.load(total), product), total)

            num_blocks = builder.sdiv(width, index(LANES))
            with cgutils.for_range(builder, num_blocks) as loop:
                k = builder.mul(loop.index, index(LANES))
                offset = builder.add(start, k)
                add_block(k, _pointer(context, builder, x_type, x, offset, _FLOATS))
            done = builder.mul(num_blocks, index(LANES))
            with builder.if_then(builder.icmp_signed("<", done, width)):
                rest = _pointer(context, builder, tail_type, tail, tail_start, _FLOATS)
                add_block(done, rest)
            totals = [_add_lanes(builder, builder.load(total)) for total in sums]
            return context.make_tuple(builder, signature.return_type, totals)

        index = types.intp
        result = types.UniTuple(types.float32, num_rows)
        return result(rows, index, x, index, tail, index, index), generate

    return dot  # type: ignore[no-any-return]


_dot_one = _make_dot_rows(1)
_dot_four = _make_dot_rows(4)


@intrinsic
def _expand_codes(typing: Any, codes: Any, values: Any, start: Any, offset: Any, scale: Any) -> Any:
    """Write ``values[start + i] = (f32(codes[start + i]) - offset) * scale`` for 32 elements."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, values, start, offset, scale = arguments
        octets = ir.VectorType(ir.IntType(8), _EXPANDED)
        words = ir.VectorType(ir.IntType(32), _EXPANDED)
        floats = ir.VectorType(ir.FloatType(), _EXPANDED)
        source = _pointer(context, builder, signature.args[0], codes, start, octets)
        target = _pointer(context, builder, signature.args[1], values, start, floats)
        wide = builder.sitofp(builder.zext(builder.load(source, align=1), words), floats)
        signed = builder.fsub(wide, _splat(builder, offset, _EXPANDED))
        scaled = builder.fmul(signed, _splat(builder, scale, _EXPANDED))
        builder.store(scaled, target, align=4)
        return context.get_dummy_value()

    return types.void(codes, values, types.intp, types.float32, types.float32), generate


def _make_load(bits: int) -> Callable[..., Any]:
    """Make ``load(octets, index)``: word ``index`` of flat u8 memory, aligned to its own size.

    Said with a pointer because each `ndarray.view` costs a quarter of a second to compile.
    """

    @intrinsic
    def load(typing: Any, octets: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            octets, index = values
            offset = builder.mul(index, index.type(bits // 8))
            word = ir.IntType(bits)
            source = _pointer(context, builder, signature.args[0], octets, offset, word)
            return builder.load(source, align=bits // 8)

        return getattr(types, f"uint{bits}")(octets, types.intp), generate

    return load  # type: ignore[no-any-return]


_load_u16 = _make_load(16)
_load_u32 = _make_load(32)
_load_u64 = _make_load(64)


@intrinsic
def _store_codes(typing: Any, codes: Any, index: Any, eight: Any) -> Any:
    """Write 8 codes, the lowest byte first, to ``codes[8 * index :]``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        codes, index, eight = values
        offset = builder.mul(index, index.type(8))
        target = _pointer(context, builder, signature.args[0], codes, offset, ir.IntType(64))
        builder.store(eight, target, align=8)
        return context.get_dummy_value()

    return types.void(codes, types.intp, types.uint64), generate


@kernel_part
def half_to_f32(word: int) -> Any:
    """Widen a binary16 word; exact, infinities and NaN included."""
    magnitude = np.uint32((word & 0x7FFF) << 13)
    if magnitude >= np.uint32(0x7C00 << 13):
        value = np.uint32(magnitude | np.uint32(0x7F800000)).view(np.float32)
    else:
        # The exponent bias differs by 112; a multiplication also normalises subnormals.
        value = magnitude.view(np.float32) * np.float32(2.0**112)
    return -value if word & 0x8000 else value


@kernel_part
def _spread_nibbles(word: Any) -> Any:
    """Give each of the 8 nibbles of 32 bits a byte of its own, lowest first."""
    x = np.uint64(word)
    x = (x | (x << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    x = (x | (x << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    return (x | (x << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)


@kernel_part
def _spread_bits(word: Any) -> Any:
    """Move each of 8 bits to bit 4 of a byte of its own, lowest first."""
    x = np.uint64(word)
    x = (x | (x << np.uint64(28))) & np.uint64(0x0000000F0000000F)
    x = (x | (x << np.uint64(14))) & np.uint64(0x0003000300030003)
    x = (x | (x << np.uint64(7))) & np.uint64(0x0101010101010101)
    return x << np.uint64(4)


@kernel_part
def _spread_pairs(word: Any) -> Any:
    """Move each of 8 bit pairs to bits 4 and 5 of a byte of its own, lowest first."""
    x = np.uint64(word)
    x = (x | (x << np.uint64(24))) & np.uint64(0x000000FF000000FF)
    x = (x | (x << np.uint64(12))) & np.uint64(0x000F000F000F000F)
    x = (x | (x << np.uint64(6))) & np.uint64(0x0303030303030303)
    return x << np.uint64(4)


@kernel_part
def decode_row(
    bits: int, base: Array, high: Array, scales: Array, codes: Array, out: Array
) -> None:
    """Decode one row of `operands.StoredRows`.

    Args:
        bits: as there; 16 for bf16 words.
        base: the row's bytes of the base plane.
        high: the row's bytes of the high plane.
        scales: the row's binary16 words.
        codes: u8 scratch, at least the padded width.
        out: f32, at least the padded width (bf16: the width). Padding columns become zero codes'
            values; bf16 writes no padding.
    """
    if bits == 16:
        for k in range(len(base) // 2):
            out[k] = np.uint32(np.uint32(_load_u16(base, k)) << 16).view(np.float32)
        return
    # Codes become unsigned bytes: flipping the sign bit adds half the range, taken off below.
    num_words = len(base) // 4
    if bits == 4:
        for i in range(num_words):
            eight = _spread_nibbles(_load_u32(base, i))
            _store_codes(codes, i, eight ^ np.uint64(0x0808080808080808))
    elif bits == 5:
        for i in range(num_words):
            eight = _spread_nibbles(_load_u32(base, i)) | _spread_bits(high[i])
            _store_codes(codes, i, eight ^ np.uint64(0x1010101010101010))
    elif bits == 6:
        for i in range(num_words):
            eight = _spread_nibbles(_load_u32(base, i)) | _spread_pairs(_load_u16(high, i))
            _store_codes(codes, i, eight ^ np.uint64(0x2020202020202020))
    else:
        for i in range(len(base) // 8):
            _store_codes(codes, i, _load_u64(base, i) ^ np.uint64(0x8080808080808080))
    offset = np.float32(1 << (bits - 1))
    parts = 1 if bits == 8 else 2
    for part in range(len(scales) * parts):
        scale = half_to_f32(scales[part // parts])
        _expand_codes(codes, out, part * 32, offset, scale)


@kernel_part
def copy_tails(x: Array, num_columns: int, width: int, tails: Array) -> None:
    """Copy what lies behind the last whole `LANES` of each column, zeros after it.

    Args:
        x: flat f32, columns of ``width`` one after another.
        num_columns: columns.
        width: features K.
        tails: flat f32 [num_columns * LANES], written whole.
    """
    rest = width % LANES
    for column in range(num_columns):
        end = (column + 1) * width
        for lane in range(LANES):
            tails[column * LANES + lane] = x[end - rest + lane] if lane < rest else 0.0


@kernel_part
def dot_row(rows: Array, x: Array, start: int, tail: Array, tail_start: int, width: int) -> Any:
    """Multiply the decoded row ``rows[:]`` with the column ``x[start : start + width]``.

    Args:
        rows: flat f32, zero behind ``width`` up to a multiple of `LANES`.
        x: flat f32.
        start: the column's first element.
        tail: from `copy_tails`.
        tail_start: LANES times the number of the column.
        width: features K.
    """
    return _dot_one(rows, 0, x, start, tail, tail_start, width)[0]


@kernel_part
def dot_four_rows(
    rows: Array, stride: int, x: Array, start: int, tail: Array, tail_start: int, width: int
) -> Any:
    """Multiply four decoded rows, ``stride`` apart, as `dot_row` does each of them."""
    return _dot_four(rows, stride, x, start, tail, tail_start, width)
