"""Tiles of products that follow one another: complete, in whole blocks of rows, ending soon."""

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from hypothesis import given
from hypothesis import strategies as st

from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.coded_shape import WARPS
from ninfer.kernels.cuda.coded_turns import Request, Turns, plan, shapes_for
from ninfer.tensor import TensorFormat

Q4, Q5, W8, BF16 = TensorFormat.Q4, TensorFormat.Q5, TensorFormat.W8, TensorFormat.BF16

requests = st.builds(
    Request, st.sampled_from([Q4, W8, BF16]), st.integers(1, 3000), st.sampled_from(list(Ending))
).filter(lambda request: bool(shapes_for(request.format, request.ending)))


def widths(
    *group: tuple[TensorFormat, int, Ending], features: int, columns: int
) -> list[list[int]]:
    """Columns of the tiles of every part of a group on a card of 132 multiprocessors."""
    asked = tuple(Request(format, -(-rows // 16), ending) for format, rows, ending in group)
    plans = plan(asked, features // 64, columns, 132)
    return [[part.shape.tile_columns for part in parts] for parts in plans]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=5),
    st.integers(1, 5000),
    st.integers(1, 20),
    st.integers(0, 5),
)
def test_a_launch_takes_the_multiprocessors_that_are_free_first(
    free: list[tuple[int, int]], tiles: int, cost: int, start: int
) -> None:
    spread = sorted(time for time, count in free for _ in range(count))
    turns = Turns(tuple((float(time), 1) for time in spread))
    blocks = min(tiles, len(spread))
    loads = [(tiles - block + blocks - 1) // blocks for block in range(blocks)]
    expected = [
        time + (start + load * cost if load else 0)
        for time, load in zip(spread, [*loads, *[0] * (len(spread) - blocks)], strict=True)
    ]

    after = turns.after(tiles, float(cost), float(start))

    assert [time for time, count in after.free for _ in range(count)] == sorted(expected)
    assert after.end == max(expected)
    assert after.work == sum(expected)


@given(st.lists(requests, min_size=1, max_size=4), st.integers(1, 300), st.integers(129, 9000))
def test_parts_are_all_of_a_product_in_whole_blocks_of_rows(
    asked: list[Request], k_blocks: int, columns: int
) -> None:
    plans = plan(tuple(asked), k_blocks, columns, 132)

    assert len(plans) == len(asked)
    for request, parts in zip(asked, plans, strict=True):
        at = 0
        for part in parts:
            assert part.first_tile == at
            assert at % WARPS == 0 < part.row_tiles
            assert part.shape in shapes_for(request.format, request.ending)
            at += part.row_tiles
        assert at == request.row_tiles


def test_only_kernels_with_registers_left_have_the_largest_tiles() -> None:
    assert [shape.tile_columns for shape in shapes_for(Q4, Ending.ANY)] == [128, 64]
    assert [shape.tile_columns for shape in shapes_for(Q4, Ending.ADD)] == [256, 128, 64]


def test_many_tiles_are_large_and_few_are_narrow() -> None:
    assert widths((Q4, 34816, Ending.BF16), features=5120, columns=4096) == [[256]]
    assert widths((W8, 2048, Ending.ADD), features=4096, columns=1024) == [[128]]
    assert widths((W8, 2048, Ending.ADD), features=4096, columns=256) == [[64]]


def test_the_last_turn_of_many_tiles_has_narrower_ones() -> None:
    assert widths((Q5, 5120, Ending.ADD), features=17408, columns=1024) == [[256, 64]]
    assert widths((Q5, 5120, Ending.ADD), features=17408, columns=2048) == [[256, 128]]
    assert widths((Q5, 5120, Ending.ADD), features=17408, columns=4096) == [[256]]


def test_a_group_is_cut_for_its_common_end() -> None:
    alone = widths((Q4, 4096, Ending.BF16), features=5120, columns=256)
    together = widths((Q5, 12288, Ending.BF16), (Q4, 4096, Ending.BF16), features=5120, columns=256)

    assert alone != [[256]]
    assert together == [[256], [256]]  # 96 and 32 tiles for 132 multiprocessors
