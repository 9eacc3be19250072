import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.device import host_array
from ninfer.errors import ShapeError
from ninfer.ops import gated_delta
from ninfer.ops.gated_delta import GatedDeltaDims
from ninfer.tensor import DType
from tests.support.guarded_bench import GuardedBench
from tests.support.mixer_bench import EPS, RECORDS, Mixer, i32, random_tokens

TINY = GatedDeltaDims(1, 2, 8, 16)
GOLDEN_TINY = GatedDeltaDims(2, 4, 32, 32)
REAL_HEADS = GatedDeltaDims(2, 6, 128, 128)


@pytest.mark.parametrize("size", [1.0, 1e-3])  # the smaller one lets both epsilons count
@pytest.mark.parametrize("dims", [TINY, GOLDEN_TINY, REAL_HEADS], ids=["tiny", "golden", "real"])
def test_prefill_agrees_with_the_formula(dims: GatedDeltaDims, size: float) -> None:
    x, ab = random_tokens(dims, 40, 1)
    x[:, : dims.channels] *= np.float32(size)

    with GuardedBench() as bench:
        mixer = Mixer(bench, dims, 2, 2)
        mixer.clear(1)
        out = mixer.prefill(1, x, ab)
        matrices = host_array(mixer.state.matrices)[1].copy()
        window = host_array(mixer.state.window)[1].copy()
        expected = mixer.oracle(x, ab)

    # Float32 sums of up to 128 terms, repeated over 40 columns of a decaying state.
    np.testing.assert_allclose(out, expected.out, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(matrices, expected.matrices, rtol=2e-4, atol=2e-6)
    np.testing.assert_array_equal(window, expected.window)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_mix_of_chunks_rounds_and_aborts_equals_one_prefill(data: st.DataObject) -> None:
    x, ab = random_tokens(TINY, 14, data.draw(st.integers(0, 3)))
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 2, 5)
        mixer.clear(0)
        mixer.clear(1)
        whole = mixer.prefill(0, x, ab)
        done, fold = 0, 0
        outputs = []

        while done < 13:
            kind = data.draw(st.sampled_from(["chunk", "round", "aborted round"]))
            if kind == "chunk":
                count = data.draw(st.integers(1, 13 - done))
                outputs.append(mixer.prefill(1, x[done : done + count], ab[done:][:count], fold))
                done, fold = done + count, 0
            else:
                token = mixer.decode([1], x[done : done + 1], ab[done:][:1], [fold])
                np.testing.assert_array_equal(token[0], whole[done])
                fold = 0
                if kind == "round":
                    outputs.append(token)
                    done, fold = done + 1, 1
        outputs.append(mixer.prefill(1, x[13:], ab[13:], fold))

        np.testing.assert_array_equal(np.concatenate(outputs), whole)
        assert mixer.persistent(1) == mixer.persistent(0)


@settings(max_examples=20, deadline=None)
@given(
    order=st.permutations([0, 1, 2, 3]),
    count=st.integers(1, 4),
    slots=st.permutations(range(6)),
    num_threads=st.integers(1, 2),
)
def test_a_row_does_not_see_its_batch(
    order: list[int], count: int, slots: list[int], num_threads: int
) -> None:
    histories = [random_tokens(GOLDEN_TINY, 3 + i, 10 + i) for i in range(4)]
    x, ab = random_tokens(GOLDEN_TINY, 4, 20)
    rows = order[:count]

    with GuardedBench(num_threads) as bench:
        mixer = Mixer(bench, GOLDEN_TINY, 6, 7)
        alone = []
        for i in range(4):
            mixer.clear(5)
            mixer.prefill(5, *histories[i])
            first = mixer.decode([5], x[i : i + 1], ab[i : i + 1], [0])
            second = mixer.decode([5], x[i : i + 1], ab[i : i + 1], [1])
            alone.append((first[0], second[0], mixer.slot(5)))
        for i in rows:
            mixer.clear(slots[i])
            mixer.prefill(slots[i], *histories[i])
        used = [slots[i] for i in rows]
        first = mixer.decode(used, x[rows], ab[rows], [0] * count)
        second = mixer.decode(used, x[rows], ab[rows], [1] * count)

        for at, i in enumerate(rows):
            np.testing.assert_array_equal(first[at], alone[i][0])
            np.testing.assert_array_equal(second[at], alone[i][1])
            assert mixer.persistent(slots[i]) == alone[i][2][:2]


