"""Symmetric absmax quantisation of groups: the arithmetic that every encoder shares.

Each operation is one binary32 or binary16 operation rounded to nearest even. Knows nothing of
layouts. Source: artifact page, section 6.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.errors import RequestError
from ninfer.tensor_formats.direct import F32Array, Words

Codes = npt.NDArray[np.int8]

_SMALLEST_SCALE: Final = np.float16(2.0**-24)


class EncodeError(RequestError, ValueError):
    """Values that a grouped format cannot hold: not finite, or too large for a binary16 scale."""

    code = "unencodable_values"


def quantise(
    groups: F32Array, code_min: int, code_max: int, first_row: int = 0
) -> tuple[Codes, Words]:
    """Return codes ``[n, groups, group]`` and binary16 scale words ``[n, groups]``.

    A scale is binary16(largest magnitude / ``code_max``); codes are the values times the binary32
    reciprocal of that *rounded* scale, which is why they need the clamp.

    Args:
        groups: [n, groups, group] f32.
        code_min: smallest legal code.
        code_max: largest legal code.
        first_row: added to the row number in messages.

    Raises:
        EncodeError: a value is not finite, or a scale leaves binary16.
    """
    largest = np.abs(groups).max(axis=-1)  # NaN and infinity survive the maximum
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scales = (largest / np.float32(code_max)).astype(np.float16)
    if not np.isfinite(scales).all():
        row, group = np.argwhere(~np.isfinite(scales))[0]
        raise EncodeError(
            f"row {first_row + row}, columns from {group * groups.shape[-1]}: largest magnitude "
            f"{largest[row, group]} is not finite or needs a scale above 65504"
        )
    scales[(scales == 0) & (largest > 0)] = _SMALLEST_SCALE
    wide = scales.astype(np.float32)
    inverse = np.zeros_like(wide)
    np.divide(np.float32(1), wide, out=inverse, where=wide > 0)
    scaled = groups * inverse[..., None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, np.float32(code_min), np.float32(code_max), out=scaled)
    return scaled.astype(np.int8), scales.view(np.uint16)
