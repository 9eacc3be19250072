import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ninfer.errors import InvariantError, ShapeError
from ninfer.ops import sampling
from ninfer.ops.sampling import SamplerRows
from ninfer.tensor import DType
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.sampling import Settings, draw, penalised, probabilities
from tests.support.sampling_rows import F32, MARGIN, Counts, Permitted, Row, choose, in_f32

SEEDS = st.integers(0, 2**64 - 1)

filters = st.builds(
    Settings,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.5, 5.0]),
    top_k=st.integers(0, 90),
    top_p=st.sampled_from([0.0, 0.2, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    presence=st.sampled_from([0.0, -1.0, 1.5]),
    frequency=st.sampled_from([0.0, -0.3, 0.4]),
)


@given(
    settings=filters,
    vocabulary=st.integers(2, 80),
    is_coarse=st.booleans(),
    seed=SEEDS,
    position=st.integers(0, 2**31 - 1),
)
@settings(max_examples=150, deadline=None)
def test_choice_is_the_one_of_the_full_sort(
    settings: Settings, vocabulary: int, is_coarse: bool, seed: int, position: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(vocabulary) * 3).astype(np.float32)
    logits = np.round(logits) if is_coarse else logits  # many exact ties
    counts = rng.integers(0, 3, vocabulary).astype(np.int32)
    permitted = rng.random(vocabulary) < 0.8
    addressable = int(rng.integers(1, vocabulary + 1))
    allowed = permitted & (np.arange(vocabulary) < addressable)
    assume(allowed.any())
    rounded = in_f32(settings)
    p = probabilities(logits.astype(np.float64), counts, allowed, rounded)
    expected, margin = draw(p, seed, position)
    nucleus = np.sort(p[p > 0])[::-1]
    assume(margin > MARGIN)
    assume(_is_clear(logits, counts, allowed, rounded, len(nucleus)))

    got = choose([Row(logits, settings, seed, position, counts, permitted)], addressable)

    assert got == [expected]


def _is_clear(
    logits: F32, counts: Counts, allowed: Permitted, settings: Settings, kept: int
) -> bool:
    """Whether a last-digit change of a filter's bound would keep the same ids."""
    sizes = set()
    for nudge in (-1e-9, 1e-9):
        near = dataclasses.replace(
            settings,
            top_p=settings.top_p + nudge if 0 < settings.top_p < 1 else settings.top_p,
            min_p=settings.min_p + nudge if 0 < settings.min_p < 1 else settings.min_p,
        )
        p = probabilities(logits.astype(np.float64), counts, allowed, near)
        sizes.add(int(np.count_nonzero(p)))
    return sizes == {kept}


@given(
    levels=st.lists(st.integers(-2, 2), min_size=1, max_size=70),
    addressable=st.integers(1, 70),
    seed=SEEDS,
)
@settings(max_examples=80, deadline=None)
def test_greedy_takes_the_lowest_of_the_largest_permitted(
    levels: list[int], addressable: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    width = len(levels)
    addressable = min(addressable, width)
    logits = np.array(levels, np.float32)
    counts = rng.integers(0, 2, width).astype(np.int32)
    permitted = rng.random(width) < 0.6
    allowed = permitted & (np.arange(width) < addressable)
    assume(allowed.any())
    greedy = Settings(temperature=0.0, presence=1.0)
    scores = np.where(allowed, penalised(logits.astype(np.float64), counts, greedy), -np.inf)

    got = choose([Row(logits, greedy, counts=counts, permitted=permitted)], addressable)

    assert got == [int(np.argmax(scores))]


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        *((Settings(top_k=k), k) for k in (1, 2, 3, 4)),
        (Settings(top_k=0), 4),
        (Settings(top_k=5), 4),
        (Settings(top_p=0.5), 2),
        (Settings(top_p=0.75), 3),
        (Settings(top_p=0.0), 1),
        (Settings(top_k=2, top_p=0.5), 1),
        (Settings(top_k=3, top_p=1.0, min_p=1.0), 3),
    ],
)
def test_filters_keep_the_lowest_of_equal_ids_up_to_their_exact_bound(
    settings: Settings, kept: int
) -> None:
    logits = np.zeros(6, np.float32)

    got = choose([Row(logits, settings, position=at) for at in range(80)], 4)

    assert set(got) == set(range(kept))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_values_that_are_not_numbers_are_never_chosen(temperature: float, top_p: float) -> None:
    logits = np.full(40, np.nan, np.float32)
    logits[5], logits[7], logits[9] = -np.inf, -50.0, -60.0
    settings = Settings(temperature=temperature, top_p=top_p)

    got = choose([Row(logits, settings, position=at) for at in range(50)], 40)

    assert set(got) == {7}


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0, 1e30])
def test_infinite_logit_wins_over_finite_ones(temperature: float) -> None:
    logits = np.zeros(33, np.float32)
    logits[32] = np.inf
    settings = Settings(temperature=temperature)

    got = choose([Row(logits, settings, position=at) for at in range(20)], 33)

    assert set(got) == {32}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_row_without_numbers_takes_its_lowest_permitted_id(
    temperature: float, value: float
) -> None:
    logits = np.full(40, value, np.float32)
    permitted = np.arange(40) >= 34

    got = choose([Row(logits, Settings(temperature=temperature), permitted=permitted)], 40)

    assert got == [34]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_mask_that_permits_no_addressable_id_is_answered_by_minus_one(temperature: float) -> None:
    logits = np.zeros(40, np.float32)
    permitted = np.arange(40) >= 34

    got = choose([Row(logits, Settings(temperature=temperature), permitted=permitted)], 34)

    assert got == [-1]


