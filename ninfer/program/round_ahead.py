"""The round that was started before anybody asked for it.

While the host judges the tokens of round n, round n + 1 already runs on the device, its anchors
being tokens that the host has not seen. A row that goes on takes its result when it is asked for. A
row that does not is left: its result is never looked at, and what the round wrote lies behind the
row's frontier or in a record that nobody folds. Only this cannot be taken back: the round has
folded and counted what the one before recorded. Knows no stores and no device.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ninfer.program.contract import SequenceHandle
from ninfer.program.round_staging import ChosenTokens


@dataclass(frozen=True, slots=True)
class RoundAhead:
    """A round whose rows may still be taken or left.

    Attributes:
        rows: its members in the order of the round.
        waiting: those that have neither been taken nor left.
        chosen: the tokens it chooses.
    """

    rows: tuple[SequenceHandle, ...]
    waiting: frozenset[SequenceHandle]
    chosen: ChosenTokens

    @classmethod
    def of(cls, rows: Iterable[SequenceHandle], chosen: ChosenTokens) -> "RoundAhead":
        """A round that was just started."""
        members = tuple(rows)
        return cls(members, frozenset(members), chosen)

    def serves(self, rows: Sequence[SequenceHandle]) -> bool:
        """Whether a round of exactly these rows is part of this one."""
        return self.waiting.issuperset(rows)

    def places(self, rows: Sequence[SequenceHandle]) -> tuple[int, ...]:
        """Where in this round the given rows stand."""
        return tuple(self.rows.index(row) for row in rows)

    def without(self, row: SequenceHandle) -> "RoundAhead | None":
        """The round with one row left; None when nobody waits for it any more."""
        waiting = self.waiting - {row}
        return replace(self, waiting=waiting) if waiting else None
