"""Device work of resource transitions: clears and copies of state slots and page groups.

Each call enqueues on Program's stream and returns; the stream's order is what makes a slot usable
by the next unit. What is copied, and why, is decided by the transition.
"""

from dataclasses import dataclass

from ninfer.device import Stream
from ninfer.errors import InvariantError
from ninfer.program.kv_planes import KvPlanes
from ninfer.program.kv_pool import PageId, PoolKind
from ninfer.program.state_planes import StatePlanes
from ninfer.program.state_store import SlotId


@dataclass(frozen=True, slots=True)
class PlaneCopies:
    """Implements `PhysicalCopies` over the planes of one Program."""

    stream: Stream
    state: StatePlanes
    kv: KvPlanes

    def clear_state(self, slot: SlotId) -> None:
        """Make a slot the image of an empty sequence, sampler counts included."""
        self.state.clear(self.stream, slot)

    def copy_state(self, source: SlotId, destination: SlotId) -> None:
        """Copy one whole StateImage, unfolded records included."""
        self.state.copy(self.stream, source, destination)

    def reset_sampler(self, slot: SlotId) -> None:
        """Clear the counts of a slot's output tokens."""
        self.stream.clear(self.state.counts.rows(slot, 1))

    def copy_page(self, pool: PoolKind, source: PageId, destination: PageId) -> None:
        """Copy one page group in all planes of the main pool.

        Raises:
            InvariantError: another pool is meant; there is none.
        """
        if pool is not PoolKind.MAIN:
            raise InvariantError(f"there is no {pool.name} pool to copy page {source} in")
        self.kv.copy_page(self.stream, source, destination)
