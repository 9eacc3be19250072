"""A Program that follows a script: real contract, real bookkeeping, no model.

Every misuse raises, so that it judges the engine as strictly as a real one. Tokens are a function
of the prompt alone, whatever happens around it. A fault or a stale plan can be injected at any
numbered call, and an observer sees each call before it has an effect.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from ninfer.errors import InvariantError
from ninfer.generation import PreparedPrompt, TokenMask
from ninfer.program.contract import (
    BackfillProof,
    Demand,
    PendingBatch,
    PendingRow,
    PrefillStep,
    ProgramCapacity,
    Projection,
    ResourcePlan,
    ResourceVector,
    RowDecision,
    SequenceHandle,
    Target,
    Verdict,
)
from tests.support.scripted_books import (
    Faults,
    ScriptedBooks,
    ScriptedTransaction,
    SequenceEntry,
    actions_of,
    root_need,
)

CALLS = (
    "project",
    "seal",
    "start",
    "advance",
    "commit_transition",
    "abort_transition",
    "prove_backfill",
    "prefill",
    "decode",
    "control",
    "commit",
    "abort_pending",
)


def scripted_token(prompt: PreparedPrompt, index: int) -> int:
    """Output token ``index`` of a prompt."""
    return prompt.token_ids[0] * 1000 + index


class ScriptedProgram:
    """See the module.

    Args:
        num_pages: pages of `PAGE` tokens.
        num_state_slots: for active sequences and checkpoints together.
        chunk: prompt tokens of one prefill call.
        num_parts: calls that a chunk takes when its request is not alone.
        width: most tokens of a row in one round.
        num_stages: `advance` calls of a transition that say False.
        observe: called with a call's name before its effect.
    """

    def __init__(
        self,
        *,
        max_concurrency: int = 2,
        max_context: int = 64,
        num_pages: int = 32,
        num_state_slots: int | None = None,
        chunk: int = 4,
        num_parts: int = 1,
        width: int = 1,
        num_stages: int = 0,
        faults: Faults | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        slots = max_concurrency if num_state_slots is None else num_state_slots
        total = ResourceVector(state_slots=slots, main_pages=num_pages)
        self.books = ScriptedBooks(
            ProgramCapacity(max_concurrency, max_context, total), faults or Faults(), observe
        )
        self._chunk = chunk
        self._num_parts = num_parts
        self._parts_done = 0
        self._in_chunk: SequenceHandle | None = None
        self._given_up: set[SequenceHandle] = set()
        self.alone: list[bool] = []
        self._width = width
        self._num_stages = num_stages
        self._next_plan = 0
        self._next_batch = 0
        self.pending: PendingBatch | None = None
        self.committed: dict[bytes, list[int]] = {}
        self.rounds: list[tuple[int, ...]] = []
        self.masks: list[tuple[TokenMask | None, ...]] = []
        self.steady: list[bool] = []
        self.is_abandoned = False

    @property
    def capacity(self) -> ProgramCapacity:
        return self.books.capacity

    @property
    def resource_revision(self) -> int:
        return self.books.revision

    @property
    def calls(self) -> Counter[str]:
        """How often each call was made."""
        return self.books.calls

    def free(self) -> ResourceVector:
        return self.books.free()

    def is_owning(self, prompt: PreparedPrompt) -> bool:
        """Whether a sequence of this prompt is active."""
        return any(entry.prompt is prompt for entry in self.books.sequences.values())

    def check_idle(self) -> None:
        """Everything but the checkpoints is free again."""
        self.books.check()
        assert not self.books.sequences
        assert self.books.running is None
        assert self.pending is None

    def project(self, target: Target) -> Projection:
        self.books.enter("project")
        found = self.books.judge(target)
        if found.verdict is Verdict.READY:
            free_after = found.room - found.needed
            return Projection(found.verdict, free_after, ResourceVector(), found.reused_tokens)
        return Projection(found.verdict, self.free(), found.needed)

    def seal(self, target: Target) -> ResourcePlan:
        self.books.enter("seal")
        if self.books.judge(target).verdict is not Verdict.READY:
            raise InvariantError("sealed a target that is not feasible")
        self._next_plan += 1
        return ResourcePlan(self._next_plan, self.books.revision, target)

    def start(self, plan: ResourcePlan) -> ScriptedTransaction | None:
        number = self.calls["start"]
        self.books.enter("start")
        if self.books.running is not None or self.pending is not None:
            raise InvariantError("something is unsettled")
        if plan.revision != self.books.revision or number in self.books.faults.stale:
            return None
        found = self.books.judge(plan.target)
        for action in actions_of(plan.target):
            del self.books.checkpoints[action.checkpoint]
        self.books.held = found.needed
        self.books.revision += 1
        self.books.running = ScriptedTransaction(
            self.books, plan, self._num_stages, found.reused_tokens
        )
        return self.books.running

    def prove_backfill(
        self, head: Demand, donors: frozenset[SequenceHandle], borrower: Demand
    ) -> BackfillProof | None:
        self.books.enter("prove_backfill")
        room = self.free()
        for donor in donors:
            room += ResourceVector(1, self.books.sequence(donor).pages)
        for checkpoint in self.books.checkpoints.values():
            room += ResourceVector(1, checkpoint.pages)
        if not (root_need(head) + root_need(borrower)).fits(room):
            return None
        return BackfillProof(self.books.revision, donors)

    def prefill(self, sequence: SequenceHandle, *, is_alone: bool = True) -> PrefillStep:
        self.books.enter("prefill")
        self.alone.append(is_alone)
        entry = self.books.sequence(sequence)
        left = len(entry.prompt.token_ids) - 1 - entry.frontier
        if left <= 0 or self.pending is not None:
            raise InvariantError("nothing to prefill, or a batch is pending")
        if self._in_chunk != sequence:
            if self._in_chunk is not None:
                self._given_up.add(self._in_chunk)
            if sequence in self._given_up:
                raise InvariantError("another sequence was read in the middle of a chunk")
            self._in_chunk, self._parts_done = sequence, 0
        self._parts_done += 1
        if not is_alone and self._parts_done < self._num_parts:
            return PrefillStep(0, left)
        self._in_chunk = None
        done = min(left, self._chunk)
        entry.frontier += done
        return PrefillStep(done, left - done)

    def decode(
        self,
        rows: Sequence[SequenceHandle],
        masks: Sequence[TokenMask | None] = (),
        *,
        is_steady: bool = False,
    ) -> PendingBatch:
        self.books.enter("decode")
        self.masks.append(tuple(masks))
        self.steady.append(is_steady)
        if not rows or len(set(rows)) != len(rows):
            raise InvariantError("an empty round, or a row twice")
        batch = tuple(self._decode_row(row) for row in rows)
        self.rounds.append(tuple(self.books.sequence(row).prompt.token_ids[0] for row in rows))
        return self._pend(batch)

    def control(self, sequence: SequenceHandle, tokens: Sequence[int]) -> PendingBatch:
        self.books.enter("control")
        entry = self._runnable(sequence)
        if not tokens or len(tokens) > entry.budget - len(entry.tokens):
            raise InvariantError("forced tokens do not fit the reservation")
        return self._pend((PendingRow(sequence, entry.frontier, tuple(tokens), True),))

    def commit(self, batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        self.books.enter("commit")
        self._settle(batch)
        if len(decisions) != len(batch.rows):
            raise InvariantError("not one decision per row")
        for row, decision in zip(batch.rows, decisions, strict=True):
            self._commit_row(row, decision)

    def abort_pending(self, batch: PendingBatch) -> None:
        self.books.enter("abort_pending")
        self._settle(batch)

    def abandon(self) -> None:
        self.is_abandoned = True
        self.books.enter("abandon")
        self.pending = None
        self.books.running = None
        self.books.held = ResourceVector()
        self.books.sequences.clear()
        self.books.revision += 1

    def close(self) -> None:
        self.abandon()
        self.books.checkpoints.clear()

    def _runnable(self, handle: SequenceHandle) -> SequenceEntry:
        entry = self.books.sequence(handle)
        if self.pending is not None or entry.is_ended or not entry.is_ready:
            raise InvariantError("a batch is pending, or the sequence cannot run")
        return entry

    def _decode_row(self, handle: SequenceHandle) -> PendingRow:
        entry = self._runnable(handle)
        width = min(self._width, entry.budget - len(entry.tokens))
        if width < 1:
            raise InvariantError("decoded beyond the reservation")
        first = len(entry.tokens)
        tokens = tuple(scripted_token(entry.prompt, first + i) for i in range(width))
        return PendingRow(handle, entry.frontier, tokens)

    def _pend(self, rows: tuple[PendingRow, ...]) -> PendingBatch:
        self._next_batch += 1
        self.pending = PendingBatch(self._next_batch, rows)
        return self.pending

    def _settle(self, batch: PendingBatch) -> None:
        if batch is not self.pending:
            raise InvariantError("not the pending batch")
        self.pending = None

    def _commit_row(self, row: PendingRow, decision: RowDecision) -> None:
        produced = len(row.tokens)
        is_legal = decision.is_terminal or decision.accepted == produced
        if not (is_legal and 0 <= decision.accepted <= produced):
            raise InvariantError(f"illegal decision {decision}")
        entry = self.books.sequence(row.sequence)
        accepted = row.tokens[: decision.accepted]
        entry.tokens.extend(accepted)
        entry.frontier += decision.accepted
        entry.is_ended = decision.is_terminal
        self.committed.setdefault(entry.prompt.identity, []).extend(accepted)
