"""First come, first served; a later request enters earlier only with Program's proof."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.engine.response_channel import GenerationHandle
from ninfer.errors import InvariantError
from ninfer.generation import FinishReason
from ninfer.program.contract import BackfillProof, Demand, SequenceHandle
from tests.support.engine_harness import EngineHarness
from tests.support.scripted_books import PAGE
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request


class BoastfulProgram(ScriptedProgram):
    """Proves everything, for another revision."""

    def prove_backfill(
        self, head: Demand, donors: frozenset[SequenceHandle], borrower: Demand
    ) -> BackfillProof | None:
        return BackfillProof(self.resource_revision - 1, donors)


def submit_pages(
    engine: EngineHarness, first: int, pages: int, output: int = 4
) -> GenerationHandle:
    """A request that needs exactly so many pages."""
    prompt_tokens = pages * PAGE - output
    return engine.submit(
        make_request(engine.program, first, prompt_tokens=prompt_tokens, max_new_tokens=output)
    )


def admitted_order(program: ScriptedProgram) -> list[int]:
    """Requests in the order of their first round."""
    seen: list[int] = []
    for row in program.rounds:
        seen.extend(first for first in row if first not in seen)
    return seen


def test_a_small_request_waits_behind_a_blocked_head_it_would_delay() -> None:
    program = ScriptedProgram(max_concurrency=3, num_pages=10)
    engine = EngineHarness(program)
    submit_pages(engine, 1, 6, output=12)  # leaves 4
    engine.step(8)
    submit_pages(engine, 2, 8)  # blocked until 1 ends; then 2 pages are left
    submit_pages(engine, 3, 3)  # fits beside 1, not beside 2

    engine.step_until_idle()

    assert admitted_order(program) == [1, 2, 3]
    assert program.calls["prove_backfill"] >= 1


def test_a_small_request_goes_ahead_when_the_head_cannot_be_delayed_by_it() -> None:
    program = ScriptedProgram(max_concurrency=3, num_pages=10)
    engine = EngineHarness(program)
    submit_pages(engine, 1, 6, output=12)
    engine.step(8)
    submit_pages(engine, 2, 8)
    submit_pages(engine, 3, 2)  # fits beside 1 and beside 2

    engine.step_until_idle()

    assert admitted_order(program) == [1, 3, 2]
    engine.check_resources_idle()


def test_two_borrowers_need_two_proofs() -> None:
    program = ScriptedProgram(max_concurrency=4, num_pages=10)
    engine = EngineHarness(program)
    submit_pages(engine, 1, 5, output=12)
    engine.step(8)
    submit_pages(engine, 2, 8)
    submit_pages(engine, 3, 2, output=7)  # outlives 1
    submit_pages(engine, 4, 2, output=7)  # beside 1 and 3 there is room; not beside 3 and 2

    engine.step_until_idle()

    assert admitted_order(program).index(4) > admitted_order(program).index(2)
    assert admitted_order(program)[:2] == [1, 3]


def test_a_proof_still_works_after_the_first_of_two_donors_has_ended() -> None:
    program = ScriptedProgram(max_concurrency=4, num_pages=12)
    engine = EngineHarness(program)
    submit_pages(engine, 1, 4, output=6)
    submit_pages(engine, 2, 4, output=15)
    engine.step(4)
    submit_pages(engine, 3, 10)  # needs the end of 1 and of 2
    engine.step(12)
    is_first_gone = program.rounds[-1] == (2,)
    submit_pages(engine, 4, 2)

    engine.step_until_idle()

    assert is_first_gone
    assert admitted_order(program) == [1, 2, 4, 3]


def test_a_head_that_leaves_the_queue_protects_nobody_any_more() -> None:
    program = ScriptedProgram(max_concurrency=3, num_pages=10)
    engine = EngineHarness(program)
    submit_pages(engine, 1, 6, output=16)
    engine.step(4)
    head = engine.submit(make_request(program, 2, prompt_tokens=28, max_new_tokens=4))
    submit_pages(engine, 3, 3)
    engine.step(2)

    head.cancel()
    engine.step_until_idle()

    assert admitted_order(program) == [1, 3]
    assert head.result().finish is FinishReason.CANCELLED
    engine.check_resources_idle()


def test_a_proof_for_another_revision_fails_the_engine() -> None:
    program = BoastfulProgram(max_concurrency=3, num_pages=10)
    engine = EngineHarness(program)
    submit_pages(engine, 1, 6, output=12)
    engine.step(8)
    submit_pages(engine, 2, 8)
    submit_pages(engine, 3, 2)

    engine.step_until_idle()

    assert engine.core.status().state.value == "failed"


def test_a_block_without_incumbents_is_not_waited_for() -> None:
    program = ScriptedProgram(num_pages=4)
    engine = EngineHarness(program)
    handle = submit_pages(engine, 1, 4)
    program.books.held = program.books.capacity.total  # pages that nobody owns

    engine.step_until_idle()

    with pytest.raises(InvariantError, match="nothing it waits for is active"):
        handle.result()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=2, max_size=8),
    st.integers(2, 4),
)
def test_a_blocked_head_enters_before_or_with_the_end_of_its_last_donor(
    sizes: list[tuple[int, int]], num_lanes: int
) -> None:
    program = ScriptedProgram(max_concurrency=num_lanes, num_pages=7, chunk=100)
    engine = EngineHarness(program)
    handles = [
        engine.submit(
            make_request(program, first, prompt_tokens=pages * PAGE - output, max_new_tokens=output)
        )
        for first, (pages, output) in enumerate(sizes)
        if pages * PAGE > output
    ]

    engine.step_until_idle()

    # The engine itself fails when a protected head is blocked without any donor left.
    finishes = [handle.result().finish for handle in handles]
    assert finishes == [FinishReason.LENGTH] * len(handles)
    program.check_idle()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_equal_requests_enter_in_the_order_of_submission(outputs: list[int]) -> None:
    program = ScriptedProgram(max_concurrency=2, num_pages=7)
    engine = EngineHarness(program)
    for first, output in enumerate(outputs):
        engine.submit(make_request(program, first, prompt_tokens=8 - output, max_new_tokens=output))

    engine.step_until_idle()

    assert admitted_order(program) == list(range(len(outputs)))
