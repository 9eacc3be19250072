"""Where prefill chunks end."""

from hypothesis import given
from hypothesis import strategies as st

from ninfer.program.prefill import chunk_stop

CHUNKS = st.sampled_from([128, 256, 1024])


def _cuts(start: int, known: int, chunk: int) -> list[int]:
    cuts = []
    while start < known:
        start = chunk_stop(start, known, chunk)
        cuts.append(start)
    return cuts


@given(known=st.integers(1, 5000), chunk=CHUNKS, data=st.data())
def test_a_later_start_cuts_at_the_same_places(known: int, chunk: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, known - 1))

    cuts = _cuts(start, known, chunk)

    assert cuts == [cut for cut in _cuts(0, known, chunk) if cut > start]


@given(known=st.integers(1, 5000), chunk=CHUNKS)
def test_chunks_are_full_between_multiples_and_cover_everything(known: int, chunk: int) -> None:
    cuts = _cuts(0, known, chunk)

    assert cuts[-1] == known
    assert all(cut % chunk == 0 for cut in cuts[:-1])
    assert len(cuts) == -(-known // chunk)
