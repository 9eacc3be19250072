import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.fragments import (
    fragment_bytes,
    input_bytes,
    pack_columns,
    padded_width,
    unpack_columns,
)


def random_words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    values = rng.standard_normal(shape).astype(np.float32)
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


@given(num_columns=st.integers(1, 20), width=st.integers(1, 400), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_packing_round_trips(num_columns: int, width: int, seed: int) -> None:
    words = random_words(np.random.default_rng(seed), num_columns, width)

    storage = pack_columns(words)
    back, sums = unpack_columns(storage, num_columns, width)

    assert storage.nbytes == input_bytes(num_columns, width)
    np.testing.assert_array_equal(back[:, :width], words)
    np.testing.assert_array_equal(back[:, width:], 0)
    padded = np.zeros((num_columns, padded_width(width)))
    padded[:, :width] = (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
    exact = padded.reshape(num_columns, -1, 64)
    bound = np.abs(exact).sum(axis=-1) * 6 * 2.0**-24
    assert np.all(np.abs(sums - exact.sum(axis=-1)) <= bound)


@pytest.mark.parametrize(
    ("column", "feature", "offset"),
    [
        (0, 0, 0),
        (0, 4, 2),
        (0, 1, 4),
        (0, 7, 14),
        (0, 8, 16),
        (0, 31, 62),
        (1, 0, 64),
        (7, 0, 448),
        (0, 32, 512),
        (0, 128, 2048),
        (8, 0, 4096),
        (9, 133, 4096 + 2048 + 64 + 6),
    ],
)
def test_each_feature_lies_where_the_drawing_says(column: int, feature: int, offset: int) -> None:
    words = np.zeros((10, 200), np.uint16)
    words[column, feature] = 0x3F80

    storage = pack_columns(words)

    assert fragment_bytes(10, 200) == 2 * 4096
    assert np.flatnonzero(storage[: 2 * 4096].view(np.uint16)).tolist() == [offset // 2]
    sums = storage[2 * 4096 :].view(np.float32)
    group = (column // 8) * 32 + (feature // 64) * 8 + column % 8
    assert np.flatnonzero(sums).tolist() == [group]


def test_one_slab_is_the_operand_of_two_products() -> None:
    rng = np.random.default_rng(0)
    words = random_words(rng, 8, 128)
    weight = rng.integers(-8, 8, (16, 32)).astype(np.float64)
    values = (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    fragments = pack_columns(words)[:512].view(np.uint16).reshape(8, 4, 4, 2)

    product = np.zeros((16, 8))
    for first in (0, 2):  # words of one product: B[k, n] of lane 4 n + t, k = 2 t, 2 t + 1, + 8
        for t in range(4):
            for word in (first, first + 1):
                for half in range(2):
                    feature = 8 * t + word + 4 * half
                    b = (fragments[:, t, word, half].astype(np.uint32) << np.uint32(16)).view(
                        np.float32
                    )
                    product += np.outer(weight[:, feature], b)

    np.testing.assert_allclose(product, weight @ values[:, :32].T, rtol=1e-12)
