from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.ops import pointwise
from ninfer.tensor import DType
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.pointwise import swiglu as oracle
from tests.support.tolerances import F32_UNIT


def swiglu(gate_up: npt.NDArray[np.float32], num_threads: int = 1) -> npt.NDArray[Any]:
    with GuardedBench(num_threads) as bench:
        out = bench.out_columns(len(gate_up), gate_up.shape[1] // 2)

        pointwise.swiglu(bench.ctx, bench.put(gate_up), out)

        bench.check()
        return bench.read_columns(out)


@given(
    num_tokens=st.integers(0, 5),
    width=st.integers(1, 200),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 20.0]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_gate_is_the_formula(num_tokens: int, width: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gate_up = (rng.standard_normal((num_tokens, 2 * width)) * scale).astype(np.float32)

    got = swiglu(gate_up)

    expected = oracle(gate_up.astype(np.float64))
    # exp (2 units), 1 + e, the quotient and the product; products near zero lose digits.
    bound = np.abs(expected) * 2 * F32_UNIT * 6 + 2.0**-125
    assert np.all(np.abs(got - expected) <= bound)


@pytest.mark.parametrize(
    ("gate", "expected"),
    [(1e4, 3e4), (np.inf, np.inf), (-1e4, 0.0), (-104.0, 0.0), (0.0, 0.0), (-3e38, 0.0)],
)
def test_extreme_gates_saturate(gate: float, expected: float) -> None:
    got = swiglu(np.array([[gate, 3.0]], np.float32))

    np.testing.assert_allclose(got[0, 0], expected, atol=1e-40)


def test_not_a_number_stays_where_it_is() -> None:
    gate_up = np.ones((2, 6), np.float32)
    gate_up[0, 1] = np.nan
    gate_up[1, 5] = np.nan

    got = swiglu(gate_up)

    np.testing.assert_array_equal(np.isnan(got), [[False, True, False], [False, False, True]])


def test_columns_and_threads_do_not_change_a_bit() -> None:
    gate_up = np.random.default_rng(3).standard_normal((65, 2 * 1031)).astype(np.float32)

    single, shared = swiglu(gate_up), swiglu(gate_up, num_threads=2)
    alone = swiglu(gate_up[17:18])

    np.testing.assert_array_equal(shared, single)
    np.testing.assert_array_equal(alone[0], single[17])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 9), DType.F32), ((3, 8), DType.F32), ((2, 8), DType.BF16), ((16,), DType.F32)],
)
def test_operands_that_do_not_fit_are_refused(shape: tuple[int, ...], dtype: DType) -> None:
    with GuardedBench() as bench, pytest.raises(ShapeError):
        pointwise.swiglu(bench.ctx, bench.out(shape, dtype), bench.out_columns(2, 4))
