"""Float64 oracle of stored weights and their products, written from the artifact page, section 7.

Payloads are read bit by bit from the layout's formulas; nothing is shared with the codecs. The lane
sum is the documented order of the host kernels in plain binary32 steps.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.tensor import TensorFormat

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

_BITS = {TensorFormat.Q4: 4, TensorFormat.Q5: 5, TensorFormat.Q6: 6, TensorFormat.W8: 8}
_GROUP = {TensorFormat.Q4: 64, TensorFormat.Q5: 64, TensorFormat.Q6: 64, TensorFormat.W8: 32}
_HIGH_BYTES = {TensorFormat.Q4: 0, TensorFormat.Q5: 8, TensorFormat.Q6: 16, TensorFormat.W8: 0}


def random_payload(
    rng: np.random.Generator, format: TensorFormat, rows: int, columns: int
) -> Bytes:
    """Every code, finite scales or words of any size including subnormal ones."""
    if format is TensorFormat.BF16:
        words = rng.integers(0, 1 << 16, rows * columns, np.uint16)
        exponent = rng.integers(0, 0x90, rows * columns).astype(np.uint16)  # up to 2^16
        return ((words & np.uint16(0x807F)) | (exponent << np.uint16(7))).view(np.uint8)
    base, high, scale, total = _offsets(format, rows, columns)
    payload = np.zeros(total, np.uint8)
    payload[base:high] = rng.integers(0, 256, high - base)
    payload[high:scale] = rng.integers(0, 256, scale - high)
    halves = rng.integers(0, 0x7000, (total - scale) // 2).astype("<u2")
    payload[scale:] = halves.view(np.uint8)
    return payload


def weight_values(format: TensorFormat, payload: Bytes, rows: int, columns: int) -> F64:
    """Values [rows, columns]: scale times code, exact in float64 and in binary32."""
    if format is TensorFormat.BF16:
        words = payload.view("<u2").astype(np.uint32) << np.uint32(16)
        return np.asarray(words.view(np.float32).reshape(rows, columns), np.float64)
    bits, group, high_bytes = _BITS[format], _GROUP[format], _HIGH_BYTES[format]
    base_at, high_at, scale_at, _ = _offsets(format, rows, columns)
    groups = -(-columns // 128) * 128 // group
    row, column = np.indices((rows, columns))
    which, lane = row * groups + column // group, column % group
    scales = payload[scale_at:].view("<f2").astype(np.float64)[which]
    if format is TensorFormat.W8:
        return np.asarray(scales * payload[base_at + which * 32 + lane].view(np.int8))
    low = payload[base_at + which * 32 + lane // 2] >> (lane % 2 * 4) & 15
    upper = np.zeros_like(low)
    for bit in range(bits - 4):
        stream = lane * (bits - 4) + bit
        octet = payload[high_at + which * high_bytes + stream // 8]
        upper |= (octet >> (stream % 8) & 1) << bit
    code = low.astype(np.int64) | upper.astype(np.int64) << 4
    code = np.where(code >= 1 << (bits - 1), code - (1 << bits), code)
    return np.asarray(scales * code, np.float64)


def lane_product(weights: F32, column: F32, lanes: int = 16) -> np.float32:
    """One product in binary32: partial sums by ``k % lanes``, halves added until one is left."""
    padding = -len(weights) % lanes
    steps = (np.pad(weights, (0, padding)) * np.pad(column, (0, padding))).reshape(-1, lanes)
    sums = np.zeros(lanes, np.float32)
    for step in steps:
        sums = sums + step
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return np.float32(sums[0])


def _offsets(format: TensorFormat, rows: int, columns: int) -> tuple[Any, ...]:
    groups = rows * (-(-columns // 128) * 128 // _GROUP[format])
    high = -(-groups * 32 // 256) * 256
    scale = high + -(-groups * _HIGH_BYTES[format] // 256) * 256
    return 0, high, scale, scale + groups * 2
