"""Life cycle and faults of streams, on a driver that is a list of calls."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda import driver
from ninfer.cuda.driver import CudaError, status_error
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.stream import NUM_EVENTS, CudaStream
from ninfer.errors import (
    DeviceUnavailable,
    IllegalMove,
    InvariantError,
    NinferError,
    OutOfDeviceMemory,
    ShapeError,
)
from ninfer.stream_life import _NEXT, StreamState
from ninfer.tensor import DType, Tensor

SCRATCH = Tensor(4096, DType.U8, (256,))
KERNEL = Kernel("probe", lambda: None, (Param.ADDRESS, Param.F32), threads=64, max_registers=8)
A, B = Tensor(0x1000, DType.F32, (4,)), Tensor(0x2000, DType.F32, (4,))


class FakeDriver:
    """Records calls; fails the ones it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.failures: dict[str, NinferError] = {}
        names = (
            "create_stream destroy_stream synchronize_stream copy_to_device copy_to_host "
            "copy_on_device fill_bytes create_event destroy_event record_event synchronize_event "
            "elapsed_ms begin_capture end_capture instantiate_graph upload_graph launch_graph "
            "destroy_graph destroy_executable launch"
        )
        for name in names.split():
            monkeypatch.setattr(driver, name, self._fake(name))

    def _fake(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> str:
            if name in self.failures:
                raise self.failures[name]
            self.calls.append(name)
            return f"{name} {len(self.calls)}"

        return call


class Owner:
    """A device for streams."""

    def __init__(self) -> None:
        self.fault: NinferError | None = None
        self.has_programmatic_launch = True
        self.has_warpgroups = True
        self.has_clusters = True
        self.num_multiprocessors = 4
        self.shared_bytes = 48 << 10
        self.at_hand: set[str] = set()
        self.made_ready: list[tuple[list[str], Any]] = []

    def bind(self) -> None:
        """Nothing to bind."""

    def lose(self, fault: NinferError) -> None:
        self.fault = fault

    def function(self, kernel: Kernel) -> str:
        return kernel.name

    def is_at_hand(self, kernel: Kernel) -> bool:
        return kernel.name in self.at_hand

    def num_clusters(self, kernel: Kernel) -> int:
        assert kernel.name in self.at_hand, "that would have compiled it"
        return self.num_multiprocessors // kernel.cluster_blocks - 1

    def make_ready(self, kernels: Any, ahead: Any) -> None:
        names = [kernel.name for kernel in kernels]
        self.made_ready.append((names, ahead))
        self.at_hand.update(names)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    return FakeDriver(monkeypatch)


def test_work_reaches_the_driver_in_order(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)

    made.upload(A, B)
    made.launch(KERNEL, (1, 1, 1), (1, 2.0))
    made.copy(A, B)
    made.clear(A)
    made.download(A, B)
    made.synchronize()

    assert fake.calls == [
        "create_stream",
        "copy_to_device",
        "launch",
        "copy_on_device",
        "fill_bytes",
        "copy_to_host",
        "synchronize_stream",
    ]


def test_a_rehearsal_makes_kernels_ready_and_reaches_no_driver(fake: FakeDriver) -> None:
    owner = Owner()
    made = CudaStream(owner, SCRATCH)
    other = replace(KERNEL, name="other")

    def sequence() -> None:
        assert made.is_rehearsing
        for kernel in (KERNEL, other, KERNEL):
            made.launch(kernel, (1, 1, 1), (1, 2.0))
        made.launch(replace(KERNEL, name="without blocks"), (0, 1, 1), (1, 2.0))
        made.clear(A)

    made.rehearse(sequence, ahead := lambda names, target: None)

    assert owner.made_ready == [(["probe", "other"], ahead)]
    assert fake.calls == ["create_stream"]
    assert not made.is_rehearsing
    made.launch(KERNEL, (1, 1, 1), (1, 2.0))
    assert fake.calls[1:] == ["launch"]


def rehearse_by_clusters(owner: Owner) -> list[str]:
    """Rehearse what launches another kernel for each number of clusters; returns those."""
    made = CudaStream(owner, SCRATCH)
    clustered = replace(KERNEL, name="clustered", cluster_blocks=2)
    found = list[str]()

    def sequence() -> None:
        made.launch(KERNEL, (1, 1, 1), (1, 2.0))
        found.append(f"for {made.num_clusters(clustered)}")
        made.launch(replace(KERNEL, name=found[-1]), (1, 1, 1), (1, 2.0))

    made.rehearse(sequence)
    return found


def test_a_rehearsal_asks_for_clusters_when_all_is_compiled(fake: FakeDriver) -> None:
    owner = Owner()

    found = rehearse_by_clusters(owner)

    assert found == ["for 2", "for 1"]  # as many as would fit, then as many as there are
    assert [names for names, _ in owner.made_ready] == [
        ["probe", "clustered", "for 2"],
        ["probe", "for 1"],
    ]


def test_a_rehearsal_that_need_not_guess_is_not_repeated(fake: FakeDriver) -> None:
    owner = Owner()
    owner.at_hand.add("clustered")

    assert rehearse_by_clusters(owner) == ["for 1"]
    assert [names for names, _ in owner.made_ready] == [["probe", "for 1"]]


def test_a_rehearsal_that_fails_leaves_a_stream_that_works(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        made.rehearse(broken)
    made.begin_capture()
    with pytest.raises(InvariantError, match="rehearsal"):
        made.rehearse(lambda: None)
    made.end_capture()

    made.launch(KERNEL, (1, 1, 1), (1, 2.0))
    assert fake.calls[-1] == "launch"


@pytest.mark.parametrize("blocks", [1, 2])
def test_blocks_of_a_cluster_start_together(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    options: list[dict[str, Any]] = []
    monkeypatch.setattr(driver, "launch", lambda *_, **given: options.append(given))
    kernel = replace(KERNEL, cluster_blocks=blocks)

    CudaStream(Owner(), SCRATCH).launch(kernel, (4, 1, 1), (1, 2.0))

    assert [one["cluster_blocks"] for one in options] == [blocks]


def test_empty_work_is_no_call(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)
    empty = Tensor(0, DType.F32, (0, 3))

    made.upload(empty, empty)
    made.clear(empty)
    made.launch(KERNEL, (0, 5, 1), (1, 2.0))

    assert fake.calls == ["create_stream"]


def test_operands_that_do_not_fit_are_refused(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)

    with pytest.raises(ShapeError):
        made.copy(A, Tensor(0, DType.F32, (3,)))
    with pytest.raises(ShapeError):
        made.launch(KERNEL, (1, 1, 1), (1,))

    made.synchronize()


def test_refused_call_is_reported_by_the_next_synchronisation(fake: FakeDriver) -> None:
    owner = Owner()
    made, other = CudaStream(owner, SCRATCH), CudaStream(owner, SCRATCH)
    fake.failures["launch"] = CudaError("CUDA_ERROR_INVALID_VALUE", "launch")

    made.launch(KERNEL, (1, 1, 1), (1, 2.0))
    made.copy(A, B)

    assert made.state is StreamState.FAULTED
    assert "copy_on_device" not in fake.calls
    with pytest.raises(InvariantError, match="INVALID_VALUE"):
        made.synchronize()
    with pytest.raises(InvariantError):
        made.begin_capture()
    other.synchronize()


def test_sticky_fault_reaches_every_stream_of_the_device(fake: FakeDriver) -> None:
    owner = Owner()
    made, other = CudaStream(owner, SCRATCH), CudaStream(owner, SCRATCH)
    fake.failures["synchronize_stream"] = CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "wait")

    with pytest.raises(InvariantError, match="ILLEGAL_ADDRESS"):
        made.synchronize()

    del fake.failures["synchronize_stream"]
    other.copy(A, B)
    assert other.state is StreamState.FAULTED
    with pytest.raises(InvariantError, match="ILLEGAL_ADDRESS"):
        other.synchronize()
    made.close()
    other.close()
    assert "destroy_stream" not in fake.calls


def test_capture_gives_a_graph_that_replays_until_closed(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)
    made.begin_capture()
    made.copy(A, B)
    graph = made.end_capture()

    graph.launch(made)
    graph.launch(made)
    graph.close()
    graph.close()

    assert fake.calls.count("launch_graph") == 2
    assert fake.calls.count("destroy_executable") == 1
    assert fake.calls.count("destroy_graph") == 1
    with pytest.raises(InvariantError):
        graph.launch(made)


def test_refused_call_inside_a_capture_ends_it(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)
    made.begin_capture()
    fake.failures["launch"] = CudaError("CUDA_ERROR_INVALID_VALUE", "launch")
    made.launch(KERNEL, (1, 1, 1), (1, 2.0))

    with pytest.raises(InvariantError):
        made.end_capture()


@pytest.mark.parametrize("what", ["synchronize", "record", "begin_capture"])
def test_capturing_stream_refuses(fake: FakeDriver, what: str) -> None:
    made = CudaStream(Owner(), SCRATCH)
    made.begin_capture()

    with pytest.raises(InvariantError):
        getattr(made, what)()

    assert made.state is StreamState.CAPTURING


def test_capture_that_was_not_begun_cannot_end(fake: FakeDriver) -> None:
    with pytest.raises(IllegalMove):
        CudaStream(Owner(), SCRATCH).end_capture()


def test_closed_stream_accepts_nothing(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)
    made.record()
    made.close()
    made.close()

    assert fake.calls.count("destroy_event") == 1
    assert fake.calls.count("destroy_stream") == 1
    with pytest.raises(InvariantError):
        made.copy(A, B)
    with pytest.raises(InvariantError):
        made.synchronize()


def test_events_go_round(fake: FakeDriver) -> None:
    made = CudaStream(Owner(), SCRATCH)

    events = [made.record() for _ in range(NUM_EVENTS + 3)]
    events[0].synchronize()

    assert fake.calls.count("create_event") == NUM_EVENTS
    with pytest.raises(InvariantError):
        events[-1].elapsed_ms(events[0])


@pytest.mark.parametrize(
    ("status", "kind", "is_sticky"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", OutOfDeviceMemory, None),
        ("CUDA_ERROR_NO_DEVICE", DeviceUnavailable, None),
        ("CUDA_ERROR_INVALID_VALUE", CudaError, False),
        ("CUDA_ERROR_LAUNCH_FAILED", CudaError, True),
    ],
)
def test_status_becomes_an_error(status: str, kind: type, is_sticky: bool | None) -> None:
    error = status_error(status, "call")

    assert type(error) is kind
    assert getattr(error, "is_sticky", None) is is_sticky


def test_life_cycle_has_no_way_back_from_the_end() -> None:
    ways = {(before, after) for (before, _), after in _NEXT.items()}

    assert {after for before, after in ways if before is StreamState.CLOSED} == {StreamState.CLOSED}
    assert {after for before, after in ways if before is StreamState.FAULTED} == {
        StreamState.FAULTED,
        StreamState.CLOSED,
    }
