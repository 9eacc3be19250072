"""Where a chunk is cut between its layers."""

from hypothesis import given
from hypothesis import strategies as st

from ninfer.program.prefill_parts import PART_TOKENS, part_layers

LAYERS = st.integers(1, 100)
COLUMNS = st.integers(1, 10_000)


@given(layers=LAYERS, columns=COLUMNS)
def test_parts_cover_every_layer_once_and_in_order(layers: int, columns: int) -> None:
    parts = part_layers(layers, columns)

    assert [layer for part in parts for layer in part] == list(range(layers))


@given(layers=LAYERS, columns=COLUMNS)
def test_no_part_is_more_work_than_it_must_be(layers: int, columns: int) -> None:
    parts = part_layers(layers, columns)

    # Whole layers only: what a part has beyond its share is less than one of them.
    share = max(PART_TOKENS * layers, columns)
    assert all((len(part) - 1) * columns < share for part in parts)
    assert min(len(part) for part in parts) >= 1


@given(layers=LAYERS, columns=st.integers(1, PART_TOKENS))
def test_a_short_chunk_is_one_part(layers: int, columns: int) -> None:
    assert part_layers(layers, columns) == (range(layers),)
