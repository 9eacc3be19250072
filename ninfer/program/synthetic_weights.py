"""Random weights of full size, written where loaded ones would lie, without a file.

    seed -> pool of encoded numbers -> device, once -> copied end to end over each object
                                                    -> make_resident, as for a loaded matrix

A pool is a prime number of groups long, and the planes of codes and of scales have pools of
different lengths, so that rows differ although the pool repeats; each object starts at a place of
its own. So filling costs what copying on the device costs. What each object is drawn from is the
model family's knowledge.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ninfer.device import Arena, host_array
from ninfer.models.qwen_hybrid.inventory import ExpectedObject
from ninfer.models.qwen_hybrid.residency import (
    direct_dtype,
    is_matrix,
    resident_bytes,
    stored_format,
)
from ninfer.models.qwen_hybrid.synthetic import Constant, Normal, Spread, Uniform, spread_of
from ninfer.ops import linear
from ninfer.ops.context import OpContext
from ninfer.program.weight_loader import LoadedWeights, Progress
from ninfer.tensor import DType, Matrix, Tensor, TensorFormat
from ninfer.tensor_formats import GROUPED, RowSplitGeometry, encode_rows, encoded_bytes, f32_to_bf16

_CODE_UNITS: Final = (1021, 16381)
"""Lengths of pools of codes in 128 columns; primes."""

_WORD_UNITS: Final = (1021, 16381, 131071)
"""Lengths of pools of bf16 words in 128 columns; primes."""

_SCALE_UNITS: Final = 32749
"""Length of a pool of scales; a prime."""

_UNIT: Final = 128

Words = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Pool:
    """Numbers on the device that planes are filled from; ``unit_bytes`` may not be torn apart."""

    octets: Tensor
    unit_bytes: int


@dataclass(frozen=True, slots=True)
class SyntheticWeights:
    """Stands in for an open artifact: ``seed`` decides every number."""

    seed: int = 0


def synthesise_weights(
    ctx: OpContext,
    source: SyntheticWeights,
    objects: Iterable[ExpectedObject],
    arena: Arena,
    progress: Progress | None = None,
) -> LoadedWeights:
    """Fill ``objects`` with random numbers in ``arena`` and wait for the last of them.

    Args:
        ctx: device and stream.
        source: where the numbers come from.
        objects: what to make.
        arena: at least `weight_bytes` long.
        progress: told after each object.
    """
    objects = tuple(objects)
    sizes = [_encoded_bytes(stored) for stored in objects]
    largest = max(size for stored, size in zip(objects, sizes, strict=True) if is_matrix(stored))
    with ExitStack() as stack:
        twin = ctx.device.arena("encoded matrix", largest)
        stack.callback(twin.close)
        encoded = twin.take((largest,), DType.U8)
        maker = _Maker(ctx, arena, encoded, source.seed, objects, stack)
        done = 0
        for stored, size in zip(objects, sizes, strict=True):
            maker.make(stored, size)
            done += size
            if progress is not None:
                progress(done, sum(sizes))
        ctx.stream.synchronize()
        return LoadedWeights(maker.matrices, maker.tensors)


def imagine_cache(ctx: OpContext, planes: Iterable[Tensor], seed: int) -> None:
    """Fill cache planes with random keys and values, for prompts that nobody processes.

    Args:
        ctx: device and stream.
        planes: F32 or BF16 elements, int8 codes, and their F16 scales.
        seed: decides every number.
    """
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(_UNIT * _CODE_UNITS[-1], np.float32)
    sources: dict[DType, Words] = {
        DType.F32: normal,
        DType.BF16: f32_to_bf16(normal),
        DType.I8: np.clip(np.rint(normal * 40), -127, 127).astype(np.int8),
        DType.F16: np.full(_SCALE_UNITS, 1 / 40, np.float16),
    }
    with ExitStack() as stack:
        pools: dict[DType, _Pool] = {}
        for plane in planes:
            if plane.dtype not in pools:
                words = sources[plane.dtype]
                pools[plane.dtype] = _upload_pool(ctx, words, words.itemsize, stack)
            place = int(rng.integers(0, _SCALE_UNITS))
            flat = Tensor(plane.address, DType.U8, (plane.nbytes,))
            _tile(ctx, flat, pools[plane.dtype], place)
        ctx.stream.synchronize()


class _Maker:
    """Makes objects one after another; its pools live until the stack closes."""

    def __init__(
        self,
        ctx: OpContext,
        arena: Arena,
        encoded: Tensor,
        seed: int,
        objects: tuple[ExpectedObject, ...],
        stack: ExitStack,
    ) -> None:
        self._ctx: Final = ctx
        self._arena: Final = arena
        self._encoded: Final = encoded
        self._rng: Final = np.random.default_rng(seed)
        self._stack: Final = stack
        self._code_units: Final = _fitting(_CODE_UNITS, objects, is_words=False)
        self._word_units: Final = _fitting(_WORD_UNITS, objects, is_words=True)
        self._words: npt.NDArray[np.float32] | None = None
        self._pools: Final[dict[tuple[object, ...], _Pool]] = {}
        self.matrices: Final[dict[str, Matrix]] = {}
        self.tensors: Final[dict[str, Tensor]] = {}

    def make(self, stored: ExpectedObject, nbytes: int) -> None:
        if is_matrix(stored):
            self._make_matrix(stored, self._encoded.rows(0, nbytes))
        else:
            self._make_tensor(stored)

    def _make_matrix(self, stored: ExpectedObject, encoded: Tensor) -> None:
        rows, columns = stored.shape
        format = stored_format(stored)
        storage = self._arena.take((resident_bytes(self._ctx, stored),), DType.U8)
        matrix = Matrix(format, storage, rows, columns, 0, rows)
        spread = spread_of(stored)
        if format is TensorFormat.BF16:
            self._tile(encoded, self._word_pool(spread), self._place())
        else:
            self._fill_planes(RowSplitGeometry(format, rows, columns), encoded, spread)
        linear.make_resident(self._ctx, encoded, matrix)
        self.matrices[stored.name] = matrix

    def _fill_planes(self, geometry: RowSplitGeometry, encoded: Tensor, spread: Spread) -> None:
        """Fill codes and scales; both planes of a code start at the same place of the pool."""
        base, high = self._code_pools(geometry.format)
        place = self._place()
        spans = geometry.spans
        self._tile(encoded.rows(*spans[0]), base, place)
        if spans[1].nbytes:
            self._tile(encoded.rows(*spans[1]), high, place)
        self._tile(encoded.rows(*spans[2]), self._scale_pool(geometry.format, spread), place)

    def _make_tensor(self, stored: ExpectedObject) -> None:
        tensor = self._arena.take(stored.shape, direct_dtype(stored))
        values = self._draw(spread_of(stored), math.prod(stored.shape))
        words = f32_to_bf16(values) if tensor.dtype is DType.BF16 else values
        _upload(self._ctx, Tensor(tensor.address, DType.U8, (tensor.nbytes,)), words)
        self.tensors[stored.name] = tensor

    def _place(self) -> int:
        return int(self._rng.integers(0, _SCALE_UNITS))

    def _draw(self, spread: Spread, count: int) -> npt.NDArray[np.float32]:
        match spread:
            case Normal(deviation):
                drawn = self._rng.standard_normal(count, np.float32)
                return drawn * np.float32(deviation)
            case Uniform(low, high):
                return self._rng.uniform(low, high, count).astype(np.float32)
            case Constant(value):
                return np.full(count, value, np.float32)

    def _word_pool(self, spread: Spread) -> _Pool:
        deviation = spread.deviation if isinstance(spread, Normal) else 1.0

        def words() -> Words:
            if self._words is None:
                self._words = self._draw(Normal(1.0), _UNIT * self._word_units)
            return f32_to_bf16(self._words * np.float32(deviation))

        return self._pool(("words", spread), words, 2 * _UNIT)

    def _code_pools(self, format: TensorFormat) -> tuple[_Pool, _Pool]:
        """Pools of the base and of the high plane, made of the same codes."""
        groups = _UNIT // GROUPED[format].group
        drawn: list[Words] = []

        def planes(which: int) -> Callable[[], Words]:
            def make() -> Words:
                if not drawn:
                    source = self._draw(Normal(1.0), _UNIT * self._code_units).reshape(-1, _UNIT)
                    coded = encode_rows(format, source)
                    drawn.extend((coded.base, coded.high))
                return drawn[which]

            return make

        base = self._pool((format, "base"), planes(0), 32 * groups)
        high_bytes = GROUPED[format].high_bytes * groups
        high = self._pool((format, "high"), planes(1), high_bytes) if high_bytes else base
        return base, high

    def _scale_pool(self, format: TensorFormat, spread: Spread) -> _Pool:
        """Scales at which the codes have the wanted deviation, each a little different."""
        deviation = spread.deviation if isinstance(spread, Normal) else 1.0
        # The codes came from values of deviation 1, whose largest of a group is about 2.4.
        step = 2.4 * deviation / GROUPED[format].code_max

        def scales() -> Words:
            factors = self._draw(Uniform(0.8, 1.2), _SCALE_UNITS)
            return (factors * np.float32(step)).astype(np.float16)

        return self._pool((format, "scales", spread), scales, 2)

    def _pool(self, key: tuple[object, ...], values: Callable[[], Words], unit_bytes: int) -> _Pool:
        found = self._pools.get(key)
        if found is None:
            found = _upload_pool(self._ctx, values(), unit_bytes, self._stack)
            self._pools[key] = found
        return found

    def _tile(self, plane: Tensor, pool: _Pool, place: int) -> None:
        _tile(self._ctx, plane, pool, place)


def _upload_pool(ctx: OpContext, words: Words, unit_bytes: int, stack: ExitStack) -> _Pool:
    """Bring numbers to the device, until the stack closes."""
    arena = ctx.device.arena("pool", words.nbytes)
    stack.callback(arena.close)
    octets = arena.take((words.nbytes,), DType.U8)
    _upload(ctx, octets, words)
    return _Pool(octets, unit_bytes)


def _upload(ctx: OpContext, octets: Tensor, words: Words) -> None:
    """Copy numbers to a device range and wait for it."""
    pinned = ctx.device.pinned_arena("pool staging", octets.nbytes)
    try:
        staged = pinned.take((octets.nbytes,), DType.U8)
        host_array(staged)[:] = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        ctx.stream.upload(octets, staged)
        ctx.stream.synchronize()
    finally:
        pinned.close()


def _tile(ctx: OpContext, plane: Tensor, pool: _Pool, place: int) -> None:
    """Fill a plane with the pool again and again, from a place of the pool on."""
    octets = pool.octets
    first = place * pool.unit_bytes % octets.nbytes
    done = 0
    while done < plane.nbytes:
        count = min(octets.nbytes - first, plane.nbytes - done)
        ctx.stream.copy(plane.rows(done, count), octets.rows(first, count))
        first, done = 0, done + count


def _fitting(
    lengths: tuple[int, ...], objects: tuple[ExpectedObject, ...], *, is_words: bool
) -> int:
    """Shortest length that does not repeat within the largest object, else the longest."""
    extents = [
        math.prod(stored.shape)
        for stored in objects
        if is_matrix(stored) and (stored.format is TensorFormat.BF16) is is_words
    ]
    needed = max(extents, default=0) // _UNIT
    return next((length for length in lengths if length >= needed), lengths[-1])


def _encoded_bytes(stored: ExpectedObject) -> int:
    return encoded_bytes(stored_format(stored), stored.shape)
