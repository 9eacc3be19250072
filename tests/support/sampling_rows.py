"""Rows of a sampling round as a test describes them, and the round itself on a guarded bench."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.ops import sampling
from ninfer.ops.sampling import SamplerRows, mask_words
from ninfer.tensor import DType
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.sampling import Settings

F32 = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int32]
Permitted = npt.NDArray[np.bool_]

MARGIN = 1e-4
"""Gumbel scores closer than this may swap with the rounding of logits."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a round; its settings are what binary32 makes of them."""

    logits: F32
    settings: Settings = dataclasses.field(default_factory=Settings)
    seed: int = 1
    position: int = 0
    counts: Counts | None = None
    permitted: Permitted | None = None

    def count(self) -> Counts:
        return np.zeros(len(self.logits), np.int32) if self.counts is None else self.counts

    def permit(self) -> Permitted:
        return np.ones(len(self.logits), bool) if self.permitted is None else self.permitted


def choose(
    rows: Sequence[Row],
    addressable: int,
    num_threads: int = 1,
    make_bench: Callable[..., Any] = GuardedBench,
) -> list[int]:
    """Run the op; row b uses slot ``2 b + 1``, the other slots hold values that would matter."""
    width = len(rows[0].logits)
    counts = np.full((2 * len(rows) + 1, width), 1 << 20, np.int32)
    counts[1::2] = [row.count() for row in rows]
    bits = np.ones((len(rows), mask_words(width) * 32), bool)
    bits[:, :width] = [row.permit() for row in rows]
    mask = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    with make_bench(num_threads) as bench:
        tokens = bench.out((len(rows),), DType.I32)
        names = ("temperature", "top_p", "min_p", "presence", "frequency")
        settings = {
            name: bench.put(np.array([getattr(r.settings, name) for r in rows], np.float32))
            for name in names
        }
        seeds = [(row.seed & 0xFFFFFFFF, row.seed >> 32) for row in rows]

        sampling.sample(
            bench.ctx,
            bench.put(np.array([row.logits for row in rows])),
            SamplerRows(
                **settings,
                top_k=bench.put(np.array([row.settings.top_k for row in rows], np.int32)),
                seeds=bench.put(np.array(seeds, np.uint32)),
                positions=bench.put(np.array([row.position for row in rows], np.int32)),
            ),
            bench.put(counts),
            bench.put(np.arange(len(rows), dtype=np.int32) * 2 + 1),
            bench.put(mask),
            addressable,
            tokens,
        )

        bench.check()
        return [int(token) for token in bench.read_tensor(tokens)]


def in_f32(settings: Settings) -> Settings:
    """The settings as the device reads them."""
    values: dict[str, Any] = {
        name: float(np.float32(value)) for name, value in dataclasses.asdict(settings).items()
    }
    return Settings(**(values | {"top_k": settings.top_k}))
