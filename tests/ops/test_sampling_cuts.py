"""Where filters cut: distributions that are hard to sort, and the ids on both sides of a cut.

Positions are searched for at which the last kept id wins, and at which the first one that is cut
off would win if it stood: a cut that is off by one changes those tokens.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.cuda_bench import CudaBench
from tests.support.device_benches import BenchFactory, every_device
from tests.support.oracles.sampling import Settings, gumbels, probabilities
from tests.support.sampling_oracle import MARGIN, oracle
from tests.support.sampling_rows import Row, choose, in_f32

VOCABULARY = 248320
ADDRESSABLE = 248077
SEED = 77
_MOST_TRIES = 3000

EDGES: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda rng, width: rng.standard_normal(width) * 3,
    "nearly equal": lambda rng, width: rng.standard_normal(width) * 0.01,
    "equal": lambda rng, width: np.full(width, -2.5),
    "two values": lambda rng, width: np.where(rng.random(width) < 0.5, 1.0, 1.25),
    "steps": lambda rng, width: np.round(rng.standard_normal(width) * 2),
    "exponents": lambda rng, width: 2.0 ** rng.uniform(-30, 3, width) * rng.choice([-1, 1], width),
}


def tries() -> Iterator[npt.NDArray[np.int64]]:
    """Positions to look at, some at a time."""
    yield from np.arange(_MOST_TRIES).reshape(-1, 100)


def edge_rows(kind: str, settings: Settings, width: int, addressable: int) -> list[Row]:
    """Rows in which one of the two ids beside a cut wins, or would without the cut."""
    rng = np.random.default_rng(len(kind))
    logits = EDGES[kind](rng, width).astype(np.float32)
    row = Row(logits, settings, SEED, permitted=rng.random(width) < 0.9)
    allowed = row.permit() & (np.arange(width) < addressable)
    scores = np.where(allowed, logits.astype(np.float64) / in_f32(settings).temperature, -np.inf)
    order = np.lexsort((np.arange(width), -scores))
    p = probabilities(logits.astype(np.float64), row.count(), allowed, in_f32(settings))
    size = int(np.count_nonzero(p))
    ids = order[: size + 1]
    found: list[int] = []
    for positions in tries():
        noisy = scores[ids] + gumbels(SEED, positions[:, None], ids)
        first = np.argmax(noisy, axis=1)
        best, second = np.sort(noisy, axis=1)[:, :-3:-1].T
        found += positions[(first >= size - 1) & (best - second > MARGIN)].tolist()
        if len(found) >= 8:
            break
    return [dataclasses.replace(row, position=position) for position in found[:8]]


@every_device
@pytest.mark.parametrize("kind", sorted(EDGES))
@pytest.mark.parametrize(
    "settings",
    [
        Settings(top_k=5),
        Settings(top_k=40),
        Settings(temperature=4.0, top_k=300),
        Settings(top_p=0.10007),
        Settings(temperature=2.0, top_k=310, top_p=0.90013),
        Settings(temperature=20.0, top_p=0.40013),
    ],
    ids=str,
)
def test_both_sides_of_a_cut_are_where_a_full_sort_has_them(
    make_bench: BenchFactory, kind: str, settings: Settings
) -> None:
    rows = edge_rows(kind, settings, 400, 390)
    answers = [oracle(row, 390) for row in rows]
    clear = [row for row, (_, ok) in zip(rows, answers, strict=True) if ok]

    got = choose(clear, 390, make_bench=make_bench) if clear else []

    assert got == [token for token, ok in answers if ok]


def far_rows(settings: Settings, width: int) -> list[Row]:
    """Rows in which one of many improbable ids would win without a cut; some of them are kept."""
    rng = np.random.default_rng(width)
    logits = (rng.standard_normal(width) * 0.01).astype(np.float32)
    logits[7] = 12.0
    row = Row(logits, settings, SEED)
    found: list[int] = []
    for positions in tries():
        noisy = logits + gumbels(SEED, positions[:, None], np.arange(width))
        found += positions[np.argmax(noisy, axis=1) != 7].tolist()
        if len(found) >= 12:
            break
    return [dataclasses.replace(row, position=position) for position in found[:12]]


@every_device
@pytest.mark.parametrize("settings", [Settings(top_k=300), Settings(top_p=0.9975)], ids=str)
def test_a_cut_far_below_the_best_one_is_found(
    make_bench: BenchFactory, settings: Settings
) -> None:
    rows = far_rows(settings, 700)
    answers = [oracle(row, 700) for row in rows]
    clear = [row for row, (_, ok) in zip(rows, answers, strict=True) if ok]
    expected = [token for token, ok in answers if ok]

    got = choose(clear, 700, make_bench=make_bench)

    assert 2 < expected.count(7) < len(expected) - 2
    assert got == expected


def long_row(kind: str, settings: Settings, seed: int) -> Row:
    rng = np.random.default_rng(seed)
    logits = EDGES[kind](rng, VOCABULARY).astype(np.float32)
    return Row(
        logits,
        settings,
        seed=int(rng.integers(0, 2**63)),
        position=int(rng.integers(0, 2**31)),
        counts=rng.integers(0, 3, VOCABULARY).astype(np.int32),
        permitted=rng.random(VOCABULARY) < 0.8,
    )


LONG = [
    Settings(top_p=0.95),
    Settings(temperature=1.3, top_p=0.5, presence=0.5),
    Settings(top_k=1000, top_p=0.7003),
    Settings(top_k=100000),
    Settings(temperature=1e30, top_p=0.25003),
    Settings(temperature=0.05, top_p=0.999),
    Settings(top_k=20, top_p=0.8, presence=1.5),
    Settings(min_p=0.05, temperature=3.0),
]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", sorted(EDGES))
def test_cuts_of_the_published_vocabulary_are_those_of_the_full_sort(kind: str) -> None:
    rows = [long_row(kind, settings, 30 + i) for i, settings in enumerate(LONG)]
    answers = [oracle(row, ADDRESSABLE) for row in rows]

    got = choose(rows, ADDRESSABLE, make_bench=_wide)
    alone = [choose([row], ADDRESSABLE, make_bench=_wide)[0] for row in rows[:4]]
    backwards = choose(rows[::-1], ADDRESSABLE, make_bench=_wide)[::-1]

    clear = [(a, g) for (a, is_clear), g in zip(answers, got, strict=True) if is_clear]
    assert len(clear) >= 6
    assert [g for _, g in clear] == [a for a, _ in clear]
    assert alone == got[:4]
    assert backwards == got


@pytest.mark.gpu
def test_devices_without_clusters_choose_the_same() -> None:
    rows = [long_row("normal", settings, 60 + i) for i, settings in enumerate(LONG)]
    answers = [oracle(row, ADDRESSABLE) for row in rows]

    got = choose(
        rows, ADDRESSABLE, make_bench=lambda n: CudaBench(n, nbytes=1 << 28, narrow_bytes=99 << 10)
    )

    clear = [(a, g) for (a, is_clear), g in zip(answers, got, strict=True) if is_clear]
    assert [g for _, g in clear] == [a for a, _ in clear]


def _wide(num_threads: int) -> Any:
    return CudaBench(num_threads, nbytes=1 << 28)
