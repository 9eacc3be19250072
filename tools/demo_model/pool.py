"""Training rows on the device: grows while shards appear, deals each row once before any twice.

Everything stays in the device's memory; five bytes a token make that cheap.
"""

import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tools.demo_model.packing import load_rows

WEIGHTS: Final = (0.0, 0.1, 1.0)
"""Loss weight of the next token by its kind."""

Batch = tuple[Tensor, Tensor, Tensor]
"""Tokens, positions and weights, each [rows, tokens]."""


class Pool:
    """Rows read from a folder of shards."""

    def __init__(
        self, folder: Path, device: torch.device, num_probes: int, seed: int, capacity: int
    ) -> None:
        """Read nothing yet.

        Args:
            folder: of the shards.
            device: where rows live.
            num_probes: rows of the first shard that are kept from training.
            seed: of the order.
            capacity: most rows to hold.
        """
        self.folder, self.device, self.num_probes = folder, device, num_probes
        self.order = np.random.default_rng(seed)
        self.capacity = capacity
        self.seen: list[str] = []
        self.store: list[Tensor] = []
        self.probes: Batch | None = None
        self.fresh = np.zeros(0, np.int64)
        self.num_rows = 0
        self.epochs = 0
        self.levels = torch.tensor(WEIGHTS, device=device)

    def refresh(self, limit: int = 4) -> int:
        """Take up at most ``limit`` new shards and return how many there were."""
        if self.num_rows >= self.capacity:
            return 0
        seen = set(self.seen)
        paths = sorted(p for p in self.folder.glob("rows-*.npz") if p.name not in seen)
        for path in paths[:limit]:
            first = self.num_rows
            self._take(path)
            self.fresh = np.concatenate((self.fresh, np.arange(first, self.num_rows)))
        if paths:
            # Mixing new rows with those not yet dealt keeps shards from coming in turn.
            self.fresh = self.order.permutation(self.fresh)
        return len(paths)

    def state(self) -> dict[str, Any]:
        """Return what a later run needs to deal on in the same order."""
        return {
            "seen": list(self.seen),
            "fresh": torch.from_numpy(self.fresh.copy()),
            "epochs": self.epochs,
            "order": self.order.bit_generator.state,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Read the shards of a state again and go on from it; the pool must be empty."""
        for name in state["seen"]:
            self._take(self.folder / name)
        self.fresh = state["fresh"].cpu().numpy().copy()
        self.epochs = state["epochs"]
        self.order.bit_generator.state = state["order"]

    def _take(self, path: Path) -> None:
        self.seen.append(path.name)
        rows = load_rows(path)
        arrays = [
            torch.from_numpy(array.astype(kind)).to(self.device)
            for array, kind in (
                (rows.tokens, np.int16),
                (rows.positions, np.int16),
                (rows.kinds, np.uint8),
            )
        ]
        if self.probes is None:
            kept = min(self.num_probes, len(arrays[0]) // 2)
            self.probes = self._batch([array[:kept] for array in arrays])
            arrays = [array[kept:] for array in arrays]
        self._append(arrays)

    def _append(self, arrays: list[Tensor]) -> None:
        if not self.store:
            shape = (self.capacity, arrays[0].shape[1])
            self.store = [torch.empty(shape, dtype=a.dtype, device=self.device) for a in arrays]
        first = self.num_rows
        self.num_rows = min(first + len(arrays[0]), self.capacity)
        for held, array in zip(self.store, arrays, strict=True):
            held[first : self.num_rows] = array[: self.num_rows - first]

    def wait(self, num_rows: int) -> None:
        """Block until there are enough rows."""
        while self.num_rows < num_rows:
            if not self.refresh():
                time.sleep(0.2)

    def deal(self, count: int) -> Batch:
        """Return the next rows."""
        while len(self.fresh) < count:
            self.epochs += 1
            self.fresh = np.concatenate((self.order.permutation(self.num_rows), self.fresh))
        index = torch.from_numpy(self.fresh[-count:].copy()).to(self.device, non_blocking=True)
        self.fresh = self.fresh[:-count]
        return self._batch([array[index] for array in self.store])

    def _batch(self, arrays: list[Tensor]) -> Batch:
        tokens, positions, kinds = (array.long() for array in arrays)
        return tokens, positions, self.levels[kinds]
