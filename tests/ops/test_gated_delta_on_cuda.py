"""Gated DeltaNet on a CUDA device: against the formula, and bit for bit against itself."""

import itertools
from typing import Any

import numpy as np
import pytest

from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED
from ninfer.ops import gated_delta
from ninfer.ops.gated_delta import GatedDeltaDims, GatedDeltaState, GatedDeltaWeights
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.cuda_bench import CudaBench
from tests.support.mixer_bench import EPS, RECORDS, i32, random_tokens
from tests.support.oracles.gated_delta import MixerInputs
from tests.support.oracles.gated_delta import gated_delta as oracle

pytestmark = pytest.mark.gpu

TINY = GatedDeltaDims(1, 2, 8, 16)
REAL = GatedDeltaDims(16, 48, 128, 128)
SIZES = {
    "tiny": TINY,
    "27B": REAL,
    "4B, 9B, 35B": GatedDeltaDims(16, 32, 128, 128),
    "0.8B, 2B": GatedDeltaDims(16, 16, 128, 128),
}
every_size = pytest.mark.parametrize("dims", SIZES.values(), ids=SIZES.keys())


class Mixer:
    """Weights and slots of one layer on a device; what nobody wrote is NaN."""

    def __init__(self, bench: CudaBench, dims: GatedDeltaDims, num_slots: int) -> None:
        rng = np.random.default_rng(1)
        self.bench, self.dims = bench, dims
        heads = dims.num_value_heads
        self.convolution = f32_to_bf16(rng.normal(0, 0.5, (4, dims.channels)).astype(np.float32))
        self.a_log = rng.uniform(-1, 1.5, heads).astype(np.float32)
        self.dt_bias = rng.normal(0, 1, heads).astype(np.float32)
        self.norm = f32_to_bf16(rng.normal(1, 0.3, dims.value_dim).astype(np.float32))
        self.weights = GatedDeltaWeights(
            bench.put(self.convolution),
            bench.put(self.a_log),
            bench.put(self.dt_bias),
            bench.put(self.norm),
        )
        matrices = np.zeros((num_slots, heads, dims.key_dim, dims.value_dim), np.float32)
        self.state = GatedDeltaState(
            bench.inout(matrices),
            bench.inout(np.zeros((num_slots, 3, dims.channels), np.uint16)),
            bench.out_activations((num_slots, RECORDS, dims.channels)),
            bench.out((num_slots, RECORDS, dims.key_width)),
            bench.out((num_slots, RECORDS, dims.value_width)),
            bench.out((num_slots, RECORDS, heads)),
            bench.out((num_slots, RECORDS, heads)),
        )

    def persistent(self, slot: int) -> tuple[bytes, bytes]:
        planes = (self.state.matrices, self.state.window)
        matrices, window = (self.bench.read_tensor(plane)[slot].tobytes() for plane in planes)
        return matrices, window

    def run(self, op: Any, slots: list[int], x: Any, ab: Any, fold: list[int]) -> Any:
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
        return bench.read_columns(out)

    def prefill(self, slot: int, x: Any, ab: Any, fold: int = 0) -> Any:
        return self.run(gated_delta.prefill, [slot], x, ab, [fold])

    def decode(self, slots: list[int], x: Any, ab: Any, fold: list[int]) -> Any:
        return self.run(gated_delta.decode, slots, x, ab, fold)

    def oracle(self, x: Any, ab: Any) -> Any:
        dims = self.dims
        return oracle(
            MixerInputs(
                self.bench.rounded(x),
                ab.astype(np.float64),
                bf16_to_f32(self.convolution).astype(np.float64),
                self.a_log.astype(np.float64),
                self.dt_bias.astype(np.float64),
                bf16_to_f32(self.norm).astype(np.float64),
            ),
            dims.num_key_heads,
            dims.num_value_heads,
            dims.key_dim,
            dims.value_dim,
            EPS,
        )


