"""Columns that attention is asked for: queries, projections and places, on any device."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Columns:
    """Queries [T, heads, D], whole projected columns, and which position they stand at."""

    queries: F32
    projected: F32
    table_rows: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]

    def take(self, columns: Any) -> "Columns":
        return Columns(*(getattr(self, f.name)[columns] for f in dataclasses.fields(self)))


def random_columns(
    num_heads: int, num_kv_heads: int, head_dim: int, places: list[tuple[int, int]], seed: int = 0
) -> Columns:
    """Columns at places (row of the block table, position); all but the gates is NaN."""
    rng = np.random.default_rng(seed)
    width = 2 * (num_heads + num_kv_heads) * head_dim
    projected = np.full((len(places), width), np.nan, np.float32)
    gate = (num_heads + num_kv_heads) * head_dim
    gates = rng.normal(0, 2, (len(places), num_heads * head_dim))
    projected[:, gate : gate + num_heads * head_dim] = gates
    return Columns(
        rng.normal(0, 1, (len(places), num_heads, head_dim)).astype(np.float32),
        projected,
        np.array([row for row, _ in places], np.int32),
        np.array([position for _, position in places], np.int32),
    )
