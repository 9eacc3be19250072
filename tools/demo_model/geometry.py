"""Dimensions of the demo model and its companions, and the configs that describe them.

Head shapes are those of the published family (attention heads of 256, gated delta heads of 128), so
that every kernel runs as it does for a big model; only widths, counts and depth are small. Knows
nothing of training. Source: published Qwen3.5 and DFlash2 configuration layouts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

LINEAR: Final = "linear_attention"
FULL: Final = "full_attention"
ROW_MULTIPLE: Final = 64


@dataclass(frozen=True, slots=True)
class DraftShape:
    """The DFlash2 drafter.

    Attributes:
        num_layers: sliding layers.
        intermediate: width of their MLP.
        num_heads, num_kv_heads, head_dim: attention.
        target_layers: blocks of the trunk whose residual streams are its features.
        block_size: anchor and proposals.
        selector_rank, selector_top_k: candidate selector.
        window: of the sliding layers; never shorter than a training row.
    """

    num_layers: int = 2
    intermediate: int = 512
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    target_layers: tuple[int, ...] = (3, 7, 11)
    block_size: int = 8
    selector_rank: int = 16
    selector_top_k: int = 16
    window: int = 2048
    conv_group: int = 16


@dataclass(frozen=True, slots=True)
class DemoGeometry:
    """The trunk; ``vocab_rows`` exceeds the tokenizer's size so that the draft has a mask row."""

    vocab_rows: int
    mask_token_id: int
    hidden: int = 384
    num_layers: int = 12
    attention_interval: int = 4
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 256
    rotary_dim: int = 64
    rope_theta: float = 1e7
    num_key_heads: int = 2
    num_value_heads: int = 4
    delta_dim: int = 128
    intermediate: int = 512
    norm_eps: float = 1e-6
    max_positions: int = 4096
    draft: DraftShape = field(default_factory=DraftShape)

    @property
    def layer_types(self) -> tuple[str, ...]:
        """Mixer of each layer."""
        step = self.attention_interval
        return tuple(FULL if (i + 1) % step == 0 else LINEAR for i in range(self.num_layers))

    @property
    def conv_channels(self) -> int:
        """Channels of a gated delta layer's convolution: queries, keys and values."""
        return (2 * self.num_key_heads + self.num_value_heads) * self.delta_dim

    @property
    def value_width(self) -> int:
        """Width of all value heads of a gated delta layer together."""
        return self.num_value_heads * self.delta_dim


def for_vocabulary(tokenizer_size: int) -> DemoGeometry:
    """Return the shipped geometry for a tokenizer; the first row past its ids is the mask."""
    rows = -(-(tokenizer_size + 1) // ROW_MULTIPLE) * ROW_MULTIPLE
    return DemoGeometry(vocab_rows=rows, mask_token_id=tokenizer_size)


def small(tokenizer_size: int) -> DemoGeometry:
    """Return a geometry for rehearsals on a CPU: one of each mixer."""
    rows = -(-(tokenizer_size + 1) // ROW_MULTIPLE) * ROW_MULTIPLE
    draft = DraftShape(
        num_layers=1, intermediate=128, num_heads=2, num_kv_heads=1, target_layers=(0, 1)
    )
    return DemoGeometry(
        vocab_rows=rows,
        mask_token_id=tokenizer_size,
        hidden=128,
        num_layers=2,
        attention_interval=2,
        num_key_heads=1,
        num_value_heads=2,
        intermediate=256,
        draft=draft,
    )


def from_dict(values: dict[str, Any]) -> DemoGeometry:
    """Rebuild a geometry from `asdict`, as JSON returns it."""
    draft = dict(values["draft"])
    draft["target_layers"] = tuple(draft["target_layers"])
    return DemoGeometry(**{**values, "draft": DraftShape(**draft)})


def to_dict(geometry: DemoGeometry) -> dict[str, Any]:
    """Return what `from_dict` takes."""
    return asdict(geometry)


def model_config(geometry: DemoGeometry) -> dict[str, Any]:
    """Return ``config.json`` of the text checkpoint."""
    half = geometry.rotary_dim // 2
    side = (half + 1) // 3
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "dtype": "bfloat16",
        "head_dim": geometry.head_dim,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "intermediate_size": geometry.intermediate,
        "layer_types": list(geometry.layer_types),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": geometry.delta_dim,
        "linear_num_key_heads": geometry.num_key_heads,
        "linear_num_value_heads": geometry.num_value_heads,
        "linear_value_head_dim": geometry.delta_dim,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": geometry.max_positions,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": geometry.num_heads,
        "num_hidden_layers": geometry.num_layers,
        "num_key_value_heads": geometry.num_kv_heads,
        "rms_norm_eps": geometry.norm_eps,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [side, side, half - 2 * side],
            "partial_rotary_factor": geometry.rotary_dim / geometry.head_dim,
            "rope_theta": geometry.rope_theta,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": geometry.vocab_rows,
    }


def draft_config(geometry: DemoGeometry) -> dict[str, Any]:
    """Return ``config.json`` of the DFlash2 companion."""
    draft = geometry.draft
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "dflash_config": {
            "block_size": draft.block_size,
            "conv_group_size": draft.conv_group,
            "conv_kernel_size": 2,
            "mask_token_id": geometry.mask_token_id,
            "selector_rank": draft.selector_rank,
            "selector_top_k": draft.selector_top_k,
            "target_layer_ids": list(draft.target_layers),
        },
        "dtype": "bfloat16",
        "head_dim": draft.head_dim,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "intermediate_size": draft.intermediate,
        "is_causal": False,
        "layer_types": ["sliding_attention"] * draft.num_layers,
        "num_attention_heads": draft.num_heads,
        "num_hidden_layers": draft.num_layers,
        "num_key_value_heads": draft.num_kv_heads,
        "num_target_layers": geometry.num_layers,
        "rms_norm_eps": geometry.norm_eps,
        "rope_parameters": {"rope_theta": geometry.rope_theta, "rope_type": "default"},
        "sliding_window": draft.window,
        "vocab_size": geometry.vocab_rows,
    }


def from_configs(config: Mapping[str, Any], draft_config: Mapping[str, Any] | None) -> DemoGeometry:
    """Rebuild a geometry from the configs that `model_config` and `draft_config` describe it by."""
    rope = config["rope_parameters"]
    shape = DemoGeometry(
        vocab_rows=config["vocab_size"],
        mask_token_id=config["vocab_size"] - 1,
        hidden=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        attention_interval=config["layer_types"].index(FULL) + 1,
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        rotary_dim=round(config["head_dim"] * rope["partial_rotary_factor"]),
        rope_theta=rope["rope_theta"],
        num_key_heads=config["linear_num_key_heads"],
        num_value_heads=config["linear_num_value_heads"],
        delta_dim=config["linear_key_head_dim"],
        intermediate=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
    )
    if draft_config is None:
        return shape
    fields = draft_config["dflash_config"]
    draft = DraftShape(
        num_layers=draft_config["num_hidden_layers"],
        intermediate=draft_config["intermediate_size"],
        num_heads=draft_config["num_attention_heads"],
        num_kv_heads=draft_config["num_key_value_heads"],
        head_dim=draft_config["head_dim"],
        target_layers=tuple(fields["target_layer_ids"]),
        block_size=fields["block_size"],
        selector_rank=fields["selector_rank"],
        selector_top_k=fields["selector_top_k"],
        window=draft_config["sliding_window"],
        conv_group=fields["conv_group_size"],
    )
    return replace(shape, mask_token_id=fields["mask_token_id"], draft=draft)
