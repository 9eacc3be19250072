from collections.abc import Sequence

import pytest

from ninfer.gateway.event_stream import KEEP_ALIVE, ClientGone, EventStream, Frame, compact_json


class Source:
    """Gives out prepared batches: frames, nothing in time, the end, or a client that left."""

    def __init__(self, *batches: Sequence[Frame] | type[ClientGone] | None) -> None:
        self.batches = list(batches)
        self.num_closed = 0
        self.beat: Frame | None = None

    def next_frames(self, timeout_s: float) -> Sequence[Frame] | None:
        batch = self.batches.pop(0)
        if isinstance(batch, type):
            raise batch
        return batch

    def heartbeat(self) -> Frame | None:
        return self.beat

    def close(self) -> None:
        self.num_closed += 1


def test_frame_is_one_line_of_data_and_a_blank_one() -> None:
    assert Frame({"a": "x\ny"}).encode() == b'data: {"a":"x\\ny"}\n\n'
    assert Frame("[DONE]").encode() == b"data: [DONE]\n\n"
    assert Frame({}, "ping").encode() == b"event: ping\ndata: {}\n\n"


@pytest.mark.parametrize("text", ["\u2028", "\u2029", "\x85", "\r\n"])
def test_line_separators_never_break_a_data_line(text: str) -> None:
    encoded = Frame({"a": f"1{text}2"}).encode().decode()

    assert len(encoded.splitlines()) == 2


def test_characters_are_sent_as_they_are() -> None:
    assert compact_json({"a": "€"}) == '{"a":"€"}'


def test_quiet_time_sends_a_comment_or_the_protocols_beat() -> None:
    source = Source((), (), None)
    stream = EventStream(source, 1.0)

    first = next(stream)
    source.beat = Frame({"type": "ping"}, "ping")
    second = next(stream)

    assert first == KEEP_ALIVE
    assert second == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_end_closes_the_source() -> None:
    source = Source([Frame("a"), Frame("b")], None)

    assert list(EventStream(source, 1.0, [Frame("0")])) == [
        b"data: 0\n\n",
        b"data: a\n\ndata: b\n\n",
    ]
    assert source.num_closed == 1


def test_client_that_left_ends_the_stream_quietly() -> None:
    source = Source(ClientGone)

    assert list(EventStream(source, 1.0)) == []
    assert source.num_closed == 1


def test_stream_that_never_began_still_closes_its_source() -> None:
    source = Source()
    stream = EventStream(source, 1.0, [Frame("never sent")])

    stream.close()

    assert source.num_closed == 1
    assert list(stream) == []
