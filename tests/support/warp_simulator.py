"""Kernels on the CPU: every warp is one Python thread, its lanes are NumPy arrays.

Kernel functions are plain Python over intrinsics, so that with other intrinsics the same text runs
without a device: lanes are arrays of 32, shared and global memory are byte arrays, tensor-core
products are float64 sums rounded to binary32. Asynchronous copies arrive as late as a warp's waits
allow, so that what is read too early is poison. Warps take turns: each runs until it meets others,
so that one is as far ahead of the next as barriers allow. Control flow must be the same for all
lanes of a warp, which is what the kernels under test promise. Addresses start at `GLOBAL`, so that
a null address or one outside faults.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.cuda import ptx
from ninfer.cuda.device_code import DeviceFunction
from ninfer.cuda.kernel_source import Kernel
from tests.support.kernel_modules import modules_of
from tests.support.lane_memory import Memory
from tests.support.plain_types import use_plain_types
from tests.support.race_watch import WatchedMemory, WatchedTurns
from tests.support.turns import Meeting, Turns

Array = npt.NDArray[Any]

GLOBAL = 1 << 20
"""Address of the first byte of global memory."""

LANES = 32

_LANE = np.arange(LANES)
_ROW, _PAIR = _LANE >> 2, 2 * (_LANE & 3)


def _places(columns: int, *starts: tuple[int, int]) -> Array:
    """Where words of two bf16, or values, of all lanes lie in a flat matrix."""
    places = [(_ROW + row) * columns + _PAIR + column for row, column in starts]
    return np.stack(places)


def _sources(places: Array) -> Array:
    """Which element of all lanes' elements comes to each place."""
    return np.argsort(places.reshape(-1))


_LEFT = _sources(np.stack([_places(16, (0, 0), (8, 0), (0, 8), (8, 8)) + i for i in (0, 1)], -1))
_RIGHT = _sources(
    np.stack([np.stack([(_PAIR + k + i) * 8 + _ROW for k in (0, 8)]) for i in (0, 1)], -1)
)
_TOTAL = _places(8, (0, 0), (0, 1), (8, 0), (8, 1))
_TOTAL_SOURCES = _sources(_TOTAL)


def _f32(bits: Any) -> Any:
    return np.asarray(bits, np.uint32).view(np.float32)


def _bf16_halves(word: Any) -> tuple[Array, Array]:
    word = np.asarray(word, np.uint32)
    return _f32(word << np.uint32(16)), _f32(word & np.uint32(0xFFFF0000))


def _round_bf16(value: Any) -> Array:
    bits = np.asarray(value, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint32) & np.uint32(0xFFFF)


def _mma(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, *c: Any) -> tuple[Array, ...]:
    """m16n8k16, row.col, bf16 -> f32 (PTX ISA, fragments of mma.m16n8k16)."""
    left = _matrix((a0, a1, a2, a3), _LEFT).reshape(16, 16)
    right = _matrix((b0, b1), _RIGHT).reshape(16, 8)
    total = np.empty((4, LANES))
    for i in range(4):
        total[i] = c[i]
    total = total.reshape(-1)[_TOTAL_SOURCES].reshape(16, 8)
    return tuple((total + left @ right).astype(np.float32).reshape(-1)[_TOTAL])


def _matrix(words: Sequence[Any], sources: Array) -> Array:
    """Pairs of bf16 of all lanes as float64, in the order of a matrix."""
    held = np.empty((len(words), LANES), np.uint32)
    for i, word in enumerate(words):
        held[i] = word
    halves = held.view(np.uint16).reshape(-1)[sources].astype(np.uint32)
    return (halves << np.uint32(16)).view(np.float32).astype(np.float64)


def _permute(a: Any, b: Any, selector: Any) -> Array:
    pairs = np.empty((LANES, 2), np.uint32)
    pairs[:, 0], pairs[:, 1] = a, b
    chosen = pairs.view(np.uint8).take(_named(int(selector)), axis=1)
    return np.asarray(chosen.view(np.uint32)[:, 0])


@cache
def _named(selector: int) -> list[int]:
    """Bytes that a selector names."""
    return [selector >> 4 * i & 7 for i in range(4)]


def _multiply_add_bf16x2(a: Any, b: Any, c: Any) -> Array:
    halves = zip(_bf16_halves(a), _bf16_halves(b), _bf16_halves(c), strict=True)
    low, high = (_round_bf16(x.astype(np.float64) * y + z) for x, y, z in halves)
    return np.asarray(low | (high << np.uint32(16)))


def _half(shift: int) -> Callable[[Any], Array]:
    def value(word: Any) -> Array:
        bits = (np.asarray(word, np.uint32) >> np.uint32(shift)).astype(np.uint16)
        return bits.view(np.float16).astype(np.float32)

    return value


