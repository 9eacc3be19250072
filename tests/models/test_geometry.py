"""Checkpoint configs to geometry, and every graph that must be refused."""

import copy
import json
from typing import Any

import pytest

from ninfer.errors import CheckpointError
from ninfer.models.package import DenseGeometry, LayerKind, MoeGeometry
from ninfer.models.qwen_hybrid.geometry import geometry_from_config
from tests.support.golden import GOLDEN

ALL_CASES = ["tiny-dense", "tiny-moe", "tiny-vision", "real-head-dense", "real-head-moe"]


def _config(case: str, folder: str = "checkpoint") -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / case / folder / "config.json").read_bytes())
    return loaded


def _changed(config: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    result = copy.deepcopy(config)
    *parents, name = path.split(".")
    target = result
    for parent in parents:
        target = target[parent]
    if value is ...:
        target.pop(name, None)
    else:
        target[name] = value
    return result


def test_dense_golden_config_gives_its_dimensions() -> None:
    geometry = geometry_from_config(_config("tiny-dense"))

    assert geometry.hidden == 64
    assert geometry.vocab_rows == 544
    assert geometry.layers == (*[LayerKind.GATED_DELTA] * 3, LayerKind.FULL_ATTENTION) * 2
    assert geometry.mlp == DenseGeometry(160)
    assert geometry.attention.rotary_dim == 16
    assert geometry.attention.mrope_section == (3, 3, 2)
    assert geometry.attention.rope_theta == 1e7
    assert geometry.gated_delta.conv_channels == 256
    assert geometry.is_tied
    assert geometry.has_mtp
    assert geometry.vision is None
    assert geometry.draft is None


def test_moe_golden_config_gives_its_experts() -> None:
    geometry = geometry_from_config(_config("real-head-moe"))

    assert geometry.mlp == MoeGeometry(16, 4, 32, 32)
    assert geometry.is_moe
    assert not geometry.is_tied


def test_vision_golden_config_gives_its_tower() -> None:
    vision = geometry_from_config(_config("tiny-vision")).vision

    assert vision is not None
    assert (vision.depth, vision.width, vision.num_heads, vision.mlp_width) == (2, 144, 2, 200)
    assert (vision.patch_width, vision.num_positions, vision.merge_size) == (1536, 64, 2)


def test_flat_config_gives_the_geometry_of_the_nested_one() -> None:
    nested = geometry_from_config(_config("tiny-moe"))

    flat = geometry_from_config(_config("tiny-moe", "checkpoint-flat-unfused"))

    assert flat == nested


def test_dflash2_companion_is_read() -> None:
    draft = geometry_from_config(_config("tiny-dense"), _config("tiny-dense", "dflash2")).draft

    assert draft is not None
    assert draft.is_dflash2
    assert draft.layer_windows == (24, 24, 24)
    assert draft.target_layers == (1, 3, 6)
    assert (draft.conv_group, draft.selector_rank, draft.selector_top_k) == (16, 16, 8)


def test_dflash_companion_with_a_full_layer_is_read() -> None:
    draft = geometry_from_config(_config("tiny-moe"), _config("tiny-moe", "dflash")).draft

    assert draft is not None
    assert not draft.is_dflash2
    assert draft.layer_windows == (24, 24, None)
    assert draft.mask_token_id == 512
    assert not draft.is_causal


def test_draft_without_causality_is_not_causal() -> None:
    config = _changed(_config("tiny-moe", "dflash"), "is_causal", ...)

    draft = geometry_from_config(_config("tiny-moe"), config).draft

    assert draft is not None
    assert not draft.is_causal


def test_causality_in_the_nested_section_is_honoured() -> None:
    config = _changed(_config("tiny-moe", "dflash"), "is_causal", ...)
    config = _changed(config, "dflash_config.causal", True)

    draft = geometry_from_config(_config("tiny-moe"), config).draft

    assert draft is not None
    assert draft.is_causal


def test_missing_target_layers_take_the_authors_default() -> None:
    config = _changed(_config("tiny-dense", "dflash2"), "dflash_config.target_layer_ids", ...)

    draft = geometry_from_config(_config("tiny-dense"), config).draft

    assert draft is not None
    assert draft.target_layers == (1, 3, 5)


def test_older_drafts_keep_theta_and_block_size_at_the_root() -> None:
    config = _changed(_config("tiny-moe", "dflash"), "dflash_config.block_size", ...)
    config = _changed(config, "block_size", 4)
    config = _changed(config, "rope_parameters", ...)
    config = _changed(config, "rope_theta", 10000)

    draft = geometry_from_config(_config("tiny-moe"), config).draft

    assert draft is not None
    assert (draft.block_size, draft.rope_theta) == (4, 1e4)


def test_absent_layer_types_follow_the_interval() -> None:
    config = _changed(_config("tiny-dense"), "text_config.layer_types", ...)

    geometry = geometry_from_config(config)

    assert geometry.layers == (*[LayerKind.GATED_DELTA] * 3, LayerKind.FULL_ATTENTION) * 2


def test_fields_without_effect_are_not_looked_at() -> None:
    config = _changed(_config("tiny-dense"), "text_config.mamba_ssm_dtype", "bfloat16")
    config = _changed(config, "text_config.router_aux_loss_coef", "unused")

    assert geometry_from_config(config) == geometry_from_config(_config("tiny-dense"))


def test_absent_rotary_factor_is_a_quarter() -> None:
    config = _changed(_config("tiny-dense"), "text_config.partial_rotary_factor", ...)
    config = _changed(config, "text_config.rope_parameters.partial_rotary_factor", ...)

    assert geometry_from_config(config).attention.rotary_dim == 16


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_type", "qwen4_exp"),
        ("model_type", ...),
        ("model_type", "qwen3_5_text"),
        ("architectures", ["Qwen3NextForCausalLM"]),
        ("text_config", 3),
        ("text_config.model_type", "qwen3_next"),
        ("text_config.attn_output_gate", False),
        ("text_config.attention_bias", True),
        ("text_config.output_gate_type", "sigmoid"),
        ("text_config.hidden_act", "gelu"),
        ("text_config.mtp_use_dedicated_embeddings", True),
        ("text_config.mtp_num_hidden_layers", 2),
        ("text_config.mtp_num_hidden_layers", True),
        ("text_config.hidden_size", ...),
        ("text_config.hidden_size", "64"),
        ("text_config.hidden_size", True),
        ("text_config.hidden_size", 0),
        ("text_config.vocab_size", 544.0),
        ("text_config.num_hidden_layers", 0),
        ("text_config.layer_types", ["full_attention"] * 7 + ["sparse_attention"]),
        ("text_config.num_key_value_heads", 3),
        ("text_config.linear_num_value_heads", 3),
        ("text_config.linear_conv_kernel_dim", 3),
        ("text_config.rms_norm_eps", -1e-6),
        ("text_config.rope_parameters", ...),
        ("text_config.rope_parameters.rope_type", "yarn"),
        ("text_config.rope_parameters.rope_theta", ...),
        ("text_config.rope_parameters.mrope_interleaved", False),
        ("text_config.rope_parameters.mrope_section", [3, 3, 3]),
        ("text_config.rope_parameters.mrope_section", [4, 4]),
        ("text_config.rope_parameters.mrope_section", "332"),
        ("text_config.rope_parameters.partial_rotary_factor", 2.0),
        ("text_config.quantization_config", {"quant_method": "fp8"}),
        ("tie_word_embeddings", "yes"),
    ],
)
def test_another_graph_is_refused_by_name_value_and_limit(path: str, value: object) -> None:
    config = _changed(_config("tiny-dense"), path, value)

    with pytest.raises(CheckpointError) as caught:
        geometry_from_config(config)

    assert caught.value.field == path
    assert path in str(caught.value)
    assert "allowed is" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("vision_config.deepstack_visual_indexes", [5]),
        ("vision_config.hidden_act", "gelu"),
        ("vision_config.in_channels", 4),
        ("vision_config.patch_size", 14),
        ("vision_config.temporal_patch_size", 1),
        ("vision_config.spatial_merge_size", 1),
        ("vision_config.out_hidden_size", 65),
        ("vision_config.num_heads", 5),
        ("vision_config.num_position_embeddings", 65),
        ("vision_config.model_type", "qwen2_vl"),
    ],
)
def test_another_vision_tower_is_refused(path: str, value: object) -> None:
    config = _changed(_config("tiny-vision"), path, value)

    with pytest.raises(CheckpointError) as caught:
        geometry_from_config(config)

    assert caught.value.field == path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model_type", "llama"),
        ("architectures", ["Eagle3"]),
        ("hidden_size", 65),
        ("vocab_size", 545),
        ("num_target_layers", 9),
        ("rms_norm_eps", 1e-5),
        ("layer_types", ["chunked_attention"] * 3),
        ("sliding_window", ...),
        ("use_sliding_window", False),
        ("rope_parameters.rope_type", "yarn"),
        ("rope_scaling", {"rope_type": "yarn"}),
        ("attention_bias", True),
        ("num_key_value_heads", 3),
        ("head_dim", 31),
        ("dflash_config", ...),
        ("dflash_config.mask_token_id", 544),
        ("dflash_config.block_size", 1),
        ("dflash_config.target_layer_ids", [1, 3, 8]),
        ("dflash_config.target_layer_ids", [3, 1, 6]),
        ("dflash_config.target_layer_ids", []),
        ("dflash_config.conv_kernel_size", 3),
        ("dflash_config.conv_group_size", 7),
        ("dflash_config.selector_rank", ...),
        ("dflash_config.input_embedding_scale", 2.0),
        ("dflash_config.output_multiplier", 0.5),
        ("dflash_config.final_logit_softcapping", 30.0),
        ("dflash_config.attention_sink_bias", True),
        ("dflash_config.use_swa", False),
    ],
)
def test_another_drafter_is_refused(path: str, value: object) -> None:
    draft = _changed(_config("tiny-dense", "dflash2"), path, value)

    with pytest.raises(CheckpointError) as caught:
        geometry_from_config(_config("tiny-dense"), draft)

    assert caught.value.field == path
