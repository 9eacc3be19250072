"""The image of columns: its order, and room for it in the storage of a linear input."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import fragments
from ninfer.kernels.cuda.column_image import (
    FRAGMENT_COLUMNS,
    image_bytes,
    image_of,
    input_bytes,
    is_image,
    words_of,
)

counts = st.integers(0, 5000)
widths = st.integers(1, 20_000)


def random_words(seed: int, *shape: int) -> npt.NDArray[np.uint16]:
    return np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16)


def test_pairs_of_a_slab_lie_where_the_documentation_says() -> None:
    columns = np.arange(131 * 128, dtype=np.uint16).reshape(131, 128)
    image = image_of(columns).view(np.uint16)

    for column, slab, chunk, pair in ((0, 0, 0, 0), (5, 1, 2, 3), (127, 3, 1, 2), (130, 2, 3, 1)):
        block = column // 128 * 2 + slab // 2
        piece = 4 * (slab % 2) + pair
        at = block * 8192 + column % 128 * 64 + (piece ^ column % 8) * 8 + 2 * chunk
        first = 32 * slab + 8 * chunk + pair
        assert list(image[at : at + 2]) == [columns[column, first], columns[column, first + 4]]


@given(num_columns=st.integers(1, 300), width=st.integers(1, 400), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_images_round_trip(num_columns: int, width: int, seed: int) -> None:
    words = random_words(seed, num_columns, width)

    image = image_of(words)
    back = words_of(image, num_columns, width)

    assert image.nbytes == image_bytes(num_columns, width)
    np.testing.assert_array_equal(back[:, :width], words)
    np.testing.assert_array_equal(back[:, width:], 0)


@given(num_columns=counts, width=widths)
def test_a_linear_input_has_room_for_either_order(num_columns: int, width: int) -> None:
    nbytes = input_bytes(num_columns, width)

    assert nbytes >= fragments.input_bytes(num_columns, width)
    for has_warpgroups in (False, True):
        if is_image(num_columns, has_warpgroups):
            assert nbytes >= image_bytes(num_columns, width)


@given(num_columns=counts, fewer=counts, width=widths)
def test_fewer_columns_fit_into_the_storage_of_more(
    num_columns: int, fewer: int, width: int
) -> None:
    most = max(num_columns, fewer)

    assert input_bytes(min(num_columns, fewer), width) <= input_bytes(most, width)


def test_few_columns_are_fragments_on_every_device() -> None:
    assert not is_image(FRAGMENT_COLUMNS, True)
    assert is_image(FRAGMENT_COLUMNS + 1, True)
    assert not is_image(FRAGMENT_COLUMNS + 1, False)
    assert input_bytes(FRAGMENT_COLUMNS, 5120) == fragments.input_bytes(FRAGMENT_COLUMNS, 5120)
