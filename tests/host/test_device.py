import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.device import ALIGNMENT, Device, host_array
from ninfer.errors import IllegalMove, InvariantError, OutOfDeviceMemory, ShapeError
from ninfer.host.device import HostDevice
from ninfer.stream_life import StreamEvent, StreamState
from ninfer.tensor import DType, Tensor


def filled(tensor: Tensor, value: int) -> Tensor:
    host_array(tensor)[...] = value
    return tensor


def fail() -> None:
    raise ZeroDivisionError("a kernel went wrong")


def test_host_device_satisfies_the_protocol() -> None:
    with HostDevice(2) as device:
        assert isinstance(device, Device)
        assert device.kind == "host"
        assert device.activation_dtype is DType.F32
        assert device.num_threads == 2
        assert 0 < device.free_bytes() < 1 << 50


def test_device_takes_every_cpu_of_the_process_by_default() -> None:
    with HostDevice() as device:
        assert device.num_threads >= 1


def test_device_without_threads_is_refused() -> None:
    with pytest.raises(InvariantError):
        HostDevice(0)


@given(
    nbytes=st.integers(0, 5000),
    requests=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 60), st.sampled_from(list(DType))), max_size=12
    ),
)
@settings(max_examples=60, deadline=None)
def test_views_are_aligned_apart_and_accounted(
    nbytes: int, requests: list[tuple[int, int, DType]]
) -> None:
    with HostDevice(1) as device:
        arena = device.arena("test", nbytes)
        used, taken = 0, []

        for rows, columns, dtype in requests:
            start = -(-used // ALIGNMENT) * ALIGNMENT
            need = start + rows * columns * dtype.itemsize
            if need > nbytes:
                with pytest.raises(InvariantError):
                    arena.take((rows, columns), dtype)
            else:
                taken.append(arena.take((rows, columns), dtype))
                used = need
            assert arena.used_bytes == used
            assert arena.nbytes == nbytes

        ends = [0]
        for tensor in taken:
            assert tensor.address % ALIGNMENT == 0
            assert tensor.address >= ends[-1]
            ends.append(tensor.address + tensor.nbytes)
        for number, tensor in enumerate(taken):
            filled(tensor, number)
        for number, tensor in enumerate(taken):
            np.testing.assert_array_equal(host_array(tensor), number)
        arena.close()


def test_arena_is_filled_to_its_last_byte_and_no_further() -> None:
    with HostDevice(1) as device:
        arena = device.arena("test", ALIGNMENT + 3)
        arena.take((1,), DType.U8)

        with pytest.raises(InvariantError, match="full"):
            arena.take((4,), DType.U8)
        arena.take((3,), DType.U8)

        assert arena.used_bytes == arena.nbytes
        with pytest.raises(InvariantError, match="full"):
            arena.take((1,), DType.U8)


def test_closed_arena_hands_nothing_out() -> None:
    with HostDevice(1) as device:
        arena = device.pinned_arena("test", 1024)
        arena.close()
        arena.close()

        with pytest.raises(InvariantError, match="closed"):
            arena.take((1,), DType.U8)
        assert arena.used_bytes == 0


def test_negative_extents_are_refused() -> None:
    with HostDevice(1) as device:
        arena = device.arena("test", 1024)

        with pytest.raises(ShapeError):
            arena.take((-2, -3), DType.U8)
        with pytest.raises(InvariantError):
            device.arena("test", -1)


def test_arena_larger_than_memory_is_refused_with_the_missing_bytes() -> None:
    with HostDevice(1) as device, pytest.raises(OutOfDeviceMemory, match="more than are free"):
        device.arena("test", 1 << 60)


def test_copies_and_fills_move_exactly_their_bytes() -> None:
    with HostDevice(1) as device:
        arena, stream = device.arena("test", 4096), device.stream()
        source = filled(arena.take((100,), DType.U8), 7)
        target = filled(arena.take((102,), DType.U8), 1)
        inner = Tensor(target.address + 1, DType.U8, (100,))

        stream.copy(inner, source)
        copied = host_array(target).copy()
        stream.upload(inner, filled(source, 8))
        uploaded = host_array(target).copy()
        stream.clear(inner)
        cleared = host_array(target).copy()
        stream.download(inner, filled(source, 9))
        stream.synchronize()

        np.testing.assert_array_equal(copied, [1] + [7] * 100 + [1])
        np.testing.assert_array_equal(uploaded, [1] + [8] * 100 + [1])
        np.testing.assert_array_equal(cleared, [1] + [0] * 100 + [1])
        np.testing.assert_array_equal(host_array(target), [1] + [9] * 100 + [1])


@pytest.mark.parametrize("move", ["upload", "download", "copy"])
def test_copies_between_different_sizes_are_refused(move: str) -> None:
    with HostDevice(1) as device:
        arena, stream = device.arena("test", 4096), device.stream()
        large, small = arena.take((8,), DType.F32), arena.take((8,), DType.F16)

        with pytest.raises(ShapeError):
            getattr(stream, move)(large, small)
        stream.synchronize()


def test_fault_is_sticky_and_drops_later_work() -> None:
    calls: list[int] = []
    with HostDevice(1) as device:
        stream = device.stream()
        event = stream.record()
        stream.enqueue(calls.append, 1)

        stream.enqueue(fail)
        stream.enqueue(calls.append, 2)

        for _ in range(2):
            with pytest.raises(InvariantError, match="kernel failed") as caught:
                stream.synchronize()
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(InvariantError):
            event.synchronize()
        with pytest.raises(IllegalMove):
            stream.begin_capture()
        assert calls == [1]
        assert stream.state is StreamState.FAULTED


def test_fault_of_a_band_poisons_the_stream() -> None:
    with HostDevice(3) as device:
        stream = device.stream()

        stream.enqueue_bands(lambda first, stop: fail() if first else None, 30, 1)

        with pytest.raises(InvariantError):
            stream.synchronize()


def test_fault_stays_on_its_own_stream() -> None:
    with HostDevice(1) as device:
        faulty, healthy = device.stream(), device.stream()

        faulty.enqueue(fail)

        healthy.synchronize()
        healthy.record().synchronize()


def test_a_rehearsal_runs_nothing() -> None:
    with HostDevice(1) as device:
        stream, calls = device.stream(), list[int]()

        stream.rehearse(lambda: stream.enqueue(calls.append, 1))
        with pytest.raises(ZeroDivisionError):
            stream.rehearse(fail)

        assert calls == []
        stream.enqueue(calls.append, 2)
        assert calls == [2]


def test_capturing_stream_refuses_to_wait() -> None:
    with HostDevice(1) as device:
        stream = device.stream()
        event = stream.record()
        stream.begin_capture()

        with pytest.raises(InvariantError):
            stream.synchronize()
        with pytest.raises(InvariantError):
            event.synchronize()
        with pytest.raises(InvariantError):
            stream.record()
        assert stream.state is StreamState.CAPTURING


def test_captures_do_not_nest_and_end_only_once() -> None:
    with HostDevice(1) as device:
        stream = device.stream()
        with pytest.raises(IllegalMove):
            stream.end_capture()
        stream.begin_capture()
        with pytest.raises(IllegalMove):
            stream.begin_capture()

        graph = stream.end_capture()

        with pytest.raises(IllegalMove):
            stream.end_capture()
        assert graph.num_operations == 0


def test_closed_device_refuses_everything_and_closes_its_streams() -> None:
    device = HostDevice(2)
    stream = device.stream()
    stream.enqueue_bands(lambda first, stop: None, 10, 1)

    device.close()
    device.close()

    for refused in (
        device.stream,
        lambda: device.arena("test", 1),
        lambda: stream.enqueue(fail),
        stream.synchronize,
        stream.record,
        stream.begin_capture,
    ):
        with pytest.raises(InvariantError):
            refused()


def test_arena_outlives_the_device() -> None:
    device = HostDevice(1)
    arena = device.arena("test", 64)
    tensor = arena.take((4,), DType.I32)

    device.close()

    assert host_array(filled(tensor, 3)).tolist() == [3] * 4


MOVES = {
    (StreamState.RUNNING, StreamEvent.BEGIN_CAPTURE): StreamState.CAPTURING,
    (StreamState.CAPTURING, StreamEvent.END_CAPTURE): StreamState.RUNNING,
    (StreamState.RUNNING, StreamEvent.FAULT): StreamState.FAULTED,
    **{(state, StreamEvent.CLOSE): StreamState.CLOSED for state in StreamState},
}
"""The life cycle as documented; a fault seen by a capturing or dead stream is not possible."""


@given(events=st.lists(st.sampled_from(list(StreamEvent)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_sequence_of_events_follows_the_life_cycle(events: list[StreamEvent]) -> None:
    with HostDevice(1) as device:
        stream = device.stream()
        state = StreamState.RUNNING
        acts = {
            StreamEvent.BEGIN_CAPTURE: stream.begin_capture,
            StreamEvent.END_CAPTURE: stream.end_capture,
            StreamEvent.FAULT: lambda: stream.enqueue(fail),
            StreamEvent.CLOSE: stream.close,
        }

        for event in events:
            after = MOVES.get((state, event))
            is_silent = event is StreamEvent.FAULT and state is not StreamState.CLOSED
            if after is None and not is_silent:
                with pytest.raises(InvariantError):
                    acts[event]()
            else:
                acts[event]()
                state = after or state
            assert stream.state is state
