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

LOG2_E: Final = 1.4426950408889634
LN_2: Final = 0.6931471805599453

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
    return Scale(values.word_value(best), uint32(best >> uint64(32)), steps)


@device_function
def height_of(key: Any, scale: Scale) -> Any:
    """Minus the depth of a candidate: at most 0."""
    value = values.word_value(uint64(key) << uint64(32))
    return (value - scale.largest) * scale.steps


@device_function
def mass_at(height: Any) -> Any:
    """Fixed-point mass of a candidate."""
    return ptx.nearest_u64(ptx.power_of_two(height) * float32(MASS_ONE))


@device_function
def word_of(key: Any, token: Any) -> Any:
    """Word of a candidate in 50 bits: 32 of the key, 18 of the inverted id; 0 for none."""
    word = (uint64(key) << uint64(18)) | uint64(~uint32(token) & uint32(0x3FFFF))
    if key == uint32(0):
        word = uint64(0)
    return word


@device_function
def word_key(word: Any) -> Any:
    """Key of a candidate's word."""
    return uint32(word >> uint64(18))


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
        low, high = uint64(1), uint64(scale.key)
        for _ in range(7):
            step = ((high - low) >> uint64(5)) + uint64(1)
            key = min(low + lane * step, high)
            is_within = bin_of(height_of(uint32(key), scale)) <= place
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
def random_word(position: Any, token: Any, seed_low: Any, seed_high: Any) -> Any:
    """Word 0 of Philox4x32-10 for an id; purpose 0."""
    c0, c1, c2, c3 = uint32(position), uint32(token), uint32(0), uint32(0)
    k0, k1 = uint32(seed_low), uint32(seed_high)
    low = uint64(0xFFFFFFFF)
    for _ in range(10):
        first, second = uint64(0xD2511F53) * uint64(c0), uint64(0xCD9E8D57) * uint64(c2)
        c0, c1, c2, c3 = (
            uint32(second >> uint64(32)) ^ c1 ^ k0,
            uint32(second & low),
            uint32(first >> uint64(32)) ^ c3 ^ k1,
            uint32(first & low),
        )
        k0 = uint32(k0 + uint32(0x9E3779B9))
        k1 = uint32(k1 + uint32(0xBB67AE85))
    return c0
