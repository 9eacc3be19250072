"""Gated DeltaNet on a CUDA device: against the formula, and bit for bit against itself."""

import itertools

import numpy as np
import pytest

from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED
from ninfer.ops.gated_delta import GatedDeltaDims
from ninfer.tensor_formats import bf16_to_f32
from tests.support.cuda_bench import CudaBench
from tests.support.mixer_bench import Mixer, random_tokens

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


def empty_mixer(bench: CudaBench, dims: GatedDeltaDims, num_slots: int) -> Mixer:
    """A layer whose slots are those of sequences that have not begun."""
    mixer = Mixer(bench, dims, num_slots, seed=1)
    mixer.clear(*range(num_slots))
    return mixer


@every_size
@pytest.mark.parametrize("size", [1.0, 1e-3])  # the smaller one lets both epsilons count
@pytest.mark.parametrize("count", [1, 40, 64, 150])  # inside, at and behind the end of a chunk
def test_prefill_agrees_with_the_formula(dims: GatedDeltaDims, size: float, count: int) -> None:
    x, ab = random_tokens(dims, count, 1)
    x[:, : dims.channels] *= np.float32(size)
    with CudaBench(nbytes=1 << 28) as bench:
        mixer = empty_mixer(bench, dims, 2)
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
        mixer = empty_mixer(bench, REAL, 1)
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
        mixer = empty_mixer(bench, dims, 1)
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
        mixer = empty_mixer(bench, TINY, 2)
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
        mixer = empty_mixer(bench, dims, 2)
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
        mixer = empty_mixer(bench, dims, 2)
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
        mixer = empty_mixer(bench, dims, 3)
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
        mixer = empty_mixer(bench, dims, 12)
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
        mixer = empty_mixer(bench, TINY, 3)
        mixer.prefill(1, x[:1], ab[:1])
        before = [mixer.persistent(slot) for slot in range(3)]

        mixer.decode([1], x[1:], ab[1:], [0])

        assert [mixer.persistent(slot) for slot in range(3)] == before
        records = bf16_to_f32(bench.read_tensor(mixer.state.record_x))
        assert not np.isnan(records[1, 0]).any()
        assert np.isnan(records[1, 1:]).all()
        assert np.isnan(records[[0, 2]]).all()
