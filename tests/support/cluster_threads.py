"""Kernels of clusters on the CPU where every thread of every block is one Python thread.

For kernels whose threads branch by themselves. What a thread writes into another block is there as
late as it may be, when all have met after its release.
Writing to a block before all have started, or to one that has ended, fails.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ninfer.cuda.device_code import DeviceFunction
from ninfer.cuda.kernel_source import Kernel
from tests.support.kernel_modules import modules_of
from tests.support.plain_types import use_plain_types
from tests.support.turns import Meeting, Turns
from tests.support.warp_votes import vote_functions
from tests.support.warpgroup_intrinsics import intrinsics
from tests.support.warpgroup_simulator import SHARED, Octets, _Block, _group, _Index

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


class _Member(_Block):
    """One block of a cluster."""

    def __init__(
        self, world: Octets, kernel: Kernel, index: tuple[int, int], grid: Any, turns: Turns
    ) -> None:
        super().__init__(world, kernel, index, grid, None)
        self.turns: Any = _OwnTurns(turns, kernel.threads)
        self.everybody = turns.meeting(kernel.threads)
        self.warps = [turns.meeting(32) for _ in range(kernel.threads // 32)]

    def from_below(self, mask: Any, value: Any, step: int) -> Any:
        found, lane = self.of_warp(value), self.turns.current % 32
        return found[lane - step] if lane >= step else value


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
        self._written[self._turns.current].append(lambda: member.store(own, [value], value.dtype))

    def _there(self, address: Any) -> tuple[_Member, int]:
        block, own = divmod(int(address), 1 << _WINDOW)
        assert self._passed[self._turns.current] > 0
        assert self.running[block - 1] > 0
        return self._members[block - 1], own


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

    def fetch_add_shared(address: Any, value: Any) -> Any:
        before = block.load(address, np.uint32)
        block.store(address, [before + value], np.uint32)
        return before

    made.fetch_add_shared_u32 = fetch_add_shared
    made.larger_f32 = lambda a, b: np.fmax(np.float32(a), np.float32(b))
    made.smaller_f32 = lambda a, b: np.fmin(np.float32(a), np.float32(b))
    made.put_shared_f32x4 = lambda address, *values: block.store(address, values, np.float32)
    made.sum_of_warp = lambda value: np.uint32(sum(int(v) for v in block.of_warp(value)))
    made.leading_zeros_u64 = lambda value: np.uint32(64 - int(value).bit_length())
    made.nearest_u64 = lambda value: np.uint64(np.rint(np.float64(value)))
    made.ceiling_f64 = np.ceil
    return made


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


def launch(
    octets: Octets,
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[int],
) -> None:
    """Run the clusters of a kernel over one global memory, one after another."""
    blocks = kernel.cluster_blocks
    for y in range(grid[1]):
        for x in range(0, grid[0], blocks):
            turns = Turns(kernel.threads * blocks, f"{kernel.name} {x} {y}")
            members = [_Member(octets, kernel, (x + i, y), grid[:2], turns) for i in range(blocks)]
            together = _Together(members, turns)

            def body(thread: int, together: _Together = together) -> None:
                with np.errstate(all="ignore"):
                    kernel.function(*args)
                together.end()

            with _patched(modules_of(kernel), together, members):
                turns.run(body)
