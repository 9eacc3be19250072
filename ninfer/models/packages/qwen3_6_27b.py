"""Facts of Qwen3.6-27B: dense, 64 layers, no drafter companion."""

from typing import Final

from ninfer.models.package import (
    WEIGHTS_IDS,
    AttentionGeometry,
    DenseGeometry,
    Family,
    GatedDeltaGeometry,
    Geometry,
    LayerKind,
    ModelPackage,
    VisionGeometry,
)

_GDN = LayerKind.GATED_DELTA
_FULL = LayerKind.FULL_ATTENTION

GEOMETRY: Final = Geometry(
    hidden=5120,
    vocab_rows=248320,
    layers=(_GDN, _GDN, _GDN, _FULL) * 16,
    attention=AttentionGeometry(
        num_heads=24,
        num_kv_heads=4,
        head_dim=256,
        rotary_dim=64,
        rope_theta=1e7,
        mrope_section=(11, 11, 10),
    ),
    gated_delta=GatedDeltaGeometry(
        num_key_heads=16, num_value_heads=48, key_dim=128, value_dim=128
    ),
    mlp=DenseGeometry(intermediate=17408),
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
    draft=None,
)

PACKAGE: Final = ModelPackage(
    model_id="qwen3.6-27b",
    family=Family.DENSE,
    geometry=GEOMETRY,
    weights_ids=WEIGHTS_IDS,
)
