"""Warpgroup kernels on the CPU: every thread of a block is one Python thread.

Barriers really block, bulk copies happen at once, those of a thread not before it waits for them,
and a product is made when the four warps of a group have met: operands are read from the bytes of
shared memory as the PTX ISA defines matrix descriptors (start, stride between groups of eight rows,
swizzle of 16-byte pieces by address bits 7 to 9), so that a wrong image, descriptor or barrier
shows as a wrong number or a time-out. Sums are float64. Blocks run one after another; clusters are
not simulated.
"""

import re
import threading
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
from tests.support.plain_types import use_plain_types
from tests.support.swizzled_rows import plain_rows_of, rows_of, turned_rows_of
from tests.support.warp_votes import vote_functions
from tests.support.warpgroup_intrinsics import intrinsics, left_rows

Octets = npt.NDArray[np.uint8]
Copy = tuple[int, int, int, int]
"""To, from, bytes that are read, bytes of the piece."""
Extent = tuple[int, int]

GLOBAL = 1 << 20
"""Address of the first byte of global memory."""

SHARED = 0x410
"""Address of the first byte of dynamic shared memory; not where a swizzled block may start."""

_WAIT_S = 300.0


class _Barrier:
    """A barrier in shared memory: arrivals and bytes of one phase."""

    def __init__(self, count: int) -> None:
        self.count, self.pending, self.bytes, self.phase = count, count, 0, 0

    def settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phase = self.count, self.phase + 1


