"""Kernels of clusters on the CPU: the blocks of one run together, and write each other's memory.

Every block has the stand-ins that `WarpSimulator` makes for it; what kernels see finds those of the
block whose warp calls. Warps of all blocks take turns, and what one writes into another block is
there as late as it may be: when all have met after its release. What a kernel must not do fails:
write to a block before all have started, or to one that has ended.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ninfer.cuda import ptx
from ninfer.cuda.device_code import DeviceFunction
from ninfer.cuda.kernel_source import Kernel
from tests.support.kernel_modules import modules_of
from tests.support.lane_memory import Memory
from tests.support.plain_types import use_plain_types
from tests.support.turns import Turns
from tests.support.warp_simulator import LANES, WarpSimulator

_WINDOW = 18  # bits of an address in a block's shared memory; above is the block's number and 1
_OWN = np.uint32((1 << _WINDOW) - 1)
_NAMES = ("ptx", "cuda", "warp_index")


class _Current:
    """What stands in for a module or function: that of the block whose warp calls."""

    def __init__(self, place: threading.local, members: Sequence[Any]) -> None:
        self._place, self._members = place, members

    def __getattr__(self, name: str) -> Any:
        return getattr(self._members[self._place.block], name)

    def __call__(self) -> Any:
        return self._members[self._place.block]()


class _Barrier:
    """A barrier of many phases: arrivals and bytes that are missing in the present one."""

    def __init__(self, arrivals: int) -> None:
        self._everybody = self._arrivals = arrivals
        self._bytes = self._phase = 0

    def has_passed(self, parity: int) -> bool:
        """Whether the phase of this parity has ended; who waits is never two phases behind."""
        return self._phase & 1 != parity

    def count(self, arrivals: int, nbytes: int) -> None:
        """Count what has come; bytes that are expected are negative."""
        self._arrivals -= arrivals
        self._bytes += nbytes
        assert self._arrivals >= 0
        if self._arrivals == 0 and self._bytes == 0:
            self._arrivals = self._everybody
            self._phase += 1


class _Cluster:
    """What stands in for `ninfer.cuda.cluster`, and for barriers of `ninfer.cuda.warpgroup`.

    Attributes:
        shared: memory of every block.
        barriers: by block and address.
        running: warps of every block that have not ended.
    """

    def __init__(
        self,
        kernel: Kernel,
        memory: Memory,
        shared: list[Memory],
        turns: Turns,
        place: threading.local,
    ) -> None:
        warps = kernel.threads // LANES
        self._memory = memory
        self.shared, self.running = shared, [warps] * kernel.cluster_blocks
        self._place = place
        self._turns = turns
        self._queue: list[int] = []
        self._everybody = self._missing = warps * kernel.cluster_blocks
        self._meetings = 0
        self._released: list[Callable[[], None]] = []
        self._sent: list[Callable[[], None]] = []
        self.barriers: dict[tuple[int, int], _Barrier] = {}

    def arrive_cluster(self) -> None:
        self._arrive()

    def release_cluster(self) -> None:
        self._released += self._written
        self._written.clear()
        self._arrive()

    def wait_cluster(self) -> None:
        assert self._place.is_waiting
        passed = self._passed
        self._wait(lambda: self._meetings > passed)
        self._place.passed, self._place.is_waiting = passed + 1, False

    def map_shared(self, address: Any, block: Any) -> Any:
        return np.uint32(address) + np.uint32((int(block) + 1) << _WINDOW)

    def put_there_f32x2(self, address: Any, first: Any, second: Any) -> None:
        self._written.append(self._store(address, (first, second)))

    def send_f32x2(self, address: Any, first: Any, second: Any, barrier: Any) -> None:
        self._send(address, (first, second), barrier)

    def send_f32x4(self, address: Any, *values: Any) -> None:
        self._send(address, values[:4], values[4])

    def init_barrier_if(self, mask: Any, address: Any, count: Any) -> None:
        for lane in np.flatnonzero(np.broadcast_to(mask, LANES)):
            at = int(np.broadcast_to(address, LANES)[lane])
            self.barriers[self._place.block, at] = _Barrier(int(count))

    def publish_barriers(self) -> None:
        """Everything is seen at once."""

    def expect_bytes_if(self, mask: Any, address: Any, nbytes: Any) -> None:
        for lane in np.flatnonzero(np.broadcast_to(mask, LANES)):
            at = int(np.broadcast_to(address, LANES)[lane])
            self.barriers[self._place.block, at].count(1, -int(nbytes))

    def copy_bulk_if(self, mask: Any, to: Any, source: Any, nbytes: Any, barrier: Any) -> None:
        to, source, nbytes = (np.broadcast_to(each, LANES) for each in (to, source, nbytes))
        own = self.shared[self._place.block]
        for lane in np.flatnonzero(np.broadcast_to(mask, LANES)):
            first = int(source[lane]) - self._memory.base
            size = int(nbytes[lane])
            assert first % 16 == int(to[lane]) % 16 == size % 16 == 0
            assert 0 <= first <= self._memory.octets.size - size
            assert int(to[lane]) + size <= own.octets.size
            self._sent.append(self._copy(own, int(to[lane]), first, size, self._key(barrier)))

    def wait_phase(self, address: Any, parity: Any) -> None:
        self._deliver()
        self._wait(lambda: self.barriers[self._key(address)].has_passed(int(parity)))

    def end(self) -> None:
        """A warp has ended."""
        assert not self._written
        self.running[self._place.block] -= 1

    @property
    def _passed(self) -> int:
        """Meetings of the cluster that the warp has been at."""
        return getattr(self._place, "passed", 0)

    @property
    def _written(self) -> list[Callable[[], None]]:
        """What the warp has written into other blocks and not released."""
        if not hasattr(self._place, "written"):
            self._place.written = []
        written: list[Callable[[], None]] = self._place.written
        return written

    def _arrive(self) -> None:
        assert not getattr(self._place, "is_waiting", False)
        self._place.is_waiting = True
        self._missing -= 1
        if self._missing == 0:
            for store in self._released:
                store()
            self._released.clear()
            self._missing, self._meetings = self._everybody, self._meetings + 1
        self._turns.wake(self._queue)

    def _store(self, address: Any, values: Sequence[Any]) -> Callable[[], None]:
        """What writes into another block, which has started and not ended."""
        (block,) = set((np.atleast_1d(address) >> _WINDOW).tolist())
        assert self._passed > 0
        assert self.running[block - 1] > 0
        to, kept = self.shared[block - 1], [np.copy(value) for value in values]
        return lambda: to.store(address & _OWN, kept, np.float32)

    def _send(self, address: Any, values: Sequence[Any], barrier: Any) -> None:
        """Write and count, when some warp waits for a barrier and not before."""
        store, nbytes = self._store(address, values), 4 * len(values) * LANES
        key = (int(barrier) >> _WINDOW) - 1, int(barrier) & int(_OWN)

        def arrive() -> None:
            store()
            self.barriers[key].count(0, nbytes)

        self._sent.append(arrive)

    def _copy(
        self, own: Memory, to: int, first: int, size: int, key: tuple[int, int]
    ) -> Callable[[], None]:
        """What copies from global memory and counts."""

        def arrive() -> None:
            own.octets[to : to + size] = self._memory.octets[first : first + size]
            self.barriers[key].count(0, size)

        return arrive

    def _deliver(self) -> None:
        """Let everything arrive that was sent."""
        for arrive in self._sent:
            arrive()
        self._sent.clear()
        self._turns.wake(self._queue)

    def _key(self, address: Any) -> tuple[int, int]:
        return self._place.block, int(address)

    def _wait(self, has_come: Callable[[], bool]) -> None:
        while not has_come():
            self._turns.wait(self._queue)


class ClusterSimulator(WarpSimulator):
    """Runs kernels of clusters over one global memory."""

    is_last_ahead: bool | None = None
    """Which warps of a cluster get ahead of others, as `Turns` has it."""

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[int]) -> None:
        """Run every cluster, one after another."""
        assert grid[0] % kernel.cluster_blocks == 0
        self._modules = modules_of(kernel)
        for first in range(0, grid[0], kernel.cluster_blocks):
            self._run_cluster(kernel, grid, first, args)

    def _run_cluster(
        self, kernel: Kernel, grid: tuple[int, int, int], first: int, args: Sequence[int]
    ) -> None:
        warps, blocks = kernel.threads // LANES, range(kernel.cluster_blocks)
        nbytes = kernel.dynamic_shared_bytes
        shared = [Memory(0, np.full(nbytes, 0xFF, np.uint8), LANES) for _ in blocks]
        turns = Turns(warps * len(blocks), f"{kernel.name} {first}", self.is_last_ahead)
        place = threading.local()
        cluster = _Cluster(kernel, self.memory, shared, turns, place)

        def run(thread: int) -> None:
            place.block, place.warp = divmod(thread, warps)
            place.threads = np.arange(place.warp * LANES, (place.warp + 1) * LANES)
            with np.errstate(all="ignore"):
                kernel.function(*args)
            cluster.end()

        stand_ins = []
        for block in blocks:
            everybody = turns.meeting(warps)
            with self._patched(shared[block], everybody, turns, place, grid, (first + block, 0)):
                stand_ins.append(_attributes(self._modules))
        with _patched_together(self._modules, stand_ins, cluster, place):
            turns.run(run)


def _attributes(modules: Sequence[ModuleType]) -> dict[tuple[ModuleType, str], Any]:
    """What kernels see of the device in each module."""
    return {
        (module, name): getattr(module, name)
        for module in modules
        for name in _NAMES
        if hasattr(module, name)
    }


@contextmanager
def _patched_together(
    modules: Sequence[ModuleType],
    stand_ins: Sequence[dict[tuple[ModuleType, str], Any]],
    cluster: _Cluster,
    place: threading.local,
) -> Iterator[None]:
    intrinsics = _Current(
        place, [next(v for k, v in each.items() if k[1] == "ptx") for each in stand_ins]
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceFunction, "__call__", lambda self, *a: self.py_func(*a))
        patch.setattr(type(ptx.wait_copies_0), "__call__", lambda wait: intrinsics.wait(wait))
        use_plain_types(patch, modules)
        for module, name in stand_ins[0]:
            patch.setattr(module, name, _Current(place, [each[module, name] for each in stand_ins]))
        for module in modules:
            for name in ("cluster", "warpgroup"):
                if hasattr(module, name):
                    patch.setattr(module, name, cluster)
        yield
