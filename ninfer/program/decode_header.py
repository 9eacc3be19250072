"""Header of a decode round: what its rows bring, and how a pinned twin is filled in with it.

Small and in every round's way, so that nothing is written that has not changed: sampler settings
stay as they are while a twin serves the same rows. What the values mean is known to whoever makes
the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ninfer.generation import SamplingParams, TokenMask
from ninfer.models.qwen_hybrid.text import TextColumns
from ninfer.ops.sampling import SamplerRows
from ninfer.program.round_staging import RoundStaging
from ninfer.tensor import Tensor


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """Header of a decode round of exactly B rows, and the rows' masks.

    Attributes:
        columns: inputs of the schedule.
        count_flags: i32 [B], whether the row's token still has to be counted for penalties.
        sampler: settings of each row.
        mask: u32 [B, mask words], allowed tokens.
    """

    columns: TextColumns
    count_flags: Tensor
    sampler: SamplerRows
    mask: Tensor


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """What one row brings to a round.

    Attributes:
        token: the anchor.
        position: where it stands, in tokens.
        rope_position: its time, height and width position.
        table_row, slot: of its sequence.
        fold: recorded columns to fold first.
        is_uncounted: whether the anchor is still to be counted.
        sampling: settings the next token is chosen by.
        mask: tokens that may be chosen; None allows all.
    """

    token: int
    position: int
    rope_position: tuple[int, int, int]
    table_row: int
    slot: int
    fold: int
    is_uncounted: bool
    sampling: SamplingParams
    mask: TokenMask | None = None


class DecodeHeader:
    """Header of a round of exactly B rows in one pinned twin.

    Args:
        staging: owner of the twins.
        inputs: the header's fields on the device.
        turn: number of the twin.
    """

    def __init__(self, staging: RoundStaging, inputs: DecodeInputs, turn: int) -> None:
        columns, sampler = inputs.columns, inputs.sampler
        self._tokens: Final = staging.values(columns.tokens, turn)
        self._positions: Final = staging.values(columns.positions, turn)
        self._rope: Final = staging.values(columns.rope_positions, turn)
        self._table_rows: Final = staging.values(columns.table_rows, turn)
        self._slots: Final = staging.values(columns.slots, turn)
        self._fold: Final = staging.values(columns.fold, turn)
        self._count_flags: Final = staging.values(inputs.count_flags, turn)
        self._sampler: Final = tuple(
            staging.values(field, turn)
            for field in (
                sampler.temperature,
                sampler.top_p,
                sampler.min_p,
                sampler.presence,
                sampler.frequency,
                sampler.top_k,
                sampler.seeds,
            )
        )
        self._decided: Final = staging.values(sampler.positions, turn)
        self._settings: list[SamplingParams] | None = None

    def fill(self, rows: Sequence[DecodeRow], *, is_over_other: bool) -> None:
        """Write what B rows bring; ``is_over_other`` when it was another round's since."""
        positions = [row.position for row in rows]
        self._tokens[:] = [row.token for row in rows]
        self._positions[:] = positions
        self._rope.T[:] = [row.rope_position for row in rows]
        self._table_rows[:] = [row.table_row for row in rows]
        self._slots[:] = [row.slot for row in rows]
        self._fold[:] = [row.fold for row in rows]
        self._count_flags[:] = [row.is_uncounted for row in rows]
        self._decided[:] = [position + 1 for position in positions]
        settings = [row.sampling for row in rows]
        if is_over_other or settings != self._settings:
            self._fill_sampler(settings)
            self._settings = settings

    def _fill_sampler(self, settings: Sequence[SamplingParams]) -> None:
        temperature, top_p, min_p, presence, frequency, top_k, seeds = self._sampler
        temperature[:] = [0.0 if one.is_greedy else one.temperature for one in settings]
        top_p[:] = [one.top_p for one in settings]
        min_p[:] = [one.min_p for one in settings]
        presence[:] = [one.presence_penalty for one in settings]
        frequency[:] = [one.frequency_penalty for one in settings]
        top_k[:] = [one.top_k for one in settings]
        seeds[:] = [_seed_words(one.seed) for one in settings]


def _seed_words(seed: int) -> tuple[int, int]:
    """Split the two's-complement bits of an int64 into its low and its high word."""
    bits = seed & 0xFFFF_FFFF_FFFF_FFFF
    return bits & 0xFFFF_FFFF, bits >> 32
