"""Writing whole files: golden bytes, streaming in pieces, refusals, and nothing left behind."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact.format import (
    ObjectDescriptor,
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
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import GROUPED, encode_direct, encode_matrix, encode_rows
from tests.support.artifact_files import as_version_1
from tests.support.golden import GOLDEN

FOLDER = GOLDEN / "artifact"
FILES: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text())["files"]
WRITABLE = [entry for entry in FILES if entry["file"] != "unusual.ninfer"]
NOTE = ResourceSpec("note", 3)
MATRIX = TensorSpec("matrix", (6, 130), TensorFormat.Q5)
VALUES = np.random.default_rng(3).standard_normal((6, 130)).astype(np.float32)


def specs_of(objects: list[dict[str, Any]]) -> list[TensorSpec | ResourceSpec]:
    return [
        TensorSpec(item["name"], tuple(item["shape"]), TensorFormat(item["format"]))
        if item["kind"] == "tensor"
        else ResourceSpec(item["name"], item["bytes"])
        for item in objects
    ]


def finished(path: Path) -> bytes:
    """Write the small example and return the file's bytes."""
    with ArtifactWriter(path, "m", "w", plan_layout([NOTE, MATRIX])) as writer:
        writer.write("note", 0, b"abc")
        writer.write_rows("matrix", 0, encode_rows(TensorFormat.Q5, VALUES))
    return path.read_bytes()


@pytest.mark.parametrize("entry", WRITABLE, ids=lambda entry: entry["file"])
def test_golden_file_is_reproduced_from_its_sources(entry: dict[str, Any], tmp_path: Path) -> None:
    golden = FOLDER / "files" / entry["file"]
    sources: dict[str, Any] = {}
    if golden.with_suffix(".npz").exists():
        with np.load(golden.with_suffix(".npz")) as arrays:
            sources = dict(arrays)
    path = tmp_path / "out.ninfer"

    objects = plan_layout(specs_of(entry["objects"]))
    with (
        ArtifactReader.open(golden) as reader,
        ArtifactWriter(path, entry["model_id"], "groupwise-int", objects) as writer,
    ):
        for item in objects:
            writer.write(item.name, 0, payload_of(item, sources, reader))

    assert as_version_1(path.read_bytes()) == golden.read_bytes()


def payload_of(
    item: ObjectDescriptor, sources: dict[str, Any], reader: ArtifactReader
) -> np.ndarray[Any, Any]:
    """Encode a golden source; resources and the lone scalar have only their own bytes."""
    if item.name not in sources:
        return reader.view(item.name)
    assert isinstance(item, TensorDescriptor)
    if item.format in GROUPED:
        return encode_matrix(item.format, sources[item.name])
    return encode_direct(item.format, sources[item.name])


def test_golden_version_2_file_is_reproduced_with_its_gap(tmp_path: Path) -> None:
    golden = FOLDER / "later" / "v2.ninfer"
    path = tmp_path / "out.ninfer"

    with (
        ArtifactReader.open(golden) as reader,
        ArtifactWriter(path, reader.model_id, "bf16", reader.objects) as writer,
    ):
        for item in reader.objects:
            writer.write(item.name, 0, reader.view(item.name))

    assert path.read_bytes() == golden.read_bytes()


def test_row_blocks_in_any_order_give_the_same_file(tmp_path: Path) -> None:
    expected = finished(tmp_path / "whole.ninfer")
    path = tmp_path / "pieces.ninfer"

    with ArtifactWriter(path, "m", "w", plan_layout([NOTE, MATRIX])) as writer:
        for first in (4, 0, 2):
            writer.write_rows(
                "matrix", first, encode_rows(TensorFormat.Q5, VALUES[first : first + 2])
            )
        for index in (2, 0, 1):
            writer.write("note", index, b"abc"[index : index + 1])

    assert path.read_bytes() == expected


@st.composite
def specs(draw: st.DrawFn) -> list[TensorSpec | ResourceSpec]:
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True))
    clean = [name.replace("\0", "0") for name in names]
    result: list[TensorSpec | ResourceSpec] = []
    for index, name in enumerate(clean):
        unique, format = f"{index}{name}", draw(st.sampled_from([*TensorFormat, None]))
        if format is None:
            result.append(ResourceSpec(unique, draw(st.integers(1, 700))))
        else:
            rank = 2 if format in GROUPED else draw(st.integers(0, 3))
            shape = draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
            result.append(TensorSpec(unique, tuple(shape), format))
    return result


@settings(max_examples=25, deadline=None)
@given(specs=specs(), seed=st.integers(0, 2**32 - 1))
def test_whatever_is_planned_reads_back(
    specs: list[TensorSpec | ResourceSpec], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("round_trip") / "out.ninfer"
    rng, objects = np.random.default_rng(seed), plan_layout(specs)
    contents = {item.name: rng.integers(0, 256, item.nbytes, np.uint8) for item in objects}

    with ArtifactWriter(path, "m", "w", objects) as writer:
        for item in objects:
            writer.write(item.name, 0, contents[item.name])

    with ArtifactReader.open(path) as reader:
        assert reader.objects == objects
        assert all(
            reader.view(name).tobytes() == content.tobytes() for name, content in contents.items()
        )
        assert path.stat().st_size == reader.payload_start + objects[-1].offset + objects[-1].nbytes


def test_plan_takes_the_first_allowed_offsets() -> None:
    planned = plan_layout(
        [
            ResourceSpec("a", 3),
            ResourceSpec("b", 4),
            TensorSpec("c", (3,), TensorFormat.FP32),
            TensorSpec("d", (1, 1), TensorFormat.Q4),
            ResourceSpec("e", 1),
        ]
    )

    assert [(item.offset, item.nbytes) for item in planned] == [
        (0, 3),
        (3, 4),
        (256, 12),
        (512, 260),
        (772, 1),
    ]


def test_nothing_carries_the_final_name_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.ninfer"

    with ArtifactWriter(path, "m", "w", plan_layout([NOTE])) as writer:
        writer.write("note", 0, b"abc")
        assert not path.exists()

    assert list(tmp_path.iterdir()) == [path]
    assert writer.state is WriterState.COMMITTED


def test_success_replaces_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "out.ninfer"
    path.write_bytes(b"former" * 100_000)

    content = finished(path)

    assert content == finished(tmp_path / "other.ninfer")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "other.ninfer", path]


def test_short_writes_of_the_system_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = finished(tmp_path / "whole.ninfer")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))

    assert finished(tmp_path / "short.ninfer") == expected


def test_name_as_long_as_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 248 + ".ninfer")

    finished(path)

    assert list(tmp_path.iterdir()) == [path]


def test_permissions_follow_the_process_mask(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        finished(tmp_path / "out.ninfer")
    finally:
        os.umask(mask)

    assert (tmp_path / "out.ninfer").stat().st_mode & 0o777 == 0o640
