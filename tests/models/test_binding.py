"""What the binder accepts, and the code of everything it refuses."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact.format import ArtifactError
from ninfer.artifact.reader import ArtifactReader
from ninfer.models.qwen_hybrid.binding import BoundModel, bind
from ninfer.models.qwen_hybrid.inventory import ObjectGroup
from ninfer.tensor import TensorFormat
from tests.support.artifact_edits import Edit, EditedObject, Objects, rewrite
from tests.support.tiny_model import artifact_path

IDS = "text/draft_head_token_ids"
NORM = "text/layers/0/input_norm"


def _bind(path: Path) -> BoundModel:
    with ArtifactReader.open(path) as reader:
        return bind(reader)


def _refused(tmp_path: Path, edit: Edit, *, case: str = "tiny-dense", **identity: str) -> str:
    """Bind an edited artifact that must be refused; return code and object."""
    path = rewrite(artifact_path(case), tmp_path / "edited.ninfer", edit, **identity)

    with pytest.raises(ArtifactError) as caught:
        _bind(path)

    assert str(path) in str(caught.value)
    return f"{caught.value.code} {caught.value.object}"


def _same(objects: Objects) -> None:
    """Change nothing."""


def _drop(*prefixes: str) -> Edit:
    def edit(objects: Objects) -> None:
        for name in [name for name in objects if name.startswith(prefixes)]:
            del objects[name]

    return edit


def _put(name: str, found: EditedObject) -> Edit:
    return lambda objects: objects.update({name: found})


def _content(name: str, change: Callable[[bytes], bytes]) -> Edit:
    def edit(objects: Objects) -> None:
        objects[name] = replace(objects[name], content=change(objects[name].content))

    return edit


def test_bound_model_tells_what_the_file_carries() -> None:
    bound = _bind(artifact_path("tiny-dense"))

    assert bound.package.model_id == "tiny-dense"
    assert bound.weights_id == "groupwise-int"
    assert bound.addressable_tokens == 512
    assert set(bound.objects) == {
        ObjectGroup.TEXT,
        ObjectGroup.DRAFT_HEAD,
        ObjectGroup.MTP,
        ObjectGroup.DFLASH2,
    }
    assert bound.has(ObjectGroup.MTP)
    assert not bound.has(ObjectGroup.VISION)
    assert b"<|im_start|>" in bound.resources["frontend/chat_template.jinja"]


def test_objects_keep_the_order_of_the_file(tmp_path: Path) -> None:
    def reverse(objects: Objects) -> None:
        reversed_items = dict(reversed(objects.items()))
        objects.clear()
        objects.update(reversed_items)

    forward = _bind(artifact_path("tiny-dense"))
    backward = _bind(rewrite(artifact_path("tiny-dense"), tmp_path / "r.ninfer", reverse))

    assert forward.objects[ObjectGroup.TEXT][0].name == "text/token_embedding"
    text = forward.objects[ObjectGroup.TEXT]
    assert backward.objects[ObjectGroup.TEXT] == tuple(reversed(text))


@pytest.mark.parametrize(
    ("case", "prefixes", "group"),
    [
        ("tiny-dense", ("text/draft_head",), ObjectGroup.DRAFT_HEAD),
        ("tiny-dense", ("mtp/",), ObjectGroup.MTP),
        ("tiny-dense", ("dflash2/", "model/draft"), ObjectGroup.DFLASH2),
        ("tiny-moe", ("dflash/", "model/draft"), ObjectGroup.DFLASH),
        ("tiny-vision", ("vision/",), ObjectGroup.VISION),
    ],
)
def test_an_optional_group_may_be_absent_as_a_whole(
    tmp_path: Path, case: str, prefixes: tuple[str, ...], group: ObjectGroup
) -> None:
    path = rewrite(artifact_path(case), tmp_path / "without.ninfer", _drop(*prefixes))

    bound = _bind(path)

    assert group in _bind(artifact_path(case)).objects
    assert not bound.has(group)


def test_absent_companions_leave_the_geometry(tmp_path: Path) -> None:
    edit = _drop("mtp/", "dflash2/", "model/draft")

    geometry = _bind(rewrite(artifact_path("tiny-dense"), tmp_path / "w.ninfer", edit)).geometry

    assert not geometry.has_mtp
    assert geometry.draft is None


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("tiny-dense", NORM),
        ("tiny-dense", "text/final_norm"),
        ("tiny-dense", "text/token_embedding"),
        ("tiny-dense", "text/draft_head"),
        ("tiny-dense", IDS),
        ("tiny-dense", "mtp/layer/mlp/down"),
        ("tiny-dense", "dflash2/candidate_selector/successor_codebook"),
        ("tiny-moe", "dflash/context_norm"),
        ("tiny-moe", "text/output_head"),
        ("tiny-vision", "vision/merger/norm/bias"),
        ("tiny-dense", "frontend/tokenizer.json"),
        ("tiny-dense", "frontend/tokenizer_config.json"),
        ("tiny-dense", "frontend/chat_template.jinja"),
        ("tiny-dense", "frontend/generation_config.json"),
        ("tiny-dense", "model/config.json"),
        ("tiny-dense", "model/draft_config.json"),
    ],
)
def test_missing_object_is_named(tmp_path: Path, case: str, name: str) -> None:
    refused = _refused(tmp_path, lambda objects: objects.pop(name), case=case)

    assert refused == f"missing_object {name}"


@pytest.mark.parametrize(
    "name", ["text/layers/8/input_norm", "text/output_head", "vision/fc", "TEXT/final_norm", "x"]
)
def test_unknown_object_is_named(tmp_path: Path, name: str) -> None:
    stray = EditedObject(bytes(8), (4,), TensorFormat.BF16)

    assert _refused(tmp_path, _put(name, stray)) == f"unexpected_object {name}"


def test_tensor_in_place_of_a_resource_is_refused(tmp_path: Path) -> None:
    name = "frontend/chat_template.jinja"
    tensor = EditedObject(bytes(8), (4,), TensorFormat.BF16)

    assert _refused(tmp_path, _put(name, tensor)) == f"wrong_kind {name}"


def test_tensor_in_place_of_the_tokenizer_is_refused(tmp_path: Path) -> None:
    name = "frontend/tokenizer.json"
    tensor = EditedObject(bytes(8), (4,), TensorFormat.BF16)

    assert _refused(tmp_path, _put(name, tensor)) == f"wrong_kind {name}"


def test_resource_in_place_of_a_tensor_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path, _put(NORM, EditedObject(bytes(128)))) == f"wrong_kind {NORM}"


@pytest.mark.parametrize(
    "wrong",
    [
        EditedObject(bytes(126), (63,), TensorFormat.BF16),
        EditedObject(bytes(128), (64, 1), TensorFormat.BF16),
        EditedObject(bytes(256), (64,), TensorFormat.FP32),
    ],
)
def test_other_shape_or_format_is_refused_with_both(tmp_path: Path, wrong: EditedObject) -> None:
    assert _refused(tmp_path, _put(NORM, wrong)) == f"descriptor_mismatch {NORM}"


def test_descriptor_message_has_both_sides(tmp_path: Path) -> None:
    wrong = EditedObject(bytes(126), (63,), TensorFormat.BF16)
    path = rewrite(artifact_path("tiny-dense"), tmp_path / "e.ninfer", _put(NORM, wrong))

    with pytest.raises(ArtifactError, match=r"BF16 \[63\].*contract has BF16 \[64\]"):
        _bind(path)


def test_unregistered_model_is_refused(tmp_path: Path) -> None:
    assert _refused(tmp_path, _same, model_id="qwen9") == "unknown_model None"


@pytest.mark.parametrize("weights_id", ["nvfp4", "fp8-row", "BF16", "groupwise"])
def test_unknown_profile_is_refused(tmp_path: Path, weights_id: str) -> None:
    assert _refused(tmp_path, _same, weights_id=weights_id) == "unknown_weights None"


def test_profile_is_never_inferred_from_the_content(tmp_path: Path) -> None:
    assert _refused(tmp_path, _same, weights_id="bf16").startswith("descriptor_mismatch text/")


def test_version_1_knows_only_the_two_first_models(tmp_path: Path) -> None:
    root = {"model_id": "tiny-dense", "objects": [
        {"name": "a", "kind": "resource", "encoding": "raw-bytes-v1", "offset": 0, "bytes": 1}
    ]}  # fmt: skip
    text = json.dumps(root).encode()
    path = tmp_path / "v1.ninfer"
    path.write_bytes(
        (b"NINFER\x00\x01" + len(text).to_bytes(8, "little") + text).ljust(4096, b"\0") + b"x"
    )

    with pytest.raises(ArtifactError) as caught:
        _bind(path)

    assert caught.value.code == "unknown_model"
    assert "qwen3.6-27b, qwen3.6-35b-a3b" in str(caught.value)


def test_config_of_the_other_family_is_refused(tmp_path: Path) -> None:
    refused = _refused(tmp_path, _same, model_id="tiny-moe")

    assert refused == "resource_content model/config.json"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model/config.json", b"{}"),
        ("model/config.json", b"{"),
        ("model/draft_config.json", b"{}"),
        ("frontend/tokenizer.json", b"{}"),
        ("frontend/tokenizer.json", b'{"model": {"vocab": {"a": 600}}}'),
        ("frontend/tokenizer_config.json", b"[]"),
        ("frontend/generation_config.json", b"\xff"),
        ("frontend/chat_template.jinja", b"\xff"),
    ],
)
def test_unusable_resource_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    refused = _refused(tmp_path, _content(name, lambda _: content))

    assert refused == f"resource_content {name}"


@pytest.mark.parametrize("token", [-1, 512, 543, 2**31 - 1])
def test_shortlist_outside_the_tokenizer_is_refused(tmp_path: Path, token: int) -> None:
    def change(content: bytes) -> bytes:
        ids = np.frombuffer(content, "<i4").copy()
        ids[100] = token
        return ids.tobytes()

    assert _refused(tmp_path, _content(IDS, change)) == f"shortlist {IDS}"


def test_repeated_shortlist_id_is_refused(tmp_path: Path) -> None:
    def change(content: bytes) -> bytes:
        ids = np.frombuffer(content, "<i4").copy()
        ids[7] = ids[300]
        return ids.tobytes()

    assert _refused(tmp_path, _content(IDS, change)) == f"shortlist {IDS}"


@pytest.mark.parametrize(
    ("case", "resource"),
    [
        ("tiny-dense", "model/config.json"),
        ("tiny-vision", "model/config.json"),
        ("tiny-dense", "model/draft_config.json"),
        ("tiny-moe", "model/draft_config.json"),
    ],
)
@pytest.mark.parametrize(
    "value", [b"1" + b"0" * 400, b"1" + b"0" * 5000, b"1e308", b"1e999", b"-0.0"], ids=len
)
def test_hostile_number_in_a_carried_config_is_a_content_fault(
    tmp_path: Path, case: str, resource: str, value: bytes
) -> None:
    def hostile(content: bytes) -> bytes:
        changed, count = re.subn(rb'("rope_theta": *)[0-9.e+]+', rb"\g<1>" + value, content)
        assert count == 1
        return changed

    assert _refused(tmp_path, _content(resource, hostile), case=case) == (
        f"resource_content {resource}"
    )
