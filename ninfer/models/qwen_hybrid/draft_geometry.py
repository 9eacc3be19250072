"""Config of a DFlash or DFlash2 companion to `DraftGeometry`.

A drafter is identified by its fields, never by its name. Source: the published companions and the
authors' defaults for fields that older files leave out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ninfer.models.package import DraftGeometry, Geometry
from ninfer.models.qwen_hybrid.config_fields import ConfigFields

_DFLASH: Final = "DFlashDraftModel"
_DFLASH2: Final = "DFlash2DraftModel"
_SLIDING: Final = "sliding_attention"
_FULL: Final = "full_attention"
_CONV_TAPS: Final = 2

# Optional fields that would change the computation, with the values that leave it alone.
_NEUTRAL_FIELDS: Final[dict[str, tuple[object, ...]]] = {
    "attention_bias": (False,),
    "attention_sink_bias": (False, None),
    "final_logit_softcapping": (None, 0, 0.0),
    "hidden_act": ("silu",),
    "input_embedding_scale": (1, 1.0, None),
    "output_multiplier": (1, 1.0, None),
    "rope_scaling": (None,),
    "use_sliding_window": (True, None),
    "use_swa": (True, None),
}


def draft_from_config(geometry: Geometry, draft_config: Mapping[str, object]) -> Geometry:
    """Add the drafter a companion config describes to its target's geometry.

    Args:
        geometry: the target's dimensions.
        draft_config: parsed ``config.json`` of the companion.

    Raises:
        CheckpointError: a field is missing, malformed, does not fit the target or is not neutral.
    """
    root = ConfigFields(draft_config)
    root.require("model_type", ("qwen3",))
    architecture = root.strings("architectures")
    if architecture not in ((_DFLASH,), (_DFLASH2,)):
        raise root.refusal("architectures", f"['{_DFLASH}'] or ['{_DFLASH2}']")
    is_dflash2 = architecture == (_DFLASH2,)
    nested = root.section("dflash_config")
    for fields in (root, nested):
        for name, allowed in _NEUTRAL_FIELDS.items():
            fields.require(name, allowed, default=allowed[0])
    root.require("hidden_size", (geometry.hidden,))
    root.require("vocab_size", (geometry.vocab_rows,))
    root.require("num_target_layers", (len(geometry.layers),), default=len(geometry.layers))
    root.require("rms_norm_eps", (geometry.norm_eps,))
    num_heads, num_kv_heads = (
        root.integer("num_attention_heads"),
        root.integer("num_key_value_heads"),
    )
    if num_heads % num_kv_heads:
        raise root.refusal("num_key_value_heads", f"a divisor of {num_heads}")
    windows = _layer_windows(root)
    block = nested if "block_size" in nested else root
    draft = DraftGeometry(
        is_dflash2=is_dflash2,
        layer_windows=windows,
        intermediate=root.integer("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(root),
        target_layers=_target_layers(nested, len(windows), len(geometry.layers)),
        block_size=block.integer("block_size", low=2, high=1024),
        mask_token_id=nested.integer("mask_token_id", low=0, high=geometry.vocab_rows - 1),
        rope_theta=_rope_theta(root),
        is_causal=_is_causal(root, nested),
    )
    if is_dflash2:
        draft = _with_selector(draft, nested, geometry)
    return replace(geometry, draft=draft)


def _head_dim(root: ConfigFields) -> int:
    head_dim = root.integer("head_dim")
    if head_dim % 2:
        raise root.refusal("head_dim", "an even number")
    return head_dim


def _layer_windows(root: ConfigFields) -> tuple[int | None, ...]:
    count = root.integer("num_hidden_layers", high=64)
    kinds = root.strings("layer_types")
    if len(kinds) != count or not set(kinds) <= {_SLIDING, _FULL}:
        raise root.refusal("layer_types", f"{count} names out of {_FULL}, {_SLIDING}")
    window = root.integer("sliding_window") if _SLIDING in kinds else None
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _target_layers(nested: ConfigFields, num_layers: int, target_depth: int) -> tuple[int, ...]:
    """The target's blocks whose residual streams are features; the authors' default if absent."""
    if "target_layer_ids" not in nested:
        if num_layers == 1:
            return (target_depth // 2,)
        step = (target_depth - 4) / (num_layers - 1)
        if step < 0:  # The default would count backwards, to layers that do not exist.
            raise nested.refusal("target_layer_ids", f"ascending layers in 0..{target_depth - 1}")
        return tuple(round(1 + i * step) for i in range(num_layers))
    ids = nested.integers("target_layer_ids")
    if not ids or list(ids) != sorted(set(ids)) or not 0 <= ids[0] <= ids[-1] < target_depth:
        raise nested.refusal("target_layer_ids", f"ascending layers in 0..{target_depth - 1}")
    return ids


def _rope_theta(root: ConfigFields) -> float:
    if "rope_parameters" not in root:
        return root.number("rope_theta", low=1.0)
    rope = root.section("rope_parameters")
    rope.require("rope_type", ("default",), default="default")
    return rope.number("rope_theta", low=1.0)


def _is_causal(root: ConfigFields, nested: ConfigFields) -> bool:
    """Whether a block row sees only earlier block rows; drafts that do not say so are not causal.

    A wrong choice lowers acceptance only, never the output.
    """
    if "is_causal" in root:
        return root.boolean("is_causal", False)
    return nested.boolean("causal", False)


def _with_selector(draft: DraftGeometry, nested: ConfigFields, geometry: Geometry) -> DraftGeometry:
    nested.require("conv_kernel_size", (_CONV_TAPS,), default=_CONV_TAPS)
    group = nested.integer("conv_group_size")
    if geometry.hidden % group:
        raise nested.refusal("conv_group_size", f"a divisor of {geometry.hidden}")
    return replace(
        draft,
        conv_group=group,
        selector_rank=nested.integer("selector_rank"),
        selector_top_k=nested.integer("selector_top_k", high=geometry.vocab_rows),
    )
