"""Units and the end of a pending batch: what stays, what goes back, who sees which penalties."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.config import PAGE_TOKENS
from ninfer.errors import InvariantError
from ninfer.generation import SamplingParams
from ninfer.program.contract import RowDecision
from tests.support.program_driver import ACCEPT, ProgramDriver
from tests.support.running_program import running_program
from tests.support.unit_walks import (
    ADDRESSABLE,
    CANCELLED,
    END,
    FAVOURED,
    FORCED,
    PENALISED,
    choices_of,
    continue_alone,
    force,
    golden_prompt,
    untrained_prompt,
)


@pytest.fixture(scope="module")
def driver() -> Iterator[ProgramDriver]:
    with running_program(
        "tiny-dense", max_concurrency=4, max_context=384, device_state_slots=2
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _everything_is_free_afterwards(driver: ProgramDriver) -> Iterator[None]:
    yield
    driver.program.abandon()


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_aborted_rounds_leave_no_trace(driver: ProgramDriver, data: st.DataObject) -> None:
    prompt = untrained_prompt()[:60]  # the frontier crosses a page during the rounds
    sampling = SamplingParams(temperature=1.0, presence_penalty=1.0, seed=5)
    plain = driver.generate(prompt, 8, sampling)

    lane = driver.admit(prompt, 8, sampling)
    for _ in range(8):
        for _ in range(data.draw(st.integers(0, 2))):
            driver.aborted_round(lane)
        driver.round(lane)
    driver.end(lane)

    assert lane.tokens == plain.tokens
    assert np.array_equal(np.stack(lane.logits), np.stack(plain.logits))


def test_an_aborted_round_gives_its_new_page_back(driver: ProgramDriver) -> None:
    lane = driver.admit(golden_prompt(2)[:1] * (PAGE_TOKENS + 1), 8)
    before = driver.program.free()

    driver.aborted_round(lane)

    assert driver.program.free() == before


@pytest.mark.parametrize("num_aborts", [0, 2])
def test_penalties_count_each_output_token_once_and_no_prompt_token(
    driver: ProgramDriver, num_aborts: int
) -> None:
    lane = driver.admit(untrained_prompt(), 24, PENALISED)
    for _ in range(24):
        for _ in range(num_aborts):
            driver.aborted_round(lane)
        driver.round(lane)

    unpenalised = [int(np.argmax(row[:ADDRESSABLE])) for row in lane.logits]
    assert lane.tokens == choices_of(PENALISED, [], lane.tokens, np.stack(lane.logits))
    assert lane.tokens != unpenalised  # the settings matter on this text


@pytest.mark.parametrize("consume", [False, True])
def test_a_new_turn_starts_without_the_counts_of_the_one_before(
    driver: ProgramDriver, consume: bool
) -> None:
    prompt = untrained_prompt()[:61]
    lane = driver.admit(prompt, 40)
    for _ in range(12):
        driver.round(lane)
    earlier = list(lane.tokens)
    driver.program.commit(driver.decode(lane), [CANCELLED])
    longer = [*prompt, *earlier, 7]

    resumed = driver.resume(driver.retain(lane), longer, FAVOURED, consume=consume)

    tokens, logits = continue_alone(driver, resumed, 8)
    assert tokens == choices_of(FAVOURED, [], tokens, logits)
    assert tokens != choices_of(FAVOURED, earlier, tokens, logits)  # old counts would have shown


def test_a_cancelled_row_commits_nothing_and_harms_no_neighbour(driver: ProgramDriver) -> None:
    alone = driver.generate(golden_prompt(3), 6)
    lanes = [driver.admit(golden_prompt(index), 40) for index in (2, 3)]
    driver.round(*lanes)

    batch = driver.decode(*lanes)
    driver.program.commit(batch, [CANCELLED, ACCEPT])
    lanes[1].tokens.extend(batch.rows[1].tokens)
    with pytest.raises(InvariantError):
        driver.decode(lanes[0])
    driver.end(lanes[0])
    for _ in range(4):
        driver.round(lanes[1])

    assert lanes[1].tokens == alone.tokens


def test_a_terminal_row_can_only_end(driver: ProgramDriver) -> None:
    lane = driver.admit(golden_prompt(1), 40)
    driver.program.commit(driver.decode(lane), [END])

    with pytest.raises(InvariantError):
        driver.decode(lane)
    with pytest.raises(InvariantError):
        force(driver, lane, FORCED)

    driver.end(lane)


@pytest.mark.parametrize("consume", [False, True])
def test_a_retained_turn_goes_on_as_if_it_had_been_the_prompt(
    driver: ProgramDriver, consume: bool
) -> None:
    prompt = untrained_prompt()[:61]
    lane = driver.admit(prompt, 40, PENALISED)
    for _ in range(5):
        driver.round(lane)
    history = prompt + lane.tokens
    batch = driver.decode(lane)
    driver.program.commit(batch, [END])
    history += batch.rows[0].tokens
    longer = [*history, 7, 8, 9]

    checkpoint = driver.retain(lane)
    resumed = driver.resume(checkpoint, longer, consume=consume)

    tokens, logits = continue_alone(driver, resumed)
    plain_tokens, plain_logits = continue_alone(driver, driver.admit(longer, 40))
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


def test_a_captured_checkpoint_is_untouched_by_the_sequence_that_goes_on(
    driver: ProgramDriver,
) -> None:
    prompt = untrained_prompt()[:61]
    lane = driver.admit(prompt, 40)
    for _ in range(2):
        driver.round(lane)
    fork_prompt = [*prompt, *lane.tokens, 3]

    checkpoint = driver.capture(lane)
    for _ in range(6):
        driver.round(lane)
    resumed = driver.resume(checkpoint, fork_prompt, consume=False)

    tokens, logits = continue_alone(driver, resumed)
    plain_tokens, plain_logits = continue_alone(driver, driver.admit(fork_prompt, 40))
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


@pytest.mark.parametrize(
    "decisions",
    [
        [],
        [ACCEPT],
        [ACCEPT, RowDecision(0, is_terminal=False)],
        [ACCEPT, RowDecision(2, is_terminal=True)],
        [ACCEPT, RowDecision(-1, is_terminal=True)],
        [ACCEPT, RowDecision(1, is_terminal=False, boundaries=(2,))],
        [ACCEPT, RowDecision(0, is_terminal=True, boundaries=(0,))],
        [ACCEPT, ACCEPT, ACCEPT],
    ],
)
def test_illegal_decisions_change_nothing(
    driver: ProgramDriver, decisions: list[RowDecision]
) -> None:
    lanes = [driver.admit(golden_prompt(index), 8) for index in (1, 2)]
    batch = driver.decode(*lanes)

    with pytest.raises(InvariantError):
        driver.program.commit(batch, decisions)

    driver.program.commit(batch, [ACCEPT, ACCEPT])
    assert [row.base_frontier for row in driver.decode(*lanes).rows] == [
        len(golden_prompt(1)),
        len(golden_prompt(2)),
    ]


def test_a_batch_ends_once_and_nothing_runs_before_its_end(driver: ProgramDriver) -> None:
    lane = driver.admit(golden_prompt(1), 8)
    waiting = driver.admit(golden_prompt(2), 8, is_prefilled=False)
    batch = driver.decode(lane)

    with pytest.raises(InvariantError):
        driver.decode(lane)
    with pytest.raises(InvariantError):
        driver.program.prefill(waiting.handle)
    with pytest.raises(InvariantError):
        force(driver, lane, FORCED)
    driver.program.commit(batch, [ACCEPT])
    with pytest.raises(InvariantError):
        driver.program.commit(batch, [ACCEPT])
    with pytest.raises(InvariantError):
        driver.program.abort_pending(batch)
    with pytest.raises(InvariantError):
        driver.program.pending_logits(batch)


def test_rounds_of_no_row_and_of_one_row_twice_are_refused(driver: ProgramDriver) -> None:
    lane = driver.admit(golden_prompt(1), 8)
    raw = driver.admit(golden_prompt(2), 8, is_prefilled=False)

    with pytest.raises(InvariantError):
        driver.decode()
    with pytest.raises(InvariantError):
        driver.decode(lane, lane)
    with pytest.raises(InvariantError):
        driver.decode(lane, raw)

    driver.round(lane)
