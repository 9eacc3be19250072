"""Checkpoint ``config.json`` to `Geometry`, refusing every graph that is not this family's.

Source: the published Qwen3.5/3.6/3.8 configuration layout (multimodal, or flat text exports).
Knows nothing of tensors or storage; the companion's config is read by ``draft_geometry``.
"""

import math
from collections.abc import Mapping
from typing import Final

from ninfer.models.package import (
    AttentionGeometry,
    DenseGeometry,
    GatedDeltaGeometry,
    Geometry,
    LayerKind,
    MoeGeometry,
    VisionGeometry,
)
from ninfer.models.qwen_hybrid.config_fields import ConfigFields
from ninfer.models.qwen_hybrid.draft_geometry import draft_from_config

CONV_WIDTH: Final = 4
PATCH_CHANNELS: Final = 3
PATCH_FRAMES: Final = 2
PATCH_SIZE: Final = 16
MERGE_SIZE: Final = 2
PATCH_WIDTH: Final = PATCH_CHANNELS * PATCH_FRAMES * PATCH_SIZE * PATCH_SIZE

_DEFAULT_ROTARY_FACTOR: Final = 0.25
_DEFAULT_ATTENTION_INTERVAL: Final = 4

# Parts that are listed one by one; without a limit a damaged config could fill the memory.
_MAX_LAYERS: Final = 1024
_MAX_HEADS: Final = 1 << 12
_MAX_EXPERTS: Final = 1 << 12

_DENSE_TYPES: Final = ("qwen3_5", "qwen3_5_text")
_MOE_TYPES: Final = ("qwen3_5_moe", "qwen3_5_moe_text")
_ARCHITECTURES: Final = {
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
}
_VISION_TYPES: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_5_vision", "qwen3_5_moe_vision")

# Fields whose other values would be another graph; null or absence means the first one.
_CONSTANT_FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "attn_output_gate": (True,),
    "attention_bias": (False,),
    "output_gate_type": ("swish", "silu"),
    "hidden_act": ("silu",),
    "mtp_use_dedicated_embeddings": (False,),
}


def is_multimodal_config(config: Mapping[str, object]) -> bool:
    """Whether text fields are nested, and text tensors carry the ``language_model`` prefix."""
    return "text_config" in config


def geometry_from_config(
    config: Mapping[str, object], draft_config: Mapping[str, object] | None = None
) -> Geometry:
    """Read all dimensions of a checkpoint, and of its drafter when one is given.

    Args:
        config: parsed ``config.json`` of the model.
        draft_config: parsed ``config.json`` of a DFlash or DFlash2 companion.

    Raises:
        CheckpointError: a field is missing, malformed or describes another graph.
    """
    root = ConfigFields(config)
    is_multimodal = is_multimodal_config(config)
    is_moe = _check_model_type(root, is_multimodal)
    text = root.section("text_config") if is_multimodal else root
    if is_multimodal:
        nested_type = _MOE_TYPES[1] if is_moe else _DENSE_TYPES[1]
        text.require("model_type", (nested_type,), default=nested_type)
    for name, allowed in _CONSTANT_FIELDS.items():
        text.require(name, allowed, default=allowed[0])
    for fields in (root, text):
        if "quantization_config" in fields:
            raise fields.refusal("quantization_config", "absent: convert from bf16 weights")

    hidden = text.integer("hidden_size")
    tied_fields = root if "tie_word_embeddings" in root else text
    has_vision = is_multimodal and "vision_config" in root
    geometry = Geometry(
        hidden=hidden,
        vocab_rows=text.integer("vocab_size"),
        layers=_layers(text),
        attention=_attention(text),
        gated_delta=_gated_delta(text),
        mlp=_moe(text) if is_moe else DenseGeometry(text.integer("intermediate_size")),
        norm_eps=text.number("rms_norm_eps", high=1.0),
        is_tied=tied_fields.boolean("tie_word_embeddings", False),
        max_positions=text.integer("max_position_embeddings"),
        has_mtp=text.require("mtp_num_hidden_layers", (0, 1), default=0) == 1,
        vision=_vision(root.section("vision_config"), hidden) if has_vision else None,
        draft=None,
    )
    return geometry if draft_config is None else draft_from_config(geometry, draft_config)


def _check_model_type(root: ConfigFields, is_multimodal: bool) -> bool:
    """Check type and architecture against one another; tell whether the FFN is MoE."""
    column = 0 if is_multimodal else 1
    model_type = root.require("model_type", (_DENSE_TYPES[column], _MOE_TYPES[column]))
    wanted = _ARCHITECTURES[str(model_type)]
    if "architectures" in root:
        architectures = root.strings("architectures")
        if architectures[:1] != (wanted,):
            raise root.refusal("architectures", f"[{wanted!r}]")
    return model_type in _MOE_TYPES


