"""Selection of the short proposal head against the golden cases."""

from pathlib import Path

import numpy as np
import pytest

from ninfer.convert.recipe import RowRange, gathered_rows
from ninfer.convert.shortlist import (
    default_shortlist,
    read_ranking,
    select_shortlist,
    shortlist_rows,
)
from ninfer.errors import CheckpointError
from tests.support.golden import GOLDEN

CASES = [
    "all_rows",
    "all_zero",
    "forced_fill_all",
    "forced_low",
    "forced_outside_ignored",
    "ties",
]


@pytest.mark.parametrize("case", CASES)
def test_selection_equals_the_golden_one(case: str) -> None:
    golden = np.load(GOLDEN / "artifact" / "transforms" / "shortlist.npz")
    counts = golden[f"{case}__counts"]

    selected = select_shortlist(
        counts, golden[f"{case}__forced"].tolist(), len(counts), int(golden[f"{case}__n"])
    )

    assert selected.dtype == np.int32
    assert selected.tolist() == golden[f"{case}__selected"].tolist()


def test_rows_beyond_the_tokenizer_are_no_candidates() -> None:
    counts = np.array([1, 2, 3, 99, 98], np.int64)

    assert select_shortlist(counts, [4], 3, 2).tolist() == [2, 1]


def test_smallest_count_sorts_last() -> None:
    counts = np.array([np.iinfo(np.int64).min, 0, 5], np.int64)

    assert select_shortlist(counts, [], 3, 3).tolist() == [2, 1, 0]


def test_without_ranking_the_lowest_ids_and_the_forced_ones_come_in_order() -> None:
    assert default_shortlist([9, 7, 2], 10, 6).tolist() == [0, 1, 2, 3, 7, 9]


def test_without_ranking_a_small_vocabulary_is_complete() -> None:
    assert default_shortlist([3, 5], 8, shortlist_rows(8)).tolist() == list(range(8))


def test_published_shortlist_has_131072_rows() -> None:
    assert shortlist_rows(248077) == 131072


def test_ranking_uses_the_first_row_only(tmp_path: Path) -> None:
    path = tmp_path / "ranking.bin"
    np.arange(12, dtype="<i8").tofile(path)

    assert read_ranking(path, 4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("nbytes", [0, 31, 33])
def test_ranking_of_another_size_is_refused(tmp_path: Path, nbytes: int) -> None:
    path = tmp_path / "ranking.bin"
    path.write_bytes(bytes(nbytes))

    with pytest.raises(CheckpointError, match=f"has {nbytes} bytes; .* multiple of 32"):
        read_ranking(path, 4)


def test_neighbouring_rows_are_read_together() -> None:
    rows = gathered_rows("head", np.array([4, 5, 6, 2, 1, 9], np.int32))

    assert rows.ranges == (
        RowRange("head", 4, 3),
        RowRange("head", 2, 1),
        RowRange("head", 1, 1),
        RowRange("head", 9, 1),
    )
