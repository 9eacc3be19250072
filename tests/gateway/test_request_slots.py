import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import EngineOverloaded, IllegalMove
from ninfer.gateway.request_slots import RequestSlot, RequestSlots
from ninfer.gateway.server_state import ServerLife, ServerMove, ServerState
from tests.support.engine_harness import ManualClock
from tests.support.quick_examples import QUICK


def test_places_run_out_and_come_back() -> None:
    slots = RequestSlots(1, 1)
    first, _ = slots.acquire(), slots.acquire()

    with pytest.raises(EngineOverloaded):
        slots.acquire()
    first.release()

    assert slots.in_use == 1
    slots.acquire()


def test_a_place_is_returned_once() -> None:
    slots = RequestSlots(2, 0)
    first, _ = slots.acquire(), slots.acquire()

    threads = [threading.Thread(target=first.release) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert slots.in_use == 1


@QUICK
@given(st.lists(st.booleans(), max_size=60))
def test_any_sequence_keeps_the_count(takes: list[bool]) -> None:
    slots = RequestSlots(2, 3)
    held: list[RequestSlot] = []
    for take in takes:
        if take and len(held) < 5:
            held.append(slots.acquire())
        elif held:
            held.pop().release()
        assert slots.in_use == len(held)


def test_retry_is_5_when_nothing_is_known() -> None:
    assert RequestSlots(2, 2).retry_after_s(7) == 5


@pytest.mark.parametrize(("num_waiting", "expected"), [(0, 1), (1, 2), (4, 6), (1000, 60)])
def test_retry_is_the_median_service_times_the_queue(num_waiting: int, expected: int) -> None:
    clock = ManualClock()
    slots = RequestSlots(2, 2, clock)
    for seconds in (1.0, 3.0, 100.0):
        slot = slots.acquire()
        clock.advance(seconds)
        slot.is_served = True
        slot.release()
    left = slots.acquire()
    clock.advance(10_000)
    left.release()  # Not served: its time says nothing.

    assert slots.retry_after_s(num_waiting) == expected


def test_only_the_newest_32_requests_count() -> None:
    clock = ManualClock()
    slots = RequestSlots(1, 0, clock)
    for seconds in (*[1000.0] * 40, *[2.0] * 32):
        slot = slots.acquire()
        clock.advance(seconds)
        slot.is_served = True
        slot.release()

    assert slots.retry_after_s(1) == 2


LEGAL = {
    (ServerState.STARTING, ServerMove.LOADED): ServerState.READY,
    (ServerState.STARTING, ServerMove.DRAIN): ServerState.DRAINING,
    (ServerState.STARTING, ServerMove.FAIL): ServerState.FAILED,
    (ServerState.READY, ServerMove.DRAIN): ServerState.DRAINING,
    (ServerState.READY, ServerMove.FAIL): ServerState.FAILED,
    (ServerState.DRAINING, ServerMove.STOP): ServerState.STOPPED,
    (ServerState.DRAINING, ServerMove.FAIL): ServerState.FAILED,
}
WAYS = {
    ServerState.STARTING: (),
    ServerState.READY: (ServerMove.LOADED,),
    ServerState.DRAINING: (ServerMove.DRAIN,),
    ServerState.STOPPED: (ServerMove.DRAIN, ServerMove.STOP),
    ServerState.FAILED: (ServerMove.FAIL,),
}


@pytest.mark.parametrize("state", ServerState)
@pytest.mark.parametrize("move", ServerMove)
def test_server_moves_by_its_table_only(state: ServerState, move: ServerMove) -> None:
    life = ServerLife()
    for step in WAYS[state]:
        life.move(step)
    target = LEGAL.get((state, move))

    if target is None:
        with pytest.raises(IllegalMove):
            life.move(move)
    else:
        life.move(move)

    assert life.state is (target or state)