@pytest.mark.parametrize("count", range(RECORDS + 1))
@pytest.mark.parametrize("dims", [TINY, GOLDEN_TINY], ids=["tiny", "golden"])
def test_folding_any_number_of_columns_equals_prefilling_them(
    dims: GatedDeltaDims, count: int
) -> None:
    history = random_tokens(dims, 2, 30)
    x, ab = random_tokens(dims, RECORDS + 1, 31)
    with GuardedBench() as bench:
        mixer = Mixer(bench, dims, 3, 32)
        for slot in range(3):
            mixer.clear(slot)
            mixer.prefill(slot, *history)
        for i in range(RECORDS):  # slot 2 walks along; its one record becomes column i of slot 1
            mixer.decode([2], x[i : i + 1], ab[i : i + 1], [min(i, 1)])
            for plane in mixer.planes()[2:]:
                host_array(plane)[1, i] = host_array(plane)[2, 0]
        if count:
            mixer.prefill(0, x[:count], ab[:count])

        folded = mixer.decode([1], x[count : count + 1], ab[count:][:1], [count])
        direct = mixer.decode([0], x[count : count + 1], ab[count:][:1], [0])

        np.testing.assert_array_equal(folded, direct)
        assert mixer.persistent(1) == mixer.persistent(0)


def test_a_prefill_folds_what_a_round_recorded() -> None:
    history, (x, ab) = random_tokens(TINY, 2, 35), random_tokens(TINY, 4, 36)
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 2, 37)
        for slot in range(2):
            mixer.clear(slot)
            mixer.prefill(slot, *history)
        mixer.decode([1], x[:1], ab[:1], [0])

        resumed = mixer.prefill(1, x[1:], ab[1:], 1)
        direct = mixer.prefill(0, x, ab)

        np.testing.assert_array_equal(resumed, direct[1:])
        assert mixer.persistent(1) == mixer.persistent(0)


def test_a_chunk_of_no_columns_only_folds() -> None:
    history, (x, ab) = random_tokens(TINY, 2, 35), random_tokens(TINY, 1, 36)
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 2, 37)
        for slot in range(2):
            mixer.clear(slot)
            mixer.prefill(slot, *history)
        mixer.decode([1], x, ab, [0])
        mixer.prefill(0, x, ab)

        mixer.prefill(1, x[:0], ab[:0], 1)

        assert mixer.persistent(1) == mixer.persistent(0)


def test_a_round_leaves_state_window_and_foreign_slots_alone() -> None:
    x, ab = random_tokens(TINY, 1, 40)
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 3, 41)
        mixer.clear(1)
        mixer.prefill(1, *random_tokens(TINY, 4, 42))
        before = [mixer.slot(slot) for slot in range(3)]
        tails = [host_array(plane)[1, 1:].tobytes() for plane in mixer.planes()[2:]]

        mixer.decode([1], x, ab, [0])

        assert mixer.persistent(1) == before[1][:2]
        assert [host_array(plane)[1, 1:].tobytes() for plane in mixer.planes()[2:]] == tails
        assert mixer.slot(0) == before[0]
        assert mixer.slot(2) == before[2]
        assert not any(np.isnan(host_array(plane)[1, 0]).any() for plane in mixer.planes()[2:])


def test_a_chunk_leaves_records_and_foreign_slots_alone() -> None:
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 3, 45)
        mixer.clear(1)
        before = [mixer.slot(slot) for slot in range(3)]

        mixer.prefill(1, *random_tokens(TINY, 4, 46))

        assert mixer.slot(1)[2:] == before[1][2:]
        assert mixer.slot(0) == before[0]
        assert mixer.slot(2) == before[2]


