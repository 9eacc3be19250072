"""What the engine sees of Program: handles, demands, plans, results and pending batches.

Two kinds of transaction cross this page. A *resource transition* changes who owns what:

    target -> project -> seal: ResourcePlan
           -> start: RunningTransaction -> commit | abort: ResourceResult

A *model unit* produces provisional tokens:

    decode | control -> PendingBatch -> commit | abort_pending

Both end exactly once. Sequences follow one rule: the newest chosen token, the *anchor*, is part of
the ledger but not yet processed. A sequence with frontier F has processed tokens 0..F-1 and its
anchor stands at position F. Prefill therefore processes a prompt up to its last token, and the
first output token comes out of an ordinary decode round. Nothing here knows a queue, a user, a
layer or an allocator. The page is over 400 lines because the boundary is read as a whole.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self

from ninfer.generation import PreparedPrompt, SamplingParams, TokenMask


@dataclass(frozen=True, slots=True)
class SequenceHandle:
    """An active sequence; a reused slot has another generation."""

    owner: int
    index: int
    generation: int


@dataclass(frozen=True, slots=True)
class CheckpointHandle:
    """An immutable continuation; a reused slot has another generation."""

    owner: int
    index: int
    generation: int


@dataclass(frozen=True, slots=True)
class ResourceVector:
    """One amount per physical axis; no axis pays for another.

    Attributes:
        state_slots: Device StateImage slots.
        main_pages, backend_pages: Device page groups of the main and of the backend KV pool.
        host_state_slots: Host StateImage slots.
        host_kv_bytes: bytes of the Host KV arena.
    """

    state_slots: int = 0
    main_pages: int = 0
    backend_pages: int = 0
    host_state_slots: int = 0
    host_kv_bytes: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def fits(self, room: Self) -> bool:
        """Whether every axis is at most ``room``'s."""
        return all(getattr(self, f.name) <= getattr(room, f.name) for f in fields(self))


class Tier(enum.Enum):
    """Where a checkpoint's bytes live."""

    DEVICE = enum.auto()
    HOST = enum.auto()


class Verdict(enum.Enum):
    """Answer to a projected target."""

    PERMANENTLY_INFEASIBLE = enum.auto()  # not even alone, with all inactive cache released
    TEMPORARILY_BLOCKED = enum.auto()  # active incumbents hold what is missing
    NEEDS_TRANSFER = enum.auto()  # feasible with stages that copy
    READY = enum.auto()  # feasible without a copy


@dataclass(frozen=True, slots=True)
class Demand:
    """Everything that decides what one request needs to run to its end.

    Attributes:
        prompt: the request's prompt.
        sampling: sampler settings of the sequence.
        max_new_tokens: output budget; 0 only processes the prompt and never decodes.
    """

    prompt: PreparedPrompt
    sampling: SamplingParams
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Root:
    """Start from an empty state."""


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """Continue a checkpoint; ``consume`` moves a private source instead of forking it."""

    checkpoint: CheckpointHandle
    consume: bool


Source = Root | FromCheckpoint


@dataclass(frozen=True, slots=True)
class Evict:
    """Delete a checkpoint."""

    checkpoint: CheckpointHandle


@dataclass(frozen=True, slots=True)
class Place:
    """Make ``tiers`` the exact set of places of a checkpoint."""

    checkpoint: CheckpointHandle
    tiers: frozenset[Tier]


@dataclass(frozen=True, slots=True)
class Shorten:
    """Give up a checkpoint's coverage beyond an earlier recorded frontier."""

    checkpoint: CheckpointHandle
    frontier: int


InactiveAction = Evict | Place | Shorten


@dataclass(frozen=True, slots=True)
class Materialize:
    """Turn a waiting request into an active sequence with its whole execution reserved."""

    demand: Demand
    source: Source
    actions: tuple[InactiveAction, ...] = ()


@dataclass(frozen=True, slots=True)
class Capture:
    """Publish a checkpoint of an active sequence at its present frontier; the sequence runs on."""

    sequence: SequenceHandle
    actions: tuple[InactiveAction, ...] = ()


