"""The scripted program's ledger: sequences, checkpoints, reservations and its one transition.

Amounts are recounted from what exists at every question, so nothing can be counted twice or leak
unseen. Every call is announced first, which is where faults are injected and observers look.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ninfer.errors import IllegalMove, InvariantError, StaleHandle
from ninfer.generation import PreparedPrompt
from ninfer.program.contract import (
    CheckpointHandle,
    CheckpointSummary,
    Demand,
    Evict,
    FromCheckpoint,
    InactiveAction,
    Materialize,
    Outcome,
    ProgramCapacity,
    Release,
    ResourcePlan,
    ResourceResult,
    ResourceVector,
    Retain,
    SequenceHandle,
    Target,
    Tier,
    Verdict,
)

PAGE = 4
OWNER = 77


class InjectedFaultError(Exception):
    """A fault that the test asked for."""


@dataclass(slots=True)
class Faults:
    """Which call fails: ``at`` maps a call's name to its number, counted from 0.

    ``stale`` holds the numbers of `start` calls that find their plan stale.
    """

    at: dict[str, int] = field(default_factory=dict)
    stale: frozenset[int] = frozenset()
    error: Callable[[str], Exception] = InjectedFaultError


@dataclass(slots=True)
class SequenceEntry:
    prompt: PreparedPrompt
    budget: int
    pages: int
    frontier: int
    tokens: list[int]
    is_ended: bool = False

    @property
    def is_ready(self) -> bool:
        return self.frontier >= len(self.prompt.token_ids) - 1


@dataclass(slots=True)
class CheckpointEntry:
    token_ids: tuple[int, ...]
    frontier: int

    @property
    def pages(self) -> int:
        return -(-self.frontier // PAGE)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict on a target, what it needs afresh, what there is for it, and what it reuses."""

    verdict: Verdict
    needed: ResourceVector
    room: ResourceVector
    reused_tokens: int = 0


class ScriptedBooks:
    """See the module."""

    def __init__(
        self,
        capacity: ProgramCapacity,
        faults: Faults,
        observe: Callable[[str], None] | None,
    ) -> None:
        self.capacity = capacity
        self.faults = faults
        self.observe = observe
        self.calls: Counter[str] = Counter()
        self.sequences: dict[SequenceHandle, SequenceEntry] = {}
        self.checkpoints: dict[CheckpointHandle, CheckpointEntry] = {}
        self.running: ScriptedTransaction | None = None
        self.held = ResourceVector()
        self.revision = 0
        self._generation = 0

    def enter(self, call: str) -> None:
        """Announce a call, and fail if the test wants it to."""
        number = self.calls[call]
        self.calls[call] += 1
        if self.observe is not None:
            self.observe(call)
        if self.faults.at.get(call) == number:
            raise self.faults.error(f"{call} {number}")

    def free(self) -> ResourceVector:
        pages = self.held.main_pages
        slots = self.held.state_slots + len(self.sequences) + len(self.checkpoints)
        pages += sum(sequence.pages for sequence in self.sequences.values())
        pages += sum(checkpoint.pages for checkpoint in self.checkpoints.values())
        total = self.capacity.total
        return ResourceVector(total.state_slots - slots, total.main_pages - pages)

    def check(self) -> None:
        """No axis below zero and nothing counted that nobody owns."""
        assert ResourceVector().fits(self.free()), self.free()
        assert len(self.sequences) <= self.capacity.max_concurrency
        if self.running is None:
            assert self.held == ResourceVector()

    def sequence(self, handle: SequenceHandle) -> SequenceEntry:
        if handle not in self.sequences:
            raise StaleHandle(f"{handle} does not exist")
        return self.sequences[handle]

    def new_sequence(self, entry: SequenceEntry) -> SequenceHandle:
        self._generation += 1
        handle = SequenceHandle(OWNER, len(self.sequences), self._generation)
        self.sequences[handle] = entry
        return handle

    def new_checkpoint(self, entry: CheckpointEntry) -> CheckpointHandle:
        self._generation += 1
        handle = CheckpointHandle(OWNER, len(self.checkpoints), self._generation)
        self.checkpoints[handle] = entry
        return handle

    def summaries(self) -> tuple[CheckpointSummary, ...]:
        return tuple(
            CheckpointSummary(handle, checkpoint.frontier, frozenset({Tier.DEVICE}))
            for handle, checkpoint in self.checkpoints.items()
        )

    def judge(self, target: Target) -> Judgement:
        room = self.free()
        for action in actions_of(target):
            if action.checkpoint not in self.checkpoints:
                raise StaleHandle(f"{action.checkpoint} does not exist")
            room += ResourceVector(1, self.checkpoints[action.checkpoint].pages)
        match target:
            case Materialize():
                return self._judge_materialize(target, room)
            case Retain(sequence=handle) | Release(sequence=handle):
                self.sequence(handle)
                return Judgement(Verdict.READY, ResourceVector(), room)
            case _:
                raise InvariantError(f"not in the script: {target}")

    def _judge_materialize(self, target: Materialize, room: ResourceVector) -> Judgement:
        needed = root_need(target.demand)
        reused = 0
        if isinstance(target.source, FromCheckpoint):
            if target.source.checkpoint not in self.checkpoints:
                raise StaleHandle(f"{target.source.checkpoint} does not exist")
            source = self.checkpoints[target.source.checkpoint]
            reused = source.frontier
            if target.demand.prompt.token_ids[:-1][:reused] != source.token_ids:
                return Judgement(Verdict.PERMANENTLY_INFEASIBLE, needed, room)
        has_lane = len(self.sequences) < self.capacity.max_concurrency
        if not needed.fits(self.capacity.total):
            return Judgement(Verdict.PERMANENTLY_INFEASIBLE, needed, room)
        if not (needed.fits(room) and has_lane):
            return Judgement(Verdict.TEMPORARILY_BLOCKED, needed, room)
        return Judgement(Verdict.READY, needed, room, reused)


