"""Grouped formats from their definitions, in exact rational arithmetic and one group at a time.

Shares nothing with the codec: rounding is done on fractions, packing on one big integer.
"""

import struct
from dataclasses import dataclass
from fractions import Fraction

F16 = (10, -14, 65504)
F32 = (23, -126, (2**24 - 1) * 2**104)


@dataclass(frozen=True)
class Definition:
    """One row of the format table."""

    bits: int
    group: int
    code_min: int
    code_max: int


DEFINITIONS = {
    "Q4G64_F16S": Definition(4, 64, -8, 7),
    "Q5G64_F16S": Definition(5, 64, -16, 15),
    "Q6G64_F16S": Definition(6, 64, -32, 31),
    "W8G32_F16S": Definition(8, 32, -127, 127),
}


class Overflow(Exception):
    """The rounded value is an infinity."""


def round_even(value: Fraction) -> int:
    """Nearest integer, ties to even."""
    return round(value)


def round_float(value: Fraction, kind: tuple[int, int, int]) -> Fraction:
    """Round to a binary float of ``kind`` = (fraction bits, smallest exponent, largest value)."""
    fraction_bits, least_exponent, largest = kind
    if value == 0:
        return value
    magnitude, exponent = abs(value), least_exponent
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - fraction_bits)
    rounded = round_even(magnitude / unit) * unit
    if rounded > largest:
        raise Overflow
    return rounded if value > 0 else -rounded


def encode_group(values: list[Fraction], definition: Definition) -> tuple[Fraction, list[int]]:
    """Scale and codes of one group of exact binary32 values."""
    largest = max(abs(value) for value in values)
    if largest == 0:
        return Fraction(0), [0] * len(values)
    raw = round_float(largest / definition.code_max, F32)
    scale = round_float(raw, F16) or Fraction(1, 2**24)
    inverse = round_float(1 / scale, F32)
    codes = [round_even(round_float(value * inverse, F32)) for value in values]
    return scale, [min(max(code, definition.code_min), definition.code_max) for code in codes]


def encode_payload(rows: list[list[Fraction]], name: str) -> bytes:
    """The whole row-split payload of a matrix."""
    definition = DEFINITIONS[name]
    base = high = scales = b""
    for row in rows:
        padded = row + [Fraction(0)] * (-len(row) % 128)
        for start in range(0, len(padded), definition.group):
            scale, codes = encode_group(padded[start : start + definition.group], definition)
            scales += struct.pack("<e", float(scale))
            low, upper = _bit_streams(codes, definition.bits)
            base, high = base + low, high + upper
    payload = base + bytes(-len(base) % 256)
    payload += high + bytes(-len(high) % 256)
    return payload + scales


def _bit_streams(codes: list[int], bits: int) -> tuple[bytes, bytes]:
    """Low nibbles and the bits above them, lane 0 lowest; W8 has whole bytes and no upper bits."""
    low_bits = min(bits, 8) if bits == 8 else 4
    upper_bits = bits - low_bits
    low = upper = 0
    for lane, code in enumerate(codes):
        unsigned = code % (1 << bits)
        low |= (unsigned % (1 << low_bits)) << (low_bits * lane)
        upper |= (unsigned >> low_bits) << (upper_bits * lane)
    return (
        low.to_bytes(len(codes) * low_bits // 8, "little"),
        upper.to_bytes(len(codes) * upper_bits // 8, "little"),
    )
