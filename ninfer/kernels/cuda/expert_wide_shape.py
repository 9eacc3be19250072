"""What a block of `expert_wide` multiplies at a time, and where shared memory has it."""

from dataclasses import dataclass
from typing import Final

from ninfer.kernels.cuda.launch import WARP
from ninfer.kernels.cuda.weight_layout import TILE_ROWS
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.tensor import TensorFormat

GROUPS: Final = 4
"""Warpgroups that multiply."""

WARPS: Final = 4 * GROUPS
"""Warps that multiply; each has one stored tile of 16 rows at a time."""

COLUMN_WARPS: Final = 2
WEIGHT_WARPS: Final = 2
"""Warps of one more group, which brings what is multiplied."""

THREADS: Final = (WARPS + COLUMN_WARPS + WEIGHT_WARPS) * WARP

FIRST_REGISTERS: Final = 96
MULTIPLYING_REGISTERS: Final = 112
BRINGING_REGISTERS: Final = 32
"""Of a thread: as a block starts, and how groups share them afterwards."""

BLOCK_ROWS: Final = WARPS * TILE_ROWS

COLUMNS: Final = 128
"""Most columns of an entry."""

COLUMN_BYTES: Final = COLUMNS * 256
"""Columns of a stage: two blocks of 64 features."""

_GATE_STAGING: Final = 2560
_DOWN_STAGING: Final = 2048
"""Results of a warpgroup on their way to memory: of 32 columns, or of 16."""

TABLE_BYTES: Final = 256
"""Room for where the rows of a warp's columns begin."""

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
    def tile_bytes(self) -> int:
        """A stored tile of 16 rows x 128 features."""
        return PAIR_FORMATS[self.format].tile_bytes

    @property
    def lower_at(self) -> int:
        """Bytes from the upper to the lower record of what a warp multiplies.

        Down's are those of one tile. The warps of a pair share a tile of gate rows and, half a
        block of tiles behind it, the tile of up rows of the same features.
        """
        return self.tile_bytes * (WARPS // 2) if self.is_gate else self.tile_bytes // 2

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage: whole kilobytes, so that every stage is aligned."""
        used = COLUMN_BYTES + WARPS * self.tile_bytes
        return -(-used // _ALIGNMENT) * _ALIGNMENT

    @property
    def staging_bytes(self) -> int:
        """Results of a warpgroup on their way to memory."""
        return _GATE_STAGING if self.is_gate else _DOWN_STAGING

    @property
    def stages(self) -> int:
        """Stages of the ring."""
        rest = _SHARED - _ALIGNMENT - GROUPS * self.staging_bytes - 32 * _MOST_STAGES
        rest -= TABLE_BYTES * (1 + 2 * COLUMN_WARPS)
        return min(_MOST_STAGES, rest // self.stage_bytes)

    @property
    def staging_at(self) -> int:
        """Staging of results, behind the ring."""
        return self.stages * self.stage_bytes

    @property
    def full_at(self) -> int:
        """Barriers of stages that have arrived."""
        return self.staging_at + GROUPS * self.staging_bytes

    @property
    def empty_at(self) -> int:
        """Barriers of stages that all warps are done with."""
        return self.full_at + 8 * self.stages

    @property
    def note_at(self) -> int:
        """Notes of stages that begin an item: its columns, their first place, its rows."""
        return -(-(self.empty_at + 8 * self.stages) // 16) * 16

    @property
    def table_at(self) -> int:
        """Where rows of columns begin: of two items, for each of the warps that ask for them."""
        return -(-(self.note_at + 16 * self.stages) // (2 * TABLE_BYTES)) * 2 * TABLE_BYTES

    @property
    def shared_bytes(self) -> int:
        """All of that, and room to align the ring."""
        return _ALIGNMENT + self.table_at + 2 * TABLE_BYTES * COLUMN_WARPS
