"""Numbers of token choice on CUDA: penalised logits, their order, masses and noise.

A candidate is one 64-bit word: the order-preserving bits of its penalised logit above the inverted
id, so that the larger word is the better candidate and equal logits prefer the lower id; 0 is no
candidate. Its mass, exp((l - largest) / temperature), is a fixed-point integer in units of 2^-36:
sums over any order of threads have the same bits. Arithmetic is f32 from the logits on.
"""

import math
from typing import Any, Final, NamedTuple

from numba import float32, float64, int32, uint32, uint64

from ninfer.cuda import ptx
from ninfer.cuda.device_code import device_function
from ninfer.kernels.cuda.device_functions import from_lane_xor_u32, from_lane_xor_u64

LARGEST_F32: Final = 3.4028234663852886e38
MASS_ONE: Final = float(1 << 36)
FINE_BINS: Final = 512  # one 32nd of a logit each, 16 logits below the largest
NUM_BINS: Final = 1024  # the others are a quarter of a logit each; the last takes the rest

Address = Any


class Line(NamedTuple):
    """What penalised logits of a row are made from.

    Attributes:
        logits, mask, counts: addresses of the row's; a mask of 0 permits all.
        once: penalty of an id that was chosen before.
        each: penalty for each time that it was.
    """

    logits: Address
    mask: Address
    counts: Address
    once: Any
    each: Any


@device_function
def fetch(line: Line, token: Any, stop: Any) -> Any:
    """Penalised logit of an id, -inf when it leaves the distribution, and whether it is permitted.

    An id from ``stop`` on is not permitted. Nothing branches on data, so that the loads of several
    calls are under way together.
    """
    is_inside = uint32(int32(token) < int32(stop))
    has_mask = is_inside & uint32(line.mask != uint64(0))
    at = uint64(uint32(token)) * uint64(4)
    word = ptx.load_u32_if(line.mask + uint64(uint32(token) >> uint32(5)) * uint64(4), has_mask)
    logit = ptx.load_f32_if(line.logits + at, is_inside)
    has_penalty = uint32(line.once != float32(0.0) or line.each != float32(0.0))
    count = int32(ptx.load_u32_if(line.counts + at, is_inside & has_penalty))
    permitted = is_inside & (
        (word >> (uint32(token) & uint32(31))) | uint32(line.mask == uint64(0))
    )
    permitted = permitted & uint32(1)
    value = min(logit, float32(LARGEST_F32)) + float32(0.0)  # turns -0 into 0
    penalty = line.once + line.each * float32(count)
    if count > int32(0):
        value -= penalty
    # Comparisons with a number that is none are false.
    is_number = logit > float32(-math.inf)
    if permitted == uint32(0) or not is_number:
        value = float32(-math.inf)
    return value, permitted


@device_function
def penalised_logit(line: Line, token: Any) -> Any:
    """Penalised logit of a permitted id; -inf when it leaves the distribution."""
    unmasked = Line(line.logits, uint64(0), line.counts, line.once, line.each)
    value, _ = fetch(unmasked, token, int32(0x7FFFFFFF))
    return value


@device_function
def key_of(value: Any) -> Any:
    """The upper half of a candidate's word; 0 for -inf."""
    bits = ptx.bits_of_f32(value)
    if bits >> uint32(31) != uint32(0):
        bits = ~bits
    else:
        bits = bits | uint32(0x80000000)
    if not value > float32(-math.inf):
        bits = uint32(0)
    return uint32(bits)


@device_function
def word_of_key(key: Any, token: Any) -> Any:
    """Word of a candidate by its key; 0 for no candidate."""
    word = (uint64(key) << uint64(32)) | uint64(~uint32(token))
    if key == uint32(0):
        word = uint64(0)
    return word


@device_function
def candidate_word(value: Any, token: Any) -> Any:
    """Word of a penalised logit and its id; 0 for -inf."""
    return word_of_key(key_of(value), token)


@device_function
def word_value(word: Any) -> Any:
    """Penalised logit of a candidate."""
    bits = uint32(word >> uint64(32))
    if bits >> uint32(31) != uint32(0):
        bits = bits & uint32(0x7FFFFFFF)
    else:
        bits = ~bits
    return ptx.f32_of_bits(bits)


@device_function
def word_token(word: Any) -> Any:
    """Id of a candidate."""
    return ~uint32(word & uint64(0xFFFFFFFF))


@device_function
def mass_of(value: Any, largest: Any, temperature: Any) -> Any:
    """Fixed-point mass of a penalised logit, at most 2^36."""
    share = math.exp((value - largest) / temperature)
    return ptx.nearest_u64(share * float32(MASS_ONE))


@device_function
def mass_target(total: Any, top_p: Any) -> Any:
    """Mass that top_p keeps of a total: at least one unit."""
    share = float64(total) * float64(top_p)
    target = uint64(1)
    if share > float64(1.0):
        target = uint64(ptx.ceiling_f64(share))
    return target


@device_function
def bin_of(value: Any, largest: Any) -> Any:
    """Bin of a penalised logit; better candidates lie in lower bins."""
    distance = largest - value
    index = int32(NUM_BINS - 1)
    if distance < float32(16.0):
        index = int32(distance * float32(32.0))
    elif distance < float32(143.0):
        index = int32(FINE_BINS) + int32((distance - float32(16.0)) * float32(4.0))
    return index


@device_function
def gumbel_noise(position: Any, token: Any, seed_low: Any, seed_high: Any) -> Any:
    """Noise of an id: -log(-log u), u from word 0 of Philox4x32-10."""
    c0, c1, c2, c3 = uint32(position), uint32(token), uint32(0), uint32(0)
    k0, k1 = uint32(seed_low), uint32(seed_high)
    for _ in range(10):
        h0, l0 = ptx.multiply_high(uint32(0xD2511F53), c0), uint32(0xD2511F53) * c0
        h1, l1 = ptx.multiply_high(uint32(0xCD9E8D57), c2), uint32(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            uint32(h1 ^ c1 ^ k0),
            uint32(l1),
            uint32(h0 ^ c3 ^ k1),
            uint32(l0),
        )
        k0 = uint32(k0 + uint32(0x9E3779B9))
        k1 = uint32(k1 + uint32(0xBB67AE85))
    u = (float32(c0 >> uint32(9)) + float32(0.5)) * float32(2.0**-23)
    return -math.log(-math.log(u))


@device_function
def score_word(score: Any, token: Any) -> Any:
    """Word of a score and its id, ordered like candidates; never 0, not even for -inf."""
    bits = ptx.bits_of_f32(score + float32(0.0))
    if bits >> uint32(31) != uint32(0):
        bits = ~bits
    else:
        bits = bits | uint32(0x80000000)
    return (uint64(bits) << uint64(32)) | uint64(~uint32(token))


@device_function
def share_of(score: Any) -> Any:
    """Probability relative to the best candidate's."""
    return math.exp(score)


@device_function
def warp_best(word: Any) -> Any:
    """Largest of the 32 lanes' u64 words."""
    word = max(word, from_lane_xor_u64(word, 16))
    word = max(word, from_lane_xor_u64(word, 8))
    word = max(word, from_lane_xor_u64(word, 4))
    word = max(word, from_lane_xor_u64(word, 2))
    return max(word, from_lane_xor_u64(word, 1))


@device_function
def warp_largest(word: Any) -> Any:
    """`warp_best` for devices that reduce over lanes at once."""
    high = uint32(word >> uint64(32))
    best_high = ptx.largest_of_warp(high)
    low = uint32(0)
    if high == best_high:
        low = uint32(word & uint64(0xFFFFFFFF))
    return (uint64(best_high) << uint64(32)) | uint64(ptx.largest_of_warp(low))


@device_function
def warp_lowest(value: Any) -> Any:
    """Smallest of the 32 lanes' u32 values."""
    value = min(value, from_lane_xor_u32(value, 16))
    value = min(value, from_lane_xor_u32(value, 8))
    value = min(value, from_lane_xor_u32(value, 4))
    value = min(value, from_lane_xor_u32(value, 2))
    return min(value, from_lane_xor_u32(value, 1))
