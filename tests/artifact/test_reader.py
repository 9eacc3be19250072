"""Reading whole files: golden content, both versions, lookups, and what opening does not do."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact.format import (
    ArtifactCode,
    ArtifactError,
    Layout,
    ResourceDescriptor,
    TensorDescriptor,
)
from ninfer.artifact.reader import ArtifactReader
from ninfer.errors import InvariantError
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import DirectGeometry, RowSplitGeometry, decode_direct
from tests.support.artifact_files import example, frame, spell
from tests.support.golden import GOLDEN

FOLDER = GOLDEN / "artifact"
FILES: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text())["files"]
TIB = 1 << 40


def as_index_entry(
    descriptor: TensorDescriptor | ResourceDescriptor, content: bytes
) -> dict[str, Any]:
    """A descriptor in the words of the golden index."""
    if isinstance(descriptor, TensorDescriptor):
        kind: dict[str, Any] = {
            "kind": "tensor",
            "shape": list(descriptor.shape),
            "format": descriptor.format.value,
            "layout": descriptor.layout.value,
        }
    else:
        kind = {"kind": "resource", "encoding": "raw-bytes-v1"}
    return kind | {
        "name": descriptor.name,
        "offset": descriptor.offset,
        "bytes": descriptor.nbytes,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


@pytest.fixture
def example_path(tmp_path: Path) -> Path:
    path = tmp_path / "example.ninfer"
    path.write_bytes(example())
    return path


@pytest.mark.parametrize("entry", FILES, ids=lambda entry: entry["file"])
def test_golden_file_has_the_indexed_objects_and_bytes(entry: dict[str, Any]) -> None:
    with ArtifactReader.open(FOLDER / "files" / entry["file"]) as reader:
        found = [as_index_entry(item, reader.view(item.name).tobytes()) for item in reader.objects]

        assert (reader.version, reader.model_id, reader.weights_id) == (1, entry["model_id"], None)
        assert (reader.payload_start, reader.file_bytes) == (
            entry["payload_offset"],
            entry["bytes"],
        )
        assert found == entry["objects"]


@pytest.mark.parametrize(("version", "weights_id"), [(1, None), (2, "bf16")])
def test_both_versions_frame_the_same_content(version: int, weights_id: str | None) -> None:
    with (
        np.load(FOLDER / "later" / "framing_expected.npz") as expected,
        ArtifactReader.open(FOLDER / "later" / f"v{version}.ninfer") as reader,
    ):
        tensor = reader.find("interleaved")
        assert isinstance(tensor, TensorDescriptor)
        words = decode_direct(tensor.format, reader.view(tensor.name), tensor.shape)

        assert (reader.version, reader.weights_id) == (version, weights_id)
        assert any(np.array_equal(words, expected[name]) for name in expected.files)


def test_descriptors_resolve_to_typed_geometry(example_path: Path) -> None:
    with ArtifactReader.open(example_path) as reader:
        note, norm, matrix = reader.objects

    assert note == ResourceDescriptor("note", 0, 5)
    assert isinstance(norm, TensorDescriptor)
    assert isinstance(matrix, TensorDescriptor)
    assert norm.geometry == DirectGeometry(TensorFormat.BF16, (4,))
    assert matrix.geometry == RowSplitGeometry(TensorFormat.Q5, 2, 130)
    assert (norm.layout, matrix.layout) == (Layout.CONTIGUOUS, Layout.ROW_SPLIT)


def test_unknown_names_are_not_found(example_path: Path) -> None:
    with ArtifactReader.open(example_path) as reader:
        assert reader.find("absent") is None
        with pytest.raises(ArtifactError, match="absent") as caught:
            reader.view("absent")

    assert caught.value.code == ArtifactCode.MISSING_OBJECT
    assert caught.value.object == "absent"


def test_views_cannot_be_written(example_path: Path) -> None:
    with ArtifactReader.open(example_path) as reader, pytest.raises(ValueError, match="read-only"):
        reader.view("note")[0] = 1


def test_views_outlive_the_reader_but_none_is_made_after_close(example_path: Path) -> None:
    with ArtifactReader.open(example_path) as reader:
        note = reader.view("note")
    reader.close()

    assert note.tobytes() == bytes(range(5))
    with pytest.raises(InvariantError):
        reader.view("note")


def huge_root() -> Any:
    """One tensor of a tebibyte."""
    tensor = {
        "name": "huge",
        "kind": "tensor",
        "shape": [1 << 20, 1 << 19],
        "format": "BF16",
        "layout": "contiguous-le-v1",
        "offset": 0,
        "bytes": TIB,
    }
    return {"identity": {"model_id": "m", "weights_id": "w"}, "objects": [tensor]}


def test_opening_reads_no_payload_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "huge.ninfer"
    text = spell(huge_root())
    with path.open("wb") as file:
        file.write(frame(text))
        file.truncate(4096 + TIB)  # sparse: nobody could read this by accident
    reads: list[tuple[int, int]] = []
    pread = os.pread

    def recording_pread(descriptor: int, nbytes: int, offset: int) -> bytes:
        reads.append((offset, nbytes))
        return pread(descriptor, nbytes, offset)

    monkeypatch.setattr(os, "pread", recording_pread)

    with ArtifactReader.open(path) as reader:
        view = reader.view("huge")

        assert len(view) == TIB
        assert reads == [(0, 16), (16, len(text))]
        assert resident_bytes(path) == 0
        assert view[-1] == 0
        assert resident_bytes(path) > 0


def resident_bytes(path: Path) -> int:
    """Bytes of a mapped file that this process has touched."""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("the system does not tell which mapped pages were touched")
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.endswith(str(path)))
    rss = next(line for line in lines[start:] if line.startswith("Rss:"))
    return int(rss.split()[1]) * 1024


def test_short_reads_of_the_system_are_continued(
    example_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, nbytes, at: pread(fd, min(nbytes, 7), at))

    with ArtifactReader.open(example_path) as reader:
        assert len(reader.objects) == 3


def test_failed_open_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "bad.ninfer"
    path.write_bytes(example()[:-1])
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not list open descriptors")
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(ArtifactError):
        ArtifactReader.open(path)

    assert len(os.listdir("/proc/self/fd")) == before


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "pipe.ninfer"
    os.mkfifo(path)

    with pytest.raises(OSError, match="not a regular file") as caught:
        ArtifactReader.open(path)

    assert caught.value.filename == str(path)


def test_device_is_refused() -> None:
    with pytest.raises(OSError, match="not a regular file") as caught:
        ArtifactReader.open("/dev/zero")

    assert caught.value.filename == "/dev/zero"


def test_folder_is_refused_as_a_folder(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        ArtifactReader.open(tmp_path)

    assert caught.value.filename == str(tmp_path)
