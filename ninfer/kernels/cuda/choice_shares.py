"""How much of the distribution a candidate has, and the bins of that, for a choice by a cluster.

The *depth* of a candidate is (largest - l) / temperature in binary orders of magnitude, so that its
probability is 2^-depth of the largest one's. Bins part sixteen of them evenly, and the last bin has
the rest: a bin is an interval of keys, because every step from a key to its bin is monotonous.
"""

from typing import Any, Final, NamedTuple

from numba import cuda, float32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda import choice_values as values
from ninfer.kernels.cuda.choice_values import LARGEST_F32

MASS_ONE: Final = float((1 << 34) - (1 << 10))
"""Mass of the best candidate: less than 2^34, so that 2^15 upper parts sum in 32 bits."""

DEPTH: Final = 16.0
"""Orders of magnitude that are told apart at first."""

LOWEST_KEY: Final = 0x00800000
"""Of the lowest finite number; keys below are of none."""

SMALLEST_F32: Final = 1.1754943508222875e-38

LOG2_E: Final = 1.4426950408889634
LN_2: Final = 0.6931471805599453

_FACTOR: Final = 0xD2511F53
_OTHER_FACTOR: Final = 0xCD9E8D57
_KEY_STEP: Final = 0x9E3779B9
_OTHER_KEY_STEP: Final = 0xBB67AE85

Device = Any


class Scale(NamedTuple):
    """What a row's depths are measured by.

    Attributes:
        largest: penalised logit of the best candidate.
        key: its key.
        steps: orders of magnitude for one of the logit.
    """

    largest: Any
    key: Any
    steps: Any


@device_function
def scale_of(best: Any, temperature: Any) -> Scale:
    """Scale of a row by its best candidate's word and a temperature above 0."""
    steps = min(float32(LOG2_E) / temperature, float32(LARGEST_F32))
    steps = max(steps, float32(SMALLEST_F32))  # 0 times an infinite distance is no number
    return Scale(values.word_value(best), uint32(best >> uint64(32)), steps)


@device_function
def height_of(value: Any, scale: Scale) -> Any:
    """Minus the depth of a value: at most 0."""
    return (value - scale.largest) * scale.steps


@device_function
def mass_at(height: Any) -> Any:
    """Fixed-point mass of a candidate; 0 for none."""
    return ptx.nearest_u64(ptx.power_of_two(height) * float32(MASS_ONE))


@device_function
def key_value(key: Any) -> Any:
    """Value of a key."""
    return values.word_value(uint64(key) << uint64(32))


@device_function
def word_of(value: Any, token: Any) -> Any:
    """Word of a candidate in 50 bits: 32 of its key, 18 of the inverted id."""
    key = uint32(values.key_of(value))
    return (uint64(key) << uint64(18)) | uint64(~uint32(token) & uint32(0x3FFFF))


@device_function
def word_key(word: Any) -> Any:
    """Key of a candidate's word."""
    return uint32(word >> uint64(18))


@device_function
def word_height(word: Any, scale: Scale) -> Any:
    """Height of a candidate's word."""
    return height_of(key_value(word_key(word)), scale)


@device_function
def word_id(word: Any) -> Any:
    """Id of a candidate's word."""
    return ~uint32(word) & uint32(0x3FFFF)


def make_bin_of(bins: int) -> tuple[Device, Device]:
    """Functions from a height to its bin, and from a bin to its lowest key."""
    per_order = bins // int(DEPTH) - 1
    assert per_order * DEPTH <= bins - DEPTH

    @device_function
    def bin_of(height: Any) -> Any:
        place = uint32(bins - 1)
        if height > float32(-DEPTH):
            place = uint32(height * float32(-per_order))
        return place

    @device_function
    def lowest_key(place: Any, scale: Scale) -> Any:
        """Lowest key of a bin and those before it; by whole warps, 32 keys at a time."""
        lane = uint64(cuda.threadIdx.x & 31)
        low, high = uint64(LOWEST_KEY), uint64(scale.key)
        for _ in range(7):
            step = ((high - low) >> uint64(5)) + uint64(1)
            key = min(low + lane * step, high)
            is_within = bin_of(height_of(key_value(uint32(key)), scale)) <= place
            within = uint32(cuda.ballot_sync(0xFFFFFFFF, is_within))
            # Keys from one of the lanes' on are within: the lowest of these, and the one before.
            outside = uint64(cuda.popc(~within))
            if within != uint32(0):
                high = min(low + outside * step, high)
            if outside != uint64(0):
                low = min(low + (outside - uint64(1)) * step + uint64(1), high)
        return uint32(high)

    return bin_of, lowest_key


