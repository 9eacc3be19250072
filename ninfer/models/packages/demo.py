"""Facts of the demo model that ships with ninfer; its geometry travels in ``model/config.json``.

The usual dimensions are those of the shipped checkpoint, its text part alone: small widths, the
family's own head shapes. Source: `tools/demo_model`, which trains it.
"""

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
)

_PERIOD: Final = (*(LayerKind.GATED_DELTA,) * 3, LayerKind.FULL_ATTENTION)

GEOMETRY: Final = Geometry(
    hidden=384,
    vocab_rows=8192,
    layers=_PERIOD * 3,
    attention=AttentionGeometry(
        num_heads=2,
        num_kv_heads=1,
        head_dim=256,
        rotary_dim=64,
        rope_theta=1e7,
        mrope_section=(11, 11, 10),
    ),
    gated_delta=GatedDeltaGeometry(num_key_heads=2, num_value_heads=4, key_dim=128, value_dim=128),
    mlp=DenseGeometry(512),
    norm_eps=1e-6,
    is_tied=True,
    max_positions=4096,
    has_mtp=False,
    vision=None,
    draft=None,
)

PACKAGE: Final = ModelPackage(
    model_id="demo",
    family=Family.DENSE,
    geometry=None,
    weights_ids=WEIGHTS_IDS,
    is_text_only=True,
    signature=(GEOMETRY.hidden, len(GEOMETRY.layers)),
    usual_geometry=GEOMETRY,
)
