"""What a token choice in binary32 must find: the oracle's token, and whether it is clear.

A choice is clear when it stays the same, by a margin, where the bounds of filters move a little.
Knows no device.
"""

import dataclasses

import numpy as np

from tests.support.oracles.sampling import draw, penalised, probabilities
from tests.support.sampling_rows import Row, in_f32

MARGIN = 1e-3
"""Scores closer than this may swap with binary32 arithmetic."""
NUDGE = 3e-5
"""Bounds of filters may be this much off, relative."""


def oracle(row: Row, addressable: int) -> tuple[int, bool]:
    """The chosen id, and whether binary32 must find it."""
    settings = in_f32(row.settings)
    logits = row.logits.astype(np.float64)
    allowed = row.permit() & (np.arange(len(logits)) < addressable)
    if settings.temperature == 0.0:
        scores = np.where(allowed, penalised(logits, row.count(), settings), -np.inf)
        best = int(np.argmax(scores))
        near = np.abs(scores - scores[best]) < 1e-5
        return best, bool((scores[near] == scores[best]).all())
    nudges = (0.0, -NUDGE, NUDGE) if settings.top_p < 1 or settings.min_p > 0 else (0.0,)
    found = []
    for nudge in nudges:
        near_settings = dataclasses.replace(
            settings,
            top_p=settings.top_p * (1 + nudge) if settings.top_p < 1 else 1.0,
            min_p=settings.min_p * (1 + nudge) if settings.min_p < 1 else 1.0,
        )
        p = probabilities(logits, row.count(), allowed, near_settings)
        found.append(draw(p, row.seed, row.position))
    token = found[0][0]
    return token, all(other == token and margin > MARGIN for other, margin in found)
