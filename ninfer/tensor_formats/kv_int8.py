"""The int8 format of the key/value cache: codes and binary16 scales kept apart.

Groups are 64 dims of one head at one position. Source: artifact page, section 6 (the rules of the
encoder), with codes -127..127.
"""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.tensor_formats.direct import F32Array
from ninfer.tensor_formats.quantise import Codes, quantise

KV_GROUP: Final = 64
"""Dims that share one scale in the int8 key/value cache."""

_CODE_MAX: Final = 127


def encode_int8_g64(vectors: F32Array) -> tuple[Codes, npt.NDArray[np.float16]]:
    """Encode key/value vectors by the rules of the grouped formats with codes -127..127.

    Args:
        vectors: [..., D]; groups are 64 dims, the last may be short.

    Returns:
        Codes ``[..., D]`` and scales ``[..., ceil(D / 64)]``.

    Raises:
        EncodeError: a value is not finite, or a scale leaves binary16.
    """
    *outer, dims = vectors.shape
    groups = -(-dims // KV_GROUP)
    padded = np.zeros((math.prod(outer), groups * KV_GROUP), np.float32)
    padded[:, :dims] = vectors.reshape(-1, dims)
    codes, scales = quantise(padded.reshape(-1, groups, KV_GROUP), -_CODE_MAX, _CODE_MAX)
    flat = codes.reshape(len(padded), -1)[:, :dims]
    return flat.reshape(vectors.shape), scales.view(np.float16).reshape(*outer, groups)


def decode_int8_g64(codes: Codes, scales: npt.NDArray[np.float16]) -> F32Array:
    """Return the values ``[..., D]``: f32(scale) * f32(code)."""
    spread = np.repeat(scales.astype(np.float32), KV_GROUP, axis=-1)
    return codes.astype(np.float32) * spread[..., : codes.shape[-1]]
