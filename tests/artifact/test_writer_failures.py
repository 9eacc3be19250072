"""Writer failures: refusals before a file exists, misuse, and nothing left behind on any error."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact.format import (
    ArtifactCode,
    ArtifactError,
    Layout,
    ObjectDescriptor,
    ResourceDescriptor,
    TensorDescriptor,
)
from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.writer import (
    ArtifactWriter,
    ResourceSpec,
    TensorSpec,
    WriterState,
    plan_layout,
)
from ninfer.errors import IllegalMove, InvariantError
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import encode_rows

NOTE = ResourceSpec("note", 3)
MATRIX = TensorSpec("matrix", (6, 130), TensorFormat.Q5)
VALUES = np.random.default_rng(3).standard_normal((6, 130)).astype(np.float32)


def interrupt(writer: ArtifactWriter) -> None:
    writer.write("note", 0, b"abc")
    raise KeyboardInterrupt


def test_failure_keeps_the_former_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.ninfer"
    path.write_bytes(b"former")

    writer = ArtifactWriter(path, "m", "w", plan_layout([NOTE]))
    with pytest.raises(KeyboardInterrupt), writer:
        interrupt(writer)

    assert writer.state is WriterState.DISCARDED
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"former"


def full_disk(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArtifactWriter(tmp_path / "out.ninfer", "m", "w", plan_layout([NOTE]))
    monkeypatch.setattr(os, "pwrite", full_disk)

    with pytest.raises(OSError, match="No space left"), writer:
        writer.write("note", 0, b"abc")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_full_disk_at_the_start_leaves_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, full_disk)

    with pytest.raises(OSError, match="No space left"):
        ArtifactWriter(tmp_path / "out.ninfer", "m", "w", plan_layout([NOTE]))

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failure_at_the_end_leaves_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArtifactWriter(tmp_path / "out.ninfer", "m", "w", plan_layout([NOTE]))
    writer.write("note", 0, b"abc")
    monkeypatch.setattr(os, call, full_disk)

    with pytest.raises(OSError, match="No space left"):
        writer.commit()

    assert writer.state is WriterState.DISCARDED
    assert list(tmp_path.iterdir()) == []


def test_folder_in_the_place_of_the_file_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.ninfer"
    path.mkdir()
    writer = ArtifactWriter(path, "m", "w", plan_layout([NOTE]))
    writer.write("note", 0, b"abc")

    with pytest.raises(OSError, match="directory"):
        writer.commit()

    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("skip", "missing"), [("base", 0), ("high", 768), ("scales", 1024)])
def test_missing_plane_is_noticed_at_the_end(skip: str, missing: int, tmp_path: Path) -> None:
    planes = encode_rows(TensorFormat.Q5, VALUES)
    objects = plan_layout([MATRIX])
    assert isinstance(objects[0], TensorDescriptor)
    writer = ArtifactWriter(tmp_path / "out.ninfer", "m", "w", objects)
    for field, span in zip(planes._fields, objects[0].value_spans, strict=True):
        if field != skip:
            writer.write("matrix", span.offset, getattr(planes, field))

    with pytest.raises(InvariantError, match=f"byte {missing} of"):
        writer.commit()

    assert list(tmp_path.iterdir()) == []


def test_bytes_come_once_and_inside_a_planned_object(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "out.ninfer", "m", "w", plan_layout([NOTE])) as writer:
        writer.write("note", 1, b"b")
        with pytest.raises(InvariantError, match="twice"):
            writer.write("note", 0, b"abc")
        with pytest.raises(InvariantError, match="leave"):
            writer.write("note", 2, b"cd")
        with pytest.raises(InvariantError, match="leave"):
            writer.write("note", -1, b"")
        with pytest.raises(InvariantError, match="planned"):
            writer.write("other", 0, b"a")
        with pytest.raises(InvariantError, match="grouped"):
            writer.write_rows("note", 0, encode_rows(TensorFormat.Q4, VALUES))
        writer.write("note", 0, b"a")
        writer.write("note", 2, np.array([99], np.uint8))

    with ArtifactReader.open(tmp_path / "out.ninfer") as reader:
        assert reader.view("note").tobytes() == b"abc"


def test_planes_of_another_matrix_are_refused(tmp_path: Path) -> None:
    writer = ArtifactWriter(tmp_path / "out.ninfer", "m", "w", plan_layout([MATRIX]))

    with pytest.raises(InvariantError, match="another format"):
        writer.write_rows("matrix", 0, encode_rows(TensorFormat.Q6, VALUES))

    writer.discard()


def test_ended_writer_moves_no_further(tmp_path: Path) -> None:
    writer = ArtifactWriter(tmp_path / "out.ninfer", "m", "w", plan_layout([NOTE]))
    writer.write("note", 0, b"abc")
    writer.commit()
    writer.discard()

    with pytest.raises(IllegalMove):
        writer.commit()
    with pytest.raises(InvariantError, match="committed"):
        writer.write("note", 0, b"abc")
    assert (tmp_path / "out.ninfer").exists()


NORM = TensorDescriptor("norm", (4,), TensorFormat.BF16, Layout.CONTIGUOUS, 0, 8)
REFUSED: dict[str, tuple[ArtifactCode, str, str, Sequence[ObjectDescriptor]]] = {
    "no model": (ArtifactCode.MODEL_ID, "", "w", [NORM]),
    "no weights": (ArtifactCode.WEIGHTS_ID, "m", "", [NORM]),
    "lone surrogate": (ArtifactCode.MODEL_ID, "m\udc00", "w", [NORM]),
    "no objects": (ArtifactCode.OBJECTS, "m", "w", []),
    "NUL in a name": (ArtifactCode.VALUE_TYPE, "m", "w", [ResourceDescriptor("a\0", 0, 1)]),
    "empty resource": (ArtifactCode.VALUE_RANGE, "m", "w", [ResourceDescriptor("a", 0, 0)]),
    "negative offset": (ArtifactCode.VALUE_RANGE, "m", "w", [ResourceDescriptor("a", -1, 1)]),
    "empty dimension": (
        ArtifactCode.VALUE_RANGE,
        "m",
        "w",
        [TensorDescriptor("a", (0,), TensorFormat.BF16, Layout.CONTIGUOUS, 0, 1)],
    ),
    "name twice": (
        ArtifactCode.DUPLICATE_NAME,
        "m",
        "w",
        [NORM, ResourceDescriptor("norm", 8, 1)],
    ),
    "overlap": (ArtifactCode.ORDER_OR_OVERLAP, "m", "w", [NORM, ResourceDescriptor("a", 7, 1)]),
    "misaligned": (
        ArtifactCode.MISALIGNED,
        "m",
        "w",
        [TensorDescriptor("a", (4,), TensorFormat.BF16, Layout.CONTIGUOUS, 8, 8)],
    ),
    "wrong size": (
        ArtifactCode.SIZE_MISMATCH,
        "m",
        "w",
        [TensorDescriptor("a", (4,), TensorFormat.BF16, Layout.CONTIGUOUS, 0, 9)],
    ),
    "wrong layout": (
        ArtifactCode.FORMAT_LAYOUT,
        "m",
        "w",
        [TensorDescriptor("a", (4, 4), TensorFormat.Q4, Layout.CONTIGUOUS, 0, 9)],
    ),
    "end leaves u64": (
        ArtifactCode.INTEGER_OVERFLOW,
        "m",
        "w",
        [ResourceDescriptor("a", 2**64 - 1, 1)],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_plan_that_no_reader_takes_is_refused_before_any_file(case: str, tmp_path: Path) -> None:
    code, model_id, weights_id, objects = REFUSED[case]

    with pytest.raises(ArtifactError) as caught:
        ArtifactWriter(tmp_path / "out.ninfer", model_id, weights_id, objects)

    assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []
