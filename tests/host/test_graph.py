import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.device import host_array
from ninfer.errors import InvariantError
from ninfer.host.device import HostDevice
from ninfer.tensor import DType, Tensor


def test_captured_calls_run_in_order_at_every_launch_and_not_before() -> None:
    calls: list[object] = []
    with HostDevice(2) as device:
        stream = device.stream()
        stream.begin_capture()
        stream.enqueue(calls.append, "first")
        stream.enqueue_bands(lambda first, stop: calls.append((first, stop)), 5, 10)
        stream.enqueue(calls.append, "last")
        graph = stream.end_capture()
        before = list(calls)

        graph.launch(stream)
        graph.launch(stream)

        stream.synchronize()
        assert before == []
        assert calls == ["first", (0, 5), "last"] * 2
        assert graph.num_operations == 3


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["copy", "upload", "download", "clear"]),
            st.integers(0, 3),
            st.integers(0, 3),
        ).filter(lambda step: step[1] != step[2]),
        max_size=12,
    ),
    values=st.lists(st.integers(0, 255), min_size=4, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_replay_does_to_present_data_what_running_would(
    steps: list[tuple[str, int, int]], values: list[int]
) -> None:
    with HostDevice(1) as device:
        arena, stream = device.arena("test", 1 << 13), device.stream()
        recorded, direct = ([arena.take((9,), DType.U8) for _ in range(4)] for _ in range(2))

        def play(tensors: list[Tensor]) -> None:
            for name, target, source in steps:
                if name == "clear":
                    stream.clear(tensors[target])
                else:
                    getattr(stream, name)(tensors[target], tensors[source])

        stream.begin_capture()
        play(recorded)
        graph = stream.end_capture()
        for tensor, value in zip(recorded + direct, values * 2, strict=True):
            host_array(tensor)[...] = value

        graph.launch(stream)
        play(direct)

        stream.synchronize()
        for one, other in zip(recorded, direct, strict=True):
            np.testing.assert_array_equal(host_array(one), host_array(other))


def test_graph_runs_on_another_stream_of_the_device() -> None:
    calls: list[int] = []
    with HostDevice(1) as device:
        recording, running = device.stream(), device.stream()
        recording.begin_capture()
        recording.enqueue(calls.append, 4)
        graph = recording.end_capture()
        recording.close()

        graph.launch(running)

        assert calls == [4]


def test_launch_into_a_capture_becomes_part_of_it() -> None:
    calls: list[int] = []
    with HostDevice(1) as device:
        stream = device.stream()
        stream.begin_capture()
        stream.enqueue(calls.append, 1)
        inner = stream.end_capture()
        stream.begin_capture()
        inner.launch(stream)
        stream.enqueue(calls.append, 2)
        outer = stream.end_capture()
        inner.close()

        outer.launch(stream)

        assert calls == [1, 2]


def test_fault_in_a_replay_drops_the_rest_of_it() -> None:
    calls: list[int] = []
    with HostDevice(1) as device:
        stream = device.stream()
        stream.begin_capture()
        stream.enqueue(calls.append, 1)
        stream.enqueue(int, "not a number")
        stream.enqueue(calls.append, 2)
        graph = stream.end_capture()

        graph.launch(stream)

        with pytest.raises(InvariantError):
            stream.synchronize()
        assert calls == [1]


def test_closed_graph_is_not_launched() -> None:
    with HostDevice(1) as device:
        stream = device.stream()
        stream.begin_capture()
        graph = stream.end_capture()
        graph.close()
        graph.close()

        with pytest.raises(InvariantError):
            graph.launch(stream)


def test_new_capture_starts_empty() -> None:
    calls: list[int] = []
    with HostDevice(1) as device:
        stream = device.stream()
        stream.begin_capture()
        stream.enqueue(calls.append, 1)
        stream.end_capture()
        stream.begin_capture()

        assert stream.end_capture().num_operations == 0
