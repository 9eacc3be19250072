"""A CUDA stream as launchers see it on a device with less: smaller blocks, no warpgroups.

Kernels that such devices choose run on any device that has as much, so that their numbers can be
checked on a larger one.
"""

from typing import Any

NARROW_BYTES = 99 << 10
"""Shared memory of a block on the smallest devices we compile for."""

MIDDLE_BYTES = 163 << 10
"""The same of sm_80."""


class NarrowStream:
    """Everything is done by another stream; only what launchers ask is answered otherwise."""

    has_warpgroups = False
    has_clusters = False

    def __init__(self, stream: Any, shared_bytes: int) -> None:
        self._stream = stream
        self.shared_bytes = shared_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
