"""What a stream needs of the device that owns it.

Knows neither of them: the device satisfies the protocol, and streams are tested with less.
"""

from collections.abc import Collection
from typing import Protocol

from ninfer.cuda import driver
from ninfer.cuda.kernel_source import Kernel
from ninfer.device import CompileAhead
from ninfer.errors import NinferError


class StreamOwner(Protocol):
    """What a stream needs of its device."""

    @property
    def fault(self) -> NinferError | None:
        """The fault that lost the context, if there was one."""

    @property
    def has_programmatic_launch(self) -> bool:
        """Whether a kernel may start before its predecessor has ended."""

    @property
    def has_warpgroups(self) -> bool:
        """Whether kernels may use warpgroup instructions."""

    @property
    def has_clusters(self) -> bool:
        """Whether blocks can start in clusters."""

    @property
    def num_multiprocessors(self) -> int:
        """Blocks that run at once where one fills a multiprocessor."""

    def is_at_hand(self, kernel: Kernel) -> bool:
        """Whether what is asked about a kernel is answered without compiling it."""

    def num_clusters(self, kernel: Kernel) -> int:
        """Clusters of a kernel that run at once where a block fills a multiprocessor."""

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a block."""

    def bind(self) -> None:
        """Make the context current in the calling thread."""

    def lose(self, fault: NinferError) -> None:
        """Note that the context is lost."""

    def function(self, kernel: Kernel) -> driver.Handle:
        """Loaded entry point of a kernel."""

    def make_ready(self, kernels: Collection[Kernel], ahead: CompileAhead | None) -> None:
        """Compile what is missing, and load everything."""
