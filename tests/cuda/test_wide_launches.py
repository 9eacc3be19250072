"""Which launches make products of 9 to 32 columns, and how they fill the card."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.compilation import kernel_shapes
from ninfer.kernels.cuda import linear
from ninfer.kernels.cuda.fragments import input_bytes
from ninfer.kernels.cuda.launch import RESERVED_SHARED
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.kernels.cuda.weight_pairs import PAIR_FORMATS
from ninfer.kernels.cuda.wide_shape import (
    COLUMN_TILES,
    LEAST_WARPS,
    MOST_COLUMNS,
    choose_launch,
    column_tiles,
    most_warps,
    turn_bytes,
)
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat
from tests.cuda.test_few_launches import LaunchRecorder

Q4, Q5, Q6 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.Q6
W8, BF16 = TensorFormat.W8, TensorFormat.BF16


class Card(LaunchRecorder):
    """A large card that notes what is launched."""

    has_warpgroups = True


def launches(
    weights: Sequence[tuple[TensorFormat, int]],
    width: int,
    columns: int,
    card: Card | None = None,
) -> list[str]:
    x = LinearInput(Tensor(0, DType.U8, (input_bytes(columns, width),)), columns, width)
    stream: Any = card or Card(227 << 10)
    products = []
    for format, rows in weights:
        storage = Tensor(0, DType.U8, (WeightLayout(format, rows, width).nbytes,))
        out = Tensor(0, DType.BF16, (columns, rows))
        products.append((Matrix(format, storage, rows, width, 0, rows), out, 0))
    linear.project_all(stream, x, products)
    names: list[str] = stream.names
    return names


@pytest.mark.parametrize(("columns", "suffix"), [(9, "16"), (16, "16"), (17, "32"), (32, "32")])
@pytest.mark.parametrize(
    ("weights", "width", "formats"),
    [
        ([(Q4, 4096), (Q5, 12288), (BF16, 48), (BF16, 48)], 5120, "q4_q5_bf16"),
        ([(Q4, 7168), (Q5, 7168)], 5120, "q4_q5_bf16"),
        ([(Q4, 34816)], 5120, "q4"),
        ([(Q5, 5120)], 17408, "q5"),
        ([(Q5, 5120)], 6144, "q5"),
        ([(W8, 12288), (BF16, 32), (BF16, 32)], 2048, "w8_bf16"),
    ],
)
def test_weights_of_a_published_layer_share_a_launch(
    weights: list[tuple[TensorFormat, int]], width: int, formats: str, columns: int, suffix: str
) -> None:
    assert launches(weights, width, columns) == [f"wide_{formats}_{suffix}_3"]


def test_few_row_tiles_and_few_columns_of_six_bits_are_left_to_other_kernels() -> None:
    assert launches([(Q6, 248320)], 5120, 17) == ["wide_q6_32_3"]
    assert launches([(Q6, 248320)], 5120, 16)[0].startswith("linear_q6")
    assert launches([(W8, 2048)], 4096, 32)[0].startswith("linear_w8")
    assert launches([(BF16, 257), (W8, 1024)], 2048, 16) == ["wide_w8_bf16_16_3"]


def test_other_numbers_of_columns_take_other_kernels() -> None:
    for columns in (1, 8, 33, 128, 129):
        assert not any(name.startswith("wide") for name in launches([(Q4, 64)], 640, columns))
    assert launches([(Q4, 64)], 640, 0) == []


@pytest.mark.parametrize(
    "card_has",
    [{"has_clusters": False, "has_warpgroups": False}, {"num_multiprocessors": 7}],
    ids=["no-clusters", "few-multiprocessors"],
)
def test_what_clusters_cannot_make_is_made_alone(card_has: dict[str, Any]) -> None:
    card = Card(99 << 10)
    for name, value in card_has.items():
        setattr(card, name, value)

    names = launches([(Q4, 4096), (Q5, 12288), (BF16, 48)], 5120, 16, card)

    assert [name.split("_")[:2] for name in names] == [
        ["linear", "q4"], ["linear", "q5"], ["linear", "bf16"],
    ]  # fmt: skip


def test_columns_without_room_are_multiplied_by_another_kernel() -> None:
    assert launches([(Q5, 5120)], 40960, 32)[0].startswith("linear_q5")
    assert launches([(Q5, 5120)], 17408, 32, Card(99 << 10))[0].startswith("linear_q5")


@pytest.mark.parametrize("shared_bytes", [99 << 10, 227 << 10])
@pytest.mark.parametrize("model_id", ["qwen3.5-0.8b", "qwen3.6-27b", "qwen3.6-35b-a3b"])
def test_what_a_model_launches_is_declared(model_id: str, shared_bytes: int) -> None:
    shapes = replace(kernel_shapes(model_id), block_shared_bytes=shared_bytes)
    declared = {kernel.name for kernel in linear.declared(shapes)}

    for columns in (9, 16, 17, 32):
        for rows in (32, 5120, 248320):
            for formats in ((Q4,), (Q5,), (Q6,), (W8,), (BF16,), (Q4, Q5), (W8, BF16)):
                names = launches(
                    [(format, rows) for format in formats],
                    shapes.hidden, columns, Card(shared_bytes),
                )  # fmt: skip
                assert set(names) <= declared


@given(
    st.sampled_from([(Q4,), (Q5,), (Q6,), (W8,), (BF16,), (Q4, Q5, BF16)]),
    st.sampled_from(COLUMN_TILES),
    st.integers(1, 10000),
    st.integers(1, 150),
    st.integers(1, 20),
    st.sampled_from([99 << 10, 163 << 10, 227 << 10]),
)
def test_a_launch_makes_every_pair_and_fits(
    formats: tuple[TensorFormat, ...],
    tiles: int,
    pairs: int,
    k_tiles: int,
    clusters: int,
    most: int,
) -> None:
    chosen = choose_launch(formats, tiles, pairs, k_tiles, clusters, most)

    if chosen is None:
        assert k_tiles > 8  # a part of one k tile always has room
        return
    assert LEAST_WARPS <= chosen.warps <= most_warps(formats)
    assert (chosen.turns - 1) * clusters * chosen.warps < pairs
    assert pairs <= chosen.turns * clusters * chosen.warps
    assert chosen.shared_bytes + RESERVED_SHARED <= most
    assert chosen.sums_at % 16 == 0
    sums = turn_bytes(tiles, chosen.warps) * min(chosen.turns, 2)
    assert chosen.sums_at + sums <= chosen.shared_bytes


def test_column_tiles_hold_the_columns() -> None:
    for columns in range(9, MOST_COLUMNS + 1):
        assert 8 * column_tiles(columns) >= columns
    assert all(format in PAIR_FORMATS for format in (Q4, Q5, Q6, W8, BF16))
