"""Matrices of the two big models, as a decode round multiplies them, with random content."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.gpu_bench import Bench
from ninfer.arena import AllocatedArena
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.ops import linear
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat

Q4, Q5, Q6 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6
W8, BF16 = TensorFormat.W8, TensorFormat.BF16

POOL_BYTES: Final = 64 << 20


class Step(NamedTuple):
    """Weights that a decode round multiplies with the same columns, and how often it does.

    Attributes:
        weights: format and rows of each.
        width: features.
        repeats: layers that have them.
        is_added: to the residual stream.
    """

    weights: tuple[tuple[TensorFormat, int], ...]
    width: int
    repeats: int
    is_added: bool = False

    @property
    def nbytes(self) -> int:
        """Resident bytes of one layer's weights."""
        return sum(WeightLayout(format, rows, self.width).nbytes for format, rows in self.weights)

    @property
    def name(self) -> str:
        """Short text."""
        return f"{' '.join(f'{f.name} {rows}' for f, rows in self.weights)} x {self.width}"


ROUNDS: Final = {
    "27B": (
        Step(((Q4, 4096), (Q5, 12288), (BF16, 48), (BF16, 48)), 5120, 48),
        Step(((Q5, 5120),), 6144, 48, True),
        Step(((Q4, 7168), (Q5, 7168)), 5120, 16),
        Step(((Q5, 5120),), 6144, 16, True),
        Step(((Q4, 34816),), 5120, 64),
        Step(((Q5, 5120),), 17408, 64, True),
        Step(((Q6, 248320),), 5120, 1),
    ),
    "35B": (
        Step(((W8, 12288), (BF16, 32), (BF16, 32)), 2048, 30),
        Step(((W8, 2048),), 4096, 30, True),
        Step(((W8, 9216),), 2048, 10),
        Step(((W8, 2048),), 4096, 10, True),
        Step(((BF16, 257), (W8, 1024)), 2048, 40),
        Step(((W8, 2048),), 512, 40),
        Step(((Q6, 248320),), 2048, 1),
    ),
}


class Weights:
    """Random matrices: codes of every value, scales near 2^-6."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        words = bench.rng.standard_normal(POOL_BYTES // 8).astype(np.float32) * 0.02
        bf16 = (words.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        self._pools = {BF16: bench.put(bf16.view(np.uint8), DType.U8)}
        for format in Q4, Q5, Q6, W8:
            self._pools[format] = bench.put(self._records(format), DType.U8)

    def make_step(self, arena: AllocatedArena, step: Step) -> tuple[Matrix, ...]:
        """Fill the weights of one layer's step."""
        return tuple(self.make(arena, format, rows, step.width) for format, rows in step.weights)

    def make(self, arena: AllocatedArena, format: TensorFormat, rows: int, width: int) -> Matrix:
        """Fill one matrix."""
        storage = arena.take((WeightLayout(format, rows, width).nbytes,), DType.U8)
        pool = self._pools[format]
        for first in range(0, storage.nbytes, pool.nbytes):
            count = min(pool.nbytes, storage.nbytes - first)
            self._bench.stream.copy(storage.rows(first, count), pool.rows(0, count))
        return Matrix(format, storage, rows, width, 0, rows)

    def _records(self, format: TensorFormat) -> npt.NDArray[np.uint8]:
        layout = WeightLayout(format, 16, 128)
        shape = POOL_BYTES // 4 // layout.record_bytes, layout.record_bytes
        records = self._bench.rng.integers(0, 256, shape, np.uint8)
        num_scales = (layout.record_bytes - layout.scale_offset) // 2
        scales = self._bench.rng.integers(0x2000, 0x2800, (shape[0], num_scales)).astype(np.uint16)
        records[:, layout.scale_offset :] = scales.view(np.uint8)
        return records.reshape(-1)


class Operands:
    """Columns and outputs of every width, made once."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._columns: dict[tuple[int, int], LinearInput] = {}
        self._outs: dict[tuple[int, int, int, DType], Tensor] = {}

    def columns(self, count: int, width: int) -> LinearInput:
        """Random columns."""
        if (count, width) not in self._columns:
            block = self._bench.columns(count, width)
            linear.pack(self._bench.ctx, self._bench.activations(count, width), block)
            self._columns[count, width] = block
        return self._columns[count, width]

    def out(self, place: int, count: int, rows: int, dtype: DType) -> Tensor:
        """An output; those of one launch have places of their own."""
        key = (place, count, rows, dtype)
        if key not in self._outs:
            self._outs[key] = self._bench.arena.take((count, rows), dtype)
            self._bench.stream.clear(self._outs[key])
        return self._outs[key]

    def call(self, weights: Sequence[Matrix], count: int, is_added: bool) -> None:
        """The products of one step as a round makes them."""
        x = self.columns(count, weights[0].num_columns)
        if is_added:
            out = self.out(0, count, weights[0].num_rows, DType.BF16)
            linear.project_add(self._bench.ctx, x, weights[0], out)
            return
        products = []
        for place, weight in enumerate(weights):
            is_f32 = weight.num_rows in (257, 248320)
            out = self.out(place, count, weight.num_rows, DType.F32 if is_f32 else DType.BF16)
            products.append((weight, out, 0))
        linear.project_all(self._bench.ctx, x, products)
