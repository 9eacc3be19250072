"""Grouped formats Q4, Q5, Q6 and W8: encode, decode, and move rows between payloads.

Everything works on rows, so that a big matrix can pass through in blocks: what a row becomes does
not depend on its neighbours. Source: artifact page, sections 5 to 7.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ninfer.errors import ShapeError
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats.direct import (
    Bytes,
    F32Array,
    Words,
    bf16_to_f32,
    check_payload,
    decode_direct,
)
from ninfer.tensor_formats.geometry import BASE_BYTES, GROUPED, RowSplitGeometry
from ninfer.tensor_formats.quantise import Codes, quantise

Source = npt.NDArray[np.float32] | npt.NDArray[np.float16] | npt.NDArray[np.uint16]
"""Rows to encode: binary32, binary16, or bfloat16 words (uint16). All widen exactly."""

_BLOCK_ELEMENTS: Final = 1 << 17  # float32 temporaries of one block stay inside a core's cache


class Planes(NamedTuple):
    """The three planes of some consecutive rows; row ``i`` of each array belongs to row ``i``.

    ``base`` [rows, groups * 32] u8, ``high`` [rows, groups * high_bytes] u8 (no columns for Q4 and
    W8), ``scales`` [rows, groups] u16 holding binary16 words.
    """

    base: Bytes
    high: Bytes
    scales: Words


def encode_rows(format: TensorFormat, rows: Source) -> Planes:
    """Encode rows of a matrix; what one row becomes does not depend on the others.

    Each group's scale is binary16(largest magnitude / code_max) and its codes are the values times
    the binary32 reciprocal of that scale, rounded to nearest even and clamped.

    Args:
        format: a grouped format.
        rows: [n, K].

    Raises:
        EncodeError: a value is not finite, or a scale leaves binary16; names the row of the block.
    """
    if rows.ndim != 2:
        raise ShapeError(f"rows of a matrix have rank 2, not {rows.ndim}")
    geometry = RowSplitGeometry(format, *rows.shape)
    codec, groups = geometry.codec, geometry.groups_per_row
    planes = Planes(
        np.empty((geometry.rows, geometry.base_row_bytes), np.uint8),
        np.empty((geometry.rows, geometry.high_row_bytes), np.uint8),
        np.empty((geometry.rows, groups), np.uint16),
    )
    step = max(1, _BLOCK_ELEMENTS // geometry.padded_columns)
    for first in range(0, geometry.rows, step):
        block = _widen(rows[first : first + step])
        if geometry.padded_columns != geometry.columns:
            padding = geometry.padded_columns - geometry.columns
            block = np.pad(block, ((0, 0), (0, padding)))
        grouped = block.reshape(len(block), groups, codec.group)
        codes, scales = quantise(grouped, codec.code_min, codec.code_max, first)
        packed = pack_codes(format, codes, scales)
        planes.base[first : first + step] = packed.base
        planes.high[first : first + step] = packed.high
        planes.scales[first : first + step] = packed.scales
    return planes


def encode_matrix(format: TensorFormat, matrix: Source) -> Bytes:
    """Return the stand-alone payload of a matrix ``[N, K]`` in a grouped format."""
    return assemble(RowSplitGeometry(format, *matrix.shape), encode_rows(format, matrix))


def decode_matrix(format: TensorFormat, payload: Bytes, rows: int, columns: int) -> F32Array:
    """Return the values ``[rows, columns]`` of a BF16, FP32 or grouped payload, in binary32."""
    if format is TensorFormat.BF16:
        return bf16_to_f32(decode_direct(format, payload, (rows, columns)))
    if format is TensorFormat.FP32:
        return decode_direct(format, payload, (rows, columns)).copy()
    return decode_rows(
        format, split_planes(RowSplitGeometry(format, rows, columns), payload), columns
    )


def decode_rows(format: TensorFormat, planes: Planes, columns: int) -> F32Array:
    """Return the values ``[n, columns]`` of some rows: f32(scale) * f32(code)."""
    codes = unpack_codes(format, planes)
    values = codes.astype(np.float32)
    values *= planes.scales.view(np.float16).astype(np.float32)[..., None]
    return values.reshape(len(codes), -1)[:, :columns]


def split_planes(geometry: RowSplitGeometry, payload: Bytes) -> Planes:
    """View a payload as its planes; copies nothing."""
    check_payload(payload, geometry)
    base, high, scale = (
        payload[span.offset : span.offset + span.nbytes].reshape(geometry.rows, -1)
        if span.nbytes
        else np.empty((geometry.rows, 0), np.uint8)
        for span in geometry.spans
    )
    return Planes(base, high, scale.view(np.uint16))


def assemble(geometry: RowSplitGeometry, planes: Planes) -> Bytes:
    """Return a stand-alone payload made of the planes of all rows, zeros between planes."""
    payload = np.zeros(geometry.payload_bytes, np.uint8)
    parts: tuple[npt.NDArray[Any], ...] = planes
    for span, part in zip(geometry.spans, parts, strict=True):
        payload[span.offset : span.offset + span.nbytes] = part.reshape(-1).view(np.uint8)
    return payload


def take_rows(geometry: RowSplitGeometry, payload: Bytes, rows: Sequence[int]) -> Bytes:
    """Return the stand-alone payload of the given rows, in that order; codes are not decoded."""
    index = np.asarray(rows, np.int64)
    base, high, scales = split_planes(geometry, payload)
    taken = Planes(base[index], high[index], scales[index])
    return assemble(RowSplitGeometry(geometry.format, len(index), geometry.columns), taken)


def pack_codes(format: TensorFormat, codes: Codes, scales: Words) -> Planes:
    """Pack codes ``[n, groups, group]`` and binary16 scale words ``[n, groups]``."""
    lanes = codes.view(np.uint8)
    rows = len(lanes)
    if format is TensorFormat.W8:
        return Planes(lanes.reshape(rows, -1), np.empty((rows, 0), np.uint8), scales)
    low = lanes & np.uint8(15)
    base = (low[..., 0::2] | low[..., 1::2] << np.uint8(4)).reshape(rows, -1)
    upper = lanes >> np.uint8(4)
    if format is TensorFormat.Q5:
        high = np.packbits(upper & np.uint8(1), axis=-1, bitorder="little").reshape(rows, -1)
    elif format is TensorFormat.Q6:
        pairs = upper & np.uint8(3)
        high = pairs[..., 0::4].copy()
        for lane in (1, 2, 3):
            high |= pairs[..., lane::4] << np.uint8(2 * lane)
        high = high.reshape(rows, -1)
    else:
        high = np.empty((rows, 0), np.uint8)
    return Planes(base, high, scales)


def unpack_codes(format: TensorFormat, planes: Planes) -> Codes:
    """Return the codes ``[n, groups, group]``, padding included."""
    codec = GROUPED[format]
    rows, groups = planes.scales.shape
    base = planes.base.reshape(rows, groups, BASE_BYTES)
    if format is TensorFormat.W8:
        return base.view(np.int8)
    lanes = np.empty((rows, groups, codec.group), np.uint8)
    lanes[..., 0::2] = base & np.uint8(15)
    lanes[..., 1::2] = base >> np.uint8(4)
    high = planes.high.reshape(rows, groups, codec.high_bytes)
    if format is TensorFormat.Q5:
        lanes |= np.unpackbits(high, axis=-1, bitorder="little") << np.uint8(4)
    elif format is TensorFormat.Q6:
        for lane in range(4):
            lanes[..., lane::4] |= (high >> np.uint8(2 * lane) & np.uint8(3)) << np.uint8(4)
    # Flipping the sign bit and subtracting its weight extends the sign.
    sign = 1 << (codec.bits - 1)
    lanes ^= np.uint8(sign)
    lanes -= np.uint8(sign)
    return lanes.view(np.int8)


def _widen(rows: Source) -> F32Array:
    """Return rows in binary32."""
    if rows.dtype == np.float32:
        return np.asarray(rows, np.float32)
    if rows.dtype == np.uint16:
        return bf16_to_f32(rows.view(np.uint16))
    if rows.dtype == np.float16:
        return rows.astype(np.float32)
    raise ShapeError(f"rows are binary32, binary16 or bfloat16 words, not {rows.dtype}")
