"""How products of many columns are cut and shared out."""

import inspect

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda.coded_linear import ending_for, multiply_coded
from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.fragments import input_bytes
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat

Q4, Q5, BF16 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.BF16


class LaunchRecorder:
    """A stream of a large card that notes what is launched."""

    num_multiprocessors = 132

    def __init__(self) -> None:
        self.products: list[dict[str, int]] = []

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: tuple[int, ...]) -> None:
        assert len(args) == len(kernel.params)
        names = inspect.signature(kernel.function).parameters
        self.products.append(dict(zip(names, args, strict=True)))


def products(
    columns: int, width: int, weights: list[tuple[TensorFormat, int, int]]
) -> list[dict[str, int]]:
    """What is launched for views of rows, each with an output of its own."""
    x = LinearInput(Tensor(0, DType.U8, (input_bytes(columns, width),)), columns, width)
    stream, made = LaunchRecorder(), []
    for number, (format, first, rows) in enumerate(weights):
        nbytes = WeightLayout(format, first + rows, width).nbytes
        storage = Tensor(number << 32, DType.U8, (nbytes,))
        weight = Matrix(format, storage, first + rows, width, first, rows)
        out = Tensor(number << 28, DType.BF16, (columns, rows))
        made.append((weight, out, 0, Output.BF16))
    multiply_coded(stream, x, made)  # type: ignore[arg-type]
    return stream.products


def test_only_the_first_product_waits_and_the_largest_comes_first() -> None:
    launched = products(4096, 5120, [(Q4, 0, 4096), (Q5, 0, 12288), (BF16, 0, 48), (BF16, 0, 48)])

    assert [args["follows"] for args in launched] == [0, 1, 1, 1]
    assert [args["num_rows"] for args in launched] == [12288, 4096, 48, 48]


@pytest.mark.parametrize("first", [0, 16, 5])
def test_parts_of_a_product_are_all_its_rows(first: int) -> None:
    launched = products(1024, 2048, [(Q4, first, 5000)])

    assert len(launched) == 2
    at = 0
    for args in launched:
        assert args["first_row"] == first + at
        assert args["first_column"] == at
        at += args["num_rows"]
        assert at == 5000 or (first + at) % 16 == 0
    assert at == 5000


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
