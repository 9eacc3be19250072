"""Operands of warpgroup products behind their descriptors: swizzle over 128 bytes.

Source: PTX ISA manual, matrix descriptors (start, stride between groups of eight rows, swizzle of
16-byte pieces by address bits 7 to 9).
"""

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def rows_of(shared: npt.NDArray[np.uint8], base: int, descriptor: int, count: int) -> F64:
    """Rows of 64 features; ``base`` is the address of the first byte of shared memory."""
    assert descriptor >> 62 == 1, "swizzle over 128 bytes"
    start = (descriptor & 0x3FFF) << 4
    stride = ((descriptor >> 32) & 0x3FFF) << 4
    row = np.arange(count)[:, None]
    plain = start + row // 8 * stride + row % 8 * 128 + 2 * np.arange(64)[None, :]
    swizzled = plain ^ (plain >> 7 & 7) << 4
    words = shared.view(np.uint16)[(swizzled - base) // 2]
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
