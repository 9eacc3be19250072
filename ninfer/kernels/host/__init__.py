"""The kernel table of the host device: one module for each op family."""

from ninfer.kernels.host import embedding, linear, norm, pointwise, sampling

__all__ = ["embedding", "linear", "norm", "pointwise", "sampling"]