def _layers(text: ConfigFields) -> tuple[LayerKind, ...]:
    count = text.integer("num_hidden_layers", high=_MAX_LAYERS)
    if "layer_types" not in text:
        interval = _DEFAULT_ATTENTION_INTERVAL
        if "full_attention_interval" in text:
            interval = text.integer("full_attention_interval")
        return tuple(
            LayerKind.FULL_ATTENTION if (i + 1) % interval == 0 else LayerKind.GATED_DELTA
            for i in range(count)
        )
    names = text.strings("layer_types")
    kinds = {kind.value: kind for kind in LayerKind}
    if len(names) != count or not set(names) <= set(kinds):
        raise text.refusal("layer_types", f"{count} names out of {', '.join(sorted(kinds))}")
    return tuple(kinds[name] for name in names)


def _attention(text: ConfigFields) -> AttentionGeometry:
    num_heads = text.integer("num_attention_heads", high=_MAX_HEADS)
    num_kv_heads = text.integer("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise text.refusal("num_key_value_heads", f"a divisor of {num_heads}")
    head_dim = text.integer("head_dim")
    rope = text.section("rope_parameters")
    rope.require("rope_type", ("default",), default="default")
    rope.require("mrope_interleaved", (True,), default=True)
    factor = _DEFAULT_ROTARY_FACTOR
    for fields in (text, rope):
        if "partial_rotary_factor" in fields:
            factor = fields.number("partial_rotary_factor", high=1.0)
    rotary_dim = int(head_dim * factor)
    if not (0 < rotary_dim <= head_dim and rotary_dim % 2 == 0):
        raise rope.refusal("partial_rotary_factor", f"one giving an even width up to {head_dim}")
    section = rope.integers("mrope_section")
    if len(section) != 3 or min(section) < 0 or 2 * sum(section) != rotary_dim:
        raise rope.refusal("mrope_section", f"three counts with the sum {rotary_dim // 2}")
    return AttentionGeometry(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=rope.number("rope_theta", low=1.0),
        mrope_section=(section[0], section[1], section[2]),
    )


def _gated_delta(text: ConfigFields) -> GatedDeltaGeometry:
    num_key_heads = text.integer("linear_num_key_heads")
    num_value_heads = text.integer("linear_num_value_heads")
    if num_value_heads % num_key_heads:
        raise text.refusal("linear_num_value_heads", f"a multiple of {num_key_heads}")
    text.require("linear_conv_kernel_dim", (CONV_WIDTH,))
    return GatedDeltaGeometry(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_dim=text.integer("linear_key_head_dim"),
        value_dim=text.integer("linear_value_head_dim"),
        conv_width=CONV_WIDTH,
    )


def _moe(text: ConfigFields) -> MoeGeometry:
    num_experts = text.integer("num_experts", high=_MAX_EXPERTS)
    return MoeGeometry(
        num_experts=num_experts,
        experts_per_token=text.integer("num_experts_per_tok", high=num_experts),
        expert_width=text.integer("moe_intermediate_size"),
        shared_width=text.integer("shared_expert_intermediate_size"),
    )


def _vision(fields: ConfigFields, hidden: int) -> VisionGeometry:
    fields.require("model_type", _VISION_TYPES, default=_VISION_TYPES[0])
    fields.require("hidden_act", ("gelu_pytorch_tanh",), default="gelu_pytorch_tanh")
    fields.require("in_channels", (PATCH_CHANNELS,), default=PATCH_CHANNELS)
    fields.require("patch_size", (PATCH_SIZE,))
    fields.require("temporal_patch_size", (PATCH_FRAMES,))
    fields.require("spatial_merge_size", (MERGE_SIZE,))
    fields.require("deepstack_visual_indexes", ([],), default=[])
    fields.require("out_hidden_size", (hidden,))
    width, num_heads = fields.integer("hidden_size"), fields.integer("num_heads")
    # Two position axes, each rotating split halves: four equal parts of a head.
    if width % (4 * num_heads):
        raise fields.refusal("num_heads", f"a divisor of {width} that leaves a multiple of 4")
    num_positions = fields.integer("num_position_embeddings")
    if math.isqrt(num_positions) ** 2 != num_positions:
        raise fields.refusal("num_position_embeddings", "a square number")
    return VisionGeometry(
        depth=fields.integer("depth", high=_MAX_LAYERS),
        width=width,
        num_heads=num_heads,
        mlp_width=fields.integer("intermediate_size"),
        patch_width=PATCH_WIDTH,
        num_positions=num_positions,
        merge_size=MERGE_SIZE,
    )
