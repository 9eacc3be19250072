"""Units and the end of a pending batch: what stays, what goes back, who sees which penalties."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.config import PAGE_TOKENS
from ninfer.errors import InvariantError, RequestError
from ninfer.generation import SamplingParams
from ninfer.program.contract import PendingBatch, RowDecision
from tests.support.golden import load
from tests.support.program_driver import ACCEPT, Lane, ProgramDriver
from tests.support.running_program import running_program

END = RowDecision(1, is_terminal=True)
CANCELLED = RowDecision(0, is_terminal=True)
PENALISED = SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=1.75)
REWARDED = SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=-1.75)
FAVOURED = SamplingParams(temperature=0.0, presence_penalty=-2.0, frequency_penalty=-2.0)
ADDRESSABLE = 512
FORCED = (17, 300, 41, 17, 9)


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


def _prompt(index: int) -> list[int]:
    return [int(token) for token in load("tiny-dense")[f"prompt_ids.{index}"]]


def _random_prompt() -> list[int]:
    """Text the model was not trained on: small margins, so that a wrong state shows."""
    return [int(token) for token in load("tiny-dense")["prompt_ids.random"]]


def _force(driver: ProgramDriver, lane: Lane, tokens: tuple[int, ...]) -> PendingBatch:
    return driver.program.control(lane.handle, tokens)


def _continue(driver: ProgramDriver, lane: Lane, count: int = 4) -> tuple[list[int], np.ndarray]:
    lane.tokens.clear()
    lane.logits.clear()
    for _ in range(count):
        driver.round(lane)
    return lane.tokens, np.stack(lane.logits)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_aborted_rounds_leave_no_trace(driver: ProgramDriver, data: st.DataObject) -> None:
    prompt = _random_prompt()[:60]  # the frontier crosses a page during the rounds
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
    lane = driver.admit(_prompt(2)[:1] * (PAGE_TOKENS + 1), 8)
    before = driver.program.free()

    driver.aborted_round(lane)

    assert driver.program.free() == before


@pytest.mark.parametrize("num_rounds", [0, 1, 3])
def test_forced_tokens_leave_the_state_that_a_prompt_of_them_leaves(
    driver: ProgramDriver, num_rounds: int
) -> None:
    prompt = _random_prompt()[:61]
    lane = driver.admit(prompt, 40)
    for _ in range(num_rounds):
        driver.round(lane)
    whole = prompt + lane.tokens + list(FORCED)

    batch = _force(driver, lane, FORCED)
    driver.program.commit(batch, [RowDecision(len(FORCED), is_terminal=False)])
    forced = _continue(driver, lane)

    plain = driver.admit(whole, 40)
    tokens, logits = _continue(driver, plain)
    assert batch.rows[0].is_forced
    assert batch.rows[0].tokens == FORCED
    assert batch.rows[0].base_frontier == len(prompt) - 1 + num_rounds
    assert forced[0] == tokens
    assert np.array_equal(forced[1], logits)


@pytest.mark.parametrize("num_rounds", [0, 2])
def test_aborted_forced_tokens_leave_no_trace(driver: ProgramDriver, num_rounds: int) -> None:
    prompt = _random_prompt()[:62]
    lane, plain = (driver.admit(prompt, 40, PENALISED) for _ in range(2))
    for _ in range(num_rounds):
        driver.round(lane, plain)
    free = driver.program.free()

    driver.program.abort_pending(_force(driver, lane, FORCED))

    assert driver.program.free() == free
    tokens, logits = _continue(driver, lane)
    plain_tokens, plain_logits = _continue(driver, plain)
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


def test_forced_tokens_longer_than_a_chunk_are_split_and_count_alike() -> None:
    forced = tuple(_random_prompt() * 2)
    prompt = _random_prompt()[:50]
    with running_program("tiny-dense", max_context=384, prefill_chunk=128) as small:
        lane = small.admit(prompt, 330, REWARDED)
        small.round(lane)  # leaves a column to fold
        sampled = list(lane.tokens)
        batch = _force(small, lane, forced)
        small.program.commit(batch, [RowDecision(len(forced), is_terminal=False)])

        tokens, logits = _continue(small, lane)

        assert tokens == _choices(REWARDED, [*sampled, *forced], tokens, logits)
        small.end(lane)
        plain = small.admit([*prompt, *sampled, *forced], 4)
        small.round(plain)
        assert np.array_equal(plain.logits[0], logits[0])


def _choices(
    sampling: SamplingParams, outputs: list[int], tokens: list[int], logits: np.ndarray
) -> list[int]:
    """What greedy choice under two penalties must take, from the raw logits of each step."""
    presence = np.float32(sampling.presence_penalty)
    frequency = np.float32(sampling.frequency_penalty)
    history = list(outputs)
    choices = []
    for row, token in zip(logits, tokens, strict=True):
        counts = np.bincount(history, minlength=row.size)[:ADDRESSABLE].astype(np.float32)
        choices.append(
            int(np.argmax(row[:ADDRESSABLE] - presence * (counts > 0) - frequency * counts))
        )
        history.append(token)
    return choices


@pytest.mark.parametrize("num_aborts", [0, 2])
def test_penalties_count_each_output_token_once_and_no_prompt_token(
    driver: ProgramDriver, num_aborts: int
) -> None:
    lane = driver.admit(_random_prompt(), 24, PENALISED)
    for _ in range(24):
        for _ in range(num_aborts):
            driver.aborted_round(lane)
        driver.round(lane)

    unpenalised = [int(np.argmax(row[:ADDRESSABLE])) for row in lane.logits]
    assert lane.tokens == _choices(PENALISED, [], lane.tokens, np.stack(lane.logits))
    assert lane.tokens != unpenalised  # the settings matter on this text


def test_forced_tokens_count_for_penalties(driver: ProgramDriver) -> None:
    lane = driver.admit(_random_prompt(), 40, REWARDED)
    driver.round(lane)
    sampled = list(lane.tokens)
    forced = tuple(sampled * 6)

    batch = _force(driver, lane, forced)
    driver.program.commit(batch, [RowDecision(len(forced), is_terminal=False)])
    tokens, logits = _continue(driver, lane, 12)

    assert tokens == _choices(REWARDED, sampled + list(forced), tokens, logits)
    assert tokens != _choices(REWARDED, [], tokens, logits)  # the history matters here


def test_a_prompt_s_last_token_is_not_counted_when_tokens_are_forced_at_once(
    driver: ProgramDriver,
) -> None:
    matters = []
    for length in range(20, 32):
        prompt = _random_prompt()[:length]
        last = prompt[-1]
        lane = driver.admit(prompt, 40, FAVOURED)
        batch = _force(driver, lane, (last,))
        driver.program.commit(batch, [RowDecision(1, is_terminal=False)])

        tokens, logits = _continue(driver, lane, 8)

        assert tokens == _choices(FAVOURED, [last], tokens, logits)
        matters.append(tokens != _choices(FAVOURED, [last, last], tokens, logits))
        driver.end(lane)
    assert any(matters)  # counting it would have shown


@pytest.mark.parametrize("consume", [False, True])
def test_a_new_turn_starts_without_the_counts_of_the_one_before(
    driver: ProgramDriver, consume: bool
) -> None:
    prompt = _random_prompt()[:61]
    lane = driver.admit(prompt, 40)
    for _ in range(12):
        driver.round(lane)
    earlier = list(lane.tokens)
    driver.program.commit(driver.decode(lane), [CANCELLED])
    longer = [*prompt, *earlier, 7]

    resumed = driver.resume(driver.retain(lane), longer, FAVOURED, consume=consume)

    tokens, logits = _continue(driver, resumed, 8)
    assert tokens == _choices(FAVOURED, [], tokens, logits)
    assert tokens != _choices(FAVOURED, earlier, tokens, logits)  # old counts would have shown


def test_a_cancelled_row_commits_nothing_and_harms_no_neighbour(driver: ProgramDriver) -> None:
    alone = driver.generate(_prompt(3), 6)
    lanes = [driver.admit(_prompt(index), 40) for index in (2, 3)]
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
    lane = driver.admit(_prompt(1), 40)
    driver.program.commit(driver.decode(lane), [END])

    with pytest.raises(InvariantError):
        driver.decode(lane)
    with pytest.raises(InvariantError):
        _force(driver, lane, FORCED)

    driver.end(lane)


@pytest.mark.parametrize("consume", [False, True])
def test_a_retained_turn_goes_on_as_if_it_had_been_the_prompt(
    driver: ProgramDriver, consume: bool
) -> None:
    prompt = _random_prompt()[:61]
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

    tokens, logits = _continue(driver, resumed)
    plain_tokens, plain_logits = _continue(driver, driver.admit(longer, 40))
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


def test_a_captured_checkpoint_is_untouched_by_the_sequence_that_goes_on(
    driver: ProgramDriver,
) -> None:
    prompt = _random_prompt()[:61]
    lane = driver.admit(prompt, 40)
    for _ in range(2):
        driver.round(lane)
    fork_prompt = [*prompt, *lane.tokens, 3]

    checkpoint = driver.capture(lane)
    for _ in range(6):
        driver.round(lane)
    resumed = driver.resume(checkpoint, fork_prompt, consume=False)

    tokens, logits = _continue(driver, resumed)
    plain_tokens, plain_logits = _continue(driver, driver.admit(fork_prompt, 40))
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


@pytest.mark.parametrize("accepted", [1, 3])
def test_forced_tokens_accepted_in_part_retain_exactly_that_part(
    driver: ProgramDriver, accepted: int
) -> None:
    prompt = _random_prompt()[:61]
    lane = driver.admit(prompt, 40)
    driver.round(lane)
    longer = [*prompt, *lane.tokens, *FORCED[:accepted], 5]

    batch = _force(driver, lane, FORCED)
    driver.program.commit(batch, [RowDecision(accepted, is_terminal=True)])
    resumed = driver.resume(driver.retain(lane), longer, consume=True)

    tokens, logits = _continue(driver, resumed)
    plain_tokens, plain_logits = _continue(driver, driver.admit(longer, 40))
    assert tokens == plain_tokens
    assert np.array_equal(logits, plain_logits)


def test_cancelled_forced_tokens_retain_what_was_before(driver: ProgramDriver) -> None:
    prompt = _random_prompt()[:61]
    lane = driver.admit(prompt, 40)
    driver.round(lane)
    longer = [*prompt, *lane.tokens, 5]

    driver.program.commit(_force(driver, lane, FORCED), [CANCELLED])
    resumed = driver.resume(driver.retain(lane), longer, consume=True)

    plain_tokens, plain_logits = _continue(driver, driver.admit(longer, 40))
    tokens, logits = _continue(driver, resumed)
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
    lanes = [driver.admit(_prompt(index), 8) for index in (1, 2)]
    batch = driver.decode(*lanes)

    with pytest.raises(InvariantError):
        driver.program.commit(batch, decisions)

    driver.program.commit(batch, [ACCEPT, ACCEPT])
    assert [row.base_frontier for row in driver.decode(*lanes).rows] == [
        len(_prompt(1)),
        len(_prompt(2)),
    ]


def test_a_batch_ends_once_and_nothing_runs_before_its_end(driver: ProgramDriver) -> None:
    lane = driver.admit(_prompt(1), 8)
    waiting = driver.admit(_prompt(2), 8, is_prefilled=False)
    batch = driver.decode(lane)

    with pytest.raises(InvariantError):
        driver.decode(lane)
    with pytest.raises(InvariantError):
        driver.program.prefill(waiting.handle)
    with pytest.raises(InvariantError):
        _force(driver, lane, FORCED)
    driver.program.commit(batch, [ACCEPT])
    with pytest.raises(InvariantError):
        driver.program.commit(batch, [ACCEPT])
    with pytest.raises(InvariantError):
        driver.program.abort_pending(batch)
    with pytest.raises(InvariantError):
        driver.program.pending_logits(batch)


def test_rounds_of_no_row_and_of_one_row_twice_are_refused(driver: ProgramDriver) -> None:
    lane = driver.admit(_prompt(1), 8)
    raw = driver.admit(_prompt(2), 8, is_prefilled=False)

    with pytest.raises(InvariantError):
        driver.decode()
    with pytest.raises(InvariantError):
        driver.decode(lane, lane)
    with pytest.raises(InvariantError):
        driver.decode(lane, raw)

    driver.round(lane)


@pytest.mark.parametrize("tokens", [(), (-1,), (544,), (5,) * 9])
def test_forced_tokens_that_cannot_stand_there_are_refused(
    driver: ProgramDriver, tokens: tuple[int, ...]
) -> None:
    lane = driver.admit(_prompt(1), 8)

    with pytest.raises((InvariantError, RequestError)):
        _force(driver, lane, tokens)

    driver.round(lane)


def test_forced_tokens_have_no_logits(driver: ProgramDriver) -> None:
    lane = driver.admit(_prompt(1), 8)

    with pytest.raises(InvariantError):
        driver.program.pending_logits(_force(driver, lane, FORCED))
