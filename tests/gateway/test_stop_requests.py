"""The handler of a server's signals, called wherever its main thread may be."""

import itertools
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from ninfer.gateway import server
from ninfer.gateway.server import StoppedWhileLoading


def outcome_at(line: int) -> str:
    """Let a signal arrive at a line of the wait, the library's lines included."""
    stop = server._StopRequests()
    stop.end_loading()
    left = iter(range(line))
    seen: list[bool] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and next(left, None) is None and stop.count == 0:
            stop.note(15, frame)
        return trace

    def wait() -> None:
        sys.settrace(trace)
        try:
            first = stop.wait(0.01)
        finally:
            sys.settrace(None)
        seen.append(first or stop.wait(0.01))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(5)
    if not seen:
        return "hangs"
    return ("noticed" if seen[0] else "missed") if stop.count else "over before"


def test_signal_at_any_line_of_the_wait_is_noticed() -> None:
    outcomes = list(itertools.takewhile("over before".__ne__, map(outcome_at, itertools.count())))

    assert outcomes
    assert set(outcomes) == {"noticed"}


def test_signal_while_loading_raises_and_is_noticed_too() -> None:
    stop = server._StopRequests()

    with pytest.raises(StoppedWhileLoading):
        stop.note(15, None)

    assert (stop.count, stop.wait(0.01), stop.wait(0.01)) == (1, True, False)
