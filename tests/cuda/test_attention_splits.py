import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.attention_splits import count_splits, num_splits, split_start

LONGEST = 1 << 18


@given(positions=st.integers(1, LONGEST))
@example(positions=8192)
@example(positions=8193)
@example(positions=16384)
@example(positions=16385)
@example(positions=LONGEST)
@settings(max_examples=200, deadline=None)
def test_the_last_split_holds_the_last_position(positions: int) -> None:
    count = num_splits(positions)

    assert split_start.py_func(count - 1) < positions <= split_start.py_func(count)
    assert count_splits.py_func(positions) == count


def test_borders_are_whole_pages_and_widths_never_shrink() -> None:
    borders = np.array([split_start.py_func(split) for split in range(num_splits(LONGEST) + 1)])

    widths = np.diff(borders)
    assert borders[0] == 0
    assert borders[-1] == LONGEST
    assert np.all(widths % 128 == 0)
    assert np.all(np.diff(widths) >= 0)
    assert len(widths) == 224