def _fma(a: Any, b: Any, c: Any) -> Array:
    exact = np.asarray(a, np.float64) * np.asarray(b, np.float64) + c
    return np.asarray(exact, np.float32)


class _Copies(threading.local):
    """Asynchronous copies of a warp: those of its open group, and groups that are closed."""

    def __init__(self) -> None:
        self.asked: list[Callable[[], None]] = []
        self.closed: list[list[Callable[[], None]]] = []

    def close(self) -> None:
        """Close the group."""
        self.closed.append(self.asked)
        self.asked = []

    def wait(self, pending: int) -> None:
        """Let all closed groups but the last ones arrive."""
        while len(self.closed) > pending:
            for arrive in self.closed.pop(0):
                arrive()


def _pending_groups(wait: Any) -> int | None:
    """Groups that an intrinsic leaves on their way, if it waits for copies."""
    found = re.search(r"cp\.async\.wait_group (\d+)", wait.ptx_text)
    return None if found is None else int(found.group(1))


class _Intrinsics:
    """What stands in for `ninfer.cuda.ptx`."""

    def __init__(self, world: Memory, shared: Memory) -> None:
        self._world, self._shared = world, shared
        self._copies = _Copies()
        u32, f32 = np.uint32, np.float32
        for memory, prefix in ((world, "load_"), (shared, "shared_")):
            for name, dtype, count in (
                ("u32x4", u32, 4), ("u32x2", u32, 2), ("u32", u32, 1),
                ("f32x4", f32, 4), ("f32x2", f32, 2), ("f32", f32, 1),
            ):  # fmt: skip
                setattr(self, prefix + name, _loader(memory, dtype, count))
        self.mma_bf16 = _mma
        self.sync_threads: Callable[[Any, Any], None]
        self.permute_bytes = _permute
        self.masked_or = lambda a, b, c: (
            np.asarray(a, u32) & np.asarray(b, u32) | np.asarray(c, u32)
        )
        self.multiply_add_bf16x2 = _multiply_add_bf16x2
        self.fused_multiply_add = _fma
        self.f32_of_f16, self.f32_of_upper_f16 = _half(0), _half(16)
        self.f32_of_bits = _f32
        self.multiply_f32 = lambda a, b: np.asarray(a, f32) * np.asarray(b, f32)
        self.add_f32 = lambda a, b: np.asarray(a, f32) + np.asarray(b, f32)
        self.smaller_u32 = lambda a, b: np.minimum(np.asarray(a, u32), np.asarray(b, u32))

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("wait_", "release_")):
            return partial(self.wait, getattr(ptx, name))
        raise AttributeError(name)

    def shared_address(self, array: Any) -> Any:
        return np.uint32(array)

    def wait(self, intrinsic: Any) -> None:
        """Wait as an intrinsic does: for copies; there is nothing else to wait for."""
        pending = _pending_groups(intrinsic)
        if pending is not None:
            self._copies.wait(pending)

    def close_copies(self) -> None:
        self._copies.close()

    def load_i32(self, address: Any) -> Any:
        return self._world.load(address, np.int32)

    def load_u16(self, address: Any) -> Any:
        return self._world.load(address, np.uint16).astype(np.uint32)

    def load_u8(self, address: Any) -> Any:
        return self._world.load(address, np.uint8).astype(np.uint32)

    def store_u32(self, address: Any, value: Any) -> None:
        self._world.store(address, [value], np.uint32)

    def store_u32x2(self, address: Any, *values: Any) -> None:
        self._world.store(address, values, np.uint32)

    def copy_async_16(self, to: Any, source: Any, nbytes: Any) -> None:
        self.copy_async_16_if(to, source, np.uint32(1))

    def copy_async_16_if(self, to: Any, source: Any, mask: Any) -> None:
        mask = np.broadcast_to(np.asarray(mask), (LANES,))
        safe = np.where(mask != 0, np.asarray(source).astype(np.int64), GLOBAL)
        words = self._world.load(safe, np.uint32, 4)
        self._shared.expect(to, 16, mask)
        self._copies.asked.append(partial(self._shared.store, to, words, np.uint32, mask))

    def copy_weights_16_if(self, to: Any, source: Any, mask: Any) -> None:
        self.copy_async_16_if(to, source, mask)

    def copy_columns_16_if(self, to: Any, source: Any, mask: Any) -> None:
        self.copy_async_16_if(to, source, mask)

    def kept_u32(self, value: Any) -> Any:
        return value

    def sync_warp(self) -> None:
        """Lanes of a warp are one thread."""

    def put_shared_f32(self, address: Any, value: Any) -> None:
        self._shared.store(address, [value], np.float32)

    def put_shared_f32x2(self, address: Any, *values: Any) -> None:
        self._shared.store(address, values, np.float32)

    def put_shared_u32(self, address: Any, value: Any) -> None:
        self._shared.store(address, [value], np.uint32)

    def put_shared_u32x4(self, address: Any, *values: Any) -> None:
        self._shared.store(address, values, np.uint32)

    def store_u32x4(self, address: Any, *values: Any) -> None:
        self._world.store(address, values, np.uint32)

    def store_u16_if(self, mask: Any, address: Any, value: Any) -> None:
        self._world.store(address, [np.asarray(value).astype(np.uint16)], np.uint16, mask)

    def store_f32_if(self, mask: Any, address: Any, value: Any) -> None:
        self._world.store(address, [value], np.float32, mask)

    def bf16x2_of_f32(self, low: Any, high: Any) -> Any:
        return _round_bf16(low) | (_round_bf16(high) << np.uint32(16))


