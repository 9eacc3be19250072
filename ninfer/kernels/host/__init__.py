"""The kernel table of the host device: one module for each op family.

Compiled kernels are kept beside the modules, or in the user's cache directory where that is not
writable; ``NUMBA_CACHE_DIR`` names another place.
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
