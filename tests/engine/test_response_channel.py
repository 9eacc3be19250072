"""Capacity is released once, events stay in order, and a slow reader costs no memory."""

import gc
import threading
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.response_channel import (
    MAX_QUEUED_OUTPUTS,
    CapacityGate,
    GenerationHandle,
    ResponseChannel,
    RunningEvent,
)
from ninfer.errors import EngineFailed, EngineOverloaded, IllegalMove, RequestCancelled
from ninfer.generation import (
    Channel,
    FinishReason,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    OutputDelta,
    OutputSummary,
    PrefillProgress,
    TextDelta,
    Timings,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)

RESULT = GenerationResult(
    FinishReason.STOP, Usage(1, 0, 1, 0), Timings(0, 0, 0), (7,), OutputSummary("x", "", (), 0)
)
THINKING = st.builds(TextDelta, st.just(Channel.THINKING), st.text(min_size=1, max_size=3))
CONTENT = st.builds(TextDelta, st.just(Channel.CONTENT), st.text(min_size=1, max_size=3))
CALLS = st.one_of(
    st.builds(ToolCallStart, st.integers(0, 1), st.just("id"), st.just("name")),
    st.builds(ToolCallArguments, st.integers(0, 1), st.text(min_size=1, max_size=3)),
)


def make_channel(wake: Callable[[], None] = lambda: None) -> tuple[CapacityGate, ResponseChannel]:
    gate = CapacityGate(1)
    return gate, ResponseChannel(gate.acquire(), wake)


def output(index: int, text: str = "ab") -> OutputCommitted:
    return OutputCommitted((index,), (TextDelta(Channel.CONTENT, text),))


def folded(deltas: list[OutputDelta]) -> list[tuple[object, str]]:
    """Neighbours of one kind joined, from the definition."""
    joined: list[tuple[object, str]] = []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            key, text = cast("object", delta.channel), delta.text
        elif isinstance(delta, ToolCallArguments):
            key, text = delta.index, delta.fragment
        else:
            key, text = delta, ""
        if joined and joined[-1][0] == key and not isinstance(delta, ToolCallStart):
            joined[-1] = (key, joined[-1][1] + text)
        else:
            joined.append((key, text))
    return joined


@given(st.lists(st.sampled_from(["done", "released"]), max_size=8))
def test_capacity_returns_once_with_the_second_fact(facts: list[str]) -> None:
    gate = CapacityGate(2)
    ticket, other = gate.acquire(), gate.acquire()
    for fact in facts:
        if fact == "done":
            ticket.note_response_done()
        else:
            ticket.note_consumer_released()

    assert gate.outstanding == 2 - ({"done", "released"} <= set(facts))
    assert other is not ticket


