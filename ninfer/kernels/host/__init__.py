"""The kernel table of the host device: one module for each op family.

Compiled kernels are kept in the user's cache folder; ``NUMBA_CACHE_DIR`` names another place.
"""

from ninfer.kernels.host import (
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
