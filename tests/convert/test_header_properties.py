"""Damaged headers and arbitrary cuts, tried at random."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.convert import assembly
from ninfer.convert.assembly import blocks
from ninfer.convert.checkpoint import SourceCheckpoint
from ninfer.convert.plan import PlannedTensor
from ninfer.convert.recipe import RowRange, Rows
from ninfer.convert.safetensors_header import read_header
from ninfer.errors import CheckpointError
from ninfer.models.qwen_hybrid.inventory import ExpectedObject, ObjectGroup
from ninfer.tensor import TensorFormat
from tests.support.golden import GOLDEN

_ENTRIES = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
}
_HEADER = json.dumps(_ENTRIES).encode()
_FILE = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(26)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers") / "x.safetensors"


def _read(path: Path, content: bytes) -> bool:
    """Whether a file of this content is accepted."""
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        read_header(path, descriptor)
    except CheckpointError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_undamaged_file_is_accepted(scratch: Path) -> None:
    assert _read(scratch, _FILE)


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 7 + len(_HEADER)), byte=st.integers(0, 255))
def test_one_wrong_byte_is_refused_or_harmless(scratch: Path, position: int, byte: int) -> None:
    content = bytearray(_FILE)
    content[position] = byte

    accepted = _read(scratch, bytes(content))

    # A changed letter of a name still describes the same bytes; a changed length never does.
    is_changed_length = position < 8 and bytes(content) != _FILE
    assert not (accepted and is_changed_length)


@settings(max_examples=100, deadline=None)
@given(length=st.integers(0, len(_FILE) - 1))
def test_every_cut_is_refused(scratch: Path, length: int) -> None:
    assert not _read(scratch, _FILE[:length])


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200))
def test_noise_is_refused(scratch: Path, content: bytes) -> None:
    assert not _read(scratch, content)


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[SourceCheckpoint]:
    with SourceCheckpoint(GOLDEN / "tiny-dense" / "checkpoint") as opened:
        yield opened


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    columns=st.integers(1, 50),
    limit=st.integers(1, 400),
)
def test_blocks_cover_every_row_once_in_order(
    checkpoint: SourceCheckpoint, counts: list[int], columns: int, limit: int
) -> None:
    ranges = tuple(RowRange(f"s{i}", 7 * i, count) for i, count in enumerate(counts))
    rows = [(r.source, row) for r in ranges for row in range(r.first, r.first + r.count)]
    shape = (len(rows), columns)
    wanted = ExpectedObject("text/x", shape, TensorFormat.BF16, ObjectGroup.TEXT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "BLOCK_ELEMENTS", limit)
        cut = list(blocks(PlannedTensor(wanted, Rows(ranges), checkpoint)))

    seen = [
        (r.source, row) for b in cut for r in b.ranges for row in range(r.first, r.first + r.count)
    ]
    sizes = [sum(r.count for r in b.ranges) for b in cut]
    assert seen == rows
    assert [b.first_row for b in cut] == [sum(sizes[:i]) for i in range(len(cut))]
    assert max(sizes) <= max(1, limit // columns)