@every_size
@pytest.mark.parametrize("size", [1.0, 1e-3])  # the smaller one lets both epsilons count
@pytest.mark.parametrize("count", [1, 40, 64, 150])  # inside, at and behind the end of a chunk
def test_prefill_agrees_with_the_formula(dims: GatedDeltaDims, size: float, count: int) -> None:
    x, ab = random_tokens(dims, count, 1)
    x[:, : dims.channels] *= np.float32(size)
    with CudaBench(nbytes=1 << 28) as bench:
        mixer = Mixer(bench, dims, 2)
        out = mixer.prefill(1, x, ab)
        matrices = bench.read_tensor(mixer.state.matrices)[1]
        window = bf16_to_f32(bench.read_tensor(mixer.state.window)[1])
        expected = mixer.oracle(x, ab)

    # One rounding of the result to bf16; before it high and low bf16 parts, 2^-17 each.
    np.testing.assert_allclose(out, expected.out, rtol=2.0**-8, atol=2e-4)
    error = np.linalg.norm(matrices - expected.matrices, axis=(1, 2))
    assert np.all(error <= 2.0**-15 * np.linalg.norm(expected.matrices, axis=(1, 2)))
    np.testing.assert_array_equal(window, expected.window)


def test_a_prefill_without_warpgroups_agrees_with_the_formula() -> None:
    x, ab = random_tokens(REAL, 150, 1)
    with CudaBench(nbytes=1 << 28, narrow_bytes=MULTIPROCESSOR_SHARED) as bench:
        mixer = Mixer(bench, REAL, 1)
        out = mixer.prefill(0, x, ab)
        matrices = bench.read_tensor(mixer.state.matrices)[0]
        expected = mixer.oracle(x, ab)

    np.testing.assert_allclose(out, expected.out, rtol=2.0**-8, atol=2e-4)
    error = np.linalg.norm(matrices - expected.matrices, axis=(1, 2))
    assert np.all(error <= 2.0**-15 * np.linalg.norm(expected.matrices, axis=(1, 2)))


@every_size
def test_decode_goes_on_where_a_prefill_ends(dims: GatedDeltaDims) -> None:
    x, ab = random_tokens(dims, 100, 2)
    with CudaBench(nbytes=1 << 28) as bench:
        mixer = Mixer(bench, dims, 1)
        parts = [mixer.prefill(0, x[:70], ab[:70])]
        for i in range(70, 75):
            parts.append(mixer.decode([0], x[i : i + 1], ab[i : i + 1], [min(i - 70, 1)]))
        parts.append(mixer.prefill(0, x[75:], ab[75:], 1))
        matrices = bench.read_tensor(mixer.state.matrices)[0]
        expected = mixer.oracle(x, ab)

    np.testing.assert_allclose(np.concatenate(parts), expected.out, rtol=2.0**-8, atol=2e-4)
    error = np.linalg.norm(matrices - expected.matrices, axis=(1, 2))
    assert np.all(error <= 2.0**-15 * np.linalg.norm(expected.matrices, axis=(1, 2)))


def test_any_mix_of_calls_equals_one_prefill_where_heads_go_column_by_column() -> None:
    x, ab = random_tokens(TINY, 12, 2)
    with CudaBench(nbytes=1 << 28) as bench:
        mixer = Mixer(bench, TINY, 2)
        whole = mixer.prefill(0, x, ab)

        parts = [mixer.prefill(1, x[:5], ab[:5])]
        mixer.decode([1], x[9:10], ab[9:10], [0])  # aborted: nothing of it is folded
        parts.append(mixer.decode([1], x[5:6], ab[5:6], [0]))
        parts.append(mixer.decode([1], x[6:7], ab[6:7], [1]))
        parts.append(mixer.prefill(1, x[7:9], ab[7:9], 1))
        parts.append(mixer.decode([1], x[9:10], ab[9:10], [0]))
        mixer.prefill(1, x[:0], ab[:0], 1)
        parts.append(mixer.prefill(1, x[10:], ab[10:]))

        np.testing.assert_array_equal(np.concatenate(parts), whole)
        assert mixer.persistent(1) == mixer.persistent(0)


