"""Random lives of several requests at once: whatever happens around one, its output is its own."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ninfer.generation import SamplingParams
from ninfer.program.contract import Evict
from tests.support.golden import load
from tests.support.program_driver import Lane, ProgramDriver
from tests.support.running_program import running_program

LANES = 4
LONGEST = 10  # tokens of one request
EVENTS = ("round", "abort", "force and abort", "capture and evict", "admit", "end")
SAMPLING = SamplingParams(temperature=1.3, presence_penalty=0.7, frequency_penalty=-0.4, seed=11)


@pytest.fixture(scope="module", params=["tiny-dense", "tiny-moe"])
def driver(request: pytest.FixtureRequest) -> Iterator[ProgramDriver]:
    with running_program(
        request.param, max_concurrency=LANES, max_context=192, device_state_slots=1
    ) as running:
        yield running


@pytest.fixture(scope="module")
def alone(driver: ProgramDriver) -> list[Lane]:
    """What each of the requests gives by itself."""
    return [driver.generate(_prompt(number), LONGEST, SAMPLING) for number in range(6)]


def _prompt(number: int) -> list[int]:
    tokens = [int(token) for token in load("tiny-dense")["prompt_ids.random"]]
    return tokens[number:] + tokens[: 40 * (number % 3)]


def _step(driver: ProgramDriver, lanes: dict[int, Lane], event: str, data: st.DataObject) -> None:
    ready = [number for number, lane in lanes.items() if len(lane.tokens) < LONGEST]
    chosen = data.draw(st.lists(st.sampled_from(ready), unique=True)) if ready else []
    group = [lanes[number] for number in chosen]
    match event:
        case "round" if group:
            driver.round(*group)
        case "abort" if group:
            driver.aborted_round(*group)
        case "force and abort" if group and len(group[0].tokens) + 3 <= LONGEST:
            batch = driver.program.control(group[0].handle, [1, 2, 3])
            driver.program.abort_pending(batch)
        case "capture and evict" if group and driver.has_room_to_capture(group[0]):
            driver.rearrange(Evict(driver.capture(group[0])))
        case "admit" if len(lanes) < LANES:
            number = data.draw(st.sampled_from([n for n in range(6) if n not in lanes]))
            lanes[number] = driver.admit(_prompt(number), LONGEST, SAMPLING)
        case "end" if group:
            driver.end(lanes.pop(chosen[0]))
        case _:
            return


def _settings(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        deadline=None,
        phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking runs takes minutes
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def _live(driver: ProgramDriver, alone: list[Lane], events: list[str], data: st.DataObject) -> None:
    """Play the events, then compare every request that is left with itself alone."""
    driver.program.abandon()  # whatever a failing example has left
    lanes: dict[int, Lane] = {}
    for event in ("admit", "admit", *events):
        _step(driver, lanes, event, data)

    for number, lane in lanes.items():
        count = len(lane.tokens)
        assert lane.tokens == alone[number].tokens[:count]
        assert np.array_equal(lane.logits, alone[number].logits[:count])
    driver.program.abandon()
    assert driver.program.free() == driver.program.capacity.total


@_settings(4)
@given(events=st.lists(st.sampled_from(EVENTS), min_size=10, max_size=40), data=st.data())
def test_no_event_around_a_request_changes_a_bit_of_it(
    driver: ProgramDriver, alone: list[Lane], events: list[str], data: st.DataObject
) -> None:
    _live(driver, alone, events, data)


@pytest.mark.slow
@_settings(150)
@given(events=st.lists(st.sampled_from(EVENTS), min_size=10, max_size=120), data=st.data())
def test_no_event_of_long_lives_changes_a_bit_of_a_request(
    driver: ProgramDriver, alone: list[Lane], events: list[str], data: st.DataObject
) -> None:
    _live(driver, alone, events, data)
