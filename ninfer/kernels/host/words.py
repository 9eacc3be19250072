"""Bit patterns of bf16 and binary16 in float32 arithmetic, for kernels that store narrow words.

Widening is exact (binary16: `lane_products.half_to_f32`). Narrowing rounds to nearest, ties to
even, and keeps subnormals. Source: IEEE 754-2019; bf16 is the upper half of binary32.
"""

from typing import Any

import numpy as np

from ninfer.kernels.host.jit import kernel_part

F32 = Any
"""A float32 scalar inside a kernel."""

Word = Any
"""A 16-bit word inside a kernel."""


@kernel_part
def widen_bf16(word: Word) -> F32:
    """Value of a bf16 word."""
    return np.uint32(np.uint32(word) << np.uint32(16)).view(np.float32)


@kernel_part
def narrow_bf16(value: F32) -> Word:
    """Nearest bf16 word; a NaN stays a NaN."""
    bits = np.float32(value).view(np.uint32)
    if np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16((bits >> np.uint32(16)) | np.uint32(0x40))
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@kernel_part
def narrow_f16(value: F32) -> Word:
    """Nearest binary16 word of a value in [0, 65520); what is larger becomes the largest finite."""
    if not value < np.float32(65520.0):
        return np.uint16(0x7BFF)
    if value < np.float32(2.0**-14):
        return np.uint16(np.rint(value * np.float32(2.0**24)))
    bits = np.float32(value).view(np.uint32)
    odd = np.uint32((bits >> np.uint32(13)) & np.uint32(1))
    rounded = np.uint32(bits + np.uint32(0xFFF) + odd) >> np.uint32(13)
    return np.uint16(rounded - np.uint32(112 << 10))
