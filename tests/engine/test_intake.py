"""The door: availability as a table, and no request lost between two threads."""

import threading
from collections.abc import Callable

import pytest

from ninfer.engine.intake import EngineState, Intake
from ninfer.engine.response_channel import CapacityGate
from ninfer.errors import EngineClosed, EngineFailed, IllegalMove, NinferError
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request

MOVES: dict[str, Callable[[Intake], object]] = {
    "open": Intake.open,
    "drain": lambda intake: intake.drain(5.0),
    "stop": Intake.stop_if_drained,
    "fail": Intake.fail,
}
PATHS: dict[EngineState, tuple[str, ...]] = {
    EngineState.STARTING: (),
    EngineState.READY: ("open",),
    EngineState.DRAINING: ("open", "drain"),
    EngineState.STOPPED: ("open", "drain", "stop"),
    EngineState.FAILED: ("open", "fail"),
}
NEXT: dict[str, dict[EngineState, EngineState]] = {
    "open": {EngineState.STARTING: EngineState.READY},
    "drain": {
        EngineState.STARTING: EngineState.DRAINING,
        EngineState.READY: EngineState.DRAINING,
        EngineState.DRAINING: EngineState.DRAINING,
        EngineState.STOPPED: EngineState.STOPPED,
        EngineState.FAILED: EngineState.FAILED,
    },
    "stop": {state: state for state in EngineState} | {EngineState.DRAINING: EngineState.STOPPED},
    "fail": {
        EngineState.STARTING: EngineState.FAILED,
        EngineState.READY: EngineState.FAILED,
        EngineState.DRAINING: EngineState.FAILED,
    },
}
REFUSALS: list[tuple[EngineState, type[NinferError], str]] = [
    (EngineState.STARTING, EngineClosed, "model_loading"),
    (EngineState.DRAINING, EngineClosed, "server_draining"),
    (EngineState.STOPPED, EngineClosed, "server_draining"),
    (EngineState.FAILED, EngineFailed, "engine_failed"),
]


def make_intake(limit: int = 4) -> Intake:
    return Intake(
        capacity=CapacityGate(limit), max_context=64, clock=lambda: 1.0, wake_worker=lambda: None
    )


def intake_in(state: EngineState) -> Intake:
    intake = make_intake()
    for move in PATHS[state]:
        MOVES[move](intake)
    return intake


@pytest.mark.parametrize("state", EngineState)
@pytest.mark.parametrize("move", MOVES)
def test_availability_follows_its_table(state: EngineState, move: str) -> None:
    intake = intake_in(state)
    expected = NEXT[move].get(state)
    raised = False

    try:
        MOVES[move](intake)
    except IllegalMove:
        raised = True

    assert raised == (expected is None)
    assert intake.state is (expected or state)


@pytest.mark.parametrize(("state", "error", "code"), REFUSALS)
def test_a_closed_door_says_why(state: EngineState, error: type[NinferError], code: str) -> None:
    intake = intake_in(state)

    with pytest.raises(error) as caught:
        intake.submit(make_request(ScriptedProgram()))

    assert caught.value.code == code
    assert intake.take() == []


def test_orders_rise_in_the_order_of_the_inbox() -> None:
    intake = intake_in(EngineState.READY)
    handles = [intake.submit(make_request(ScriptedProgram(), first)) for first in (1, 2, 3)]

    records = intake.take()

    assert [record.order for record in records] == [handle.order for handle in handles]
    assert [handle.order for handle in handles] == [0, 1, 2]
    assert intake.take() == []


def test_a_request_accepted_before_the_drain_keeps_the_door_from_closing() -> None:
    intake = intake_in(EngineState.READY)
    intake.submit(make_request(ScriptedProgram()))
    intake.drain(5.0)

    is_stopped_early = intake.stop_if_drained()
    intake.take()

    assert not is_stopped_early
    assert intake.stop_if_drained()
    assert intake.state is EngineState.STOPPED


def test_racing_submissions_and_a_failure_lose_nobody() -> None:
    intake = make_intake(limit=10_000)
    intake.open()
    accepted: list[int] = []
    is_under_way = threading.Event()

    def submit_until_refused() -> None:
        try:
            for _ in range(500):
                accepted.append(intake.submit(make_request(ScriptedProgram())).order)
                is_under_way.set()
        except EngineFailed:
            return

    threads = [threading.Thread(target=submit_until_refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert is_under_way.wait(120.0)
    taken = [record.order for record in intake.take()]
    taken += [record.order for record in intake.fail()]
    for thread in threads:
        thread.join()

    assert taken == sorted(taken)
    assert sorted(accepted) == taken
    assert intake.take() == []
