"""`WarpSimulator` for kernels of attention and Gated DeltaNet: shuffles, matrix loads, f64.

Lane-wise choices that kernels make by branches are listed here and replaced, because lanes are
arrays. A matrix load whose rows share a bank of shared memory fails.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.cuda import ptx
from tests.support import warp_simulator as base
from tests.support.warp_simulator import GLOBAL, LANES, WarpSimulator

Array = npt.NDArray[Any]
_LANE = np.arange(LANES)
_F32, _U32 = np.float32, np.uint32


def _same(value: Any) -> Any:
    """The one value that all lanes have."""
    lanes = np.asarray(value).reshape(-1)
    assert np.all(lanes == lanes[0])
    return lanes[0]


def _lanes(value: Any) -> Array:
    return np.broadcast_to(np.asarray(value), (LANES,))


def _chosen(flag: Any, value: Any, other: float = 0.0) -> Array:
    return np.where(flag, np.asarray(value, _F32), _F32(other))


def _log_decay(a: Any, a_log: Any, dt_bias: Any) -> Array:
    x = np.asarray(a + dt_bias, _F32)
    soft = np.where(x <= 20, np.log1p(np.exp(np.minimum(x, 20))), x)
    return np.asarray(-np.exp(a_log) * soft, _F32)


def _bytes_product(left_kind: Any, words: Sequence[Any]) -> tuple[Array, ...]:
    """m16n8k32, row.col, bytes -> s32 (PTX ISA, fragments of mma.m16n8k32)."""
    held = [np.ascontiguousarray(_lanes(word), _U32).view(np.uint8) for word in words[:6]]
    row, first = (
        np.repeat(_LANE >> 2, 4),
        np.tile(np.arange(4), LANES) + np.repeat(_LANE & 3, 4) * 4,
    )
    left, right = np.empty((16, 32), left_kind), np.empty((32, 8), np.int8)
    for i in range(4):
        left[row + i % 2 * 8, first + i // 2 * 16] = held[i].view(left_kind)
    for i in range(2):
        right[first + 16 * i, row] = held[4 + i].view(np.int8)
    product = left.astype(np.int64) @ right.astype(np.int64)
    pair = 2 * (_LANE & 3)
    found = [product[(_LANE >> 2) + i // 2 * 8, pair + i % 2] + words[6 + i] for i in range(4)]
    assert all(np.all(np.abs(total) < 1 << 31) for total in found)
    return tuple(total.astype(np.int32) for total in found)


class _Intrinsics(base._Intrinsics):
    def __init__(self, world: Any, shared: Any) -> None:
        super().__init__(world, shared)
        self._memories = {"store_": world, "put_shared_": shared}
        for name, dtype, count in (
            ("f32", _F32, 1), ("f32x2", _F32, 2), ("f32x4", _F32, 4), ("u32", _U32, 1),
            ("u32x2", _U32, 2), ("u32x4", _U32, 4), ("f64", np.float64, 1),
        ):  # fmt: skip
            for prefix, memory in self._memories.items():
                setattr(self, prefix + name, self._storer(memory, dtype))
            setattr(self, f"shared_{name}", base._loader(shared, dtype, count))
        self.shared_f64x2 = base._loader(shared, np.float64, 2)
        self.shared_u16 = lambda address: shared.load(address, np.uint16).astype(_U32)
        self.reciprocal = lambda x: _F32(1) / np.asarray(x, _F32)
        self.power_of_two = lambda x: np.exp2(np.asarray(x, _F32))
        self.square_root = lambda x: np.sqrt(np.asarray(x, _F32))
        self.divide_u32 = lambda a, b: _U32(int(_same(a)) // int(_same(b)))

        self.mma_s8 = lambda *words: _bytes_product(np.int8, words)
        self.mma_u8_s8 = lambda *words: _bytes_product(np.uint8, words)
        self.larger_f32 = lambda a, b: np.fmax(np.asarray(a, _F32), np.asarray(b, _F32))
        self.bits_of_f32 = lambda x: np.asarray(x, _F32).view(_U32)
        self.largest_of_warp = lambda word: np.max(_lanes(word))
        self.put_shared_u16 = lambda address, word: shared.store(address, [word], np.uint16)

    @staticmethod
    def _storer(memory: Any, dtype: Any) -> Any:
        return lambda address, *values: memory.store(address, values, dtype)

    def load_i32(self, address: Any) -> int:
        return int(_same(self._world.load(address, np.int32)))

    def copy_async_16(self, to: Any, source: Any, nbytes: Any) -> None:
        read = _lanes(nbytes) != 0
        safe = np.where(read, _lanes(source).astype(np.int64), GLOBAL)
        self._shared.expect(to, 16)
        words = [np.where(read, word, 0).astype(_U32) for word in self._world.load(safe, _U32, 4)]
        self._copies.asked.append(partial(self._shared.store, to, words, _U32))

    def copy_page_16(self, to: Any, source: Any) -> None:
        self.copy_async_16_if(to, source, _U32(1))

    def fetch_add_u32_if(self, mask: Any, address: Any, value: Any) -> Array:
        found = np.zeros(LANES, _U32)
        for lane in np.flatnonzero(_lanes(mask)):
            place = _lanes(address)[lane]
            found[lane] = _lanes(self._world.load(place, _U32))[0]
            self._world.store(place, [found[lane] + _U32(value)], _U32)
        return found

    def fetch_add_release_u32_if(self, mask: Any, address: Any, value: Any) -> Array:
        return self.fetch_add_u32_if(mask, address, value)

    def store_f32x4_if(self, mask: Any, address: Any, *values: Any) -> None:
        self._world.store(address, values, _F32, mask)

    def _rows(self, address: Any) -> Array:
        """Rows of four 8 x 8 matrices; those of one matrix lie in different banks."""
        places = _lanes(address).astype(np.int64)
        assert np.all(places % 16 == 0)
        self._shared.look(address, 16)
        for matrix in places.reshape(4, 8):
            assert len(set(matrix // 16 % 8)) == 8
        rows = np.stack([self._shared.octets[place : place + 16] for place in places])
        return rows.view(np.uint16).reshape(4, 8, 8).astype(_U32)

    def load_matrices(self, address: Any) -> tuple[Array, ...]:
        row, pair = _LANE >> 2, 2 * (_LANE & 3)
        rows = self._rows(address)
        return tuple(m[row, pair] | m[row, pair + 1] << _U32(16) for m in rows)

    def load_matrices_transposed(self, address: Any) -> tuple[Array, ...]:
        column, pair = _LANE >> 2, 2 * (_LANE & 3)
        rows = self._rows(address)
        return tuple(m[pair, column] | m[pair + 1, column] << _U32(16) for m in rows)


class MixerSimulator(WarpSimulator):
    """Runs kernels over one global memory; see `WarpSimulator`."""

    is_watched = True

    @contextmanager
    def _patched(
        self,
        shared: Any,
        everybody: Any,
        turns: Any,
        place: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int],
    ) -> Iterator[None]:
        with (
            super()._patched(shared, everybody, turns, place, grid, block),
            pytest.MonkeyPatch.context() as p,
        ):
            intrinsics = _Intrinsics(self.memory, shared)
            found = next(module for module in self._modules if hasattr(module, "ptx"))
            intrinsics.sync_threads = found.ptx.sync_threads
            p.setattr(type(ptx.wait_copies_0), "__call__", lambda wait: intrinsics.wait(wait))
            stand_ins = {
                "ptx": intrinsics,
                "math": SimpleNamespace(exp=np.exp, log1p=np.log1p, log2=math.log2, e=math.e),
                "where": _chosen,
                "there": lambda scale, flag: _chosen(flag, scale),
                "seen": lambda score, flag: _chosen(flag, score, -np.inf),
                "either": np.where,
                "uniform": _same,
                "of_first_lane": lambda value: int(_lanes(value)[0]),
                "sum_before": lambda value, lane: np.cumsum(value) - value,
                "log_decay": _log_decay,
            }
            for module in self._modules:
                p.setattr(module, "min", np.minimum, raising=False)
                p.setattr(module, "max", np.maximum, raising=False)
                for name, stand_in in stand_ins.items():
                    if hasattr(module, name):
                        p.setattr(module, name, stand_in)
                if hasattr(module, "cuda"):
                    self._add_shuffles(module.cuda)
            yield

    @staticmethod
    def _add_shuffles(cuda: Any) -> None:
        cuda.shfl_xor_sync = lambda mask, value, step: _lanes(value)[_LANE ^ step]
        cuda.shfl_sync = lambda mask, value, lane: _lanes(value)[_lanes(lane)]


def lay_out(buffers: dict[str, Array]) -> tuple[Array, dict[str, int], dict[str, Array]]:
    """Put buffers into one memory.

    Returns:
        The memory, each buffer's address, and views of the buffers in it.
    """
    offsets, end = {}, 0
    for name, values in buffers.items():
        offsets[name] = end
        end += -(-values.nbytes // 256) * 256
    octets, views = np.zeros(end, np.uint8), {}
    for name, values in buffers.items():
        part = octets[offsets[name] : offsets[name] + values.nbytes]
        part[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        views[name] = part.view(values.dtype).reshape(values.shape)
    return octets, {name: GLOBAL + offset for name, offset in offsets.items()}, views