def _loader(memory: Memory, dtype: Any, count: int) -> Callable[[Any], Any]:
    return lambda address: memory.load(address, dtype, count)


class WarpSimulator:
    """Runs kernels over one global memory.

    Args:
        memory: its bytes.
        lanes: 32, or 1 for kernels whose threads branch by themselves and share nothing.
    """

    is_watched = False
    """Whether accesses of warps must be ordered, which takes its time (`race_watch`)."""

    def __init__(self, memory: Array, lanes: int = LANES) -> None:
        self._modules: tuple[ModuleType, ...] = ()
        self._lanes = lanes
        self.memory = Memory(GLOBAL, memory, lanes)

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[int]) -> None:
        """Run every block, one after another."""
        self._modules = modules_of(kernel)
        for y in range(grid[1]):
            for x in range(grid[0]):
                self._run_block(kernel, grid, (x, y), args)

    def _run_block(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int],
        args: Sequence[int],
    ) -> None:
        turns, shared = self._make_block(kernel, block)
        everybody, place = turns.meeting(turns.count), threading.local()

        def run(warp: int) -> None:
            place.warp = warp
            with np.errstate(all="ignore"):
                for first in range(warp * LANES, (warp + 1) * LANES, self._lanes):
                    place.threads = np.arange(first, first + self._lanes)
                    kernel.function(*args)

        with self._patched(shared, everybody, turns, place, grid, block):
            turns.run(run)

    def _make_block(self, kernel: Kernel, block: tuple[int, int]) -> tuple[Turns, Memory]:
        """Warps and shared memory of a block; those of the first may be watched."""
        octets = np.full(kernel.dynamic_shared_bytes + 1, 0xFF, np.uint8)
        count, name = kernel.threads // LANES, f"{kernel.name} {block}"
        if any(block) or not self.is_watched:
            return Turns(count, name), Memory(0, octets, self._lanes)
        turns = WatchedTurns(count, name)
        return turns, WatchedMemory(0, octets, self._lanes, turns)

    @contextmanager
    def _patched(
        self,
        shared: Memory,
        everybody: Meeting,
        turns: Turns,
        place: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int],
    ) -> Iterator[None]:
        intrinsics = _Intrinsics(self.memory, shared)
        named: dict[tuple[int, int], Meeting] = {}

        def meet(number: Any, threads: Any) -> None:
            key = int(number), int(threads) // LANES
            named.setdefault(key, turns.meeting(key[1])).wait()

        intrinsics.sync_threads = meet

        class Thread:
            @property
            def x(self) -> Array:
                return np.asarray(place.threads)

        stand_in = SimpleNamespace(
            threadIdx=Thread(),
            blockIdx=SimpleNamespace(x=block[0], y=block[1]),
            gridDim=SimpleNamespace(x=grid[0], y=grid[1]),
            local=SimpleNamespace(array=lambda size, dtype: [0] * size),
            shared=SimpleNamespace(array=lambda size, dtype: 0),
            syncwarp=lambda: None,
            syncthreads=everybody.wait,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeviceFunction, "__call__", lambda self, *a: self.py_func(*a))
            # Intrinsics that a kernel closes over: waits.
            patch.setattr(type(ptx.wait_copies_0), "__call__", lambda wait: intrinsics.wait(wait))
            use_plain_types(patch, self._modules)
            for module in self._modules:
                for name, value in (("ptx", intrinsics), ("cuda", stand_in)):
                    if hasattr(module, name):
                        patch.setattr(module, name, value)
                if hasattr(module, "warp_index"):
                    patch.setattr(module, "warp_index", lambda: place.warp)
            yield
