"""Workspace lifetimes -> offsets: regions that are never alive together share bytes.

A region is alive in some phases of a Program's life and, inside those, over an interval of steps:

    PREFILL   |== residual ===================|
              |== projected ==|== gate_up ====|      projected and gate_up share bytes
    DECODE    |== logits =====================|      and logits lies over all of them

Placement is first fit by falling size: every region goes to the lowest offset where it meets no
conflicting one. That is deterministic and, for nested lifetimes, close to the lower bound (the
largest sum alive at one moment). Nothing is allocated here, and what a region holds is not known.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ninfer.device import ALIGNMENT
from ninfer.errors import InvariantError

LAST_STEP = 1 << 30
"""End of an interval that lasts to the end of its phases."""


class Phase(enum.Enum):
    """Parts of a Program's work that exclude one another."""

    VISION = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()
    PROPOSAL = enum.auto()
    SCORING = enum.auto()


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of workspace.

    Attributes:
        name: unique among the regions.
        nbytes: size.
        phases: where it is alive; more than one for regions that carry data across.
        first_step, last_step: inclusive interval inside each of its phases.
    """

    name: str
    nbytes: int
    phases: frozenset[Phase]
    first_step: int = 0
    last_step: int = LAST_STEP

    def conflicts_with(self, other: "Region") -> bool:
        """Whether both are alive at some moment."""
        return (
            not self.phases.isdisjoint(other.phases)
            and self.first_step <= other.last_step
            and other.first_step <= self.last_step
        )


@dataclass(frozen=True, slots=True)
class WorkspaceLayout:
    """Where every region lies.

    Attributes:
        regions: in the order they were given.
        offsets: first byte of each region, by name, aligned.
        nbytes: size of the whole workspace, aligned.
    """

    regions: tuple[Region, ...]
    offsets: Mapping[str, int]
    nbytes: int


def lay_out(regions: Sequence[Region]) -> WorkspaceLayout:
    """Give every region an offset such that none overlaps another one alive with it.

    Raises:
        InvariantError: a name occurs twice, or a region has no lifetime or a negative size.
    """
    if len({region.name for region in regions}) != len(regions):
        raise InvariantError("two workspace regions have one name")
    for region in regions:
        if not region.phases or region.nbytes < 0 or region.first_step > region.last_step:
            raise InvariantError(f"workspace region {region} is never alive or has no size")
    offsets: dict[str, int] = {}
    placed: list[Region] = []
    end = 0
    for region in sorted(regions, key=lambda region: (-region.nbytes, region.name)):
        taken = sorted(
            (offsets[other.name], offsets[other.name] + aligned(other.nbytes))
            for other in placed
            if region.conflicts_with(other)
        )
        offset = _lowest_gap(taken, aligned(region.nbytes))
        offsets[region.name] = offset
        placed.append(region)
        end = max(end, offset + aligned(region.nbytes))
    return WorkspaceLayout(tuple(regions), MappingProxyType(offsets), end)


def aligned(nbytes: int) -> int:
    """Bytes that an arena uses for a tensor of ``nbytes``."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _lowest_gap(taken: Sequence[tuple[int, int]], nbytes: int) -> int:
    """Lowest offset of ``nbytes`` free bytes between intervals sorted by their start."""
    offset = 0
    for start, stop in taken:
        if offset + nbytes <= start:
            break
        offset = max(offset, stop)
    return offset
