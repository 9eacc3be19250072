"""Plans of the published models, on checkpoints of the right shapes that hold no data.

The files are sparse: a header, and a length. A dry run reads nothing else.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ninfer.convert.conversion import convert
from ninfer.convert.plan import ConvertOptions
from ninfer.convert.recipe import RecipeBook, checkpoint_recipes, draft_recipes
from ninfer.models.package import DenseGeometry, DraftGeometry, Geometry, MoeGeometry
from ninfer.models.registry import lookup


def _text_config(geometry: Geometry) -> dict[str, Any]:
    heads, mixer = geometry.attention, geometry.gated_delta
    config: dict[str, Any] = {
        "vocab_size": geometry.vocab_rows,
        "hidden_size": geometry.hidden,
        "num_hidden_layers": len(geometry.layers),
        "num_attention_heads": heads.num_heads,
        "num_key_value_heads": heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "linear_num_key_heads": mixer.num_key_heads,
        "linear_num_value_heads": mixer.num_value_heads,
        "linear_key_head_dim": mixer.key_dim,
        "linear_value_head_dim": mixer.value_dim,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": geometry.max_positions,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "mrope_section": [11, 11, 10],
        },
    }
    match geometry.mlp:
        case DenseGeometry(intermediate):
            return config | {"intermediate_size": intermediate}
        case MoeGeometry() as moe:
            return config | {
                "num_experts": moe.num_experts,
                "num_experts_per_tok": moe.experts_per_token,
                "moe_intermediate_size": moe.expert_width,
                "shared_expert_intermediate_size": moe.shared_width,
            }


def _config(geometry: Geometry) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_moe" if geometry.is_moe else "qwen3_5",
        "text_config": _text_config(geometry),
        "vision_config": {
            "depth": 27,
            "hidden_size": 1152,
            "num_heads": 16,
            "intermediate_size": 4304,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "num_position_embeddings": 2304,
            "out_hidden_size": geometry.hidden,
        },
    }


def _draft_config(draft: DraftGeometry, geometry: Geometry) -> dict[str, Any]:
    window = next(window for window in draft.layer_windows if window is not None)
    nested: dict[str, Any] = {
        "block_size": draft.block_size,
        "mask_token_id": draft.mask_token_id,
        "target_layer_ids": list(draft.target_layers),
    }
    if draft.is_dflash2:
        nested |= {
            "conv_kernel_size": 2,
            "conv_group_size": draft.conv_group,
            "selector_rank": draft.selector_rank,
            "selector_top_k": draft.selector_top_k,
        }
    return {
        "model_type": "qwen3",
        "architectures": ["DFlash2DraftModel" if draft.is_dflash2 else "DFlashDraftModel"],
        "hidden_size": geometry.hidden,
        "vocab_size": geometry.vocab_rows,
        "num_hidden_layers": len(draft.layer_windows),
        "layer_types": [
            "full_attention" if each is None else "sliding_attention"
            for each in draft.layer_windows
        ],
        "sliding_window": window,
        "num_attention_heads": draft.num_heads,
        "num_key_value_heads": draft.num_kv_heads,
        "head_dim": draft.head_dim,
        "intermediate_size": draft.intermediate,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000000,
        "dflash_config": nested,
    }


def _write(folder: Path, config: dict[str, Any], book: RecipeBook) -> Path:
    """Write a checkpoint without data; all BF16."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, cursor = {}, 0
    for name, shape in book.sources.items():
        stop = cursor + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [cursor, stop]}
        cursor = stop
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + cursor)
    return folder


def _checkpoint(folder: Path, geometry: Geometry) -> Path:
    book = checkpoint_recipes(geometry, "model.language_model.", frozenset())
    _write(folder, _config(geometry), book)
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 248069}}}')
    decoder = {"added_tokens_decoder": {"248076": {"content": "x", "special": True}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(decoder))
    for name in ("generation_config", "preprocessor_config", "video_preprocessor_config"):
        (folder / f"{name}.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.mark.parametrize(
    ("model_id", "num_tensors", "tensor_bytes"),
    [
        ("qwen3.6-27b", 1118, 17_482_356_224),
        ("qwen3.6-35b-a3b", 934, 22_770_260_992),
        ("qwen3.8-27b", 1184, 20_424_310_784),
    ],
)
def test_published_model_is_planned_to_its_published_size(
    tmp_path: Path, model_id: str, num_tensors: int, tensor_bytes: int
) -> None:
    geometry = lookup(model_id).geometry
    assert geometry is not None
    source, draft = _checkpoint(tmp_path / "checkpoint", geometry), None
    if geometry.draft is not None:
        draft = _write(
            tmp_path / "draft",
            _draft_config(geometry.draft, geometry),
            draft_recipes(geometry.draft, geometry),
        )

    report = convert(
        ConvertOptions(
            source=source,
            output=tmp_path / "m.ninfer",
            model_id=model_id,
            draft=draft,
            is_dry_run=True,
        )
    )

    # Resources come first and are far below one alignment step of the first tensor.
    assert (report.num_tensors, report.num_resources) == (num_tensors, 6)
    assert report.payload_bytes == tensor_bytes + 256
    assert report.addressable_tokens == 248077


def test_moe_release_is_recognised_by_its_config(tmp_path: Path) -> None:
    geometry = lookup("qwen3.6-35b-a3b").geometry
    assert geometry is not None
    source = _checkpoint(tmp_path / "checkpoint", geometry)

    report = convert(ConvertOptions(source=source, output=tmp_path / "m.ninfer", is_dry_run=True))

    assert report.model_id == "qwen3.6-35b-a3b"
    assert report.groups == ("text", "draft_head", "mtp", "vision")
