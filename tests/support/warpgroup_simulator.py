"""Warpgroup kernels on the CPU: every thread of a block is one Python thread.

Barriers really block, bulk copies happen at once, those of a thread not before it waits for them,
and a product is made when the four warps of a group have met: operands are read from the bytes of
shared memory as the PTX ISA defines matrix descriptors (start, stride between groups of eight rows,
swizzle of 16-byte pieces by address bits 7 to 9), so that a wrong image, descriptor or barrier
shows as a wrong number or a time-out. Sums are float64. Blocks run one after another; clusters are
not simulated.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.cuda import warpgroup
from ninfer.cuda.device_code import DeviceFunction
from ninfer.cuda.kernel_source import Kernel
from tests.support.kernel_modules import modules_of
from tests.support.plain_types import use_plain_types
from tests.support.swizzled_rows import plain_rows_of, rows_of, turned_rows_of
from tests.support.turns import Turns
from tests.support.warp_votes import vote_functions
from tests.support.warpgroup_intrinsics import intrinsics, left_rows

Octets = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]
Copy = tuple[int, int, int, int]
"""To, from, bytes that are read, bytes of the piece."""
Extent = tuple[int, ...]

GLOBAL = 1 << 20
"""Address of the first byte of global memory."""

SHARED = 0x410
"""Address of the first byte of dynamic shared memory; not where a swizzled block may start."""


class _Barrier:
    """A barrier in shared memory: arrivals and bytes of one phase."""

    def __init__(self, count: int) -> None:
        self.count, self.pending, self.bytes, self.phase = count, count, 0, 0
        self.queue: list[int] = []


class Block:
    """One block: its shared memory, barriers and threads."""

    def __init__(
        self,
        world: Octets,
        kernel: Kernel,
        index: Extent,
        blocks: Extent,
        is_last_ahead: bool | None,
    ) -> None:
        self.world, self.kernel, self.index, self.blocks = world, kernel, index, blocks
        self.shared = np.full(kernel.dynamic_shared_bytes, 0xFF, np.uint8)
        self.turns = self.make_turns(f"{kernel.name} {index}", is_last_ahead)
        self.barriers: dict[int, _Barrier] = {}
        self.everybody = self.turns.meeting(kernel.threads)
        self.warps = [self.turns.meeting(32) for _ in range(kernel.threads // 32)]
        self.groups = [self.turns.meeting(128) for _ in range(-(-kernel.threads // 128))]
        self.copies: list[list[list[Copy]]] = [[[]] for _ in range(kernel.threads)]
        self.keeps_back, self.is_released = False, False

    def make_turns(self, name: str, is_last_ahead: bool | None) -> Turns:
        """Threads that take turns."""
        return Turns(self.kernel.threads, name, is_last_ahead)

    # Memory.

    def octets(self, address: Any, nbytes: int) -> Octets:
        """View bytes of either memory; an access is aligned to its size, up to 16."""
        start = int(address)
        memory, at = (
            (self.world, start - GLOBAL) if start >= GLOBAL else (self.shared, start - SHARED)
        )
        if at < 0 or at + nbytes > memory.size or start % min(nbytes, 16):
            raise IndexError(f"{nbytes} bytes at {start:#x}")
        return memory[at : at + nbytes]

    def load(self, address: Any, dtype: Any, count: int = 1) -> Any:
        values = self.octets(address, np.dtype(dtype).itemsize * count).view(dtype)
        return tuple(values) if count > 1 else values[0]

    def store(self, address: Any, values: Sequence[Any], dtype: Any) -> None:
        wide = np.array(values, dtype)
        assert not (self.keeps_back and self.is_released and int(address) >= GLOBAL)
        self.octets(address, wide.nbytes)[...] = wide.view(np.uint8)

    def add(self, address: Any, value: Any) -> Any:
        """Add to a word that others add to; returns what it was."""
        word = self.octets(address, 4).view(np.uint32)
        before = word[0]
        word[0] = before + np.uint32(value)
        return before

    def fence(self) -> None:
        """Products and bulk copies see what this thread has stored."""

    def release_successor(self) -> None:
        """The successor may start, which sees what has been written."""
        self.is_released = True

    # Barriers.

    def init(self, address: Any, count: Any) -> None:
        self.barriers[int(address)] = _Barrier(int(count))

    def arrive(self, address: Any, nbytes: Any = 0) -> None:
        barrier = self.barriers[int(address)]
        barrier.pending -= 1
        barrier.bytes += int(nbytes)
        assert barrier.pending >= 0
        self.settle(int(address))

    def wait(self, address: Any, parity: Any) -> None:
        barrier = self.barriers[int(address)]
        while (barrier.phase - 1) % 2 != int(parity):
            self.turns.wait(barrier.queue)

    def settle(self, address: int) -> None:
        """End the phase of a barrier if all have arrived and all bytes are there."""
        barrier = self.barriers[address]
        if barrier.pending == 0 and barrier.bytes == 0:
            barrier.pending, barrier.phase = barrier.count, barrier.phase + 1
            self.turns.wake(barrier.queue)

    def copy_bulk(self, to: Any, source: Any, nbytes: Any, barrier: Any) -> None:
        target = self.octets(to, int(nbytes))
        target[...] = self.octets(source, int(nbytes))
        self.barriers[int(barrier)].bytes -= int(nbytes)
        self.settle(int(barrier))

    # Copies of single threads, in groups; the last group is open.

    def copy_async(self, to: Any, source: Any, nbytes: Any, room: int = 16) -> None:
        self.copies[self.turns.current][-1].append((int(to), int(source), int(nbytes), room))

    def close_copies(self) -> None:
        self.copies[self.turns.current].append([])

    def wait_copies(self, pending: int) -> None:
        groups = self.copies[self.turns.current]
        while len(groups) > pending + 1:
            self._copy(groups.pop(0))

    def arrive_when_copied(self, address: Any) -> None:
        groups = self.copies[self.turns.current]
        while groups:
            self._copy(groups.pop(0))
        groups.append([])
        self.arrive(address)

    def _copy(self, group: list[Copy]) -> None:
        for to, source, nbytes, room in group:
            self.octets(to, room)[...] = self.octets(source, room) if nbytes else 0

    # Products.

    def finish_products(self, text: str) -> None:
        """An instruction has ended that may wait for this thread's products."""

    def multiply(self, sums: list[Any], left: Any, right: Any) -> None:
        thread = self.turns.current
        warp, r, t = thread // 32 % 4, thread % 32 // 4, thread % 4

        def product(_: Any) -> F64:
            rows = rows_of(self.shared, SHARED, int(left), 64)
            return rows @ rows_of(self.shared, SHARED, int(right), 2 * len(sums)).T

        found = self.groups[thread // 128].gather(None, product)
        for i in range(len(sums)):
            sums[i] += found[16 * warp + r + i // 2 % 2 * 8, i // 4 * 8 + 2 * t + i % 2]

    def multiply_registers(
        self, sums: list[Any], words: list[Any], right: Any, width: int, *, is_turned: bool = False
    ) -> None:
        """The left operand as m16n8k16 has it: lane 4 r + t of 16 rows, four words a step.

        Of the sums those of the first ``width`` columns take part.
        """
        thread = self.turns.current

        def products(held: list[list[int]]) -> list[F64]:
            operand = (self.shared, SHARED, int(right))
            right_rows = (
                turned_rows_of(*operand, 64, width)
                if is_turned
                else rows_of(*operand, width, 4 * len(held[0])).T
            )
            return [left_rows(held[warp : warp + 32]) @ right_rows for warp in range(0, 128, 32)]

        held = [int(word) for word in words]
        found = self.groups[thread // 128].gather(held, products)[thread // 32 % 4]
        r, t = thread % 32 // 4, thread % 4
        for i in range(width // 2):
            sums[i] += found[r + i // 2 % 2 * 8, i // 4 * 8 + 2 * t + i % 2]

    def multiply_group(self, kind: Any, *operands: Any) -> None:
        """A group of products; see `ninfer.cuda.warpgroup_split`."""
        columns, products, is_turned, added = kind
        lefts = operands[len(columns) :]
        thread = self.turns.current
        num_lefts = 1 + max(one.left for one in products)
        starts = [int(start) for start in lefts[num_lefts:]]

        def totals(held: list[list[list[int]]]) -> list[list[F64]]:
            found = [[np.zeros((16, count)) for count in columns] for _ in range(4)]
            for index, one in enumerate(products):
                right = self._right(starts[one.right] + one.offset, columns[one.sums], is_turned)
                for warp, total in enumerate(found):
                    left = left_rows([lane[index] for lane in held[32 * warp : 32 * warp + 32]])
                    total[one.sums] += left @ right
            return found

        words = [
            [int(word) for word in lefts[one.left][one.word : one.word + 4]] for one in products
        ]
        found = self.groups[thread // 128].gather(words, totals)[thread // 32 % 4]
        r, t = thread % 32 // 4, thread % 4
        for index, total in enumerate(found):
            sums, is_added = operands[index], index in added
            for i in range(columns[index] // 2):
                product = total[r + i // 2 % 2 * 8, i // 4 * 8 + 2 * t + i % 2]
                sums[i] = np.float32(product + float(sums[i]) * is_added)

    def _right(self, descriptor: int, columns: int, is_turned: bool) -> Any:
        """Sixteen rows along K of a right operand."""
        operand = (self.shared, SHARED, descriptor)
        if is_turned:
            return turned_rows_of(*operand, 16, columns)
        if descriptor >> 62:
            return rows_of(*operand, columns, 16).T
        return plain_rows_of(*operand, columns).T

    def meet(self, name: Any, count: Any) -> None:
        """Wait for the other warps of the group."""
        assert int(count) == 128
        assert int(name) == 1 + self.turns.current // 128
        self.groups[self.turns.current // 128].wait()

    def of_warp(self, value: Any, make: Callable[[list[Any]], Any] = list) -> Any:
        """The value of every lane, or what is made of them all."""
        return self.warps[self.turns.current // 32].gather(value, make)

    def transpose(self, word: Any) -> Any:
        lane, words = self.turns.current % 32, self.of_warp(int(word))
        found = 0
        for half in range(2):
            source = words[(2 * (lane % 4) + half) * 4 + lane // 4 // 2]
            found |= (source >> 16 * (lane // 4 % 2) & 0xFFFF) << 16 * half
        return np.uint32(found)

    def exchange(self, mask: Any, value: Any, step: int) -> Any:
        return self.of_warp(value)[self.turns.current % 32 ^ step]

    def shuffle(self, mask: Any, value: Any, lane: int) -> Any:
        return self.of_warp(value)[lane]

    def run(self, args: Sequence[int]) -> None:
        def body(thread: int) -> None:
            with np.errstate(all="ignore"):
                self.kernel.function(*args)

        self.turns.run(body)


def _when(happens: Callable[..., None]) -> Callable[..., None]:
    """What happens where the first operand is not 0."""

    def act(mask: Any, *operands: Any) -> None:
        if mask:
            happens(*operands)

    return act


def _group(block: Block, matrices: SimpleNamespace) -> SimpleNamespace:
    """What stands in for `ninfer.cuda.warpgroup`."""
    return SimpleNamespace(
        DESCRIPTOR=warpgroup.DESCRIPTOR,
        init_barrier=block.init,
        init_barrier_if=_when(block.init),
        arrive_if=_when(block.arrive),
        arrive_when_copied=block.arrive_when_copied,
        publish_barriers=lambda: None,
        meet=block.meet,
        expect_bytes=block.arrive,
        expect_bytes_if=_when(block.arrive),
        arrive=block.arrive,
        wait_phase=block.wait,
        copy_bulk=block.copy_bulk,
        copy_bulk_if=_when(block.copy_bulk),
        store_matrices_transposed=matrices.store_matrices_transposed,
    )


class _Index:
    """An index or extent of the calling thread."""

    def __init__(self, find: Callable[[], Extent]) -> None:
        self._find = find

    @property
    def x(self) -> int:
        return self._find()[0]

    @property
    def y(self) -> int:
        return self._find()[1]

    @property
    def z(self) -> int:
        return self._find()[2]


@contextmanager
def _patched(block: Block, modules: Sequence[ModuleType]) -> Iterator[None]:
    cuda = SimpleNamespace(
        threadIdx=_Index(lambda: (block.turns.current, 0, 0)),
        blockIdx=_Index(lambda: block.index),
        gridDim=_Index(lambda: block.blocks),
        local=SimpleNamespace(array=lambda size, dtype: [0.0] * size),
        shared=SimpleNamespace(array=lambda size, dtype: 0),
        syncwarp=lambda: block.warps[block.turns.current // 32].wait(),
        syncthreads=lambda: block.everybody.wait(),
        shfl_sync=block.shuffle,
        shfl_xor_sync=block.exchange,
        **vote_functions(block),
    )
    instructions = intrinsics(block, SHARED)
    stand_ins = {"ptx": instructions, "cuda": cuda, "warpgroup": _group(block, instructions)}

    def call(self: Any, sums: Any = None, *operands: Any) -> None:
        if self.ptx_text.startswith(("wgmma.wait_group", "setmaxnreg")):
            pass
        elif hasattr(self, "group"):
            block.multiply_group(self.group, sums, *operands)
        elif operands and isinstance(operands[0], list):
            is_turned = "1, 1, 1;" in self.ptx_text
            left, right = operands
            width = int(re.search(r"m64n(\d+)k16", self.ptx_text)[1])  # type: ignore[index]
            block.multiply_registers(sums, left, right, width, is_turned=is_turned)
        elif operands:
            block.multiply(sums, *operands)
        block.finish_products(self.ptx_text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceFunction, "__call__", lambda self, *a: self.py_func(*a))
        # Products, which kernels close over.
        patch.setattr(type(warpgroup.arrive), "__call__", call)
        use_plain_types(patch, modules)
        for module in modules:
            for name, value in stand_ins.items():
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield


def launch(
    *operands: Any,
    is_last_ahead: bool | None = None,
    keeps_back: bool = False,
) -> None:
    """Run a kernel over one global memory.

    Args:
        operands: the memory's bytes, kernel, grid of blocks, which run one after another, and
            arguments of the kernel; its modules before them are found anyway.
        is_last_ahead: which threads of every block get ahead; the block's name says it when None.
        keeps_back: the kernel promises that its successor starts when all results are written.
    """
    octets, kernel, grid, args = operands[-4:]
    for z, y, x in np.ndindex(*reversed(grid)):
        block = Block(octets, kernel, (x, y, z), grid, is_last_ahead)
        block.keeps_back = keeps_back
        with _patched(block, modules_of(kernel)):
            block.run(args)
