from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.ops import sampling
from ninfer.tensor import DType
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.sampling import log_softmax

F32 = npt.NDArray[np.float32]


def score(
    logits: F32, targets: Sequence[int], addressable: int, num_threads: int = 1
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    with GuardedBench(num_threads) as bench:
        logprobs, argmax = bench.out((len(logits),)), bench.out((len(logits),), DType.I32)

        sampling.score(
            bench.ctx,
            bench.put(logits),
            bench.put(np.array(targets, np.int32)),
            addressable,
            logprobs,
            argmax,
        )

        bench.check()
        return bench.read_tensor(logprobs), bench.read_tensor(argmax)


@given(
    num_rows=st.integers(1, 6),
    vocabulary=st.integers(1, 90),
    scale=st.sampled_from([0.0, 1.0, 300.0]),
    seed=st.integers(0, 2**64 - 1),
    num_threads=st.integers(1, 2),
)
@settings(max_examples=60, deadline=None)
def test_score_is_the_log_softmax_over_addressable_ids(
    num_rows: int, vocabulary: int, scale: float, seed: int, num_threads: int
) -> None:
    rng = np.random.default_rng(seed)
    addressable = int(rng.integers(1, vocabulary + 1))
    logits = np.round(rng.standard_normal((num_rows, vocabulary)) * scale, 1).astype(np.float32)
    targets = rng.integers(0, addressable, num_rows).tolist()

    logprobs, argmax = score(logits, targets, addressable, num_threads)

    known = logits[:, :addressable].astype(np.float64)
    expected = log_softmax(known)[np.arange(num_rows), targets]
    np.testing.assert_allclose(logprobs, expected, rtol=2.0**-23, atol=1e-12)
    np.testing.assert_array_equal(argmax, known.argmax(axis=1))


@pytest.mark.parametrize("target", [-1, 5, 6, 2**31 - 1])
def test_unaddressable_target_has_no_probability(target: int) -> None:
    logprobs, argmax = score(np.zeros((1, 6), np.float32), [target], 5)

    assert logprobs[0] == -np.inf
    assert argmax[0] == 0


def test_score_survives_values_that_are_not_numbers() -> None:
    logits = np.array([[np.nan, 1.0, -np.inf, 1.0], [np.nan] * 4, [0, np.inf, 0, 0]], np.float32)

    logprobs, argmax = score(logits, [1, 1, 1], 4)

    np.testing.assert_allclose(logprobs, [-np.log(2), -np.inf, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(argmax, [1, 0, 1])


@pytest.mark.parametrize(
    ("shape", "targets", "addressable"),
    [((2, 5), 2, 6), ((2, 5), 2, 0), ((2, 5), 3, 5), ((10,), 2, 5)],
)
def test_scoring_refuses_operands_that_do_not_fit(
    shape: tuple[int, ...], targets: int, addressable: int
) -> None:
    with GuardedBench() as bench, pytest.raises(ShapeError):
        sampling.score(
            bench.ctx,
            bench.out(shape),
            bench.out((targets,), DType.I32),
            addressable,
            bench.out((2,)),
            bench.out((2,), DType.I32),
        )