class _Block:
    """One block: its shared memory, barriers and threads."""

    def __init__(self, world: Octets, kernel: Kernel, index: Extent, blocks: Extent) -> None:
        self.world, self.kernel, self.index, self.blocks = world, kernel, index, blocks
        self.shared = np.full(kernel.dynamic_shared_bytes, 0xFF, np.uint8)
        self.place = threading.local()
        self.barriers: dict[int, _Barrier] = {}
        self.changed = threading.Condition()
        self.is_broken = False
        self.everybody = threading.Barrier(kernel.threads)
        self.warps = [threading.Barrier(32) for _ in range(kernel.threads // 32)]
        self.groups = [threading.Barrier(128) for _ in range(-(-kernel.threads // 128))]
        self.exchanged: list[Any] = [None] * kernel.threads
        self.products: dict[int, npt.NDArray[np.float64]] = {}
        self.totals: dict[int, list[npt.NDArray[np.float64]]] = {}
        self.copies: list[list[list[Copy]]] = [[[]] for _ in range(kernel.threads)]

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
        self.octets(address, wide.nbytes)[...] = wide.view(np.uint8)

    # Barriers.

    def init(self, address: Any, count: Any) -> None:
        self.barriers[int(address)] = _Barrier(int(count))

    def arrive(self, address: Any, nbytes: Any = 0) -> None:
        with self.changed:
            barrier = self.barriers[int(address)]
            barrier.pending -= 1
            barrier.bytes += int(nbytes)
            assert barrier.pending >= 0
            barrier.settle()
            self.changed.notify_all()

    def wait(self, address: Any, parity: Any) -> None:
        barrier = self.barriers[int(address)]

        def has_ended() -> bool:
            return self.is_broken or (barrier.phase - 1) % 2 == int(parity)

        with self.changed:
            if not self.changed.wait_for(has_ended, _WAIT_S) or self.is_broken:
                raise TimeoutError(f"barrier {int(address):#x} of block {self.index}")

    def copy_bulk(self, to: Any, source: Any, nbytes: Any, barrier: Any) -> None:
        target = self.octets(to, int(nbytes))
        target[...] = self.octets(source, int(nbytes))
        with self.changed:
            self.barriers[int(barrier)].bytes -= int(nbytes)
            self.barriers[int(barrier)].settle()
            self.changed.notify_all()

    # Copies of single threads, in groups; the last group is open.

    def copy_async(self, to: Any, source: Any, nbytes: Any, room: int = 16) -> None:
        self.copies[self.place.thread][-1].append((int(to), int(source), int(nbytes), room))

    def close_copies(self) -> None:
        self.copies[self.place.thread].append([])

    def wait_copies(self, pending: int) -> None:
        groups = self.copies[self.place.thread]
        while len(groups) > pending + 1:
            self._copy(groups.pop(0))

    def arrive_when_copied(self, address: Any) -> None:
        groups = self.copies[self.place.thread]
        while groups:
            self._copy(groups.pop(0))
        groups.append([])
        self.arrive(address)

    def _copy(self, group: list[Copy]) -> None:
        for to, source, nbytes, room in group:
            self.octets(to, room)[...] = self.octets(source, room) if nbytes else 0

    # Products.

    def multiply(self, sums: list[Any], left: Any, right: Any) -> None:
        thread = self.place.thread
        group, warp, r, t = thread // 128, thread // 32 % 4, thread % 32 // 4, thread % 4
        if thread % 128 == 0:
            rows = rows_of(self.shared, SHARED, int(left), 64)
            self.exchanged[thread] = (
                rows @ rows_of(self.shared, SHARED, int(right), 2 * len(sums)).T
            )
        self.groups[group].wait(_WAIT_S)
        product = self.exchanged[128 * group]
        for i in range(len(sums)):
            sums[i] += product[16 * warp + r + i // 2 % 2 * 8, i // 4 * 8 + 2 * t + i % 2]
        self.groups[group].wait(_WAIT_S)

    def multiply_registers(
        self, sums: list[Any], words: list[Any], right: Any, width: int, *, is_turned: bool = False
    ) -> None:
        """The left operand as m16n8k16 has it: lane 4 r + t of 16 rows, four words a step.

        Of the sums those of the first ``width`` columns take part.
        """
        thread = self.place.thread
        warp = thread // 32
        self.exchanged[thread] = [int(word) for word in words]
        self.groups[thread // 128].wait(_WAIT_S)
        if thread % 32 == 0:
            rows = left_rows(self.exchanged[thread : thread + 32])
            operand = (self.shared, SHARED, int(right))
            right_rows = (
                turned_rows_of(*operand, 64, width) if is_turned else rows_of(*operand, width).T
            )
            self.products[warp] = rows @ right_rows
        self.groups[thread // 128].wait(_WAIT_S)
        r, t = thread % 32 // 4, thread % 4
        for i in range(width // 2):
            sums[i] += self.products[warp][r + i // 2 % 2 * 8, i // 4 * 8 + 2 * t + i % 2]
        self.groups[thread // 128].wait(_WAIT_S)

    def multiply_group(self, kind: Any, *operands: Any) -> None:
        """A group of products; see `ninfer.cuda.warpgroup_split`."""
        columns, products, is_turned, added = kind
        lefts = operands[len(columns) :]
        thread = self.place.thread
        group, warp = self.groups[thread // 128], thread // 32
        self.exchanged[thread] = [
            [int(word) for word in lefts[one.left][one.word : one.word + 4]] for one in products
        ]
        group.wait(_WAIT_S)
        if thread % 32 == 0:
            num_lefts = 1 + max(one.left for one in products)
            starts = [int(start) for start in lefts[num_lefts:]]
            held = self.exchanged[thread : thread + 32]
            self.totals[warp] = [np.zeros((16, count)) for count in columns]
            for index, one in enumerate(products):
                left = left_rows([lane[index] for lane in held])
                right = self._right(starts[one.right] + one.offset, columns[one.sums], is_turned)
                self.totals[warp][one.sums] += left @ right
        group.wait(_WAIT_S)
        r, t = thread % 32 // 4, thread % 4
        for index, total in enumerate(self.totals[warp]):
            sums, is_added = operands[index], index in added
            for i in range(columns[index] // 2):
                product = total[r + i // 2 % 2 * 8, i // 4 * 8 + 2 * t + i % 2]
                sums[i] = np.float32(product + float(sums[i]) * is_added)
        group.wait(_WAIT_S)

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
        assert int(name) == 1 + self.place.thread // 128
        self.groups[self.place.thread // 128].wait(_WAIT_S)

    def transpose(self, word: Any) -> Any:
        thread = self.place.thread
        lane, base = thread % 32, thread // 32 * 32
        self.exchanged[thread] = int(word)
        self.warps[thread // 32].wait(_WAIT_S)
        found = 0
        for half in range(2):
            source = self.exchanged[base + (2 * (lane % 4) + half) * 4 + lane // 4 // 2]
            found |= (source >> 16 * (lane // 4 % 2) & 0xFFFF) << 16 * half
        self.warps[thread // 32].wait(_WAIT_S)
        return np.uint32(found)

    def exchange(self, mask: Any, value: Any, step: int) -> Any:
        thread = self.place.thread
        self.exchanged[thread] = value
        self.warps[thread // 32].wait(_WAIT_S)
        found = self.exchanged[thread ^ step]
        self.warps[thread // 32].wait(_WAIT_S)
        return found

    def shuffle(self, mask: Any, value: Any, lane: int) -> Any:
        thread = self.place.thread
        self.exchanged[thread] = value
        self.warps[thread // 32].wait(_WAIT_S)
        found = self.exchanged[thread // 32 * 32 + lane]
        self.warps[thread // 32].wait(_WAIT_S)
        return found

    def run(self, args: Sequence[int]) -> None:
        failures: list[BaseException] = []

        def body(thread: int) -> None:
            self.place.thread = thread
            try:
                with np.errstate(all="ignore"):
                    self.kernel.function(*args)
            except BaseException as failure:  # noqa: BLE001  # reported by the caller's thread
                failures.append(failure)
                self._break()

        threads = [threading.Thread(target=body, args=(n,)) for n in range(self.kernel.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _break(self) -> None:
        with self.changed:
            self.is_broken = True
            self.changed.notify_all()
        for barrier in (self.everybody, *self.warps, *self.groups):
            barrier.abort()


def _when(happens: Callable[..., None]) -> Callable[..., None]:
    """What happens where the first operand is not 0."""

    def act(mask: Any, *operands: Any) -> None:
        if mask:
            happens(*operands)

    return act


def _group(block: _Block, matrices: SimpleNamespace) -> SimpleNamespace:
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


@contextmanager
def _patched(block: _Block, modules: Sequence[ModuleType]) -> Iterator[None]:
    cuda = SimpleNamespace(
        threadIdx=_Index(lambda: (block.place.thread, 0)),
        blockIdx=_Index(lambda: block.index),
        gridDim=_Index(lambda: block.blocks),
        local=SimpleNamespace(array=lambda size, dtype: [0.0] * size),
        shared=SimpleNamespace(array=lambda size, dtype: 0),
        syncwarp=lambda: block.warps[block.place.thread // 32].wait(_WAIT_S),
        syncthreads=lambda: block.everybody.wait(_WAIT_S),
        shfl_sync=block.shuffle,
        shfl_xor_sync=block.exchange,
        **vote_functions(block, _WAIT_S),
    )
    instructions = intrinsics(block, _WAIT_S, SHARED)
    stand_ins = {"ptx": instructions, "cuda": cuda, "warpgroup": _group(block, instructions)}

    def call(self: Any, sums: Any, *operands: Any) -> None:
        if self.ptx_text.startswith("wgmma.wait_group"):
            return
        if hasattr(self, "group"):
            block.multiply_group(self.group, sums, *operands)
        elif operands and isinstance(operands[0], list):
            is_turned = "1, 1, 1;" in self.ptx_text
            left, right = operands
            width = int(re.search(r"m64n(\d+)k16", self.ptx_text)[1])  # type: ignore[index]
            block.multiply_registers(sums, left, right, width, is_turned=is_turned)
        elif operands:
            block.multiply(sums, *operands)

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
    modules: Sequence[ModuleType],
    octets: Octets,
    kernel: Kernel,
    grid: tuple[int, int, int],
    args: Sequence[int],
) -> None:
    """Run a kernel of given modules over one global memory."""
    for y in range(grid[1]):
        for x in range(grid[0]):
            block = _Block(octets, kernel, (x, y), grid[:2])
            with _patched(block, modules):
                block.run(args)