def test_racing_facts_release_capacity_once() -> None:
    gate = CapacityGate(200)
    for _ in range(200):
        ticket = gate.acquire()
        facts = (ticket.note_response_done, ticket.note_consumer_released) * 2
        threads = [threading.Thread(target=fact) for fact in facts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert gate.outstanding == 0


def test_a_full_gate_refuses_at_once_and_counts_nothing() -> None:
    gate = CapacityGate(1)
    gate.acquire()

    with pytest.raises(EngineOverloaded, match="limit is 1"):
        gate.acquire()

    assert gate.outstanding == 1


def test_events_arrive_in_order_and_the_result_last() -> None:
    _, channel = make_channel()
    sent: list[RunningEvent] = [GenerationStart(4, 0), PrefillProgress(3, 4), output(0), output(1)]
    for event in sent:
        channel.publish(event)
    channel.finish(RESULT)

    assert list(GenerationHandle(0, channel)) == [*sent, RESULT]


def test_only_reading_the_outcome_releases_the_consumer() -> None:
    gate, channel = make_channel()
    handle = GenerationHandle(0, channel)
    channel.publish(output(0))
    channel.finish(RESULT)

    first = handle.next_event(0.0)
    outstanding = gate.outstanding
    second = handle.next_event(0.0)

    assert (first, outstanding) == (output(0), 1)
    assert (second, gate.outstanding) == (RESULT, 0)


def test_an_error_outcome_is_raised_and_releases_too() -> None:
    gate, channel = make_channel()
    channel.finish(EngineFailed("gone"))

    with pytest.raises(EngineFailed, match="gone"):
        GenerationHandle(0, channel).result()

    assert gate.outstanding == 0


def test_result_skips_events_and_repeats() -> None:
    _, channel = make_channel()
    handle = GenerationHandle(0, channel)
    channel.publish(output(0))
    channel.finish(RESULT)

    assert handle.result() is RESULT
    assert handle.result() is RESULT
    assert handle.next_event(0.0) is RESULT


def test_nothing_yet_is_none_not_an_end() -> None:
    _, channel = make_channel()

    assert GenerationHandle(0, channel).next_event(0.0) is None


def test_a_request_cannot_end_twice_nor_speak_after_its_end() -> None:
    gate, channel = make_channel()
    channel.finish(RESULT)

    with pytest.raises(IllegalMove, match="twice"):
        channel.finish(EngineFailed("late"))
    with pytest.raises(IllegalMove, match="after the outcome"):
        channel.publish(output(0))

    assert GenerationHandle(0, channel).result() is RESULT
    assert gate.outstanding == 0


def test_dropping_cancels_and_keeps_capacity_until_the_response_is_done() -> None:
    wakes: list[int] = []
    gate, channel = make_channel(lambda: wakes.append(1))
    handle = GenerationHandle(0, channel)

    handle.close()
    handle.close()
    before = gate.outstanding
    channel.publish(output(0))
    channel.finish(RESULT)

    assert channel.is_cancel_requested
    assert wakes
    assert (before, gate.outstanding) == (1, 0)


def test_dropping_after_the_end_cancels_nothing() -> None:
    wakes: list[int] = []
    gate, channel = make_channel(lambda: wakes.append(1))
    channel.finish(RESULT)

    GenerationHandle(0, channel).close()

    assert not channel.is_cancel_requested
    assert not wakes
    assert gate.outstanding == 0


def test_cancelling_alone_does_not_release_the_consumer() -> None:
    gate, channel = make_channel()
    handle = GenerationHandle(0, channel)
    handle.cancel()
    channel.finish(RESULT)

    assert gate.outstanding == 1


def test_leaving_the_with_block_lets_go() -> None:
    gate, channel = make_channel()
    with GenerationHandle(0, channel):
        channel.finish(RESULT)

    assert gate.outstanding == 0


def test_a_reader_of_a_closed_handle_is_released_with_an_error() -> None:
    _, channel = make_channel()
    handle = GenerationHandle(0, channel)
    handle.close()

    with pytest.raises(RequestCancelled, match="closed"):
        handle.next_event()


def test_unread_progress_is_replaced_by_newer_progress() -> None:
    _, channel = make_channel()
    channel.publish(PrefillProgress(1, 9))
    channel.publish(PrefillProgress(5, 9))
    channel.finish(RESULT)

    assert list(GenerationHandle(0, channel)) == [PrefillProgress(5, 9), RESULT]


def test_a_slow_reader_finds_later_outputs_merged() -> None:
    _, channel = make_channel()
    for index in range(1000):
        channel.publish(output(index, "z"))
    channel.finish(RESULT)

    events = list(GenerationHandle(0, channel))

    assert len(events) == MAX_QUEUED_OUTPUTS + 2
    assert events[-2] == OutputCommitted(
        tuple(range(MAX_QUEUED_OUTPUTS, 1000)),
        (TextDelta(Channel.CONTENT, "z" * (1000 - MAX_QUEUED_OUTPUTS)),),
    )


@given(
    st.lists(st.lists(st.one_of(THINKING, CONTENT, CALLS), max_size=3), max_size=80),
    st.integers(0, 40),
)
def test_merging_loses_and_reorders_nothing(rounds: list[list[OutputDelta]], reads: int) -> None:
    _, channel = make_channel()
    handle = GenerationHandle(0, channel)
    events = []
    for index, deltas in enumerate(rounds):
        channel.publish(OutputCommitted((index,), tuple(deltas)))
        if index < reads:
            events.append(handle.next_event(0.0))
    channel.finish(RESULT)
    events.extend(event for event in handle if event is not RESULT)

    outputs = [event for event in events if isinstance(event, OutputCommitted)]
    received = [delta for event in outputs for delta in event.deltas]
    assert [t for event in outputs for t in event.token_ids] == list(range(len(rounds)))
    assert folded(received) == folded([delta for deltas in rounds for delta in deltas])


def test_losing_the_last_reference_lets_go_like_closing() -> None:
    gate, channel = make_channel()
    handle = GenerationHandle(0, channel)

    del handle
    gc.collect()

    assert channel.is_cancel_requested
    channel.finish(RESULT)
    assert gate.outstanding == 0


def test_losing_an_answered_handle_gives_its_place_back_once() -> None:
    gate, channel = make_channel()
    handle = GenerationHandle(0, channel)
    channel.finish(RESULT)

    handle.close()
    del handle
    gc.collect()

    assert gate.outstanding == 0
