"""Which weights of the same columns share a launch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.compilation import kernel_shapes
from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import few_linear
from ninfer.kernels.cuda.few_linear import multiply_few
from ninfer.kernels.cuda.few_product import TOGETHER
from ninfer.kernels.cuda.fragments import input_bytes
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.row_products import Formats, RowProduct
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat

Q4, Q5, Q6 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6
W8, BF16 = TensorFormat.W8, TensorFormat.BF16


class LaunchRecorder:
    """A stream of a large card that notes what is launched."""

    num_multiprocessors = 132
    has_clusters = True

    def __init__(self, shared_bytes: int) -> None:
        self.shared_bytes = shared_bytes
        self.names: list[str] = []

    def num_clusters(self, kernel: Kernel) -> int:
        return self.num_multiprocessors // kernel.cluster_blocks

    def launch(self, kernel: Kernel, grid: Any, args: Any, **options: Any) -> None:
        assert len(args) == len(kernel.params)
        self.names.append(kernel.name)


def launches(
    weights: Sequence[tuple[TensorFormat, int]],
    width: int,
    columns: int,
    shared_bytes: int = 227 << 10,
) -> list[str]:
    x = LinearInput(Tensor(0, DType.U8, (input_bytes(columns, width),)), columns, width)
    stream = LaunchRecorder(shared_bytes)
    products = []
    for format, rows in weights:
        storage = Tensor(0, DType.U8, (WeightLayout(format, rows, width).nbytes,))
        weight = Matrix(format, storage, rows, width, 0, rows)
        out = Tensor(0, DType.BF16, (columns, rows))
        products.append(RowProduct.of(weight, out, 0, Output.BF16))
    multiply_few(stream, x, products)  # type: ignore[arg-type]
    return stream.names


@pytest.mark.parametrize("columns", [1, 4, 8])
@pytest.mark.parametrize(
    ("weights", "width"),
    [
        ([(Q4, 4096), (Q5, 12288), (BF16, 48), (BF16, 48)], 5120),  # inputs of a DeltaNet layer
        ([(BF16, 48), (Q5, 12288), (Q4, 4096)], 5120),  # the order of weights is free
        ([(Q4, 7168), (Q5, 7168)], 5120),
        ([(W8, 12288), (BF16, 32), (BF16, 32)], 2048),
        ([(BF16, 257), (W8, 1024)], 2048),  # router and shared expert
    ],
)
def test_weights_of_a_published_layer_share_a_launch(
    weights: list[tuple[TensorFormat, int]], width: int, columns: int
) -> None:
    assert len(launches(weights, width, columns)) == 1


@pytest.mark.parametrize("width", [256, 17408])
def test_nothing_is_launched_without_a_column(width: int) -> None:
    assert launches([(Q5, 5120)], width, 0) == []


def test_formats_without_a_kernel_for_both_follow_one_another() -> None:
    assert len(launches([(Q6, 32), (Q4, 32)], 256, 2)) == 2


@pytest.mark.parametrize("columns", [1, 2, 5, 8])
def test_few_row_tiles_of_a_long_weight_are_shared_out_evenly(columns: int) -> None:
    assert launches([(Q5, 5120)], 17408, columns) == ["pair_q5"]


@pytest.mark.parametrize("columns", [1, 8])
@pytest.mark.parametrize(
    ("format", "rows", "width", "shared_bytes"),
    [
        (Q5, 5120, 6144, 227 << 10),  # short
        (Q5, 4096, 17408, 227 << 10),  # two row tiles a multiprocessor
        (Q5, 5440, 17408, 227 << 10),  # more than the pairs make at once
        (Q5, 5120, 18432, 227 << 10),  # no room for the columns
        (Q5, 5120, 17408, 163 << 10),
        (Q4, 5120, 17408, 227 << 10),
    ],
)
def test_other_weights_are_not_shared_out_by_pairs(
    format: TensorFormat, rows: int, width: int, shared_bytes: int, columns: int
) -> None:
    assert not launches([(format, rows)], width, columns, shared_bytes)[0].startswith("pair")


@pytest.mark.parametrize("columns", [1, 8])
@pytest.mark.parametrize("width", [2048, 5120])
def test_a_head_is_made_by_whole_row_tiles_of_a_warp(width: int, columns: int) -> None:
    assert launches([(Q6, 248320)], width, columns) == ["whole_q6"]
    assert launches([(Q6, 16384)], width, columns) != ["whole_q6"]
    assert launches([(Q6, 248320)], width - 128, columns) != ["whole_q6"]


@pytest.mark.parametrize(
    ("weights", "width", "few", "many"),
    [
        ([(W8, 2048)], 4096, "narrow_w8_4_1", "few_w8_16x8"),  # outputs of the 35B
        ([(BF16, 257), (W8, 1024)], 2048, "narrow_w8_bf16_2_1", "few_w8_bf16_16x8"),
        ([(W8, 12288), (BF16, 64)], 2048, "few_w8_bf16_16x4", "narrow_w8_bf16_2_3"),
        ([(W8, 9216)], 2048, "few_w8_16x4", "narrow_w8_2_3"),
        ([(W8, 2048)], 512, "few_w8_16x4", "few_w8_16x8"),  # parts without a tile
        ([(Q5, 2048)], 4096, "few_q5_16x4", "held_q5"),
    ],
)
def test_all_of_a_narrow_weight_is_asked_for_at_once(
    weights: list[tuple[TensorFormat, int]], width: int, few: str, many: str
) -> None:
    assert launches(weights, width, 4) == [few]
    assert launches(weights, width, 5) == launches(weights, width, 8) == [many]


def test_without_clusters_there_are_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaunchRecorder, "has_clusters", False)

    assert launches([(Q5, 5120)], 17408, 8) == ["few_q5_16x8"]


@pytest.mark.parametrize("shared_bytes", [99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("model_id", ["qwen3.5-0.8b", "qwen3.6-27b", "qwen3.6-35b-a3b"])
def test_what_a_model_launches_is_declared(model_id: str, shared_bytes: int) -> None:
    shapes = replace(kernel_shapes(model_id), block_shared_bytes=shared_bytes)
    declared = {kernel.name for kernel in few_linear.declared(shapes)}
    widths = {
        shapes.hidden,
        shapes.num_heads * shapes.head_dim,
        shapes.num_value_heads * shapes.value_dim,
        shapes.intermediate or shapes.shared_width,
    }
    alone = [(format,) for format in (Q4, Q5, Q6, W8, BF16)]
    cases: list[tuple[int, Formats]] = [(width, each) for width in widths for each in alone]
    cases += [(shapes.hidden, formats) for formats in TOGETHER]

    launched = {
        name
        for width, formats in cases
        for columns in range(1, 9)
        for rows in (32, 4096, 5120, 248320)
        for name in launches([(f, rows) for f in formats], width, columns, shared_bytes)
    }

    assert launched <= declared
