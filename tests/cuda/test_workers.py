import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from numba import uint32

from ninfer.cuda import ptx
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.module import Compiled, Figures, KernelCache
from ninfer.cuda.workers import compile_together
from ninfer.errors import InvariantError


def make_kernel(number: int) -> Kernel:
    def probe(target: int) -> None:
        ptx.wait_for_predecessor()
        ptx.store_u32(target, uint32(number))

    return Kernel(f"probe_{number}", probe, (Param.ADDRESS,), threads=32, max_registers=32)


class CountedCache(KernelCache):
    """Says the compiling process as the number of registers; refuses or dies where it is told."""

    def __init__(self, refused: str = "", deadly: str = "") -> None:
        super().__init__(Path("nowhere"))
        self._refused, self._deadly = refused, deadly

    def compiled(self, kernel: Kernel, target: str) -> Compiled:
        if kernel.name == self._refused:
            raise InvariantError(f"{kernel.name} is refused")
        if kernel.name == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return Compiled(kernel.name, target, b"", Figures(os.getpid(), 0, 0, int(target)))


def jobs_of(count: int) -> list[tuple[Kernel, str]]:
    kernels = [make_kernel(number) for number in range(count)]
    return [(kernel, str(target)) for target in range(3) for kernel in kernels]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_figures_come_in_the_order_of_the_jobs(num_workers: int) -> None:
    jobs = jobs_of(20)
    told: list[tuple[int, int]] = []

    found = compile_together(
        CountedCache(), jobs, num_workers, lambda done, total: told.append((done, total))
    )

    assert [str(figures.shared_bytes) for figures in found] == [target for _, target in jobs]
    assert told == [(done, 60) for done in range(1, 61)]


def test_targets_of_a_kernel_are_compiled_by_one_process_and_not_by_the_caller() -> None:
    jobs = jobs_of(6)

    found = compile_together(CountedCache(), jobs, 2)

    processes: dict[str, set[int]] = {}
    for (kernel, _), figures in zip(jobs, found, strict=True):
        processes.setdefault(kernel.name, set()).add(figures.registers)
    assert all(len(one) == 1 and os.getpid() not in one for one in processes.values())


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_kernel_that_does_not_compile_ends_it_all(num_workers: int) -> None:
    with pytest.raises(InvariantError, match="probe_3 is refused"):
        compile_together(CountedCache(refused="probe_3"), jobs_of(6), num_workers)


def test_a_process_that_dies_is_noticed() -> None:
    with pytest.raises(InvariantError, match="has died"):
        compile_together(CountedCache(deadly="probe_3"), jobs_of(6), 2)


class SlowCache(CountedCache):
    """Takes its time for all kernels but the first."""

    def compiled(self, kernel: Kernel, target: str) -> Compiled:
        if kernel.name != "probe_0":
            time.sleep(60)
        return super().compiled(kernel, target)


@pytest.fixture
def ignored_termination() -> Iterator[None]:
    """What a process that is ending looks like to those that it forks."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("ignored_termination")
def test_workers_end_at_once_with_the_caller() -> None:
    begin = time.monotonic()

    with pytest.raises(InvariantError, match="refused") as kept:
        compile_together(SlowCache(refused="probe_0"), jobs_of(6), 2)

    assert time.monotonic() - begin < 30
    assert multiprocessing.active_children() == []
    assert kept.tb is not None  # and the traceback that is kept keeps no worker


class TiredCache(CountedCache):
    """Takes its time."""

    def compiled(self, kernel: Kernel, target: str) -> Compiled:
        time.sleep(0.2)
        return super().compiled(kernel, target)


def children_of(process: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def runs(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_workers_end_where_the_caller_was_killed() -> None:
    context = multiprocessing.get_context("fork")
    caller = context.Process(target=compile_together, args=(TiredCache(), jobs_of(200), 2))
    caller.start()
    assert caller.pid is not None
    while len(workers := children_of(caller.pid)) < 2:
        time.sleep(0.01)

    caller.kill()
    caller.join()

    until = time.monotonic() + 20
    while any(map(runs, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(runs, workers))


def test_workers_leave_what_they_built_in_the_folder(tmp_path: Path) -> None:
    kernels = [make_kernel(number) for number in range(3)]

    compile_together(KernelCache(tmp_path), [(kernel, "sm_90") for kernel in kernels], 2)

    assert len(list(tmp_path.glob("probe_*.sm_90.*.kernel"))) == 3