@device_function
def share_at(height: Any) -> Any:
    """Probability relative to the best candidate's."""
    return ptx.power_of_two(height)


@device_function
def _product(factor: Any, word: Any) -> Any:
    """Upper and lower half of a product of 32-bit words."""
    whole = uint64(factor) * uint64(word)
    return uint32(whole >> uint64(32)), uint32(whole & uint64(0xFFFFFFFF))


@device_function
def prepare_words(table: Any, position: Any, seed_low: Any, seed_high: Any) -> None:
    """What of `random_word` is the same for all ids of a row; ``table`` is shared u32 [20].

    Only one word of the counter is an id's, so that half of the first rounds is everybody's.
    """
    low, high = uint32(seed_low), uint32(seed_high)
    first, second = uint32(_KEY_STEP), uint32(_OTHER_KEY_STEP)
    ptx.put_shared_u32(table, low)
    upper, lower = _product(uint32(_FACTOR), uint32(position))
    other, c1 = _product(uint32(_OTHER_FACTOR), upper ^ high)
    low, high = uint32(low + first), uint32(high + second)
    ptx.put_shared_u32(table + uint32(4), lower ^ high)
    upper, lower = _product(uint32(_FACTOR), other ^ low)
    low, high = uint32(low + first), uint32(high + second)
    ptx.put_shared_u32(table + uint32(8), c1 ^ low)
    ptx.put_shared_u32(table + uint32(12), upper ^ high)
    low, high = uint32(low + first), uint32(high + second)
    ptx.put_shared_u32(table + uint32(16), low)
    ptx.put_shared_u32(table + uint32(20), lower ^ high)
    for i in range(6):
        low, high = uint32(low + first), uint32(high + second)
        ptx.put_shared_u32(table + uint32(24 + 8 * i), low)
        ptx.put_shared_u32(table + uint32(28 + 8 * i), high)


@device_function
def _round(c: Any, first_key: Any, second_key: Any) -> Any:
    """One round of Philox4x32."""
    upper, lower = _product(uint32(_FACTOR), c[0])
    other, last = _product(uint32(_OTHER_FACTOR), c[2])
    return other ^ c[1] ^ first_key, last, upper ^ c[3] ^ second_key, lower


@device_function
def random_word(table: Any, token: Any) -> Any:
    """Word 0 of Philox4x32-10 for an id; purpose 0."""
    a0, a1, a2, a3 = ptx.shared_u32x4(table)
    b0, b1, b2, b3 = ptx.shared_u32x4(table + uint32(16))
    upper, c3 = _product(uint32(_FACTOR), uint32(token) ^ a0)
    upper, c1 = _product(uint32(_OTHER_FACTOR), upper ^ a1)
    c0, c2 = upper ^ a2, c3 ^ a3
    upper, c3 = _product(uint32(_FACTOR), c0)
    other, last = _product(uint32(_OTHER_FACTOR), c2)
    c = (other ^ c1 ^ b0, last, upper ^ b1, c3)
    c = _round(c, b2, b3)
    a0, a1, a2, a3 = ptx.shared_u32x4(table + uint32(32))
    c = _round(c, a0, a1)
    c = _round(c, a2, a3)
    b0, b1, b2, b3 = ptx.shared_u32x4(table + uint32(48))
    c = _round(c, b0, b1)
    c = _round(c, b2, b3)
    other, _ = _product(uint32(_OTHER_FACTOR), c[2])
    return other ^ c[1] ^ ptx.shared_u32(table + uint32(64))
