"""Rows are dealt once before any twice, and in the same order after a restart."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tools.demo_model import checkpoint
from tools.demo_model.packing import pack, save_rows
from tools.demo_model.pool import Pool

LENGTH = 8
CPU = torch.device("cpu")


def write_shards(folder: Path, first: int, count: int) -> None:
    """Shards of four rows; row i of shard s is filled with the token 4 s + i + 1."""
    for shard in range(first, first + count):
        rows = pack([([4 * shard + i + 1] * LENGTH, [1] * LENGTH) for i in range(4)], LENGTH)
        save_rows(folder / f"rows-{shard:05d}.npz", rows)


def opened(folder: Path, num_probes: int = 0) -> Pool:
    return Pool(folder, CPU, num_probes, seed=3, capacity=100)


def deal(pool: Pool, count: int) -> list[int]:
    tokens, positions, weights = pool.deal(count)
    assert positions.tolist() == [list(range(LENGTH))] * count
    assert torch.equal(weights[:, :-1], torch.ones(count, LENGTH - 1))
    assert torch.all(tokens == tokens[:, :1])
    return [int(token) for token in tokens[:, 0]]


def test_every_row_is_dealt_once_before_any_twice(tmp_path: Path) -> None:
    write_shards(tmp_path, 0, 3)
    pool = opened(tmp_path)
    pool.wait(12)

    first = [token for _ in range(4) for token in deal(pool, 3)]
    second = [token for _ in range(4) for token in deal(pool, 3)]

    assert sorted(first) == sorted(second) == list(range(1, 13))
    assert first != second
    assert pool.epochs == 1


def test_rows_that_appear_later_are_dealt_in_the_same_pass(tmp_path: Path) -> None:
    write_shards(tmp_path, 0, 2)
    pool = opened(tmp_path)
    pool.wait(8)
    dealt = deal(pool, 4)
    write_shards(tmp_path, 2, 1)

    assert pool.refresh() == 1

    dealt += deal(pool, 8)
    assert sorted(dealt) == list(range(1, 13))


def test_probes_are_kept_from_training(tmp_path: Path) -> None:
    write_shards(tmp_path, 0, 1)
    pool = opened(tmp_path, num_probes=2)
    pool.wait(2)

    assert pool.probes is not None
    kept = pool.probes[0][:, 0].tolist()
    dealt = deal(pool, 2) + deal(pool, 2)

    assert len(kept) == 2
    assert set(kept) & set(dealt) == set()


def test_a_pool_restored_from_a_checkpoint_deals_on_in_the_same_order(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    write_shards(folder, 0, 3)
    pool = opened(folder, num_probes=1)
    pool.wait(8)
    for _ in range(5):
        deal(pool, 3)
    checkpoint.save(tmp_path, {"pool": pool.state()})
    # A shard that came after the checkpoint is new to both.
    write_shards(folder, 3, 1)

    again = opened(folder, num_probes=1)
    saved = checkpoint.load(tmp_path, CPU)
    assert saved is not None
    again.restore(saved["pool"])

    for _ in range(3):
        assert deal(again, 3) == deal(pool, 3)
    assert again.refresh() == pool.refresh() == 1
    for _ in range(9):
        assert deal(again, 3) == deal(pool, 3)
    assert again.epochs == pool.epochs
    assert np.array_equal(again.fresh, pool.fresh)
