"""Facts of the small Qwen3.5 checkpoints; their geometry travels in ``model/config.json``."""

from typing import Final

from ninfer.models.package import WEIGHTS_IDS, Family, ModelPackage

QWEN3_5_0_8B: Final = ModelPackage(
    "qwen3.5-0.8b", Family.DENSE, None, WEIGHTS_IDS, signature=(1024, 24)
)
QWEN3_5_2B: Final = ModelPackage(
    "qwen3.5-2b", Family.DENSE, None, WEIGHTS_IDS, signature=(2048, 24)
)
QWEN3_5_4B: Final = ModelPackage(
    "qwen3.5-4b", Family.DENSE, None, WEIGHTS_IDS, signature=(2560, 32)
)
QWEN3_5_9B: Final = ModelPackage(
    "qwen3.5-9b", Family.DENSE, None, WEIGHTS_IDS, signature=(4096, 32)
)
