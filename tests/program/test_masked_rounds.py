"""Constrained rows of real rounds: they choose what they may, and their neighbours never notice."""

from collections.abc import Iterator

import numpy as np
import pytest

from ninfer.errors import InvariantError
from ninfer.generation import SamplingParams, TokenMask
from tests.support.cuda_bench import open_cuda_device
from tests.support.golden import load
from tests.support.program_driver import ACCEPT, Lane, ProgramDriver
from tests.support.running_program import WatchedDevice, running_program

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=-7)
NUM_ROUNDS = 6


def prompt(index: int) -> list[int]:
    return [int(token) for token in load("tiny-dense")[f"prompt_ids.{index}"]]


def only(*tokens: int) -> TokenMask:
    mask = bytearray(64)
    for token in tokens:
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((WatchedDevice, True), id="graphs"),
        pytest.param((WatchedDevice, False), id="eager"),
        pytest.param((open_cuda_device, True), id="cuda-graphs", marks=pytest.mark.gpu),
        pytest.param((open_cuda_device, False), id="cuda-eager", marks=pytest.mark.gpu),
    ],
)
def driver(request: pytest.FixtureRequest) -> Iterator[ProgramDriver]:
    open_device, use_graphs = request.param
    with running_program(
        "tiny-dense",
        open_device=open_device,
        max_concurrency=3,
        max_context=192,
        use_graphs=use_graphs,
    ) as driver:
        yield driver


def masked_round(driver: ProgramDriver, masks: dict[int, TokenMask], *lanes: Lane) -> None:
    """Run and accept a round; ``masks`` by index of the lane."""
    batch = driver.program.decode(
        [lane.handle for lane in lanes], [masks.get(index) for index in range(len(lanes))]
    )
    logits = driver.program.pending_logits(batch)
    driver.program.commit(batch, [ACCEPT] * len(lanes))
    for lane, row, values in zip(lanes, batch.rows, logits, strict=True):
        lane.tokens.extend(row.tokens)
        lane.logits.append(values)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_constrained_row_chooses_only_what_it_may(
    driver: ProgramDriver, sampling: SamplingParams
) -> None:
    lane = driver.admit(prompt(0), NUM_ROUNDS, sampling)

    for count in range(NUM_ROUNDS):
        masked_round(driver, {0: only(count, 300 + count)}, lane)

    assert all(token in (count, 300 + count) for count, token in enumerate(lane.tokens))
    driver.end(lane)


def test_the_choice_is_the_likeliest_of_the_allowed_tokens(driver: ProgramDriver) -> None:
    allowed = [3, 77, 400, 511]
    lane = driver.admit(prompt(1), 1)

    masked_round(driver, {0: only(*allowed)}, lane)

    assert lane.tokens == [max(allowed, key=lambda token: lane.logits[0][token])]
    driver.end(lane)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_free_neighbours_are_bitwise_the_same(
    driver: ProgramDriver, sampling: SamplingParams
) -> None:
    alone = [driver.generate(prompt(index), NUM_ROUNDS, sampling) for index in (1, 2)]
    lanes = [driver.admit(prompt(index), NUM_ROUNDS, sampling) for index in (1, 0, 2)]

    for count in range(NUM_ROUNDS):
        masked_round(driver, {1: only(5)} if count % 2 else {}, *lanes)

    for free, lane in zip(alone, (lanes[0], lanes[2]), strict=True):
        assert lane.tokens == free.tokens
        np.testing.assert_array_equal(np.stack(lane.logits), np.stack(free.logits))
    assert lanes[1].tokens[1::2] == [5] * (NUM_ROUNDS // 2)
    for lane in lanes:
        driver.end(lane)


def test_a_freed_row_is_free_again(driver: ProgramDriver) -> None:
    free = driver.generate(prompt(3), 4)
    lane = driver.admit(prompt(0), 1)
    masked_round(driver, {0: only(9)}, lane)
    driver.end(lane)

    assert driver.generate(prompt(3), 4).tokens == free.tokens


def test_masks_are_one_for_each_row_or_none_at_all(driver: ProgramDriver) -> None:
    lane = driver.admit(prompt(0), 1)

    with pytest.raises(InvariantError, match="2 masks for a round of 1 rows"):
        driver.program.decode([lane.handle], [None, None])

    driver.end(lane)
