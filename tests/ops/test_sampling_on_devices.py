"""Token choice: one body for every device, from tiny vocabularies to the published one."""

import dataclasses

import numpy as np
import pytest

from ninfer.ops import sampling
from ninfer.tensor import DType
from tests.support.cuda_bench import CudaBench
from tests.support.device_benches import BenchFactory, every_device
from tests.support.oracles.sampling import Settings, log_softmax
from tests.support.sampling_oracle import oracle
from tests.support.sampling_rows import Row, choose

VOCABULARY = 248320
ADDRESSABLE = 248077

SETTINGS = [
    Settings(temperature=0.0),
    Settings(temperature=0.0, presence=1.5, frequency=0.4),
    Settings(),
    Settings(temperature=0.7, top_k=20, top_p=0.8),
    Settings(temperature=1.0, top_k=1),
    Settings(temperature=1.0, top_k=40),
    Settings(temperature=1.5, top_p=0.95),
    Settings(temperature=0.6, top_p=0.2, min_p=0.05),
    Settings(temperature=1.0, min_p=0.1),
    Settings(temperature=1.0, top_p=0.0),
    Settings(temperature=5.0, top_k=90, top_p=0.999, presence=-1.0),
    Settings(temperature=0.1, top_k=5, frequency=-0.3),
    Settings(temperature=1.0, min_p=1.0),
]


def random_row(settings: Settings, vocabulary: int, seed: int, *, is_coarse: bool = False) -> Row:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal(vocabulary) * 3).astype(np.float32)
    return Row(
        np.round(logits) if is_coarse else logits,
        settings,
        seed=int(rng.integers(0, 2**63)),
        position=int(rng.integers(0, 2**31)),
        counts=rng.integers(0, 3, vocabulary).astype(np.int32),
        permitted=rng.random(vocabulary) < 0.8,
    )


@every_device
@pytest.mark.parametrize("is_coarse", [False, True])
@pytest.mark.parametrize("vocabulary", [1, 33, 80, 700, 5000])
def test_choices_are_those_of_the_full_sort(
    make_bench: BenchFactory, vocabulary: int, is_coarse: bool
) -> None:
    addressable = max(1, vocabulary - 3)
    rows = [
        random_row(settings, vocabulary, 100 * index + shift, is_coarse=is_coarse)
        for index, settings in enumerate(SETTINGS)
        for shift in range(4)
    ]
    rows = [row for row in rows if row.permit()[:addressable].any()]
    answers = [oracle(row, addressable) for row in rows]

    got = choose(rows, addressable, make_bench=make_bench)

    clear = [(a, g) for (a, is_clear), g in zip(answers, got, strict=True) if is_clear]
    assert vocabulary < 80 or len(clear) > len(rows) // 2
    assert [g for _, g in clear] == [a for a, _ in clear]


@every_device
def test_choices_over_the_published_vocabulary(make_bench: BenchFactory) -> None:
    rows = [random_row(settings, VOCABULARY, 7 + i) for i, settings in enumerate(SETTINGS[:8])]
    answers = [oracle(row, ADDRESSABLE) for row in rows]

    got = choose(rows, ADDRESSABLE, make_bench=lambda threads: make_bench(threads, nbytes=1 << 28))

    clear = [(a, g) for (a, is_clear), g in zip(answers, got, strict=True) if is_clear]
    assert len(clear) >= 5
    assert [g for _, g in clear] == [a for a, _ in clear]


@every_device
@pytest.mark.parametrize("num_permitted", [1, 3, 40, 2000])
def test_sparse_masks_over_the_published_vocabulary(
    make_bench: BenchFactory, num_permitted: int
) -> None:
    rng = np.random.default_rng(num_permitted)
    rows = []
    for i, settings in enumerate(SETTINGS[:8]):
        permitted = np.zeros(VOCABULARY, bool)
        permitted[rng.choice(ADDRESSABLE, num_permitted, replace=False)] = True
        permitted[ADDRESSABLE:] = True  # out of reach all the same
        row = random_row(settings, VOCABULARY, 70 + i)
        rows.append(dataclasses.replace(row, permitted=permitted))
    answers = [oracle(row, ADDRESSABLE) for row in rows]

    got = choose(rows, ADDRESSABLE, make_bench=lambda threads: make_bench(threads, nbytes=1 << 28))

    clear = [(a, g) for (a, is_clear), g in zip(answers, got, strict=True) if is_clear]
    assert len(clear) >= 5
    assert [g for _, g in clear] == [a for a, _ in clear]
    assert all(row.permit()[g] for row, g in zip(rows, got, strict=True))


@every_device
@pytest.mark.parametrize("token", [0, 31, 32, 2079, 2080, 4989])
def test_a_single_permitted_id_is_chosen_wherever_it_lies(
    make_bench: BenchFactory, token: int
) -> None:
    rows = []
    for i, settings in enumerate(SETTINGS):
        permitted = np.zeros(5000, bool)
        permitted[token] = True
        rows.append(dataclasses.replace(random_row(settings, 5000, i), permitted=permitted))

    got = choose(rows, 4990, make_bench=make_bench)

    assert got == [token] * len(rows)


