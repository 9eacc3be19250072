"""Random lives of all stores: transitions, units in between, aborts; against a second ledger."""

from collections.abc import Hashable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ninfer.errors import IllegalMove, InvariantError, StaleHandle
from ninfer.program.contract import (
    Capture,
    CheckpointHandle,
    Evict,
    FromCheckpoint,
    Materialize,
    Projection,
    Rearrange,
    Release,
    ResourcePlan,
    ResourceResult,
    Retain,
    Root,
    RunningTransaction,
    SequenceHandle,
    Target,
    Verdict,
)
from ninfer.program.sequence_table import SequencePhase
from tests.support.booked_program import BookedProgram, demand_of
from tests.support.ledger_model import (
    EMPTY,
    MAX_CONTEXT,
    Free,
    Holding,
    Ledger,
    can_ever_be,
    free_of,
    post_state,
    reserved_for,
)
from tests.support.target_strategies import draw_target


class TransitionMachine(RuleBasedStateMachine):
    """At most one transition runs; units of settled sequences go on meanwhile."""

    @initialize(
        num_pages=st.integers(2, 12),
        num_slots=st.integers(1, 6),
        concurrency=st.integers(1, 3),
        cached=st.lists(st.integers(1, 150), max_size=3),
    )
    def build(self, num_pages: int, num_slots: int, concurrency: int, cached: list[int]) -> None:
        self.program = BookedProgram(
            num_pages=num_pages,
            num_slots=num_slots,
            max_concurrency=concurrency,
            max_context=MAX_CONTEXT,
        )
        self.ledger = Ledger(num_pages, num_slots)
        self.concurrency = concurrency
        self.sequences: list[SequenceHandle] = []
        self.checkpoints: dict[CheckpointHandle, tuple[int, ...]] = {}
        self.dead: list[Target] = []
        self.plans: list[ResourcePlan] = []
        self.running: RunningTransaction | None = None
        self.tokens = count(5000)
        for num_tokens in cached:
            self.leave_a_checkpoint(num_tokens)

    def leave_a_checkpoint(self, num_tokens: int) -> None:
        """Start with something to continue, as far as it fits."""
        prompt = [next(self.tokens) for _ in range(num_tokens + 1)]
        target = Materialize(demand_of(prompt, 1), Root())
        if self.program.is_feasible(target):
            self.run_at_once(target)
            self.program.prefill_all(self.sequences[0])
            self.advanced(self.sequences[0])
            self.run_at_once(Retain(self.sequences[0]))

    def run_at_once(self, target: Target) -> None:
        self.plans.append(self.program.transitions.seal(target))
        self.begin(self.plans[-1])
        self.finish()

    # Targets, and what they must mean

    def check_projection(self, target: Target, projection: Projection) -> bool:
        ended, fresh = post_state(self.ledger, target)
        after = self.ledger.free(ended, fresh)
        has_lane = not isinstance(target, Materialize) or len(self.sequences) < self.concurrency
        is_possible = can_ever_be(self.ledger, target)
        is_feasible = is_possible and after.is_possible and has_lane
        impossible = projection.verdict is Verdict.PERMANENTLY_INFEASIBLE
        assert impossible is not is_possible
        assert (projection.verdict in (Verdict.READY, Verdict.NEEDS_TRANSFER)) is is_feasible
        if is_feasible:
            assert free_of(projection.free_after) == after
        elif is_possible:
            lacking = Free(-min(0, after.state_slots), -min(0, after.main_pages))
            assert free_of(projection.missing) == lacking
        return is_feasible

    # Transitions

    def is_settled(self, target: Target) -> bool:
        if isinstance(target, Materialize | Rearrange):
            return True
        phase = self.program.stores.view(target.sequence).phase
        refused = {SequencePhase.PENDING}
        if isinstance(target, Capture):
            refused.add(SequencePhase.ENDED)
        return phase not in refused

    @precondition(lambda self: self.running is None)
    @rule(data=st.data(), then=st.sampled_from(["run", "run", "run", "begin", "keep"]))
    def seal(self, data: st.DataObject, then: str) -> None:
        target = draw_target(data, self.checkpoints, self.sequences, self.tokens)
        before = self.program.facts(), self.program.transitions.resource_revision
        if not self.is_settled(target):
            with pytest.raises(IllegalMove):
                self.program.transitions.project(target)
        elif not self.check_projection(target, self.program.transitions.project(target)):
            with pytest.raises(InvariantError):
                self.program.transitions.seal(target)
        else:
            plan = self.program.transitions.seal(target)
            self.plans.append(plan)
            if then == "run":
                self.plans.pop()
                self.run_at_once(target)
                return
            if then == "begin":
                self.begin(plan)
                return
        assert (self.program.facts(), self.program.transitions.resource_revision) == before

    def begin(self, plan: ResourcePlan) -> None:
        running = self.program.transitions.start(plan)
        assert running is not None
        self.running, self.plan = running, plan
        self.plans.remove(plan)
        self.captured: tuple[Holding, tuple[int, ...]] | None = None
        target = plan.target
        actions = () if isinstance(target, Release) else target.actions
        self.deletions = [action.checkpoint for action in actions]
        if isinstance(target, Materialize) and isinstance(target.source, FromCheckpoint):
            # A source that ends is moved at the commit.
            source = target.source.checkpoint
            self.deletions = [handle for handle in self.deletions if handle != source]

    @precondition(lambda self: self.running is None and self.plans)
    @rule(data=st.data())
    def start_an_older_plan(self, data: st.DataObject) -> None:
        plan = data.draw(st.sampled_from(self.plans))
        is_old = plan.revision != self.program.transitions.resource_revision
        if not is_old and not self.is_settled(plan.target):
            with pytest.raises(IllegalMove):
                self.program.transitions.start(plan)
            return
        if is_old or not self.program.is_feasible(plan.target):
            before = self.program.facts()
            assert self.program.transitions.start(plan) is None
            assert self.program.facts() == before
            return
        self.begin(plan)

    @precondition(lambda self: self.running is not None)
    @rule()
    def advance(self) -> None:
        if self.is_settled(self.plan.target):
            self.run_a_stage()

    def run_a_stage(self) -> bool:
        """One stage: first deletions, if there are any, then whatever else."""
        assert self.running is not None
        target = self.plan.target
        is_last = self.running.advance()
        if self.deletions:
            for handle in self.deletions:
                self.forget(handle)
            self.deletions = []
        elif isinstance(target, Capture) and self.captured is None:
            tokens = self.program.stores.sequences.get(target.sequence).ledger
            held = self.ledger.holders[target.sequence]
            self.captured = held.frozen(), tuple(tokens[: held.frontier])
        return is_last

    @precondition(lambda self: self.running is not None)
    @rule()
    def run_to_the_end(self) -> None:
        if self.is_settled(self.plan.target):
            self.finish()

    def finish(self) -> None:
        assert self.running is not None
        target = self.plan.target
        while not self.run_a_stage():
            continue
        ended, fresh = post_state(self.ledger, target)
        tokens = self.published_tokens(target)
        if self.captured is not None:
            fresh, tokens = [self.captured[0]], self.captured[1]
        result = self.running.commit()
        self.running = None
        self.adopt(target, result, ended, fresh, tokens)

    def published_tokens(self, target: Target) -> tuple[int, ...]:
        if not isinstance(target, Capture | Retain):
            return ()
        record = self.program.stores.sequences.get(target.sequence)
        return tuple(record.ledger[: self.ledger.holders[target.sequence].frontier])

    def adopt(
        self,
        target: Target,
        result: ResourceResult,
        ended: set[Hashable],
        fresh: list[Holding],
        tokens: tuple[int, ...],
    ) -> None:
        for key in ended:
            self.forget(key)
        if result.sequence is not None:
            self.sequences.append(result.sequence)
            self.ledger.holders[result.sequence] = fresh[0]
        reused = 0 if result.sequence is None else fresh[0].frontier
        assert result.reused_tokens == reused
        if result.published is not None:
            self.checkpoints[result.published] = tokens
            self.ledger.holders[result.published] = fresh[0]
        assert (result.sequence is not None) is isinstance(target, Materialize)
        assert (result.published is not None) is isinstance(target, Capture | Retain)
        assert (result.released is not None) is isinstance(target, Retain | Release)
        self.check_result(result)

    def forget(self, key: Hashable) -> None:
        if self.ledger.holders.pop(key, None) is None:
            return
        if isinstance(key, CheckpointHandle):
            del self.checkpoints[key]
            self.dead.append(Rearrange((Evict(key),)))
        elif isinstance(key, SequenceHandle):
            self.sequences.remove(key)
            self.dead += [Release(key), Retain(key), Capture(key)]

    def check_result(self, result: ResourceResult) -> None:
        assert free_of(result.free) == self.ledger.free()
        assert result.revision == self.program.transitions.resource_revision
        published = {summary.handle: summary.frontier for summary in result.checkpoints}
        assert published == {handle: len(tokens) for handle, tokens in self.checkpoints.items()}

    @precondition(lambda self: self.running is not None)
    @rule()
    def abort(self) -> None:
        assert self.running is not None
        result = self.running.abort()
        self.running = None
        self.check_result(result)
        assert (result.sequence, result.published, result.released) == (None, None, None)

    @precondition(lambda self: self.dead)
    @rule(data=st.data())
    def use_a_dead_handle(self, data: st.DataObject) -> None:
        with pytest.raises(StaleHandle):
            self.program.transitions.project(data.draw(st.sampled_from(self.dead)))

    # Units

    def pick(self, data: st.DataObject, phase: SequencePhase) -> SequenceHandle | None:
        view = self.program.stores.view
        chosen = [handle for handle in self.sequences if view(handle).phase is phase]
        return data.draw(st.sampled_from(chosen)) if chosen else None

    def advanced(self, handle: SequenceHandle) -> None:
        frontier = self.program.stores.view(handle).frontier
        self.ledger.holders[handle] = self.ledger.holders[handle].advanced(frontier)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def prefill(self, data: st.DataObject) -> None:
        handle = self.pick(data, SequencePhase.PREFILL)
        if handle is None:
            return
        view = self.program.stores.view(handle)
        left = len(view.prompt.token_ids) - 1 - view.frontier
        with pytest.raises(IllegalMove):
            self.program.prefill(handle, left + 1)
        is_whole = data.draw(st.booleans())
        self.program.prefill(handle, left if is_whole else data.draw(st.integers(1, left)))
        self.advanced(handle)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), num_columns=st.integers(1, 70), is_kept=st.booleans())
    def control(self, data: st.DataObject, num_columns: int, is_kept: bool) -> None:
        handle = self.pick(data, SequencePhase.READY)
        if handle is None:
            return
        view = self.program.stores.view(handle)
        tokens = [next(self.tokens) for _ in range(num_columns)]
        if view.frontier + num_columns > view.writable_tokens:
            with pytest.raises(IllegalMove):
                self.program.control(handle, tokens, is_kept=is_kept)
            return
        self.program.control(handle, tokens, is_kept=is_kept)
        self.advanced(handle)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def begin_decode(self, data: st.DataObject) -> None:
        handle = self.pick(data, SequencePhase.READY)
        if handle is None:
            return
        view = self.program.stores.view(handle)
        if view.frontier < view.writable_tokens:
            self.program.begin_decode(handle, next(self.tokens))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), end=st.sampled_from(["go on", "terminal", "cancel", "abort"]))
    def settle(self, data: st.DataObject, end: str) -> None:
        handle = self.pick(data, SequencePhase.PENDING)
        if handle is None:
            return
        match end:
            case "cancel":
                self.program.cancel(handle)
            case "abort":
                self.program.abort(handle)
            case _:
                self.program.commit(handle, is_terminal=end == "terminal")
        self.advanced(handle)

    # Proofs

    @precondition(lambda self: self.running is None)
    @rule(data=st.data(), sizes=st.tuples(*[st.integers(1, 150)] * 4))
    def prove_backfill(self, data: st.DataObject, sizes: tuple[int, int, int, int]) -> None:
        head, borrower = demand_of(range(sizes[0]), sizes[1]), demand_of(range(sizes[2]), sizes[3])
        donors = frozenset(
            data.draw(st.sets(st.sampled_from(self.sequences))) if self.sequences else set()
        )
        proof = self.program.transitions.prove_backfill(head, donors, borrower)
        fresh = [EMPTY.continued(reserved_for(demand)) for demand in (head, borrower)]
        after = self.ledger.free({*donors, *self.checkpoints}, fresh)
        can_be = all(len(demand.prompt.token_ids) < MAX_CONTEXT for demand in (head, borrower))
        num_active = len(self.sequences) - len(donors) + 2
        assert (proof is not None) is (
            can_be and after.is_possible and num_active <= self.concurrency
        )

    # Always

    @invariant()
    def contents_are_right(self) -> None:
        self.program.check_contents()
        for handle, tokens in self.checkpoints.items():
            assert self.program.read_checkpoint(handle) == tokens

    @invariant()
    def the_ledger_balances(self) -> None:
        if self.running is None:
            assert free_of(self.program.stores.free()) == self.ledger.free()
        assert free_of(self.program.stores.free()).is_possible


def test_every_life_of_the_stores_keeps_contents_and_ledger() -> None:
    run_state_machine_as_test(
        TransitionMachine,
        settings=settings(max_examples=50, stateful_step_count=40, deadline=None),
    )


@pytest.mark.slow
def test_long_lives_of_the_stores_keep_contents_and_ledger() -> None:
    run_state_machine_as_test(
        TransitionMachine,
        settings=settings(max_examples=2000, stateful_step_count=80, deadline=None),
    )
