"""A cache policy for tests that keeps what it can: every good end is retained, sessions are reused.

It exists to exercise what the root-only policy never does: sources, claims, evictions, publication
into reserved places and the session index.
"""

from ninfer.engine.checkpoint_catalog import CheckpointCatalog, RetentionClass
from ninfer.engine.resource_planner import (
    AdmissionAnswer,
    AdmissionQuestion,
    Admit,
    RootOnlyPlanner,
    TerminalChoice,
    TerminalQuestion,
    is_feasible,
)
from ninfer.generation import CacheMode
from ninfer.program.contract import Evict, FromCheckpoint, Materialize, Program, Release, Retain


class RetainingPlanner:
    """See the module; ``is_moving`` consumes a session's checkpoint instead of forking it."""

    def __init__(self, *, is_moving: bool) -> None:
        self._is_moving = is_moving
        self._root_only = RootOnlyPlanner()
        self.num_reuses = 0

    def plan_admission(
        self, program: Program, catalog: CheckpointCatalog, question: AdmissionQuestion
    ) -> AdmissionAnswer:
        """The session's checkpoint if it is a prefix, else root."""
        key = question.session_key
        found = None if key is None else catalog.sessions.find(key)
        if found is not None and question.cache is CacheMode.READ_WRITE:
            target = Materialize(question.demand, FromCheckpoint(found, self._is_moving))
            if is_feasible(program.project(target)):
                self.num_reuses += 1
                return Admit(target)
        return self._root_only.plan_admission(program, catalog, question)

    def plan_terminal(
        self, program: Program, catalog: CheckpointCatalog, question: TerminalQuestion
    ) -> TerminalChoice:
        """Retain whenever that is allowed, in place of the oldest if the catalog runs full."""
        if not question.may_retain:
            return TerminalChoice(Release(question.sequence))
        victims = catalog.unprotected()[:1] if catalog.num_free == 0 else ()
        target = Retain(question.sequence, tuple(Evict(victim) for victim in victims))
        return TerminalChoice(target, retention=RetentionClass.LIVE_SESSION)
