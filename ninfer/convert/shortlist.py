"""Which vocabulary rows the short proposal head has, and in which order.

Source: artifact contract, section 11. Knows no tensor; the ranking file is a table of little-endian
int64 counts, ``vocab_rows`` wide, of which the first row is used.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ninfer.errors import CheckpointError
from ninfer.models.qwen_hybrid.inventory import SHORTLIST_ROWS

_COUNT_BYTES: Final = 8

Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]


def read_ranking(path: Path, vocab_rows: int) -> Counts:
    """Read the total counts of a ranking file.

    Raises:
        CheckpointError: the size is not that of whole rows.
        OSError: the file cannot be read.
    """
    row_bytes = _COUNT_BYTES * vocab_rows
    size = path.stat().st_size
    if size == 0 or size % row_bytes:
        raise CheckpointError(
            f"{path} has {size} bytes; a ranking has a positive multiple of {row_bytes}",
            field="ranking",
        )
    with path.open("rb") as stream:
        return np.frombuffer(stream.read(row_bytes), "<i8")


def select_shortlist(
    counts: Counts, forced: Iterable[int], tokenizer_size: int, num_rows: int
) -> Ids:
    """Choose rows by count, keeping the forced ids.

    Args:
        counts: [at least tokenizer_size] occurrences of each id.
        forced: ids that must be there; those outside the tokenizer's range are ignored.
        tokenizer_size: ids below this one are candidates.
        num_rows: rows wanted, at most ``tokenizer_size``.

    Returns:
        [num_rows] ids by descending count; on equal counts lower ids first, chosen before forced.
    """
    must = np.array(sorted({i for i in forced if 0 <= i < tokenizer_size}), np.int64)
    if len(must) >= num_rows:
        return must[_by_count(counts[must])][:num_rows].astype(np.int32)
    candidates = _by_count(counts[:tokenizer_size])
    free = candidates[~np.isin(candidates, must)]
    chosen = np.concatenate([free[: num_rows - len(must)], must])
    return chosen[_by_count(counts[chosen])].astype(np.int32)


def default_shortlist(forced: Iterable[int], tokenizer_size: int, num_rows: int) -> Ids:
    """Choose rows without a ranking: the lowest ids and the forced ones, in id order.

    Ids of a byte-pair vocabulary are roughly in order of frequency.
    """
    no_counts = np.zeros(tokenizer_size, np.int64)
    return np.sort(select_shortlist(no_counts, forced, tokenizer_size, num_rows))


def shortlist_rows(tokenizer_size: int) -> int:
    """Rows of the short head."""
    return min(SHORTLIST_ROWS, tokenizer_size)


def _by_count(counts: Counts) -> npt.NDArray[np.int64]:
    # The negative of the smallest integer is itself; reversing twice keeps the sort stable.
    order = np.argsort(counts[::-1], kind="stable")[::-1]
    return (len(counts) - 1 - order).astype(np.int64)