@dataclass(frozen=True, slots=True)
class Retain:
    """End an active sequence and publish it as one complete checkpoint."""

    sequence: SequenceHandle
    actions: tuple[InactiveAction, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """End an active sequence and give everything back."""

    sequence: SequenceHandle


@dataclass(frozen=True, slots=True)
class Rearrange:
    """Change only inactive placement."""

    actions: tuple[InactiveAction, ...]


Target = Materialize | Capture | Retain | Release | Rearrange


@dataclass(frozen=True, slots=True)
class Projection:
    """What a target would mean, computed from its complete joint post-state.

    Attributes:
        verdict: feasibility now.
        free_after: free amounts of every axis in the post-state.
        missing: what is lacking when the verdict is not READY or NEEDS_TRANSFER, else zero.
        reused_tokens: prompt tokens the source already covers.
        transfer_bytes, transfer_operations: copies the stages would do.
    """

    verdict: Verdict
    free_after: ResourceVector
    missing: ResourceVector
    reused_tokens: int = 0
    transfer_bytes: int = 0
    transfer_operations: int = 0


@dataclass(frozen=True, slots=True)
class ResourcePlan:
    """A sealed target, opaque apart from what it is bound to."""

    plan_id: int
    revision: int
    target: Target


class Outcome(enum.Enum):
    """How a resource transition ended."""

    COMMITTED = enum.auto()
    ABORTED = enum.auto()


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """Published facts of a checkpoint."""

    handle: CheckpointHandle
    frontier: int
    tiers: frozenset[Tier]


@dataclass(frozen=True, slots=True)
class ResourceResult:
    """The complete absolute end state of a transition.

    Attributes:
        plan_id: the plan that ended.
        revision: Program's revision afterwards.
        sequence: the new active sequence of a committed Materialize.
        reused_tokens: prompt tokens that sequence starts with.
        published: the new checkpoint of a committed Capture or Retain.
        released: the sequence that no longer exists.
        checkpoints: every checkpoint that exists now.
        free: free amounts now.
    """

    plan_id: int
    outcome: Outcome
    revision: int
    sequence: SequenceHandle | None
    reused_tokens: int
    published: CheckpointHandle | None
    released: SequenceHandle | None
    checkpoints: tuple[CheckpointSummary, ...]
    free: ResourceVector


class RunningTransaction(Protocol):
    """A started transition; it ends by exactly one of `commit` and `abort`."""

    def advance(self) -> bool:
        """Run at most one stage; True when only the end is left to choose."""

    def commit(self) -> ResourceResult:
        """Publish the target.

        Raises:
            InvariantError: stages are left, or the transaction has ended.
        """

    def abort(self) -> ResourceResult:
        """Give the target up and return the end state, safe degradations included."""


@dataclass(frozen=True, slots=True)
class BackfillProof:
    """The head still fits as root once the donors ended, the borrower holding all it has."""

    revision: int
    donors: frozenset[SequenceHandle]


@dataclass(frozen=True, slots=True)
class PendingRow:
    """One row of a pending batch.

    Attributes:
        sequence: whose tokens these are.
        base_frontier: processed tokens before the unit.
        tokens: provisional tokens, at least one.
        is_forced: they were given, not sampled.
    """

    sequence: SequenceHandle
    base_frontier: int
    tokens: tuple[int, ...]
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """Provisional tokens of one unit; at most one exists at a time."""

    batch_id: int
    rows: tuple[PendingRow, ...]


@dataclass(frozen=True, slots=True)
class RowDecision:
    """What becomes of a row.

    ``accepted`` is 0 only for a cancelled row, otherwise 1..produced, and fewer than produced only
    with ``is_terminal``. ``boundaries`` are relative to the accepted span.
    """

    accepted: int
    is_terminal: bool
    boundaries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """A committed prefill chunk. ``remaining_tokens`` is 0 when the sequence can decode.

    Behind a part of a chunk nothing is committed yet: ``processed_tokens`` is 0.
    """

    processed_tokens: int
    remaining_tokens: int


@dataclass(frozen=True, slots=True)
class ProgramCapacity:
    """Frozen amounts of the engine's life.

    Attributes:
        max_concurrency: active sequences, 1..8.
        max_context: longest sequence in tokens.
        total: every axis, everything free.
    """

    max_concurrency: int
    max_context: int
    total: ResourceVector


class Program(Protocol):
    """The only physical executor of one model. Called by the worker thread alone."""

    @property
    def capacity(self) -> ProgramCapacity:
        """Frozen amounts."""

    @property
    def resource_revision(self) -> int:
        """Moves when topology, inactive placement or global free capacity change."""

    def free(self) -> ResourceVector:
        """Free amounts now: neither allocated nor reserved."""

    def project(self, target: Target) -> Projection:
        """Compute a target's post-state without changing anything.

        Raises:
            StaleHandle: the target names a handle that no longer exists.
        """

    def seal(self, target: Target) -> ResourcePlan:
        """Bind a feasible target to the present revision.

        Raises:
            InvariantError: the target is not feasible now.
        """

    def start(self, plan: ResourcePlan) -> RunningTransaction | None:
        """Begin a plan; None, without side effect, when the plan is stale.

        Raises:
            InvariantError: another transition is unsettled.
        """

    def prove_backfill(
        self, head: Demand, donors: frozenset[SequenceHandle], borrower: Demand
    ) -> BackfillProof | None:
        """Prove that admitting ``borrower`` cannot keep ``head`` waiting beyond ``donors``."""

    def prefill(self, sequence: SequenceHandle, *, is_alone: bool = True) -> PrefillStep:
        """Process and commit the next chunk of the prompt, or process a part of it.

        Args:
            sequence: with a part of a chunk processed it can only go on or be released, and only be
                released once another sequence is read.
            is_alone: no other sequence waits for a unit. Otherwise Program may return early, behind
                a part that it chooses so that the wait is short; the result is the same bit for
                bit, however many calls lead to it and whatever ran between them.

        Raises:
            InvariantError: nothing is left to prefill, a batch is pending, or the sequence was in
                the middle of a chunk when another one was read.
        """

    def decode(
        self,
        rows: Sequence[SequenceHandle],
        masks: Sequence[TokenMask | None] = (),
        *,
        is_steady: bool = False,
    ) -> PendingBatch:
        """Run one exact-B round over rows whose prefill is complete.

        Args:
            rows: the members.
            masks: tokens each row may choose, None for all; empty when every row is free. A row
                with a mask produces one token.
            is_steady: every row is expected to go on with a free round of the same rows, so that
                Program may start that one already. The price: a row that accepts nothing of this
                round has ended, and can only be released, even when the batch is aborted.
        """

    def control(self, sequence: SequenceHandle, tokens: Sequence[int]) -> PendingBatch:
        """Process the anchor and all but the last of ``tokens``; no sampler is involved."""

    def commit(self, batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        """Commit the whole batch, one decision per row in order.

        A row with 0 accepted, and every terminal row, can afterwards only be retained or released.

        Raises:
            InvariantError: the batch is not the pending one, or a decision is illegal.
        """

    def abort_pending(self, batch: PendingBatch) -> None:
        """Roll the whole batch back; its sequences are as before the unit."""

    def abandon(self) -> None:
        """End whatever is unsettled and release all active state; idempotent, for failures."""

    def close(self) -> None:
        """Free everything; idempotent."""
