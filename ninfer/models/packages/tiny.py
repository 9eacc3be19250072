"""Facts of the test models; any small geometry, which travels in ``model/config.json``.

The usual dimensions are those the tests make.
"""

from dataclasses import replace
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
    MoeGeometry,
)

_PERIOD: Final = (*(LayerKind.GATED_DELTA,) * 3, LayerKind.FULL_ATTENTION)

_DENSE: Final = Geometry(
    hidden=64,
    vocab_rows=544,
    layers=_PERIOD * 2,
    attention=AttentionGeometry(
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        rotary_dim=16,
        rope_theta=1e7,
        mrope_section=(3, 3, 2),
    ),
    gated_delta=GatedDeltaGeometry(num_key_heads=2, num_value_heads=4, key_dim=32, value_dim=32),
    mlp=DenseGeometry(160),
    norm_eps=1e-6,
    is_tied=True,
    max_positions=4096,
    has_mtp=False,
    vision=None,
    draft=None,
)

_MOE: Final = replace(
    _DENSE,
    layers=_PERIOD,
    attention=replace(_DENSE.attention, num_kv_heads=1),
    mlp=MoeGeometry(num_experts=8, experts_per_token=2, expert_width=32, shared_width=32),
    is_tied=False,
)

TINY_DENSE: Final = ModelPackage(
    "tiny-dense", Family.DENSE, None, WEIGHTS_IDS, is_test_model=True, usual_geometry=_DENSE
)
TINY_MOE: Final = ModelPackage(
    "tiny-moe", Family.MOE, None, WEIGHTS_IDS, is_test_model=True, usual_geometry=_MOE
)
