"""Kernels that devices with smaller blocks and without warpgroups choose, on any CUDA device.

Against the formulas, and bit for bit against the kernels of larger blocks where they do the same.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from ninfer.tensor import DType, TensorFormat
from tests.ops import test_moe_on_cuda as moe
from tests.ops.test_attention_on_cuda import (
    LENGTHS,
    attend,
    every_dtype,
    relative_error,
)
from tests.ops.test_moe import Columns, Layer
from tests.support.attention_columns import random_columns
from tests.support.cuda_cache import make_content
from tests.support.narrow_stream import MIDDLE_BYTES, NARROW_BYTES

pytestmark = pytest.mark.gpu


@every_dtype
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (40, 300), (1500, 1640)])
def test_prefill_agrees_with_the_formula(first: int, stop: int, dtype: DType) -> None:
    columns = random_columns(12, 2, 256, [(0, position) for position in range(first, stop)])
    content = make_content(dtype, 2, 256, [stop])

    out = attend(columns, content, True, NARROW_BYTES)

    # As for the kernels of larger blocks.
    assert relative_error(out, columns, content) <= 2.0**-7
    np.testing.assert_array_equal(attend(columns, content, True, MIDDLE_BYTES), out)


@every_dtype
def test_chunks_do_not_change_a_bit_of_a_prefill(dtype: DType) -> None:
    columns = random_columns(6, 1, 256, [(0, position) for position in range(300)])
    content = make_content(dtype, 1, 256, [300])
    whole = attend(columns, content, True, NARROW_BYTES)

    chunks = [
        attend(columns.take(slice(first, stop)), content, True, NARROW_BYTES)
        for first, stop in itertools.pairwise([0, 1, 64, 200, 300])
    ]

    np.testing.assert_array_equal(np.concatenate(chunks), whole)


@every_dtype
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(24, 4), (20, 2)])
def test_decode_has_the_bits_of_larger_blocks(
    num_heads: int, num_kv_heads: int, dtype: DType
) -> None:
    places = [(row, length - 1) for row, length in enumerate(LENGTHS)]
    columns = random_columns(num_heads, num_kv_heads, 256, places)
    content = make_content(dtype, num_kv_heads, 256, LENGTHS)

    out = attend(columns, content, False, NARROW_BYTES)

    assert relative_error(out, columns, content) <= 2.0**-7
    np.testing.assert_array_equal(out, attend(columns, content))


def experts_of_a_model() -> tuple[Layer, Columns]:
    """Rows of whole experts need more than a small block has; 40 tokens share experts."""
    layer = Layer(TensorFormat.BF16, 8, 2048, 512)
    return layer, Columns(layer, 40, 8)


def test_experts_agree_with_the_formula_and_have_the_bits_of_larger_blocks() -> None:
    layer, columns = experts_of_a_model()

    def narrow(some: list[int]) -> Any:
        return moe.run(layer, columns, some, NARROW_BYTES)

    out = narrow(list(range(40)))

    # One rounding of the activation and one of the result: 2^-9 each.
    assert moe.relative_error(out, moe.expected_of(layer, columns)) <= 2.0**-8
    np.testing.assert_array_equal(out, moe.run(layer, columns, list(range(40))))
    np.testing.assert_array_equal(narrow(list(range(3, 10))), out[3:10])
    np.testing.assert_array_equal(narrow([5]), out[5:6])
