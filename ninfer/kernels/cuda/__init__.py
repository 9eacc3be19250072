"""The kernel table of CUDA devices: one module for each op family."""

from ninfer.kernels.cuda import (
    attention,
    embedding,
    gated_delta,
    kv_cache,
    linear,
    moe,
    norm,
    pointwise,
    sampling,
)

__all__ = [
    "attention",
    "embedding",
    "gated_delta",
    "kv_cache",
    "linear",
    "moe",
    "norm",
    "pointwise",
    "sampling",
]
