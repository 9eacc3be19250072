"""Drives a `ModelProgram` as an engine would, one call at a time, without scheduling anything."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ninfer.generation import PreparedPrompt, RopePositions, SamplingParams, TokenType
from ninfer.host.device import HostStream
from ninfer.program.contract import (
    Capture,
    CheckpointHandle,
    Demand,
    FromCheckpoint,
    InactiveAction,
    Materialize,
    PendingBatch,
    Rearrange,
    Release,
    ResourceResult,
    Retain,
    Root,
    RowDecision,
    SequenceHandle,
    Source,
    Target,
    Verdict,
)
from ninfer.program.program import ModelProgram

GREEDY = SamplingParams(temperature=0.0)
ACCEPT = RowDecision(1, is_terminal=False)
F32 = npt.NDArray[np.float32]


@dataclass
class Lane:
    """One sequence and everything it produced."""

    handle: SequenceHandle
    tokens: list[int] = field(default_factory=list)
    logits: list[F32] = field(default_factory=list)


class ProgramDriver:
    """``streams`` are those the Program made, in order."""

    def __init__(self, program: ModelProgram, streams: Sequence[HostStream]) -> None:
        self.program = program
        self.streams = streams

    def settle(self, target: Target) -> ResourceResult:
        """Seal, start, run and commit a target."""
        transaction = self.program.start(self.program.seal(target))
        assert transaction is not None
        while not transaction.advance():
            pass
        return transaction.commit()

    def admit(
        self,
        prompt: Sequence[int],
        max_new_tokens: int = 32,
        sampling: SamplingParams = GREEDY,
        *,
        rope: RopePositions | None = None,
        source: Source = Root(),  # noqa: B008 - frozen
        is_prefilled: bool = True,
    ) -> Lane:
        """Materialize a request and, unless told otherwise, prefill it."""
        types = bytes([TokenType.TEXT]) * len(prompt)
        prepared = PreparedPrompt(tuple(prompt), types, rope, b"")
        demand = Demand(prepared, sampling, max_new_tokens)
        result = self.settle(Materialize(demand, source))
        assert result.sequence is not None
        lane = Lane(result.sequence)
        if is_prefilled and len(prompt) - 1 > result.reused_tokens:
            self.prefill(lane)
        return lane

    def resume(
        self,
        checkpoint: CheckpointHandle,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        consume: bool,
    ) -> Lane:
        """Materialize from a checkpoint."""
        return self.admit(prompt, 32, sampling, source=FromCheckpoint(checkpoint, consume))

    def prefill(self, lane: Lane) -> None:
        while self.program.prefill(lane.handle).remaining_tokens:
            pass

    def decode(self, *lanes: Lane) -> PendingBatch:
        return self.program.decode([lane.handle for lane in lanes])

    def round(self, *lanes: Lane) -> None:
        """Run and accept one round."""
        batch = self.decode(*lanes)
        logits = self.program.pending_logits(batch)
        self.program.commit(batch, [ACCEPT] * len(lanes))
        for lane, row, values in zip(lanes, batch.rows, logits, strict=True):
            lane.tokens.extend(row.tokens)
            lane.logits.append(values)

    def aborted_round(self, *lanes: Lane) -> None:
        self.program.abort_pending(self.decode(*lanes))

    def end(self, lane: Lane) -> None:
        """Release a sequence as it is."""
        self.settle(Release(lane.handle))

    def retain(self, lane: Lane) -> CheckpointHandle:
        result = self.settle(Retain(lane.handle))
        assert result.published is not None
        return result.published

    def capture(self, lane: Lane) -> CheckpointHandle:
        result = self.settle(Capture(lane.handle))
        assert result.published is not None
        return result.published

    def has_room_to_capture(self, lane: Lane) -> bool:
        verdict = self.program.project(Capture(lane.handle)).verdict
        return verdict in (Verdict.READY, Verdict.NEEDS_TRANSFER)

    def rearrange(self, *actions: InactiveAction) -> None:
        self.settle(Rearrange(actions))

    def generate(
        self, prompt: Sequence[int], num_tokens: int, sampling: SamplingParams = GREEDY
    ) -> Lane:
        """Run one request alone and release it."""
        lane = self.admit(prompt, num_tokens, sampling)
        for _ in range(num_tokens):
            self.round(lane)
        self.end(lane)
        return lane
