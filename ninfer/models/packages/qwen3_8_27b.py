"""Facts of Qwen3.8-27B: the graph of Qwen3.6-27B, W8 vocabulary matrices, a DFlash2 companion."""

from dataclasses import replace
from typing import Final

from ninfer.models.package import WEIGHTS_IDS, DraftGeometry, Family, ModelPackage
from ninfer.models.packages import qwen3_6_27b
from ninfer.tensor import TensorFormat

DRAFT: Final = DraftGeometry(
    is_dflash2=True,
    layer_windows=(2048,) * 5,
    intermediate=17408,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    target_layers=(5, 19, 33, 47, 61),
    block_size=8,
    mask_token_id=248070,
    rope_theta=1e7,
    is_causal=False,
    conv_group=16,
    selector_rank=256,
    selector_top_k=16,
)

PACKAGE: Final = ModelPackage(
    model_id="qwen3.8-27b",
    family=Family.DENSE,
    geometry=replace(qwen3_6_27b.GEOMETRY, draft=DRAFT),
    weights_ids=WEIGHTS_IDS,
    vocabulary_format=TensorFormat.W8,
)