@every_device
def test_a_mask_changes_no_other_row(make_bench: BenchFactory) -> None:
    rows = [random_row(settings, 5000, 80 + i) for i, settings in enumerate(SETTINGS[:8])]
    masked = [
        dataclasses.replace(row, permitted=np.arange(5000) % 97 == i) if i % 2 else row
        for i, row in enumerate(rows)
    ]

    free, constrained = (choose(some, 4990, make_bench=make_bench) for some in (rows, masked))

    assert constrained[::2] == free[::2]
    assert [token % 97 for token in constrained[1::2]] == [1, 3, 5, 7]


@every_device
@pytest.mark.parametrize(
    "settings", [Settings(top_p=0.50017), Settings(top_k=7), Settings(top_k=900, top_p=0.3005)]
)
def test_equal_logits_are_cut_by_id(make_bench: BenchFactory, settings: Settings) -> None:
    rows = [Row(np.zeros(3000, np.float32), settings, seed=s, position=s) for s in range(8)]
    answers = [oracle(row, 3000) for row in rows]

    got = choose(rows, 3000, make_bench=make_bench)

    assert [g for g, (_, ok) in zip(got, answers, strict=True) if ok] == [
        a for a, ok in answers if ok
    ]


@every_device
def test_a_row_is_the_same_alone_and_in_any_batch(make_bench: BenchFactory) -> None:
    rows = [random_row(settings, 5000, 40 + i) for i, settings in enumerate(SETTINGS)]

    together = choose(rows, 4990, make_bench=make_bench)
    alone = [choose([row], 4990, make_bench=make_bench)[0] for row in rows]
    backwards = choose(rows[::-1], 4990, make_bench=make_bench)

    assert together == alone
    assert backwards[::-1] == together


@every_device
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_p", [0.9, 1.0])
def test_values_that_are_not_numbers_are_never_chosen(
    make_bench: BenchFactory, temperature: float, top_p: float
) -> None:
    logits = np.full(40, np.nan, np.float32)
    logits[5], logits[7], logits[9] = -np.inf, -50.0, -80.0
    settings = Settings(temperature=temperature, top_p=top_p)

    got = choose(
        [Row(logits, settings, position=at) for at in range(12)], 40, make_bench=make_bench
    )

    assert set(got) == {7}


@every_device
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0, 1e30])
def test_infinite_logit_wins_over_finite_ones(make_bench: BenchFactory, temperature: float) -> None:
    logits = np.zeros(33, np.float32)
    logits[32] = np.inf

    got = choose([Row(logits, Settings(temperature=temperature))], 33, make_bench=make_bench)

    assert got == [32]


@every_device
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_candidates_take_the_lowest_permitted_id(
    make_bench: BenchFactory, temperature: float
) -> None:
    permitted = np.zeros(100, bool)
    permitted[[41, 77]] = True
    logits = np.full(100, -np.inf, np.float32)
    settings = Settings(temperature=temperature, top_k=3)

    got = choose(
        [
            Row(logits, settings, permitted=permitted),
            Row(logits, settings, permitted=np.zeros(100, bool)),
        ],
        100,
        make_bench=make_bench,
    )

    assert got == [41, -1]


@every_device
def test_counts_are_added_where_flagged(make_bench: BenchFactory) -> None:
    before = np.arange(30, dtype=np.int32).reshape(3, 10)
    with make_bench() as bench:
        counts = bench.inout(before)

        sampling.count_tokens(
            bench.ctx,
            counts,
            bench.put(np.array([2, 0, 2, 9, 2], np.int32)),
            bench.put(np.array([4, 9, 4, 99, 0], np.int32)),
            bench.put(np.array([1, 1, 7, 0, 1], np.int32)),
        )

        bench.check()
        got = bench.read_tensor(counts)
    expected = before.copy()
    for slot, token in ((2, 4), (0, 9), (2, 4), (2, 0)):
        expected[slot, token] += 1
    np.testing.assert_array_equal(got, expected)


@every_device
@pytest.mark.parametrize("addressable", [1, 300, 511, 5000])
def test_scores_are_log_probabilities(make_bench: BenchFactory, addressable: int) -> None:
    rng = np.random.default_rng(addressable)
    logits = (rng.standard_normal((6, 5000)) * 4).astype(np.float32)
    targets = rng.integers(0, addressable, 6).astype(np.int32)
    targets[5] = addressable
    with make_bench() as bench:
        logprobs, argmax = bench.out((6,)), bench.out((6,), DType.I32)

        sampling.score(
            bench.ctx, bench.put(logits), bench.put(targets), addressable, logprobs, argmax
        )

        bench.check()
        got, best = bench.read_tensor(logprobs), bench.read_tensor(argmax)
    exact = log_softmax(logits[:, :addressable].astype(np.float64))
    expected = np.append(exact[np.arange(5), targets[:5]], -np.inf)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(best, exact.argmax(axis=-1))


@pytest.mark.gpu
def test_cuda_choices_equal_the_host_ones_over_the_published_vocabulary() -> None:
    rows = [random_row(settings, VOCABULARY, 60 + i) for i, settings in enumerate(SETTINGS[3:11])]

    is_clear = [oracle(row, ADDRESSABLE)[1] for row in rows]

    host = choose(rows, ADDRESSABLE)
    cuda = choose(rows, ADDRESSABLE, make_bench=lambda threads: CudaBench(threads, nbytes=1 << 28))

    differing = [at for at, (a, b) in enumerate(zip(host, cuda, strict=True)) if a != b]
    assert not any(is_clear[at] for at in differing)
    assert sum(is_clear) >= len(rows) - 2
