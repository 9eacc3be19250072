"""Forced control: tokens that are processed without sampling, committed, cut or rolled back."""

from collections.abc import Iterator

import numpy as np
import pytest

from ninfer.errors import InvariantError, RequestError
from ninfer.program.contract import RowDecision
from tests.support.program_driver import ProgramDriver
from tests.support.running_program import running_program
from tests.support.unit_walks import (
    CANCELLED,
    FAVOURED,
    FORCED,
    PENALISED,
    REWARDED,
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


@pytest.mark.parametrize("num_rounds", [0, 1, 3])
def test_forced_tokens_leave_the_state_that_a_prompt_of_them_leaves(
    driver: ProgramDriver, num_rounds: int
) -> None:
    prompt = untrained_prompt()[:61]
    lane = driver.admit(prompt, 40)
    for _ in range(num_rounds):
        driver.round(lane)
    whole = prompt + lane.tokens + list(FORCED)

    batch = force(driver, lane, FORCED)
    driver.program.commit(batch, [RowDecision(len(FORCED), is_terminal=False)])
    forced = continue_alone(driver, lane)

    plain = driver.admit(whole, 40)
    tokens, logits = continue_alone(driver, plain)
    assert batch.rows[0].is_forced
    assert batch.rows[0].tokens == FORCED
    assert batch.rows[0].base_frontier == len(prompt) - 1 + num_rounds
    assert forced[0] == tokens
    assert np.array_equal(forced[1], logits)


@pytest.mark.parametrize("num_rounds", [0, 2])
def test_aborted_forced_tokens_leave_no_trace(driver: ProgramDriver, num_rounds: int) -> None:
    prompt = untrained_prompt()[:62]
    lane, plain = (driver.admit(prompt, 40, PENALISED) for _ in range(2))
    for _ in range(num_rounds):
        driver.round(lane, plain)
    free = driver.program.free()

    driver.program.abort_pending(force(driver, lane, FORCED))

    assert driver.program.free() == free
    tokens, logits = continue_alone(driver, lane)
    plain_tokens, plain_logits = continue_alone(driver, plain)
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


def test_forced_tokens_longer_than_a_chunk_are_split_and_count_alike() -> None:
    forced = tuple(untrained_prompt() * 2)
    prompt = untrained_prompt()[:50]
    with running_program("tiny-dense", max_context=384, prefill_chunk=128) as small:
        lane = small.admit(prompt, 330, REWARDED)
        small.round(lane)  # leaves a column to fold
        sampled = list(lane.tokens)
        batch = force(small, lane, forced)
        small.program.commit(batch, [RowDecision(len(forced), is_terminal=False)])

        tokens, logits = continue_alone(small, lane)

        assert tokens == choices_of(REWARDED, [*sampled, *forced], tokens, logits)
        small.end(lane)
        plain = small.admit([*prompt, *sampled, *forced], 4)
        small.round(plain)
        assert np.array_equal(plain.logits[0], logits[0])


def test_forced_tokens_count_for_penalties(driver: ProgramDriver) -> None:
    lane = driver.admit(untrained_prompt(), 40, REWARDED)
    driver.round(lane)
    sampled = list(lane.tokens)
    forced = tuple(sampled * 6)

    batch = force(driver, lane, forced)
    driver.program.commit(batch, [RowDecision(len(forced), is_terminal=False)])
    tokens, logits = continue_alone(driver, lane, 12)

    assert tokens == choices_of(REWARDED, sampled + list(forced), tokens, logits)
    assert tokens != choices_of(REWARDED, [], tokens, logits)  # the history matters here


def test_a_prompt_s_last_token_is_not_counted_when_tokens_are_forced_at_once(
    driver: ProgramDriver,
) -> None:
    matters = []
    for length in range(20, 32):
        prompt = untrained_prompt()[:length]
        last = prompt[-1]
        lane = driver.admit(prompt, 40, FAVOURED)
        batch = force(driver, lane, (last,))
        driver.program.commit(batch, [RowDecision(1, is_terminal=False)])

        tokens, logits = continue_alone(driver, lane, 8)

        assert tokens == choices_of(FAVOURED, [last], tokens, logits)
        matters.append(tokens != choices_of(FAVOURED, [last, last], tokens, logits))
        driver.end(lane)
    assert any(matters)  # counting it would have shown


@pytest.mark.parametrize("accepted", [1, 3])
def test_forced_tokens_accepted_in_part_retain_exactly_that_part(
    driver: ProgramDriver, accepted: int
) -> None:
    prompt = untrained_prompt()[:61]
    lane = driver.admit(prompt, 40)
    driver.round(lane)
    longer = [*prompt, *lane.tokens, *FORCED[:accepted], 5]

    batch = force(driver, lane, FORCED)
    driver.program.commit(batch, [RowDecision(accepted, is_terminal=True)])
    resumed = driver.resume(driver.retain(lane), longer, consume=True)

    tokens, logits = continue_alone(driver, resumed)
    plain_tokens, plain_logits = continue_alone(driver, driver.admit(longer, 40))
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


def test_cancelled_forced_tokens_retain_what_was_before(driver: ProgramDriver) -> None:
    prompt = untrained_prompt()[:61]
    lane = driver.admit(prompt, 40)
    driver.round(lane)
    longer = [*prompt, *lane.tokens, 5]

    driver.program.commit(force(driver, lane, FORCED), [CANCELLED])
    resumed = driver.resume(driver.retain(lane), longer, consume=True)

    plain_tokens, plain_logits = continue_alone(driver, driver.admit(longer, 40))
    tokens, logits = continue_alone(driver, resumed)
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


@pytest.mark.parametrize("tokens", [(), (-1,), (544,), (5,) * 9])
def test_forced_tokens_that_cannot_stand_there_are_refused(
    driver: ProgramDriver, tokens: tuple[int, ...]
) -> None:
    lane = driver.admit(golden_prompt(1), 8)

    with pytest.raises((InvariantError, RequestError)):
        force(driver, lane, tokens)

    driver.round(lane)


def test_forced_tokens_have_no_logits(driver: ProgramDriver) -> None:
    lane = driver.admit(golden_prompt(1), 8)

    with pytest.raises(InvariantError):
        driver.program.pending_logits(force(driver, lane, FORCED))
