"""Rounds that run ahead of the host: the same tokens, whatever else happens in between."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import InvariantError
from ninfer.generation import SamplingParams
from ninfer.program.contract import Release, Retain, RowDecision
from tests.support.golden import load
from tests.support.program_driver import ACCEPT, Lane, ProgramDriver
from tests.support.running_program import running_program

CASE = "tiny-moe"
BUDGET = 24
# Penalties make the tokens depend on what was counted, and how often.
SAMPLED = SamplingParams(
    temperature=0.8, top_p=0.9, presence_penalty=0.7, frequency_penalty=0.3, seed=11
)
MASK_BYTES = 68


def prompt(index: int) -> list[int]:
    """Prompts that reach their page's end at different rounds."""
    return [int(token) for token in load(CASE)[f"prompt_ids.{index % 4}"]][: 60 - 5 * index]


@pytest.fixture(scope="module")
def driver() -> Iterator[ProgramDriver]:
    with running_program(CASE, max_concurrency=4, max_context=192) as made:
        yield made


@pytest.fixture(scope="module")
def alone(driver: ProgramDriver) -> list[list[int]]:
    return [driver.generate(prompt(index), BUDGET, SAMPLED).tokens for index in range(4)]


def steady_round(driver: ProgramDriver, *lanes: Lane) -> None:
    batch = driver.program.decode([lane.handle for lane in lanes], is_steady=True)
    driver.program.commit(batch, [ACCEPT] * len(lanes))
    for lane, row in zip(lanes, batch.rows, strict=True):
        lane.tokens.extend(row.tokens)


class Walk:
    """Random steps over up to four lanes; every lane's tokens are a prefix of those alone."""

    def __init__(self, driver: ProgramDriver, alone: list[list[int]], seed: int) -> None:
        self.driver, self.alone = driver, alone
        self.random = random.Random(seed)
        self.lanes: dict[int, Lane] = {}

    def step(self) -> None:
        choice = self.random.choice(
            ("admit", "end", "control", "retain", "masked", "plain", *("steady",) * 9)
        )
        ready = [i for i, lane in self.lanes.items() if len(lane.tokens) < BUDGET - 1]
        if choice == "admit" or not ready:
            self.admit()
        elif choice in ("end", "retain"):
            index = self.random.choice(list(self.lanes))
            getattr(self, choice)(index)
        elif choice == "control":
            self.force(self.random.choice(ready))
        else:
            chosen = self.random.sample(ready, self.random.randint(1, len(ready)))
            # An engine mostly goes on with the same rows; so does the walk.
            group = chosen if self.random.random() < 0.3 else sorted(ready)
            self.round([self.lanes[index] for index in group], choice)

    def admit(self) -> None:
        free = [index for index in range(4) if index not in self.lanes]
        if free:
            index = self.random.choice(free)
            self.lanes[index] = self.driver.admit(prompt(index), BUDGET, SAMPLED)
        else:
            self.end(self.random.choice(list(self.lanes)))

    def end(self, index: int) -> None:
        self.driver.end(self.lanes.pop(index))

    def retain(self, index: int) -> None:
        """End with a terminal row in the middle of a steady batch, keep, and go on from there."""
        lane = self.lanes.pop(index)
        others = [other for other in self.lanes.values() if len(other.tokens) < BUDGET - 1]
        group = [lane, *others]
        if len(lane.tokens) >= BUDGET - 1:
            self.driver.end(lane)
            return
        batch = self.driver.program.decode([one.handle for one in group], is_steady=True)
        ending = self.random.choice((0, 1))
        decisions = [RowDecision(ending, is_terminal=True), *[ACCEPT] * len(others)]
        self.driver.program.commit(batch, decisions)
        for other, row in zip(others, batch.rows[1:], strict=True):
            other.tokens.extend(row.tokens)
        if ending == 0:
            with pytest.raises(InvariantError, match="only be released"):
                self.driver.program.start(self.driver.program.seal(Retain(lane.handle)))
        else:
            lane.tokens.extend(batch.rows[0].tokens)
            assert lane.tokens == self.alone[index][: len(lane.tokens)]
        self.driver.settle(Release(lane.handle))

    def force(self, index: int) -> None:
        """Force exactly the tokens that sampling would choose."""
        lane = self.lanes[index]
        done = len(lane.tokens)
        tokens = self.alone[index][done : done + self.random.randint(1, 3)][: BUDGET - 1 - done]
        if tokens:
            batch = self.driver.program.control(lane.handle, tokens)
            self.driver.program.commit(batch, [RowDecision(len(tokens), is_terminal=False)])
            lane.tokens.extend(tokens)

    def round(self, lanes: list[Lane], kind: str) -> None:
        if kind == "steady":
            steady_round(self.driver, *lanes)
            return
        masks = [b"\xff" * MASK_BYTES] * len(lanes) if kind == "masked" else []
        batch = self.driver.program.decode([lane.handle for lane in lanes], masks)
        if kind == "plain" and self.random.random() < 0.3:
            self.driver.program.abort_pending(batch)
            return
        self.driver.program.commit(batch, [ACCEPT] * len(lanes))
        for lane, row in zip(lanes, batch.rows, strict=True):
            lane.tokens.extend(row.tokens)

    def check(self) -> None:
        for index, lane in self.lanes.items():
            assert lane.tokens == self.alone[index][: len(lane.tokens)]

    def finish(self) -> None:
        for index in list(self.lanes):
            self.end(index)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_what_happens_beside_a_round_ahead_changes_no_token(
    driver: ProgramDriver, alone: list[list[int]], seed: int
) -> None:
    free = driver.program.free()
    walk = Walk(driver, alone, seed)
    for _ in range(40):
        walk.step()
        walk.check()
    walk.finish()
    assert driver.program.free() == free


def test_a_steady_run_to_the_last_token_is_the_plain_one(
    driver: ProgramDriver, alone: list[list[int]]
) -> None:
    lanes = [driver.admit(prompt(index), BUDGET, SAMPLED) for index in range(4)]
    for _ in range(BUDGET):
        steady_round(driver, *lanes)
    assert [lane.tokens for lane in lanes] == alone
    for lane in lanes:
        driver.end(lane)


def test_an_aborted_steady_round_ends_its_rows(driver: ProgramDriver) -> None:
    lane = driver.admit(prompt(0), BUDGET, SAMPLED)
    driver.program.abort_pending(driver.program.decode([lane.handle], is_steady=True))
    with pytest.raises(InvariantError):
        driver.decode(lane)
    driver.end(lane)


def test_logits_that_the_round_ahead_has_overwritten_are_refused(driver: ProgramDriver) -> None:
    lane = driver.admit(prompt(0), BUDGET, SAMPLED)
    batch = driver.program.decode([lane.handle], is_steady=True)
    with pytest.raises(InvariantError, match="overwritten"):
        driver.program.pending_logits(batch)
    driver.program.commit(batch, [ACCEPT])
    driver.end(lane)
