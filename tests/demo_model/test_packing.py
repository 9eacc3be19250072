"""Rows hold whole documents, each token once, and say what predicting the next one counts."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.demo_model import packing
from tools.demo_model.packing import GIVEN, IGNORED, SAID, DataPlan, load_rows, pack, produce

LENGTH = 24

documents = st.lists(
    st.lists(st.tuples(st.integers(1, 60_000), st.booleans()), min_size=1, max_size=LENGTH),
    min_size=1,
    max_size=30,
)


def counted(seed: int, start: int, count: int) -> list[tuple[list[int], list[int]]]:
    """A source: conversation i is i + 1 three times, the last two said by the assistant."""
    return [([seed + i + 1] * 3, [0, 1, 1]) for i in range(start, start + count)]


def unpack(rows: packing.Rows) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Tokens and kinds of each document in rows, found by their positions alone."""
    found = []
    for tokens, positions, kinds in zip(rows.tokens, rows.positions, rows.kinds, strict=True):
        starts = [i for i in range(LENGTH) if positions[i] == 0 and tokens[i] != 0]
        ends = [*starts[1:], int(np.count_nonzero(tokens))]
        for start, end in zip(starts, ends, strict=True):
            assert positions[start:end].tolist() == list(range(end - start))
            found.append((tuple(tokens[start:end].tolist()), tuple(kinds[start:end].tolist())))
    return found


@given(documents)
@settings(max_examples=60, deadline=None)
def test_packed_rows_hold_every_document_once_with_kinds_of_the_next_token(
    texts: list[list[tuple[int, bool]]],
) -> None:
    conversations = [
        ([token for token, _ in text], [int(is_said) for _, is_said in text]) for text in texts
    ]

    rows = pack(conversations, LENGTH)

    wanted = [
        (tuple(ids), (*(SAID if said else GIVEN for said in mask[1:]), IGNORED))
        for ids, mask in conversations
    ]
    assert sorted(unpack(rows)) == sorted(wanted)


def test_full_rows_come_of_documents_that_fit_together() -> None:
    sizes = [20, 4, 12, 12, 23, 1]

    rows = pack([([7] * size, [0] * size) for size in sizes], LENGTH)

    assert rows.tokens.shape == (3, LENGTH)
    assert np.all(rows.tokens == 7)


def test_what_exceeds_a_row_is_cut_off() -> None:
    rows = pack([(list(range(1, LENGTH + 9)), [1] * (LENGTH + 8))], LENGTH)

    assert rows.tokens.tolist() == [list(range(1, LENGTH + 1))]
    assert rows.kinds[0, -1] == IGNORED


def plan(folder: Path, capacity: int) -> DataPlan:
    return DataPlan(f"{__name__}:counted", folder, 100, LENGTH, 16, capacity)


def test_processes_share_the_shards_and_stop_when_there_is_enough(tmp_path: Path) -> None:
    for index in range(2):
        produce(plan(tmp_path, capacity=6), index, 2)

    # A shard has two rows; the fourth begins where six rows are there, the fifth would be behind.
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"rows-{index:05d}.npz" for index in range(4)]
    shards = [load_rows(tmp_path / name) for name in names]
    tokens = sorted({int(t) for shard in shards for t in np.unique(shard.tokens) if t})
    assert tokens == list(range(101, 101 + 4 * 16))


def test_shards_that_are_there_are_not_made_again(tmp_path: Path) -> None:
    existing = tmp_path / "rows-00000.npz"
    existing.write_bytes(b"as it was")

    produce(plan(tmp_path, capacity=2), 0, 2)

    assert existing.read_bytes() == b"as it was"


def test_a_data_process_reads_its_plan_from_the_command_line(tmp_path: Path) -> None:
    process = plan(tmp_path, capacity=1).start(0, 1)
    try:
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()

    assert load_rows(tmp_path / "rows-00000.npz").tokens.shape == (2, LENGTH)