@given(seed=SEEDS, num_rows=st.integers(2, 8), num_threads=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_row_does_not_see_its_neighbours(seed: int, num_rows: int, num_threads: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        Row(
            rng.standard_normal(70).astype(np.float32),
            Settings(
                temperature=float(rng.choice([0.0, 1.0])),
                top_k=int(rng.integers(0, 8)),
                top_p=float(rng.choice([0.5, 1.0])),
                presence=float(rng.choice([0.0, 1.0])),
            ),
            int(rng.integers(1 << 60)),
            int(rng.integers(1000)),
            rng.integers(0, 2, 70).astype(np.int32),
            rng.random(70) < 0.9,
        )
        for _ in range(num_rows)
    ]

    together = choose(rows, 66, num_threads)
    alone = [choose([row], 66)[0] for row in rows]

    assert together == alone


def test_seed_and_position_both_move_the_draw() -> None:
    logits = np.zeros(64, np.float32)

    positions = choose([Row(logits, seed=9, position=at) for at in range(30)], 64)
    low = choose([Row(logits, seed=seed) for seed in range(30)], 64)
    high = choose([Row(logits, seed=seed << 32) for seed in range(30)], 64)

    assert min(len(set(positions)), len(set(low)), len(set(high))) > 15


@pytest.mark.slow
@pytest.mark.parametrize("top_p", [0.3, 0.95, 1.0])
def test_real_vocabulary_is_filtered_as_by_a_full_sort(top_p: float) -> None:
    rng = np.random.default_rng(6)
    logits = (rng.standard_normal(248320) * 2).astype(np.float32)
    allowed = np.arange(248320) < 248077
    settings = Settings(top_p=top_p)
    p = probabilities(
        logits.astype(np.float64), np.zeros(248320, np.int32), allowed, in_f32(settings)
    )
    expected, margin = draw(p, 4, 5)

    got = choose([Row(logits, settings, 4, 5)], 248077)

    assert margin > MARGIN
    assert got == [expected]


def test_counting_adds_one_where_flagged() -> None:
    before = np.arange(12, dtype=np.int32).reshape(3, 4)
    with GuardedBench() as bench:
        counts = bench.inout(before)
        operands = [
            bench.put(np.array(values, np.int32))
            for values in ([2, 0, 2, 1], [3, 1, 3, -7], [1, 5, 1, 0])
        ]

        sampling.count_tokens(bench.ctx, counts, *operands)

        bench.check()
        got = bench.read_tensor(counts)
    expected = before.copy()
    expected[2, 3] += 2
    expected[0, 1] += 1
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("slot", "token"), [(-1, 0), (3, 0), (0, -1), (0, 4)])
def test_counting_outside_the_table_is_a_fault_of_the_stream(slot: int, token: int) -> None:
    with GuardedBench() as bench:
        one, slots, tokens = (bench.put(np.array([n], np.int32)) for n in (1, slot, token))
        counts = bench.put(np.zeros((3, 4), np.int32))

        sampling.count_tokens(bench.ctx, counts, slots, tokens, one)

        with pytest.raises(InvariantError):
            bench.stream.synchronize()


@pytest.mark.parametrize(
    "wrong", ["temperature", "seeds", "counts", "slots", "mask", "tokens", "addressable"]
)
def test_sampling_refuses_operands_that_do_not_fit(wrong: str) -> None:
    with GuardedBench() as bench:
        floats = {
            name: bench.out((2,))
            for name in ("temperature", "top_p", "min_p", "presence", "frequency")
        }
        rows = SamplerRows(
            **floats,
            top_k=bench.out((2,), DType.I32),
            seeds=bench.out((2, 2), DType.U32),
            positions=bench.out((2,), DType.I32),
        )
        operands: dict[str, Any] = {
            "logits": bench.out((2, 33)),
            "rows": rows,
            "counts": bench.out((4, 33), DType.I32),
            "slots": bench.out((2,), DType.I32),
            "mask": bench.out((2, 2), DType.U32),
            "addressable": 33,
            "tokens": bench.out((2,), DType.I32),
        }
        replaced: dict[str, dict[str, Any]] = {
            "temperature": {"rows": dataclasses.replace(rows, temperature=bench.out((3,)))},
            "seeds": {"rows": dataclasses.replace(rows, seeds=bench.out((2,), DType.U32))},
            "counts": {"counts": bench.out((4, 32), DType.I32)},
            "slots": {"slots": bench.out((2,), DType.U32)},
            "mask": {"mask": bench.out((2, 1), DType.U32)},
            "tokens": {"tokens": bench.out((3,), DType.I32)},
            "addressable": {"addressable": 34},
        }

        with pytest.raises(ShapeError):
            sampling.sample(bench.ctx, **(operands | replaced[wrong]))
