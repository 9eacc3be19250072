"""Instructions on single words, as a simulated thread computes them: halves, pairs and bytes."""

from typing import Any

import numpy as np


def bf16_word(value: Any) -> int:
    bits = int(np.float32(value).view(np.uint32))
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


def half_value(word: int) -> np.float32:
    return np.float32(np.uint16(word & 0xFFFF).view(np.float16))


def permute_bytes(a: Any, b: Any, selector: Any) -> Any:
    octets = (int(a) | int(b) << 32).to_bytes(8, "little")
    chosen = bytes(octets[int(selector) >> 4 * i & 7] for i in range(4))
    return np.uint32(int.from_bytes(chosen, "little"))


def multiply_add_pair(a: Any, b: Any, c: Any) -> Any:
    word = 0
    for shift in (0, 16):
        x, y, z = (np.uint32((int(v) >> shift & 0xFFFF) << 16).view(np.float32) for v in (a, b, c))
        word |= bf16_word(float(x) * float(y) + float(z)) << shift
    return np.uint32(word)
