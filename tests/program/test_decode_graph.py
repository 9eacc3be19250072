"""Graphs of decode rounds: captured once for each B, or the same sequence eagerly."""

import pytest

from ninfer.errors import InvariantError
from ninfer.host.device import HostDevice
from ninfer.program.decode_graph import DecodeGraphs


def test_every_b_is_captured_once_and_replayed() -> None:
    with HostDevice() as device:
        stream, enqueued, ran = device.stream(), list[int](), list[int]()

        def enqueue(rows: int) -> None:
            enqueued.append(rows)
            stream.enqueue(ran.append, rows)

        graphs = DecodeGraphs(stream, enqueue, 3, use_graphs=True)
        assert ran == []
        for rows in (2, 3, 2, 1):
            graphs.launch(rows)

        assert enqueued == [1, 2, 3]
        assert ran == [2, 3, 2, 1]


def test_without_graphs_the_sequence_runs_eagerly() -> None:
    with HostDevice() as device:
        stream, ran = device.stream(), list[int]()
        graphs = DecodeGraphs(
            stream, lambda rows: stream.enqueue(ran.append, rows), 3, use_graphs=False
        )

        graphs.launch(2)

        assert ran == [2]
        graphs.close()


def test_closed_graphs_are_gone() -> None:
    with HostDevice() as device:
        stream, ran = device.stream(), list[int]()
        graphs = DecodeGraphs(
            stream, lambda rows: stream.enqueue(ran.append, rows), 2, use_graphs=True
        )

        graphs.close()
        graphs.close()

        with pytest.raises(InvariantError):
            graphs.launch(1)
        assert ran == []


def test_a_sequence_that_cannot_be_enqueued_stops_the_start() -> None:
    with HostDevice() as device:
        stream = device.stream()

        def enqueue(rows: int) -> None:
            if rows == 2:
                raise InvariantError("of the test")

        with pytest.raises(InvariantError, match="of the test"):
            DecodeGraphs(stream, enqueue, 3, use_graphs=True)
