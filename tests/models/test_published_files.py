"""Binding of files with the published directories, versions 1 and 2.

The files are sparse: directory, resources and shortlist ids are real, weights are holes.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact.format import ArtifactError
from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.writer import ResourceSpec, TensorSpec, plan_layout
from ninfer.models.qwen_hybrid.binding import bind
from ninfer.models.qwen_hybrid.inventory import ObjectGroup, inventory
from ninfer.models.registry import lookup

IDS = "text/draft_head_token_ids"
_RESOURCES = {
    "frontend/tokenizer.json": b'{"model": {"vocab": {"a": 248069}}}',
    "frontend/tokenizer_config.json": b'{"added_tokens_decoder": {"248076": {}}}',
    "frontend/chat_template.jinja": b"{{ messages }}",
    "frontend/generation_config.json": b"{}",
    "frontend/preprocessor_config.json": b"{}",
    "frontend/video_preprocessor_config.json": b"{}",
}


def _write(path: Path, model_id: str, version: int, *, is_complete: bool = True) -> Path:
    """Write a file of a fixed model; an incomplete one has the text group and nothing else."""
    package = lookup(model_id)
    assert package.geometry is not None
    expected = inventory(package, package.geometry, "groupwise-int", 248077)
    kept = [
        wanted
        for wanted in expected
        if wanted.name in _RESOURCES or wanted.group is ObjectGroup.TEXT
        or (is_complete and wanted.format is not None)
    ]  # fmt: skip
    contents = dict(_RESOURCES) | {IDS: np.arange(131072, dtype="<i4").tobytes()}
    descriptors = plan_layout(
        ResourceSpec(wanted.name, len(contents[wanted.name]))
        if wanted.format is None
        else TensorSpec(wanted.name, wanted.shape, wanted.format)
        for wanted in kept
    )
    entries: list[dict[str, object]] = [
        {"name": wanted.name, "kind": "resource", "encoding": "raw-bytes-v1"}
        if wanted.format is None
        else {
            "name": wanted.name,
            "kind": "tensor",
            "shape": list(wanted.shape),
            "format": wanted.format.value,
            "layout": wanted.layout.value if wanted.layout is not None else "",
        }
        for wanted in kept
    ]
    for entry, placed in zip(entries, descriptors, strict=True):
        entry |= {"offset": placed.offset, "bytes": placed.nbytes}
    identity = {"model_id": model_id, "weights_id": "groupwise-int"}
    root = {"model_id": model_id} if version == 1 else {"identity": identity}
    text = json.dumps(root | {"objects": entries}, separators=(",", ":")).encode()
    start = -(-(16 + len(text)) // 4096) * 4096
    with path.open("wb") as stream:
        stream.write(b"NINFER\0" + bytes([version]) + len(text).to_bytes(8, "little") + text)
        stream.truncate(start + descriptors[-1].offset + descriptors[-1].nbytes)
        for placed in descriptors:
            if placed.name in contents:
                stream.seek(start + placed.offset)
                stream.write(contents[placed.name])
    return path


@pytest.mark.parametrize(
    ("model_id", "version"),
    [
        ("qwen3.6-27b", 1),
        ("qwen3.6-27b", 2),
        ("qwen3.6-35b-a3b", 1),
        ("qwen3.6-35b-a3b", 2),
        ("qwen3.8-27b", 2),
    ],
)
def test_file_with_the_published_directory_binds(
    tmp_path: Path, model_id: str, version: int
) -> None:
    path = _write(tmp_path / "m.ninfer", model_id, version)

    with ArtifactReader.open(path) as reader:
        bound = bind(reader)

    assert bound.package.model_id == model_id
    assert bound.weights_id == "groupwise-int"
    assert bound.addressable_tokens == 248077
    assert bound.geometry == bound.package.geometry
    assert bound.has(ObjectGroup.VISION)


def test_version_1_does_not_know_the_later_model(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.ninfer", "qwen3.8-27b", 1)

    with ArtifactReader.open(path) as reader, pytest.raises(ArtifactError) as caught:
        bind(reader)

    assert caught.value.code == "unknown_model"


def test_older_file_without_any_companion_binds(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.ninfer", "qwen3.6-35b-a3b", 1, is_complete=False)

    with ArtifactReader.open(path) as reader:
        bound = bind(reader)

    assert set(bound.objects) == {ObjectGroup.TEXT}
    assert bound.geometry.draft is None


def test_directory_of_27b_starts_its_payload_where_the_published_one_does(tmp_path: Path) -> None:
    with ArtifactReader.open(_write(tmp_path / "m.ninfer", "qwen3.6-27b", 1)) as reader:
        assert reader.payload_start == 176_128
