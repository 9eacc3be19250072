"""Coverage of spans behaves like a set of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact.span_coverage import SpanCoverage

SPANS = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda span: (span[0], sum(span)))


@given(added=st.lists(SPANS, max_size=12), asked=SPANS)
def test_coverage_is_a_set_that_refuses_what_it_has(
    added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    coverage, model = SpanCoverage(), set[int]()

    for start, stop in added:
        wanted = set(range(start, stop))
        assert coverage.add(start, stop) is not bool(wanted & model)
        model |= wanted if not wanted & model else set()

    assert coverage.first_gap(*asked) == min(set(range(*asked)) - model, default=None)


def test_touching_spans_merge_so_that_row_blocks_stay_cheap() -> None:
    coverage = SpanCoverage()

    for start in [*range(0, 1000, 2), *range(1, 1000, 2)]:
        coverage.add(start, start + 1)

    assert coverage.num_spans == 1
