"""Files that travel unchanged: what is compared, made up or refused."""

import json
from pathlib import Path

import pytest

from ninfer.convert.checkpoint import SourceCheckpoint
from ninfer.convert.resources import ResourceSet, collect_resources
from ninfer.errors import CheckpointError
from ninfer.models.registry import lookup
from tests.support.checkpoint_files import copy_checkpoint


def _collect(folder: Path, model_id: str = "tiny-dense", *, is_strict: bool = False) -> ResourceSet:
    with SourceCheckpoint(folder) as checkpoint:
        return collect_resources(lookup(model_id), checkpoint, None, is_strict=is_strict)


def test_resources_come_in_the_writers_order(tmp_path: Path) -> None:
    resources = _collect(copy_checkpoint("tiny-vision", tmp_path / "c"))

    assert list(resources.contents) == [
        "model/config.json",
        "frontend/tokenizer.json",
        "frontend/tokenizer_config.json",
        "frontend/chat_template.jinja",
        "frontend/generation_config.json",
        "frontend/preprocessor_config.json",
        "frontend/video_preprocessor_config.json",
    ]
    assert resources.addressable_tokens == 512
    assert resources.notes == ()


def test_special_added_tokens_are_forced_into_the_shortlist(tmp_path: Path) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "c")
    decoder = json.loads((folder / "tokenizer_config.json").read_bytes())["added_tokens_decoder"]

    resources = _collect(folder)

    assert resources.forced_ids == tuple(int(i) for i, t in decoder.items() if t["special"])
    assert 0 < len(resources.forced_ids) < len(decoder)


def test_fixed_model_carries_no_config(tmp_path: Path) -> None:
    resources = _collect(copy_checkpoint("tiny-vision", tmp_path / "c"), "qwen3.8-27b")

    assert "model/config.json" not in resources.contents


def test_official_model_needs_its_media_configs(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json is missing"):
        _collect(copy_checkpoint("tiny-dense", tmp_path / "c"), "qwen3.5-4b")


def test_unpublished_resources_are_noted_with_both_hashes(tmp_path: Path) -> None:
    resources = _collect(copy_checkpoint("tiny-vision", tmp_path / "c"), "qwen3.6-27b")

    assert len(resources.notes) == 6
    assert resources.notes[0].startswith("tokenizer.json has the hash ")
    assert resources.notes[0].endswith("; the published file has 5f9e4d49...")


def test_unpublished_resources_are_refused_when_strict(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="published file has 5f9e4d49"):
        _collect(copy_checkpoint("tiny-vision", tmp_path / "c"), "qwen3.6-27b", is_strict=True)


def test_template_inside_the_tokenizers_config_is_taken_out(tmp_path: Path) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "c")
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    config["chat_template"] = "{{ messages }} ü"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    resources = _collect(folder)

    assert resources.contents["frontend/chat_template.jinja"] == "{{ messages }} ü".encode()
    assert "chat_template.jinja is missing" in resources.notes[0]


def test_generation_config_cannot_be_made_without_the_end_tokens(tmp_path: Path) -> None:
    folder = copy_checkpoint("tiny-dense", tmp_path / "c")
    (folder / "generation_config.json").unlink()
    (folder / "tokenizer_config.json").write_text("{}")

    with pytest.raises(CheckpointError, match=r"generation_config\.json is missing"):
        _collect(folder)
