"""Identities of the closed list, and which checkpoint is which."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ninfer.errors import CheckpointError
from ninfer.models.package import Family, LayerKind
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from ninfer.models.qwen_hybrid.recognition import check_package, recognise
from ninfer.models.registry import lookup, model_ids
from tests.support.golden import GOLDEN
from tools.demo_model.geometry import for_vocabulary, model_config, small

_LINEAR, _FULL = "linear_attention", "full_attention"


def _published(**changes: Any) -> dict[str, Any]:
    """A flat config with the published constants; sizes of Qwen3.5-4B unless changed."""
    text = {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "intermediate_size": 9216,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "mrope_section": [11, 11, 10],
        },
    }
    return text | changes


_27B: dict[str, Any] = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "intermediate_size": 17408,
    "linear_num_value_heads": 48,
    "tie_word_embeddings": False,
}
_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
}


def test_registry_holds_the_published_models_the_demo_and_two_test_models() -> None:
    assert set(model_ids()) == {
        "qwen3.6-27b",
        "qwen3.6-35b-a3b",
        "qwen3.8-27b",
        "qwen3.5-0.8b",
        "qwen3.5-2b",
        "qwen3.5-4b",
        "qwen3.5-9b",
        "demo",
        "tiny-dense",
        "tiny-moe",
    }


def test_unknown_identity_is_not_found() -> None:
    with pytest.raises(KeyError):
        lookup("qwen3.5-122b-a10b")


@pytest.mark.parametrize("model_id", ["qwen3.6-27b", "qwen3.6-35b-a3b", "qwen3.8-27b"])
def test_fixed_models_attend_fully_in_every_fourth_layer(model_id: str) -> None:
    geometry = lookup(model_id).geometry

    assert geometry is not None
    full = [i for i, kind in enumerate(geometry.layers) if kind is LayerKind.FULL_ATTENTION]
    assert full == [i for i in range(len(geometry.layers)) if i % 4 == 3]


@pytest.mark.parametrize(
    ("case", "model_id"),
    [
        ("tiny-dense", "tiny-dense"),
        ("tiny-moe", "tiny-moe"),
        ("tiny-vision", "tiny-dense"),
        ("real-head-dense", "tiny-dense"),
        ("real-head-moe", "tiny-moe"),
    ],
)
def test_golden_checkpoints_are_test_models(case: str, model_id: str) -> None:
    config = json.loads((GOLDEN / case / "checkpoint" / "config.json").read_bytes())

    assert recognise(config).model_id == model_id


@pytest.mark.parametrize(
    ("model_id", "changes"),
    [
        ("qwen3.5-0.8b", {"hidden_size": 1024, "num_hidden_layers": 24}),
        ("qwen3.5-2b", {"hidden_size": 2048, "num_hidden_layers": 24}),
        ("qwen3.5-4b", {}),
        ("qwen3.5-9b", {"hidden_size": 4096, "tie_word_embeddings": False}),
        ("qwen3.6-35b-a3b", _35B),
    ],
)
def test_published_sizes_are_recognised(model_id: str, changes: dict[str, Any]) -> None:
    assert recognise(_published(**changes)).model_id == model_id


def test_shipped_demo_checkpoint_is_recognised_and_has_the_usual_dimensions() -> None:
    config = model_config(for_vocabulary(8170))

    package = recognise(config)

    assert package.model_id == "demo"
    found = geometry_from_config(config)
    assert replace(found, has_mtp=False) == package.usual_geometry


def test_other_small_sizes_stay_test_models() -> None:
    config = model_config(small(8170))

    assert recognise(config).model_id == "tiny-dense"


def test_two_releases_of_one_architecture_must_be_told_apart_by_the_caller() -> None:
    with pytest.raises(CheckpointError, match=r"qwen3\.6-27b, qwen3\.8-27b.*--model-id"):
        recognise(_published(**_27B))


def test_unregistered_size_is_refused() -> None:
    with pytest.raises(CheckpointError, match="hidden_size 3072"):
        recognise(_published(hidden_size=3072))


def test_fixed_package_accepts_its_own_config_without_companions() -> None:
    check_package(lookup("qwen3.8-27b"), geometry_from_config(_published(**_27B)))


def test_fixed_package_names_the_fact_that_differs() -> None:
    geometry = geometry_from_config(_published(**_27B) | {"rms_norm_eps": 1e-5})

    with pytest.raises(CheckpointError, match=r"norm_eps is 1e-05; qwen3\.6-27b has 1e-06"):
        check_package(lookup("qwen3.6-27b"), geometry)


def test_package_of_the_other_family_is_refused() -> None:
    package = lookup("tiny-moe")

    with pytest.raises(CheckpointError, match="is dense; tiny-moe is moe"):
        check_package(package, geometry_from_config(_published()))

    assert package.family is Family.MOE
