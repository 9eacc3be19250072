"""How wide products are cut and shared out."""

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import ShapeError
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.wide_layout import image_bytes
from ninfer.kernels.cuda.wide_linear import NARROW, WIDE, cut, ending_for, shape_for
from ninfer.kernels.cuda.wide_output import Ending
from ninfer.tensor import DType, Tensor


@given(
    st.integers(4, 400),
    st.integers(1, 40_000),
    st.integers(1, 20_000),
    st.integers(1, 2_000),
)
def test_a_piece_and_a_slab_fit_into_scratch_memory(
    blocks: int, num_rows: int, num_columns: int, width: int
) -> None:
    scratch = blocks * image_bytes(128, width) + 77

    piece, slab = cut(scratch, num_rows, num_columns, width)

    assert image_bytes(piece, width) + image_bytes(slab, width) <= scratch
    assert piece % 128 == 0 < piece
    assert slab % 256 == 0 < slab
    # Even parts: no more of them than the largest would make, and none empty.
    assert (-(-num_rows // slab) - 1) * slab < num_rows


def test_products_of_big_models_are_cut_once() -> None:
    for rows, width in ((34816, 5120), (5120, 17408), (12288, 5120)):
        piece, slab = cut(384 << 20, rows, 4096, width)
        assert piece >= 4096
        assert slab >= rows


def test_too_little_scratch_memory_is_refused() -> None:
    with pytest.raises(ShapeError):
        cut(1 << 20, 256, 256, 5120)


def test_tiles_that_end_first_are_chosen() -> None:
    assert shape_for(34816, 4096, 132) == WIDE
    assert shape_for(96, 4096, 132) == NARROW
    assert shape_for(5120, 1024, 132) == NARROW


@pytest.mark.parametrize(
    ("address", "width", "num_rows", "first", "output", "expected"),
    [
        (1024, 48, 32, 16, Output.BF16, Ending.BF16),
        (1024, 48, 48, 0, Output.ADD, Ending.ADD),
        (1024, 48, 32, 16, Output.F32, Ending.ANY),
        (1024, 49, 32, 16, Output.BF16, Ending.ANY),
        (1024, 48, 33, 8, Output.BF16, Ending.ANY),
        (1024, 48, 32, 3, Output.ADD, Ending.ANY),
        (1032, 48, 32, 8, Output.BF16, Ending.ANY),
    ],
)
def test_only_aligned_outputs_are_written_in_pieces(
    address: int, width: int, num_rows: int, first: int, output: Output, expected: Ending
) -> None:
    out = Tensor(address, DType.BF16, (10, width))

    assert ending_for(out, num_rows, first, output) is expected