@every_size
def test_calls_that_end_at_chunk_borders_equal_one_prefill(dims: GatedDeltaDims) -> None:
    x, ab = random_tokens(dims, 200, 2)
    with CudaBench(nbytes=1 << 28) as bench:
        mixer = Mixer(bench, dims, 2)
        whole = mixer.prefill(0, x, ab)

        parts = [
            mixer.prefill(1, x[first:stop], ab[first:stop])
            for first, stop in itertools.pairwise([0, 64, 192, 200])
        ]

        np.testing.assert_array_equal(np.concatenate(parts), whole)
        assert mixer.persistent(1) == mixer.persistent(0)


@every_size
def test_folding_alone_equals_folding_in_a_round(dims: GatedDeltaDims) -> None:
    x, ab = random_tokens(dims, 3, 7)
    with CudaBench(nbytes=1 << 28) as bench:
        mixer = Mixer(bench, dims, 2)
        for slot in range(2):
            mixer.decode([slot], x[:1], ab[:1], [0])
            mixer.decode([slot], x[1:2], ab[1:2], [1])

        mixer.prefill(1, x[:0], ab[:0], 1)
        alone = mixer.decode([1], x[2:], ab[2:], [0])
        together = mixer.decode([0], x[2:], ab[2:], [1])

        np.testing.assert_array_equal(alone, together)
        assert mixer.persistent(1) == mixer.persistent(0)


@every_size
def test_folding_several_records_equals_folding_them_one_by_one(dims: GatedDeltaDims) -> None:
    x, ab = random_tokens(dims, 4, 4)
    with CudaBench(nbytes=1 << 28) as bench:
        mixer = Mixer(bench, dims, 3)
        for i in range(3):  # slot 2 walks along; its one record becomes column i of slot 1
            mixer.decode([2], x[i : i + 1], ab[i : i + 1], [min(i, 1)])
            state = mixer.state
            for plane in (
                state.record_x,
                state.record_k,
                state.record_v,
                state.record_g,
                state.record_beta,
            ):
                values = bench.read_tensor(plane)
                values[1, i] = values[2, 0]
                bench.write(plane, values)

        at_once = mixer.decode([1], x[3:], ab[3:], [3])
        one_by_one = mixer.decode([2], x[3:], ab[3:], [1])

        np.testing.assert_array_equal(at_once, one_by_one)
        assert mixer.persistent(1) == mixer.persistent(2)


@every_size
def test_a_row_does_not_see_its_batch(  # alone held in registers, together in shared memory
    dims: GatedDeltaDims,
) -> None:
    x, ab = random_tokens(dims, 6, 3)
    with CudaBench(nbytes=1 << 29) as bench:
        mixer = Mixer(bench, dims, 12)
        alone = []
        for i in range(6):
            first = mixer.decode([i], x[i : i + 1], ab[i : i + 1], [0])
            second = mixer.decode([i], x[i : i + 1], ab[i : i + 1], [1])
            alone.append((first[0], second[0], mixer.persistent(i)))
        order, slots = [2, 0, 4, 3, 5, 1], [8, 6, 9, 7, 11, 10]

        first = mixer.decode(slots, x[order], ab[order], [0] * 6)
        second = mixer.decode(slots, x[order], ab[order], [1] * 6)

        for at, i in enumerate(order):
            np.testing.assert_array_equal(first[at], alone[i][0])
            np.testing.assert_array_equal(second[at], alone[i][1])
            assert mixer.persistent(slots[at]) == alone[i][2]


def test_a_round_leaves_state_and_foreign_slots_alone() -> None:
    x, ab = random_tokens(TINY, 2, 5)
    with CudaBench() as bench:
        mixer = Mixer(bench, TINY, 3)
        mixer.prefill(1, x[:1], ab[:1])
        before = [mixer.persistent(slot) for slot in range(3)]

        mixer.decode([1], x[1:], ab[1:], [0])

        assert [mixer.persistent(slot) for slot in range(3)] == before
        records = bf16_to_f32(bench.read_tensor(mixer.state.record_x))
        assert not np.isnan(records[1, 0]).any()
        assert np.isnan(records[1, 1:]).all()
        assert np.isnan(records[[0, 2]]).all()
