"""Kernels of clusters on the CPU where every thread of every block is one Python thread.

For kernels whose threads branch by themselves. What a thread writes into another block is there as
late as it may be, when all have met after its release.
Writing to a block before all have started, or to one that has ended, fails. Where accesses are
watched (`cluster_watch`), so does one that nothing orders with another.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ninfer.cuda.device_code import DeviceFunction
from ninfer.cuda.kernel_source import Kernel
from tests.support.cluster_watch import BlockWatch, Knowledge
from tests.support.kernel_modules import modules_of
from tests.support.plain_types import use_plain_types
from tests.support.race_watch import WatchedTurns
from tests.support.turns import Meeting, Turns
from tests.support.warp_votes import vote_functions
from tests.support.warpgroup_intrinsics import intrinsics
from tests.support.warpgroup_simulator import GLOBAL, SHARED, Block, Octets, _group, _Index

_WINDOW = 20  # bits of an address in a block's shared memory; above is the block's number and 1


class _OwnTurns:
    """The turns of all threads, as the threads of one block see them."""

    def __init__(self, turns: Turns, count: int) -> None:
        self._turns, self._count = turns, count

    @property
    def current(self) -> int:
        """Number of the thread in its block."""
        return self._turns.current % self._count

    def wait(self, queue: list[int]) -> None:
        self._turns.wait(queue)

    def wake(self, queue: list[int]) -> None:
        self._turns.wake(queue)

    def meeting(self, count: int) -> Meeting:
        return self._turns.meeting(count)


class _Member(Block):
    """One block of a cluster."""

    def __init__(
        self, world: Octets, kernel: Kernel, index: tuple[int, int], grid: Any, turns: Turns
    ) -> None:
        super().__init__(world, kernel, index, grid, None)
        self.turns: Any = _OwnTurns(turns, kernel.threads)
        self.everybody = turns.meeting(kernel.threads)
        self.warps = [turns.meeting(32) for _ in range(kernel.threads // 32)]

    def put_from(self, address: Any, value: Any) -> None:
        """Store what another block has sent."""
        Block.store(self, address, [value], value.dtype)

    def expect_from(self, address: Any, nbytes: int) -> None:
        """Told that another block sends what will be stored; for blocks that watch."""

    def from_below(self, mask: Any, value: Any, step: int) -> Any:
        found, lane = self.of_warp(value), self.turns.current % 32
        return found[lane - step] if lane >= step else value


class _WatchedMember(_Member):
    """A block whose accesses to shared memory must be ordered."""

    def __init__(
        self, world: Octets, kernel: Kernel, index: tuple[int, int], grid: Any, turns: WatchedTurns
    ) -> None:
        super().__init__(world, kernel, index, grid, turns)
        self._watch = BlockWatch(self.shared.size, turns, SHARED)
        self._all_turns = turns
        self._known: dict[int, Knowledge] = {}

    def load(self, address: Any, dtype: Any, count: int = 1) -> Any:
        if int(address) < GLOBAL:
            self._watch.read(address, np.dtype(dtype).itemsize * count)
        return super().load(address, dtype, count)

    def store(self, address: Any, values: Sequence[Any], dtype: Any) -> None:
        if int(address) < GLOBAL:
            wide = np.array(values, dtype)
            is_change = bytes(self.octets(address, wide.nbytes)) != wide.tobytes()
            self._watch.write(address, wide.nbytes, is_change)
        super().store(address, values, dtype)

    def add(self, address: Any, value: Any) -> Any:
        self._watch.add(address, 4)
        return super().add(address, value)

    def expect_from(self, address: Any, nbytes: int) -> None:
        self._watch.write(address, nbytes)

    def copy_async(self, to: Any, source: Any, nbytes: Any, room: int = 16) -> None:
        self._watch.write(to, room)
        super().copy_async(to, source, nbytes, room)

    def copy_bulk(self, to: Any, source: Any, nbytes: Any, barrier: Any) -> None:
        self._watch.write(to, int(nbytes))
        self._at(barrier).bring()
        super().copy_bulk(to, source, nbytes, barrier)

    def arrive(self, address: Any, nbytes: Any = 0) -> None:
        self._at(address).bring()
        super().arrive(address, nbytes)

    def wait(self, address: Any, parity: Any) -> None:
        super().wait(address, parity)
        self._at(address).take()

    def _at(self, barrier: Any) -> Knowledge:
        return self._known.setdefault(int(barrier), Knowledge(self._all_turns))


class _Together:
    """What stands in for `ninfer.cuda.cluster`."""

    def __init__(self, members: Sequence[_Member], turns: Turns) -> None:
        self._members, self._turns = members, turns
        self._threads = members[0].kernel.threads
        count = self._threads * len(members)
        self._missing, self._count, self._meetings = count, count, 0
        self._queue: list[int] = []
        self._passed, self._is_waiting = [0] * count, [False] * count
        self._written: list[list[Callable[[], None]]] = [[] for _ in range(count)]
        self._released: list[Callable[[], None]] = []
        self.running = [self._threads] * len(members)

    @property
    def current(self) -> int:
        """Number of the block whose thread runs."""
        return self._turns.current // self._threads

    def arrive_cluster(self) -> None:
        number = self._turns.current
        assert not self._is_waiting[number]
        self._is_waiting[number] = True
        self._missing -= 1
        if self._missing == 0:
            for store in self._released:
                store()
            self._released.clear()
            self._missing, self._meetings = self._count, self._meetings + 1
            self._turns.wake(self._queue)

    def release_cluster(self) -> None:
        written = self._written[self._turns.current]
        self._released += written
        written.clear()
        self.arrive_cluster()

    def wait_cluster(self) -> None:
        number = self._turns.current
        assert self._is_waiting[number]
        while self._meetings <= self._passed[number]:
            self._turns.wait(self._queue)
        self._passed[number] += 1
        self._is_waiting[number] = False

    def map_shared(self, address: Any, block: Any) -> Any:
        return np.uint32(address) + np.uint32((int(block) + 1) << _WINDOW)

    def put_there_u32(self, address: Any, value: Any) -> None:
        self._put(address, np.uint32(value))

    def put_there_u64(self, address: Any, value: Any) -> None:
        self._put(address, np.uint64(value))

    def end(self) -> None:
        """A thread has ended."""
        assert not self._written[self._turns.current]
        self.running[self.current] -= 1

    def _put(self, address: Any, value: Any) -> None:
        member, own = self._there(address)
        member.expect_from(own, value.nbytes)
        self._written[self._turns.current].append(lambda: member.put_from(own, value))

    def _there(self, address: Any) -> tuple[_Member, int]:
        block, own = divmod(int(address), 1 << _WINDOW)
        assert self._passed[self._turns.current] > 0
        assert self.running[block - 1] > 0
        return self._members[block - 1], own


class _WatchedTogether(_Together):
    """The same where accesses must be ordered."""

    def __init__(self, members: Sequence[_Member], turns: WatchedTurns) -> None:
        super().__init__(members, turns)
        self._known = [Knowledge(turns)]

    def arrive_cluster(self) -> None:
        self._known[self._meetings].bring()
        if self._missing == 1:
            self._known.append(self._known[0].alike())
        super().arrive_cluster()

    def wait_cluster(self) -> None:
        number = self._turns.current
        super().wait_cluster()
        self._known[self._passed[number] - 1].take()


class _Current:
    """What stands in for a module: that of the block whose thread runs."""

    def __init__(self, together: _Together, members: Sequence[Any]) -> None:
        self._together, self._of = together, members

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of[self._together.current], name)


def _cuda(block: _Member) -> SimpleNamespace:
    return SimpleNamespace(
        threadIdx=_Index(lambda: (block.turns.current, 0)),
        blockIdx=_Index(lambda: block.index),
        gridDim=_Index(lambda: block.blocks),
        shared=SimpleNamespace(array=lambda size, dtype: 0),
        local=SimpleNamespace(array=lambda size, dtype: [0] * size),
        syncthreads=block.everybody.wait,
        shfl_sync=block.shuffle,
        shfl_up_sync=block.from_below,
        shfl_xor_sync=block.exchange,
        **vote_functions(block),
    )


def _ptx(block: _Member) -> SimpleNamespace:
    made = intrinsics(block, SHARED)
    made.shared_u64 = lambda address: block.load(address, np.uint64)
    made.put_shared_u64 = lambda address, value: block.store(address, [value], np.uint64)

    made.fetch_add_shared_u32 = block.add
    made.add_shared_u32 = block.add
    made.larger_f32 = lambda a, b: np.fmax(np.float32(a), np.float32(b))
    made.smaller_f32 = lambda a, b: np.fmin(np.float32(a), np.float32(b))
    made.put_shared_f32x4 = lambda address, *values: block.store(address, values, np.float32)
    made.sum_of_warp = lambda value: block.of_warp(value, _sum)
    made.leading_zeros_u64 = lambda value: np.uint32(64 - int(value).bit_length())
    made.nearest_u64 = lambda value: np.uint64(np.rint(np.float64(value)))
    made.ceiling_f64 = np.ceil
    return made


def _sum(values: list[Any]) -> Any:
    return np.uint32(sum(map(int, values)))


@contextmanager
def _patched(
    modules: Sequence[ModuleType], together: _Together, members: Sequence[_Member]
) -> Iterator[None]:
    instructions = [_ptx(member) for member in members]
    pairs = zip(members, instructions, strict=True)
    stand_ins = {
        "ptx": _Current(together, instructions),
        "warpgroup": _Current(together, [_group(*pair) for pair in pairs]),
        "cuda": _Current(together, [_cuda(member) for member in members]),
        "cluster": together,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceFunction, "__call__", lambda self, *a: self.py_func(*a))
        use_plain_types(patch, modules)
        for module in modules:
            for name, value in stand_ins.items():
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield


def _cluster(
    octets: Octets, kernel: Kernel, first: tuple[int, int], grid: Any
) -> tuple[Turns, Sequence[_Member], _Together]:
    turns = Turns(kernel.threads * kernel.cluster_blocks, f"{kernel.name} {first}")
    members = [_Member(octets, kernel, i, grid, turns) for i in _indices(kernel, first)]
    return turns, members, _Together(members, turns)


def _watched_cluster(
    octets: Octets, kernel: Kernel, first: tuple[int, int], grid: Any
) -> tuple[Turns, Sequence[_Member], _Together]:
    turns = WatchedTurns(kernel.threads * kernel.cluster_blocks, f"{kernel.name} {first}")
    members = [_WatchedMember(octets, kernel, i, grid, turns) for i in _indices(kernel, first)]
    return turns, members, _WatchedTogether(members, turns)


def _indices(kernel: Kernel, first: tuple[int, int]) -> list[tuple[int, int]]:
    """Indices of a cluster's blocks."""
    return [(first[0] + i, first[1]) for i in range(kernel.cluster_blocks)]


def launch(
    octets: Octets,
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[int],
    is_watched: bool = False,
) -> None:
    """Run the clusters of a kernel over one global memory, one after another.

    Raises:
        RaceError: it is watched, and nothing orders two accesses to shared memory.
    """
    make_cluster = _watched_cluster if is_watched else _cluster
    for y in range(grid[1]):
        for x in range(0, grid[0], kernel.cluster_blocks):
            turns, members, together = make_cluster(octets, kernel, (x, y), grid[:2])

            def body(thread: int, together: _Together = together) -> None:
                with np.errstate(all="ignore"):
                    kernel.function(*args)
                together.end()

            with _patched(modules_of(kernel), together, members):
                turns.run(body)
