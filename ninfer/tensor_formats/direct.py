"""Direct formats: words kept bit for bit, and the bfloat16 conversions.

Signed zeros, subnormals, infinities and NaN payloads survive, because nothing is ever converted
between formats. Source: artifact page, section 5.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.errors import ShapeError
from ninfer.tensor import Shape, TensorFormat
from ninfer.tensor_formats.geometry import DIRECT, DirectGeometry, RowSplitGeometry

F32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint16]


def bf16_to_f32(words: Words) -> F32Array:
    """Widen bfloat16 words; exact."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: F32Array) -> Words:
    """Round binary32 to bfloat16 words, nearest, ties to even; a NaN stays one and turns quiet."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet = bits | np.uint32(0x00400000)
    return (np.where(np.isnan(values), quiet, rounded) >> np.uint32(16)).astype(np.uint16)


def encode_direct(format: TensorFormat, words: npt.NDArray[Any]) -> Bytes:
    """Return the payload of a direct tensor: its words, bit for bit.

    Args:
        format: BF16 (uint16 words), FP32 (float32) or I32 (int32).
        words: any shape; another dtype is an error, nothing is ever converted.

    Raises:
        ShapeError: the dtype is not the format's.
    """
    if words.dtype != DIRECT.get(format):
        raise ShapeError(f"{format.name} does not take {words.dtype} words")
    return np.ascontiguousarray(words).reshape(-1).view(np.uint8)


def decode_direct(format: TensorFormat, payload: Bytes, shape: Shape) -> npt.NDArray[Any]:
    """View a direct payload as words of its dtype; the counterpart of `encode_direct`."""
    check_payload(payload, DirectGeometry(format, shape))
    return payload.view(DIRECT[format]).reshape(shape)


def check_payload(payload: Bytes, geometry: DirectGeometry | RowSplitGeometry) -> None:
    """Refuse a payload that is not flat bytes of the encoded size."""
    if payload.dtype != np.uint8 or payload.shape != (geometry.payload_bytes,):
        raise ShapeError(
            f"payload is {payload.dtype} {payload.shape}; "
            f"{geometry.format.name} needs {geometry.payload_bytes} flat bytes"
        )
