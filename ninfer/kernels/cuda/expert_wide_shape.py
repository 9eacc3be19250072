"""What a block of `expert_wide` multiplies at a time, and where shared memory has it."""

from dataclasses import dataclass
from typing import Final

from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

GROUPS: Final = 4
"""Warpgroups of a block."""

WARPS: Final = 4 * GROUPS
"""Warps of a block; each has one stored tile of 16 rows at a time."""

THREADS: Final = WARPS * WARP
BLOCK_ROWS: Final = WARPS * TILE_ROWS

COLUMNS: Final = 128
"""Most columns of an entry."""

STAGING_BYTES: Final = 5120
"""Results of a warpgroup on their way to memory."""

_ALIGNMENT: Final = 1024  # of a swizzled block in shared memory
_SHARED: Final = 227 << 10
_MOST_STAGES: Final = 4


@dataclass(frozen=True, slots=True)
class ExpertWide:
    """What a block multiplies.

    Attributes:
        format: of the weights.
        is_gate: gate and up with SwiGLU, of columns named by ``order``; otherwise down, of columns
            that lie in the order of the plan.
    """

    format: TensorFormat
    is_gate: bool

    @property
    def column_bytes(self) -> int:
        """Columns of a stage: two blocks of 64 features."""
        return COLUMNS * 256

    @property
    def tile_bytes(self) -> int:
        """A stored tile of 16 rows x 128 features."""
        return PAIR_FORMATS[self.format].tile_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: whole kilobytes, so that every stage is aligned."""
        used = self.column_bytes + WARPS * self.tile_bytes
        return -(-used // _ALIGNMENT) * _ALIGNMENT

    @property
    def stages(self) -> int:
        """Stages of the ring."""
        rest = _SHARED - _ALIGNMENT - GROUPS * STAGING_BYTES - 16 * _MOST_STAGES
        return min(_MOST_STAGES, rest // self.stage_bytes)

    @property
    def ahead(self) -> int:
        """Stages that are under way while one is multiplied."""
        return min(2, self.stages - 1)

    @property
    def staging_at(self) -> int:
        """Staging of results, behind the ring."""
        return self.stages * self.stage_bytes

    @property
    def full_at(self) -> int:
        """Barriers of stages that have arrived."""
        return self.staging_at + GROUPS * STAGING_BYTES

    @property
    def empty_at(self) -> int:
        """Barriers of stages that all warps are done with."""
        return self.full_at + 8 * self.stages

    @property
    def shared_bytes(self) -> int:
        """All of that, and room to align the ring."""
        return _ALIGNMENT + self.empty_at + 8 * self.stages
