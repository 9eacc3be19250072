"""Instructions on single words, as a simulated thread computes them: halves, pairs and bytes.

Simulated threads take turns, so that all of them look at bits in the same place: what is put there
as a value is read as a word, or the other way round, many times faster than by views of scalars.
"""

from functools import cache
from typing import Any, Final

import numpy as np

_VALUE: Final = np.zeros(1, np.float32)
_WORD: Final = _VALUE.view(np.uint32)
_HALVES: Final = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def bits_of(value: Any) -> int:
    """Bits of a value that is rounded to f32."""
    _VALUE[0] = value
    return int(_WORD[0])


def value_of(word: Any) -> np.float32:
    """The f32 of these bits."""
    _WORD[0] = word
    return _VALUE[0]  # type: ignore[no-any-return]


def rounded(value: float) -> np.float32:
    """A value rounded to f32."""
    _VALUE[0] = value
    return _VALUE[0]  # type: ignore[no-any-return]


def multiply(a: Any, b: Any) -> np.float32:
    """The product of two f32."""
    if type(a) is type(b) is np.float32:
        return a * b
    return np.float32(np.float32(a) * np.float32(b))


def add(a: Any, b: Any) -> np.float32:
    """The sum of two f32."""
    if type(a) is type(b) is np.float32:
        return a + b
    return np.float32(np.float32(a) + np.float32(b))


def bf16_word(value: Any) -> int:
    bits = bits_of(value)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


def half_value(word: int) -> np.float32:
    return _HALVES[word & 0xFFFF]  # type: ignore[no-any-return]


def permute_bytes(a: Any, b: Any, selector: Any) -> Any:
    octets = int(a) | int(b) << 32
    i, j, k, m = _places(int(selector))
    return np.uint32(
        (octets >> i & 255)
        | (octets >> j & 255) << 8
        | (octets >> k & 255) << 16
        | (octets >> m & 255) << 24
    )


@cache
def _places(selector: int) -> tuple[int, ...]:
    """First bits of the bytes that a selector names."""
    return tuple(8 * (selector >> 4 * i & 7) for i in range(4))


def multiply_add_pair(a: Any, b: Any, c: Any) -> Any:
    word = 0
    for shift in (0, 16):
        x, y, z = (float(value_of((int(v) >> shift & 0xFFFF) << 16)) for v in (a, b, c))
        word |= bf16_word(x * y + z) << shift
    return np.uint32(word)
