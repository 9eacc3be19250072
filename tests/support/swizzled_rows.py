"""Operands of warpgroup products behind their descriptors: swizzle over 128 bytes, or none.

Source: PTX ISA manual, matrix descriptors (start, stride between groups of eight rows, swizzle of
16-byte pieces by address bits 7 to 9; without swizzle the other stride along K).
"""

from functools import cache

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def rows_of(
    shared: npt.NDArray[np.uint8], base: int, descriptor: int, count: int, features: int = 64
) -> F64:
    """Rows of some features; ``base`` is the address of the first byte of shared memory."""
    assert descriptor >> 62 == 1, "swizzle over 128 bytes"
    start = (descriptor & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    return _values(shared, _swizzled(start, stride, count, features) - base)


def plain_rows_of(shared: npt.NDArray[np.uint8], base: int, descriptor: int, count: int) -> F64:
    """Rows of 16 features that are not swizzled: blocks of 8 x 8, each 128 bytes in a row."""
    assert descriptor >> 62 == 0, "no swizzle"
    start = (descriptor & 0x3FFF) << 4
    along_k, along_rows = ((descriptor >> 16) & 0x3FFF) << 4, ((descriptor >> 32) & 0x3FFF) << 4
    row, feature = np.arange(count)[:, None], np.arange(16)[None, :]
    at = start + row // 8 * along_rows + row % 8 * 16 + feature // 8 * along_k + feature % 8 * 2
    return _values(shared, at - base)


@cache
def _swizzled(start: int, stride: int, count: int, features: int) -> npt.NDArray[np.int64]:
    """Addresses of elements of rows."""
    row = np.arange(count)[:, None]
    plain = start + row // 8 * stride + row % 8 * 128 + 2 * np.arange(features)[None, :]
    return np.asarray(plain ^ (plain >> 7 & 7) << 4)


def _values(shared: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> F64:
    words = shared.view(np.uint16)[at // 2]
    values = (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.asarray(values, np.float64)


def turned_rows_of(
    shared: npt.NDArray[np.uint8], base: int, descriptor: int, count: int, columns: int
) -> F64:
    """Rows of ``columns`` elements in blocks of 64, a stride of the descriptor apart."""
    units = (descriptor >> 16) & 0x3FFF
    blocks = range(columns // 64)
    parts = [rows_of(shared, base, descriptor + units * block, count) for block in blocks]
    return np.concatenate(parts, axis=1)