class ScriptedTransaction:
    """A running transition."""

    def __init__(
        self, books: ScriptedBooks, plan: ResourcePlan, num_stages: int, reused_tokens: int
    ) -> None:
        self._books = books
        self._plan = plan
        self._num_left = num_stages
        self._reused_tokens = reused_tokens

    def advance(self) -> bool:
        self._enter("advance")
        if self._num_left == 0:
            return True
        self._num_left -= 1
        return False

    def commit(self) -> ResourceResult:
        self._enter("commit_transition")
        if self._num_left:
            raise InvariantError("stages are left")
        books = self._books
        match self._plan.target:
            case Materialize(demand=demand, source=source):
                pages = root_need(demand).main_pages
                entry = SequenceEntry(
                    demand.prompt, demand.max_new_tokens, pages, self._reused_tokens, []
                )
                if isinstance(source, FromCheckpoint) and source.consume:
                    del books.checkpoints[source.checkpoint]
                return self._end(Outcome.COMMITTED, sequence=books.new_sequence(entry))
            case Retain(sequence=released):
                ended = books.sequences.pop(released)
                ids = (*ended.prompt.token_ids, *ended.tokens)[: ended.frontier]
                published = books.new_checkpoint(CheckpointEntry(ids, ended.frontier))
                return self._end(Outcome.COMMITTED, published=published, released=released)
            case Release(sequence=released):
                del books.sequences[released]
                return self._end(Outcome.COMMITTED, released=released)
            case other:
                raise InvariantError(f"not in the script: {other}")

    def abort(self) -> ResourceResult:
        self._enter("abort_transition")
        return self._end(Outcome.ABORTED)

    def _enter(self, call: str) -> None:
        self._books.enter(call)
        if self._books.running is not self:
            raise IllegalMove("the transaction has ended")

    def _end(
        self,
        outcome: Outcome,
        *,
        sequence: SequenceHandle | None = None,
        published: CheckpointHandle | None = None,
        released: SequenceHandle | None = None,
    ) -> ResourceResult:
        books = self._books
        books.running = None
        books.held = ResourceVector()
        books.revision += 1
        return ResourceResult(
            plan_id=self._plan.plan_id,
            outcome=outcome,
            revision=books.revision,
            sequence=sequence,
            reused_tokens=0 if sequence is None else self._reused_tokens,
            published=published,
            released=released,
            checkpoints=books.summaries(),
            free=books.free(),
        )


def root_need(demand: Demand) -> ResourceVector:
    """What a demand reserves when it starts from nothing."""
    tokens = len(demand.prompt.token_ids) + demand.max_new_tokens
    return ResourceVector(state_slots=1, main_pages=-(-tokens // PAGE))


def actions_of(target: Target) -> tuple[Evict, ...]:
    """The evictions of a target; other actions are not in the script."""
    actions: tuple[InactiveAction, ...] = () if isinstance(target, Release) else target.actions
    evictions = tuple(action for action in actions if isinstance(action, Evict))
    if len(evictions) != len(actions):
        raise InvariantError("only evictions are in the script")
    return evictions
