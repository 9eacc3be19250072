"""Which source an admission uses and what becomes of a finished sequence: the cache policy.

Today's policy reuses nothing: every request starts from root and is released at its end. If the
root plan does not fit beside what the cache keeps, the correctness incumbent is tried: root, with
every unprotected inactive checkpoint released. Policies differ in this file and in
`checkpoint_catalog` alone; `ResourceManager` starts, adopts and settles whatever is chosen here.
Source: system design, section 6, "Planning".
"""

from dataclasses import dataclass
from typing import Protocol

from ninfer.engine.checkpoint_catalog import CheckpointCatalog, CheckpointKind, RetentionClass
from ninfer.generation import CacheMode
from ninfer.program.contract import (
    Demand,
    Evict,
    Materialize,
    Program,
    Projection,
    Release,
    ResourceVector,
    Retain,
    Root,
    SequenceHandle,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class AdmissionQuestion:
    """A waiting request, as far as the cache is concerned."""

    demand: Demand
    cache: CacheMode
    session_key: str | None


@dataclass(frozen=True, slots=True)
class Admit:
    """The target to start now."""

    target: Materialize


@dataclass(frozen=True, slots=True)
class Blocked:
    """Active incumbents hold what is missing."""

    missing: ResourceVector


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Not even alone, with every inactive checkpoint released."""

    missing: ResourceVector


AdmissionAnswer = Admit | Blocked | Infeasible


@dataclass(frozen=True, slots=True)
class TerminalQuestion:
    """A sequence whose model work is over.

    Attributes:
        may_retain: it ended well, its request joins the cache and a catalog place is reserved.
    """

    sequence: SequenceHandle
    may_retain: bool
    session_key: str | None


@dataclass(frozen=True, slots=True)
class TerminalChoice:
    """What to do with a finished sequence; kind and retention class matter for `Retain` only."""

    target: Retain | Release
    kind: CheckpointKind = CheckpointKind.SESSION_ENDPOINT
    retention: RetentionClass = RetentionClass.DISPOSABLE


class Planner(Protocol):
    """A cache policy: chooses targets, changes nothing."""

    def plan_admission(
        self, program: Program, catalog: CheckpointCatalog, question: AdmissionQuestion
    ) -> AdmissionAnswer:
        """Choose how a waiting request becomes active, or say that it cannot now, or ever."""

    def plan_terminal(
        self, program: Program, catalog: CheckpointCatalog, question: TerminalQuestion
    ) -> TerminalChoice:
        """Choose between keeping and releasing; keeping only what is feasible now."""


class RootOnlyPlanner:
    """The policy without reuse."""

    def plan_admission(
        self, program: Program, catalog: CheckpointCatalog, question: AdmissionQuestion
    ) -> AdmissionAnswer:
        """Root as it is, else root with all unprotected inactive cache released."""
        target = Materialize(question.demand, Root())
        projection = program.project(target)
        victims = catalog.unprotected()
        if victims and not is_feasible(projection):
            target = Materialize(question.demand, Root(), tuple(Evict(v) for v in victims))
            projection = program.project(target)
        return admission_answer(target, projection)

    def plan_terminal(
        self, program: Program, catalog: CheckpointCatalog, question: TerminalQuestion
    ) -> TerminalChoice:
        """Release."""
        return TerminalChoice(Release(question.sequence))


def is_feasible(projection: Projection) -> bool:
    """Whether a projected target can be sealed now."""
    return projection.verdict in (Verdict.READY, Verdict.NEEDS_TRANSFER)


def admission_answer(target: Materialize, projection: Projection) -> AdmissionAnswer:
    """Turn the verdict on a policy's last candidate into its answer."""
    match projection.verdict:
        case Verdict.READY | Verdict.NEEDS_TRANSFER:
            return Admit(target)
        case Verdict.TEMPORARILY_BLOCKED:
            return Blocked(projection.missing)
        case Verdict.PERMANENTLY_INFEASIBLE:
            return Infeasible(projection.missing)
