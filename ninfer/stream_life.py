"""Life cycle of a stream, the same on every device.

Work is enqueued while a stream runs and recorded while it captures. A call that fails poisons it:
later work is dropped, also what would have been recorded. Knows no work and no device.
"""

import enum
from typing import Final

from ninfer.errors import IllegalMove


class StreamState(enum.Enum):
    """Where in its life cycle a stream is."""

    RUNNING = enum.auto()  # work is enqueued
    CAPTURING = enum.auto()  # work is recorded
    FAULTED = enum.auto()  # a call failed; later ones are dropped
    CLOSED = enum.auto()  # nothing is accepted


class StreamEvent(enum.Enum):
    """What moves a stream from one state to another."""

    BEGIN_CAPTURE = enum.auto()
    END_CAPTURE = enum.auto()
    FAULT = enum.auto()
    CLOSE = enum.auto()


_NEXT: Final = {
    (StreamState.RUNNING, StreamEvent.BEGIN_CAPTURE): StreamState.CAPTURING,
    (StreamState.CAPTURING, StreamEvent.END_CAPTURE): StreamState.RUNNING,
    (StreamState.RUNNING, StreamEvent.FAULT): StreamState.FAULTED,
    (StreamState.CAPTURING, StreamEvent.FAULT): StreamState.FAULTED,
    (StreamState.FAULTED, StreamEvent.FAULT): StreamState.FAULTED,
    (StreamState.RUNNING, StreamEvent.CLOSE): StreamState.CLOSED,
    (StreamState.CAPTURING, StreamEvent.CLOSE): StreamState.CLOSED,
    (StreamState.FAULTED, StreamEvent.CLOSE): StreamState.CLOSED,
    (StreamState.CLOSED, StreamEvent.CLOSE): StreamState.CLOSED,
}


def moved(state: StreamState, event: StreamEvent, kind: str) -> StreamState:
    """Return the state after an event.

    Args:
        state: before it.
        event: what happens.
        kind: of the stream's device, for the message.

    Raises:
        IllegalMove: it cannot happen in this state.
    """
    after = _NEXT.get((state, event))
    if after is None:
        raise IllegalMove(f"{event.name} on a {kind} stream that is {state.name}")
    return after
