"""How products of many columns are cut and shared out."""

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.coded_linear import (
    ending_for,
    large_tiles,
    shape_for,
    small_tiles,
)
from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.product_output import Output
from ninfer.tensor import DType, Matrix, Tensor, TensorFormat

Q4 = TensorFormat.Q4


def test_tiles_that_end_first_are_chosen() -> None:
    assert shape_for(Q4, 34816 // 16, 4096, Ending.BF16, 132) == large_tiles(Q4)
    assert shape_for(Q4, 6, 4096, Ending.BF16, 132) == small_tiles(Q4)
    assert shape_for(Q4, 5120 // 16, 1024, Ending.BF16, 132) == large_tiles(Q4)
    assert shape_for(Q4, 1024 // 16, 512, Ending.BF16, 132) == small_tiles(Q4)
    assert shape_for(Q4, 34816 // 16, 4096, Ending.ANY, 132) == small_tiles(Q4)


@pytest.mark.parametrize(
    ("address", "width", "rows", "first", "output", "expected"),
    [
        (1024, 48, (0, 32), 16, Output.BF16, Ending.BF16),
        (1024, 48, (16, 48), 0, Output.ADD, Ending.ADD),
        (1024, 48, (0, 32), 16, Output.F32, Ending.ANY),
        (1024, 49, (0, 32), 16, Output.BF16, Ending.ANY),
        (1024, 48, (0, 33), 8, Output.BF16, Ending.ANY),
        (1024, 48, (8, 32), 8, Output.BF16, Ending.ANY),
        (1024, 48, (0, 32), 3, Output.ADD, Ending.ANY),
        (1032, 48, (0, 32), 8, Output.BF16, Ending.ANY),
    ],
)
def test_only_aligned_outputs_are_written_in_pieces(
    address: int,
    width: int,
    rows: tuple[int, int],
    first: int,
    output: Output,
    expected: Ending,
) -> None:
    out = Tensor(address, DType.BF16, (10, width))
    weight = Matrix(Q4, Tensor(0, DType.U8, (1,)), 100, 128, *rows)

    assert ending_for(out, weight, first, output) is expected
