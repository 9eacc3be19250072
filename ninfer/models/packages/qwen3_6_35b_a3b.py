"""Facts of Qwen3.6-35B-A3B: 256 experts, 8 of them used, 40 layers, a DFlash companion."""

from typing import Final

from ninfer.models.package import (
    WEIGHTS_IDS,
    AttentionGeometry,
    DraftGeometry,
    Family,
    GatedDeltaGeometry,
    Geometry,
    LayerKind,
    ModelPackage,
    MoeGeometry,
    VisionGeometry,
)

_GDN = LayerKind.GATED_DELTA
_FULL = LayerKind.FULL_ATTENTION

DRAFT: Final = DraftGeometry(
    is_dflash2=False,
    layer_windows=(4096, 4096, 4096, 4096, 4096, None),
    intermediate=6144,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    target_layers=(1, 6, 11, 16, 22, 27, 32, 37),
    block_size=16,
    mask_token_id=248077,
    rope_theta=1e7,
    is_causal=False,
)

GEOMETRY: Final = Geometry(
    hidden=2048,
    vocab_rows=248320,
    layers=(_GDN, _GDN, _GDN, _FULL) * 10,
    attention=AttentionGeometry(
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        rotary_dim=64,
        rope_theta=1e7,
        mrope_section=(11, 11, 10),
    ),
    gated_delta=GatedDeltaGeometry(
        num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128
    ),
    mlp=MoeGeometry(num_experts=256, experts_per_token=8, expert_width=512, shared_width=512),
    norm_eps=1e-6,
    is_tied=False,
    max_positions=262144,
    has_mtp=True,
    vision=VisionGeometry(
        depth=27,
        width=1152,
        num_heads=16,
        mlp_width=4304,
        patch_width=1536,
        num_positions=2304,
        merge_size=2,
    ),
    draft=DRAFT,
)

PACKAGE: Final = ModelPackage(
    model_id="qwen3.6-35b-a3b",
    family=Family.MOE,
    geometry=GEOMETRY,
    weights_ids=WEIGHTS_IDS,
    precise_down_layers=frozenset({34, 38, 39}),
)