@pytest.mark.parametrize("extreme", [1e4, -1e4, 88.0, 20.0, -104.0])
def test_extreme_gates_neither_overflow_nor_lose_the_formula(extreme: float) -> None:
    x, ab = random_tokens(TINY, 5, 50)
    ab[2:4] = extreme
    x[1, TINY.channels :] = extreme  # the output gate as well
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 1, 51)
        mixer.clear(0)
        with np.errstate(all="ignore"):
            expected = mixer.oracle(x, ab)

        out = mixer.prefill(0, x, ab)

    np.testing.assert_allclose(out, expected.out, rtol=3e-4, atol=3e-5)


def test_zero_columns_of_a_new_sequence_stay_finite() -> None:
    x = np.zeros((2, TINY.channels + TINY.value_width), np.float32)
    ab = np.zeros((2, 2 * TINY.num_value_heads), np.float32)
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 1, 55)
        mixer.clear(0)

        out = mixer.prefill(0, x, ab)

    np.testing.assert_array_equal(out, np.zeros_like(out))


def test_threads_and_real_heads_do_not_change_a_bit() -> None:
    x, ab = random_tokens(REAL_HEADS, 5, 60)
    results: list[Any] = []
    for num_threads in (1, 2):
        with GuardedBench(num_threads) as bench:
            mixer = Mixer(bench, REAL_HEADS, 1, 61)
            mixer.clear(0)
            first = mixer.prefill(0, x[:3], ab[:3])
            third = mixer.decode([0], x[3:4], ab[3:4], [0])
            fourth = mixer.decode([0], x[4:], ab[4:], [1])
            results.append((first.tobytes(), third.tobytes(), fourth.tobytes(), mixer.slot(0)))

    assert results[0] == results[1]


def test_a_captured_round_reads_slot_and_fold_anew() -> None:
    x, ab = random_tokens(TINY, 2, 70)
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 2, 71)
        for slot in range(2):
            mixer.clear(slot)
        expected = mixer.prefill(0, x, ab)
        projected, gates = bench.inout(x[:1]), bench.inout(ab[:1])
        slots, fold = bench.inout(i32(0)), bench.inout(i32(0))
        out = bench.out_columns(1, TINY.value_width)
        bench.stream.begin_capture()
        gated_delta.decode(
            bench.ctx,
            projected,
            gates,
            mixer.weights,
            TINY,
            mixer.state,
            slots,
            fold,
            EPS,
            out,
        )
        graph = bench.stream.end_capture()
        host_array(slots)[0] = 1

        graph.launch(bench.stream)
        first = bench.read_columns(out)
        host_array(projected)[...], host_array(gates)[...] = x[1:], ab[1:]
        host_array(fold)[0] = 1
        graph.launch(bench.stream)
        second = bench.read_columns(out)

    np.testing.assert_array_equal(np.concatenate([first, second]), expected)


def test_wrong_operands_are_refused() -> None:
    x, ab = random_tokens(TINY, 2, 80)
    with GuardedBench() as bench:
        mixer = Mixer(bench, TINY, 1, 81)
        state = dataclasses.replace(mixer.state, record_g=bench.out((1, RECORDS, 3)))
        operands: dict[str, Any] = {
            "ctx": bench.ctx,
            "projected": bench.put(x),
            "ab": bench.put(ab),
            "weights": mixer.weights,
            "dims": TINY,
            "state": mixer.state,
            "slot": bench.put(i32(0)),
            "fold": bench.put(i32(0)),
            "eps": EPS,
            "out": bench.out_columns(2, TINY.value_width),
        }
        wrong: dict[str, Any] = {
            "projected": bench.put(x[:, 1:]),
            "ab": bench.put(ab[:1]),
            "dims": GatedDeltaDims(1, 2, 16, 16),
            "state": state,
            "slot": bench.out((1,), DType.F32),
            "fold": bench.put(i32(0, 0)),
            "out": bench.out_columns(1, TINY.value_width),
        }

        for name, operand in wrong.items():
            with pytest.raises(ShapeError):
                gated_delta.prefill(**(operands | {name: operand}))
