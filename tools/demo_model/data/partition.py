"""What is held out: a twentieth of all exercises, chosen by their keys.

The key names what is to be learned (operands, a word, a fact with its phrasing), so the same
exercise is held out wherever it occurs, in every skill and in earlier turns.
"""

import zlib
from typing import Final

_SHARE: Final = 20


def is_held_out(key: str) -> bool:
    """Whether no training conversation may have the exercise of this key."""
    return zlib.crc32(key.encode()) % _SHARE == 0
