"""One Gated DeltaNet layer on a bench of either device: random weights, poisoned slots, its oracle.

Nothing in a slot is a number until it is cleared or written.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ninfer.ops import gated_delta
from ninfer.ops.gated_delta import GatedDeltaDims, GatedDeltaState, GatedDeltaWeights
from ninfer.tensor import Tensor
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.oracles.gated_delta import MixerInputs, MixerResult
from tests.support.oracles.gated_delta import gated_delta as oracle

F32 = npt.NDArray[np.float32]
EPS = 1e-6
RECORDS = 5


def i32(*values: int) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


class Mixer:
    """Weights and slots of one layer on a `GuardedBench` or a `CudaBench`."""

    def __init__(self, bench: Any, dims: GatedDeltaDims, num_slots: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.bench, self.dims = bench, dims
        heads = dims.num_value_heads
        self.convolution = bf16_to_f32(
            f32_to_bf16(rng.normal(0, 0.5, (4, dims.channels)).astype(np.float32))
        )
        self.a_log = rng.uniform(-1, 1.5, heads).astype(np.float32)
        self.dt_bias = rng.normal(0, 1, heads).astype(np.float32)
        self.norm = bf16_to_f32(f32_to_bf16(rng.normal(1, 0.3, dims.value_dim).astype(np.float32)))
        self.weights = GatedDeltaWeights(
            bench.put(f32_to_bf16(self.convolution)),
            bench.put(self.a_log),
            bench.put(self.dt_bias),
            bench.put(f32_to_bf16(self.norm)),
        )
        self.state = GatedDeltaState(
            bench.out((num_slots, heads, dims.key_dim, dims.value_dim)),
            bench.out_activations((num_slots, 3, dims.channels)),
            bench.out_activations((num_slots, RECORDS, dims.channels)),
            bench.out((num_slots, RECORDS, dims.key_width)),
            bench.out((num_slots, RECORDS, dims.value_width)),
            bench.out((num_slots, RECORDS, heads)),
            bench.out((num_slots, RECORDS, heads)),
        )

    def planes(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self.state, f.name) for f in dataclasses.fields(self.state))

    def clear(self, *slots: int) -> None:
        for slot in slots:
            for plane in self.planes()[:2]:
                self.bench.stream.clear(plane.rows(slot, 1))

    def slot(self, slot: int) -> list[bytes]:
        return self._bytes(slot, self.planes())

    def persistent(self, slot: int) -> list[bytes]:
        return self._bytes(slot, self.planes()[:2])

    def prefill(self, slot: int, x: F32, ab: F32, fold: int = 0) -> F32:
        return self._run(gated_delta.prefill, [slot], x, ab, [fold])

    def decode(self, slots: Sequence[int], x: F32, ab: F32, fold: Sequence[int]) -> F32:
        return self._run(gated_delta.decode, slots, x, ab, fold)

    def oracle(self, x: F32, ab: F32) -> MixerResult:
        wide = [
            np.asarray(array, np.float64)
            for array in (ab, self.convolution, self.a_log, self.dt_bias, self.norm)
        ]
        dims = self.dims
        return oracle(
            MixerInputs(self.bench.rounded(x), *wide),
            dims.num_key_heads,
            dims.num_value_heads,
            dims.key_dim,
            dims.value_dim,
            EPS,
        )

    def _bytes(self, slot: int, planes: Sequence[Tensor]) -> list[bytes]:
        return [self.bench.read_tensor(plane.rows(slot, 1)).tobytes() for plane in planes]

    def _run(
        self, op: Callable[..., None], slots: Sequence[int], x: F32, ab: F32, fold: Sequence[int]
    ) -> F32:
        bench, out = self.bench, self.bench.out_columns(len(x), self.dims.value_width)
        op(
            bench.ctx,
            bench.activations(x),
            bench.put(ab),
            self.weights,
            self.dims,
            self.state,
            bench.put(i32(*slots)),
            bench.put(i32(*fold)),
            EPS,
            out,
        )
        bench.check()
        return np.asarray(bench.read_columns(out))


def random_tokens(dims: GatedDeltaDims, count: int, seed: int) -> tuple[F32, F32]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (count, dims.channels + dims.value_width)).astype(np.float32)
    ab = rng.normal(0, 2, (count, 2 * dims.num_value_heads)).astype(np.float32)
    return x, ab
