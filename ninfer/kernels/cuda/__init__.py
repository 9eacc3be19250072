"""The kernel table of CUDA devices: one module for each op family."""

from ninfer.kernels.cuda import (
    embedding,
    kv_cache,
    linear,
    norm,
    pointwise,
    sampling,
)

__all__ = [
    "embedding",
    "kv_cache",
    "linear",
    "norm",
    "pointwise",
    "sampling",
]
