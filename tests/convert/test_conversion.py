"""Converted artifacts against their checkpoints, assembled here by plain NumPy."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact.format import ResourceDescriptor, TensorDescriptor
from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import assembly
from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from ninfer.models.qwen_hybrid.binding import bind
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import encode_matrix
from tests.support.checkpoint_files import (
    Words,
    copy_checkpoint,
    golden_tensors,
    read_tensors,
    shard_checkpoint,
    unfuse_experts,
    write_tensors,
)
from tests.support.golden import GOLDEN
from tests.support.logical_weights import logical_objects
from tests.support.tiny_model import artifact_path, draft_folder

CASES = ["tiny-dense", "tiny-moe", "tiny-vision", "real-head-dense", "real-head-moe"]

Objects = dict[str, bytes]


def _objects(path: Path) -> Objects:
    with ArtifactReader.open(path) as reader:
        return {found.name: reader.view(found.name).tobytes() for found in reader.objects}


def _descriptors(path: Path) -> dict[str, TensorDescriptor]:
    with ArtifactReader.open(path) as reader:
        return {d.name: d for d in reader.objects if isinstance(d, TensorDescriptor)}


def _expected(case: str) -> dict[str, Words]:
    """Every logical object of a case."""
    config = json.loads((GOLDEN / case / "checkpoint" / "config.json").read_bytes())
    draft = draft_folder(case)
    draft_tensors = None if draft is None else read_tensors(draft / "model.safetensors")
    return logical_objects(config, golden_tensors(case), draft_tensors)


def _wrong_objects(
    tensors: dict[str, TensorDescriptor], expected: dict[str, Words], stored: Objects
) -> list[str]:
    """Names of tensors whose bytes are not those of the logical object; ids are not looked at."""

    def payload(tensor: TensorDescriptor) -> bytes:
        words = expected[tensor.name]
        match tensor.format:
            case TensorFormat.BF16:
                return words.bf16().tobytes()
            case TensorFormat.FP32:
                return words.f32().tobytes()
            case _:
                return encode_matrix(tensor.format, words.f32()).tobytes()

    compared = [tensor for tensor in tensors.values() if tensor.format is not TensorFormat.I32]
    return [tensor.name for tensor in compared if payload(tensor) != stored[tensor.name]]


@pytest.mark.parametrize("case", CASES)
def test_bf16_words_are_the_checkpoint_s(case: str) -> None:
    path = artifact_path(case, "bf16")
    tensors = _descriptors(path)

    assert _wrong_objects(tensors, _expected(case), _objects(path)) == []
    assert {tensor.format for tensor in tensors.values()} == {
        TensorFormat.BF16,
        TensorFormat.FP32,
        TensorFormat.I32,
    }


@pytest.mark.parametrize("case", CASES)
def test_grouped_objects_are_the_encoded_logical_matrices(case: str) -> None:
    path = artifact_path(case)
    tensors = _descriptors(path)

    assert _wrong_objects(tensors, _expected(case), _objects(path)) == []
    assert {TensorFormat.Q4, TensorFormat.W8} <= {tensor.format for tensor in tensors.values()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("profile", ["bf16", "groupwise-int"])
def test_every_golden_artifact_binds(case: str, profile: str) -> None:
    with ArtifactReader.open(artifact_path(case, profile)) as reader:
        bound = bind(reader)

    assert bound.addressable_tokens == 512
    assert bound.weights_id == profile
    assert bound.package.model_id == ("tiny-moe" if "moe" in case else "tiny-dense")
    assert (bound.geometry.draft is None) == (draft_folder(case) is None)
    assert (bound.geometry.vision is None) == (case != "tiny-vision")


@pytest.mark.parametrize("case", CASES)
def test_resources_travel_unchanged(case: str) -> None:
    stored = _objects(artifact_path(case))
    folder = GOLDEN / case / "checkpoint"

    assert stored["model/config.json"] == (folder / "config.json").read_bytes()
    frontend = {name: content for name, content in stored.items() if name.startswith("frontend/")}
    assert frontend == {
        name: (folder / name.removeprefix("frontend/")).read_bytes() for name in frontend
    }


def test_resources_come_before_every_tensor() -> None:
    with ArtifactReader.open(artifact_path("tiny-dense")) as reader:
        kinds = [isinstance(found, ResourceDescriptor) for found in reader.objects]

    assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("profile", ["bf16", "groupwise-int"])
def test_unfused_experts_give_the_same_bytes(tmp_path: Path, profile: str) -> None:
    unfused = copy_checkpoint(
        "tiny-moe", tmp_path / "unfused", unfuse_experts(golden_tensors("tiny-moe"))
    )
    output = tmp_path / "unfused.ninfer"

    convert(ConvertOptions(source=unfused, output=output, profile=profile))

    fused = artifact_path("tiny-moe", profile, has_draft=False)
    assert output.read_bytes() == fused.read_bytes()


def test_flat_unfused_export_gives_the_same_weights(tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    shutil.copytree(GOLDEN / "tiny-moe" / "checkpoint", flat)
    for path in (GOLDEN / "tiny-moe" / "checkpoint-flat-unfused").iterdir():
        shutil.copy(path, flat)
    output = tmp_path / "flat.ninfer"

    convert(ConvertOptions(source=flat, output=output))

    nested = _objects(artifact_path("tiny-moe", has_draft=False))
    converted = _objects(output)
    assert converted.pop("model/config.json") != nested.pop("model/config.json")
    assert converted == nested


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_shards_give_the_same_bytes_as_one_file(tmp_path: Path, num_shards: int) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "sharded")
    shard_checkpoint(folder, num_shards)
    output = tmp_path / "sharded.ninfer"

    convert(ConvertOptions(source=folder, output=output))

    assert output.read_bytes() == artifact_path("tiny-dense", has_draft=False).read_bytes()


@pytest.mark.parametrize("num_workers", [1, 5])
@pytest.mark.parametrize("block_elements", [700, 4096])
def test_block_size_and_workers_do_not_change_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int, block_elements: int
) -> None:
    monkeypatch.setattr(assembly, "BLOCK_ELEMENTS", block_elements)
    source, output = GOLDEN / "tiny-moe" / "checkpoint", tmp_path / "small-blocks.ninfer"

    convert(ConvertOptions(source=source, output=output, num_workers=num_workers))

    assert output.read_bytes() == artifact_path("tiny-moe", has_draft=False).read_bytes()


@pytest.mark.parametrize("profile", ["bf16", "groupwise-int"])
def test_f32_sources_are_rounded_for_bf16_and_kept_otherwise(tmp_path: Path, profile: str) -> None:
    tensors = golden_tensors("tiny-dense")
    rng = np.random.default_rng(3)
    for name, words in tensors.items():
        if name.endswith(("A_log", "dt_bias", "norm.weight", "up_proj.weight", "k_proj.weight")):
            noise = rng.standard_normal(words.array.shape).astype(np.float32) / 1000
            tensors[name] = Words("F32", words.f32() + noise)
    folder = copy_checkpoint("tiny-dense", tmp_path / "f32", tensors)
    expected = logical_objects(json.loads((folder / "config.json").read_bytes()), tensors, None)
    output = tmp_path / "f32.ninfer"

    convert(ConvertOptions(source=folder, output=output, profile=profile))

    stored = _objects(output)
    assert _wrong_objects(_descriptors(output), expected, stored) == []
    at = "model.language_model.layers.0.linear_attn."
    assert stored["text/layers/0/gdn/a_log"] == tensors[f"{at}A_log"].array.tobytes()


def test_short_head_rows_follow_the_ranking(tmp_path: Path) -> None:
    counts = np.random.default_rng(5).permutation(544).astype("<i8")
    counts.tofile(tmp_path / "ranking.bin")
    output = tmp_path / "ranked.ninfer"

    convert(
        ConvertOptions(
            source=GOLDEN / "tiny-moe" / "checkpoint",
            output=output,
            ranking=tmp_path / "ranking.bin",
        )
    )

    stored = _objects(output)
    ids = np.frombuffer(stored["text/draft_head_token_ids"], "<i4")
    assert ids.tolist() == sorted(range(512), key=lambda token: -counts[token])
    head = golden_tensors("tiny-moe")["lm_head.weight"].f32()[ids]
    assert stored["text/draft_head"] == encode_matrix(TensorFormat.Q4, head).tobytes()


def test_missing_generation_config_is_made_from_the_tokenizer(tmp_path: Path) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "plain")
    (folder / "generation_config.json").unlink()
    output = tmp_path / "plain.ninfer"

    report = convert(ConvertOptions(source=folder, output=output))

    made = json.loads(_objects(output)["frontend/generation_config.json"])
    assert made == {"eos_token_id": [481, 479], "pad_token_id": 479}
    assert any("generation_config.json" in note for note in report.notes)


def test_checkpoint_without_mtp_tensors_leaves_the_group_out(tmp_path: Path) -> None:
    tensors = {n: w for n, w in golden_tensors("tiny-dense").items() if not n.startswith("mtp.")}
    folder = copy_checkpoint("tiny-dense", tmp_path / "plain", tensors)
    output = tmp_path / "plain.ninfer"

    report = convert(ConvertOptions(source=folder, output=output))

    assert report.groups == ("text",)
    with ArtifactReader.open(output) as reader:
        assert not bind(reader).geometry.has_mtp


def test_report_lies_beside_the_artifact(tmp_path: Path) -> None:
    output = tmp_path / "model.ninfer"

    report = convert(ConvertOptions(source=GOLDEN / "tiny-vision" / "checkpoint", output=output))

    written = json.loads((tmp_path / "model.conversion.json").read_bytes())
    assert written["model_id"] == report.model_id == "tiny-dense"
    assert written["groups"] == ["text", "draft_head", "mtp", "vision"]
    assert written["file_bytes"] == output.stat().st_size
    assert written["num_tensors"] == sum(written["formats"].values()) == 98
    assert {path.name for path in tmp_path.iterdir()} == {"model.ninfer", "model.conversion.json"}


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "model.ninfer"

    report = convert(
        ConvertOptions(source=GOLDEN / "tiny-dense" / "checkpoint", output=output, is_dry_run=True)
    )

    assert report.is_dry_run
    with ArtifactReader.open(artifact_path("tiny-dense", has_draft=False)) as reader:
        assert report.payload_bytes == reader.file_bytes - reader.payload_start
    assert list(tmp_path.iterdir()) == []


def test_files_outside_the_index_are_noted_and_ignored(tmp_path: Path) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "sharded")
    shard_checkpoint(folder, 2)
    write_tensors(folder / "adapter.safetensors", {"extra": Words("F32", np.zeros(3, "<f4"))})
    output = tmp_path / "sharded.ninfer"

    report = convert(ConvertOptions(source=folder, output=output))

    assert "adapter.safetensors is not in the index and was ignored" in report.notes
    assert output.read_bytes() == artifact_path("tiny-dense", has_draft=False).read_bytes()
