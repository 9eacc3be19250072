"""A chunk that runs in parts: the same bits as at once, whatever runs in between."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.errors import InvariantError
from ninfer.program.contract import RowDecision
from tests.support.program_driver import Lane, ProgramDriver
from tests.support.running_program import running_program
from tests.support.unit_walks import FORCED, continue_alone, golden_prompt, untrained_prompt

CHUNK = 128
LONG = 300  # two full chunks, which are replayed, and a rest


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a full chunk four parts, one for each layer of the tiny models."""
    monkeypatch.setattr("ninfer.program.prefill_parts.PART_TOKENS", CHUNK // 4)


def long_prompt() -> list[int]:
    return (untrained_prompt() * 4)[:LONG]


def of_three(
    case: str = "tiny-dense", *, use_graphs: bool = True
) -> AbstractContextManager[ProgramDriver]:
    return running_program(
        case, max_concurrency=3, max_context=400, prefill_chunk=CHUNK, use_graphs=use_graphs
    )


def prefill_in_parts(
    driver: ProgramDriver, lane: Lane, between: Callable[[int], None] = lambda step: None
) -> int:
    """Read the lane's prompt beside others; returns the number of calls."""
    calls = 0
    while driver.program.prefill(lane.handle, is_alone=False).remaining_tokens:
        between(calls)
        calls += 1
    return calls + 1


@pytest.mark.parametrize("case", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("use_graphs", [True, False])
def test_parts_beside_rounds_change_no_bit_of_either(case: str, use_graphs: bool) -> None:
    with of_three(case, use_graphs=use_graphs) as driver:
        alone = driver.admit(long_prompt(), 20)
        expected = continue_alone(driver, alone)
        driver.end(alone)
        other = driver.admit(golden_prompt(0), 64)
        undisturbed = continue_alone(driver, other, 12)
        driver.end(other)

        other = driver.admit(golden_prompt(0), 64)
        staged = driver.admit(long_prompt(), 20, is_prefilled=False)
        calls = prefill_in_parts(driver, staged, lambda step: driver.round(other))
        while len(other.tokens) < 12:
            driver.round(other)
        found = continue_alone(driver, staged)

    assert calls > 8
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])
    assert other.tokens[:12] == undisturbed[0][:12]
    np.testing.assert_array_equal(np.stack(other.logits[:12]), undisturbed[1][:12])


ACTIONS = st.lists(
    st.sampled_from(["part", "rest", "round", "aborted round", "control", "partial control"]),
    max_size=14,
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=ACTIONS)
def test_any_units_between_parts_leave_the_prompt_as_it_is(actions: list[str]) -> None:
    with of_three() as driver:
        alone = driver.admit(long_prompt(), 8)
        expected = continue_alone(driver, alone)
        driver.end(alone)
        other = driver.admit(golden_prompt(0), 100)
        staged = driver.admit(long_prompt(), 8, is_prefilled=False)
        left = LONG - 1

        for action in actions:
            if action in ("part", "rest") and left:
                step = driver.program.prefill(staged.handle, is_alone=action == "rest")
                left = step.remaining_tokens
            elif action == "round":
                driver.round(other)
            elif action == "aborted round":
                driver.aborted_round(other)
            elif action == "control":
                batch = driver.program.control(other.handle, FORCED)
                driver.program.commit(batch, [RowDecision(len(FORCED), is_terminal=False)])
            elif action == "partial control":
                driver.program.abort_pending(driver.program.control(other.handle, FORCED))
        if left:
            driver.prefill(staged)
        found = continue_alone(driver, staged)

    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])


def test_nothing_is_committed_before_the_last_part() -> None:
    with of_three() as driver:
        staged = driver.admit(long_prompt(), is_prefilled=False)

        steps = [driver.program.prefill(staged.handle, is_alone=False) for _ in range(4)]

    assert [step.processed_tokens for step in steps] == [0, 0, 0, CHUNK]
    assert [step.remaining_tokens for step in steps] == [LONG - 1] * 3 + [LONG - 1 - CHUNK]


def test_a_sequence_released_in_the_middle_of_a_chunk_leaves_nothing_behind() -> None:
    with of_three() as driver:
        expected = continue_alone(driver, driver.admit(long_prompt(), 8))
        other = driver.admit(golden_prompt(0), 64)
        ended = driver.admit(long_prompt()[::-1], is_prefilled=False)
        step = driver.program.prefill(ended.handle, is_alone=False)
        driver.end(ended)

        batch = driver.program.control(other.handle, FORCED)
        driver.program.commit(batch, [RowDecision(len(FORCED), is_terminal=False)])
        found = continue_alone(driver, driver.admit(long_prompt(), 8))

    assert step.processed_tokens == 0
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])


def test_a_sequence_in_the_middle_of_a_chunk_cannot_be_kept() -> None:
    with of_three() as driver:
        staged = driver.admit(long_prompt(), is_prefilled=False)
        driver.program.prefill(staged.handle)
        driver.program.prefill(staged.handle, is_alone=False)

        with pytest.raises(InvariantError, match="middle of a chunk"):
            driver.retain(staged)
        driver.end(staged)


def test_another_prompt_gives_a_chunk_up_and_is_read_as_if_alone() -> None:
    with of_three() as driver:
        alone = driver.admit(long_prompt(), 8)
        expected = continue_alone(driver, alone)
        driver.end(alone)
        ended = driver.admit(long_prompt()[::-1], is_prefilled=False)
        driver.program.prefill(ended.handle)
        driver.program.prefill(ended.handle, is_alone=False)

        second = driver.admit(long_prompt(), 8)
        with pytest.raises(InvariantError, match="given up"):
            driver.program.prefill(ended.handle)
        with pytest.raises(InvariantError, match="middle of a chunk"):
            driver.retain(ended)
        driver.end(ended)
        found = continue_alone(driver, second)

    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])
