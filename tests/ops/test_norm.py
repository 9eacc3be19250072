from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.ops import norm
from ninfer.tensor import DType
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.norm import offset_norm
from tests.support.tolerances import F32_TINY, F32_UNIT

EPS = 1e-6


def words_and_values(
    rng: np.random.Generator, width: int
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float64]]:
    bits = rng.standard_normal(width).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return (bits >> np.uint32(16)).astype(np.uint16), bits.view(np.float32).astype(np.float64)


def rms_norm(
    x: npt.NDArray[np.float32], words: npt.NDArray[np.uint16], num_threads: int = 1
) -> npt.NDArray[Any]:
    with GuardedBench(num_threads) as bench:
        out = bench.out_columns(*x.shape)

        norm.rms_norm(bench.ctx, bench.put(x), bench.put(words), EPS, out)

        bench.check()
        return bench.read_columns(out)


@given(
    num_tokens=st.integers(0, 6),
    width=st.integers(1, 300),
    exponent=st.integers(-120, 120),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_norm_is_the_rounded_formula(num_tokens: int, width: int, exponent: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((num_tokens, width)) * 2.0**exponent).astype(np.float32)
    words, weight = words_and_values(rng, width)

    got = rms_norm(x, words)

    expected = offset_norm(x.astype(np.float64), weight, EPS)
    # Float64 throughout, one rounding at the end.
    bound = np.abs(expected) * F32_UNIT * 1.001 + F32_TINY
    assert np.all(np.abs(got - expected) <= bound)


def test_zero_column_stays_zero() -> None:
    words, _ = words_and_values(np.random.default_rng(0), 64)

    got = rms_norm(np.zeros((2, 64), np.float32), words)

    np.testing.assert_array_equal(got, np.zeros((2, 64)))


@given(num_tokens=st.integers(2, 40), which=st.integers(0, 39), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_column_is_the_same_alone_and_among_others(num_tokens: int, which: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_tokens, 70)).astype(np.float32)
    words, _ = words_and_values(rng, 70)
    row = which % num_tokens

    together, alone = rms_norm(x, words), rms_norm(x[row : row + 1], words)

    np.testing.assert_array_equal(together[row], alone[0])


def test_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((260, 1024)).astype(np.float32)
    words, _ = words_and_values(rng, 1024)

    np.testing.assert_array_equal(rms_norm(x, words, 2), rms_norm(x, words, 1))


def test_not_a_number_stays_in_its_column() -> None:
    x = np.ones((3, 8), np.float32)
    x[1, 2] = np.nan
    words, _ = words_and_values(np.random.default_rng(0), 8)

    got = rms_norm(x, words)

    np.testing.assert_array_equal(np.isnan(got).all(axis=1), [False, True, False])
    np.testing.assert_array_equal(np.isnan(got).any(axis=1), [False, True, False])


@pytest.mark.parametrize(
    ("shape", "weight", "out"),
    [
        ((2, 9), ((8,), DType.BF16), (2, 8)),
        ((2, 8), ((8,), DType.F32), (2, 8)),
        ((2, 8), ((8,), DType.BF16), (3, 8)),
        ((16,), ((8,), DType.BF16), (2, 8)),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    shape: tuple[int, ...], weight: tuple[tuple[int, ...], DType], out: tuple[int, int]
) -> None:
    with GuardedBench() as bench, pytest.raises(ShapeError):
        norm.rms_norm(bench.ctx, bench.out(shape), bench.out(*weight), EPS, bench.out_columns(*out))
