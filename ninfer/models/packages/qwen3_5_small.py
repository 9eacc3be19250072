"""Facts of the small Qwen3.5 checkpoints; their geometry travels in ``model/config.json``.

The usual dimensions are those of the published checkpoints, their text part alone (model contract,
section 1.2).
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


def _geometry(
    num_layers: int,
    hidden: int,
    intermediate: int,
    num_heads: int,
    num_kv_heads: int,
    num_value_heads: int,
    *,
    is_tied: bool,
) -> Geometry:
    return Geometry(
        hidden=hidden,
        vocab_rows=248320,
        layers=_PERIOD * (num_layers // len(_PERIOD)),
        attention=AttentionGeometry(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=256,
            rotary_dim=64,
            rope_theta=1e7,
            mrope_section=(11, 11, 10),
        ),
        gated_delta=GatedDeltaGeometry(
            num_key_heads=16, num_value_heads=num_value_heads, key_dim=128, value_dim=128
        ),
        mlp=DenseGeometry(intermediate),
        norm_eps=1e-6,
        is_tied=is_tied,
        max_positions=262144,
        has_mtp=False,
        vision=None,
        draft=None,
    )


def _package(name: str, geometry: Geometry) -> ModelPackage:
    return ModelPackage(
        model_id=name,
        family=Family.DENSE,
        geometry=None,
        weights_ids=WEIGHTS_IDS,
        signature=(geometry.hidden, len(geometry.layers)),
        usual_geometry=geometry,
    )


QWEN3_5_0_8B: Final = _package("qwen3.5-0.8b", _geometry(24, 1024, 3584, 8, 2, 16, is_tied=True))
QWEN3_5_2B: Final = _package("qwen3.5-2b", _geometry(24, 2048, 6144, 8, 2, 16, is_tied=True))
QWEN3_5_4B: Final = _package("qwen3.5-4b", _geometry(32, 2560, 9216, 16, 4, 32, is_tied=True))
QWEN3_5_9B: Final = _package("qwen3.5-9b", _geometry(32, 4096, 12288, 16, 4, 32, is_tied=False))
