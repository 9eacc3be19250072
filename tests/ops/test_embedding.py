import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import InvariantError, ShapeError
from ninfer.ops import embedding
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, TensorFormat
from tests.support.guarded_bench import GuardedBench
from tests.support.oracles.embedding import gather as oracle
from tests.support.oracles.linear import random_payload, weight_values

every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)


@every_format
@given(
    width=st.integers(1, 300),
    tokens=st.lists(st.integers(0, 10), max_size=9),
    first=st.integers(0, 3),
)
@settings(max_examples=20, deadline=None)
def test_gathered_rows_are_the_stored_values(
    format: TensorFormat, width: int, tokens: list[int], first: int
) -> None:
    payload = random_payload(np.random.default_rng(width), format, 14, width)
    with GuardedBench() as bench:
        table = bench.matrix(format, payload, 14, width).rows(first, 11)
        out = bench.out((len(tokens), width))

        embedding.gather(bench.ctx, table, bench.put(np.array(tokens, np.int32)), out)

        bench.check()
        got = bench.read_tensor(out)
    values = weight_values(format, payload, 14, width)[first:]
    np.testing.assert_array_equal(got, oracle(values, tokens))


@every_format
def test_threads_gather_the_same_rows(format: TensorFormat) -> None:
    rng = np.random.default_rng(5)
    payload = random_payload(rng, format, 30, 130)
    tokens = rng.integers(0, 30, 300).astype(np.int32)
    with GuardedBench(num_threads=3) as bench:
        out = bench.out((300, 130))

        embedding.gather(bench.ctx, bench.matrix(format, payload, 30, 130), bench.put(tokens), out)

        bench.check()
        got = bench.read_tensor(out)
    values = weight_values(format, payload, 30, 130)
    np.testing.assert_array_equal(got, oracle(values, tokens.tolist()))


@pytest.mark.parametrize("token", [-1, 4, 2**31 - 1, -(2**31)])
def test_token_outside_the_table_is_a_fault_of_the_stream(token: int) -> None:
    payload = random_payload(np.random.default_rng(0), TensorFormat.Q4, 6, 64)
    with GuardedBench() as bench:
        table = bench.matrix(TensorFormat.Q4, payload, 6, 64).rows(0, 4)
        tokens = bench.put(np.array([token], np.int32))

        embedding.gather(bench.ctx, table, tokens, bench.out((1, 64)))

        with pytest.raises(InvariantError):
            bench.stream.synchronize()


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(DType.I64, (2, 64)), (DType.I32, (3, 64)), (DType.I32, (2, 65)), (DType.I32, (128,))],
)
def test_operands_that_do_not_fit_are_refused(dtype: DType, shape: tuple[int, ...]) -> None:
    payload = random_payload(np.random.default_rng(0), TensorFormat.Q4, 4, 64)
    with GuardedBench() as bench:
        table = bench.matrix(TensorFormat.Q4, payload, 4, 64)

        with pytest.raises(ShapeError):
            embedding.gather(bench.ctx, table, bench.out((2,), dtype), bench.out(shape))
