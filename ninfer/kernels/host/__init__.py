"""The kernel table of the host device: one module for each op family."""

from ninfer.kernels.host import linear

__all__ = ["linear"]
