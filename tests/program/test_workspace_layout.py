"""workspace_layout: regions that live together stay apart, others share bytes."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import InvariantError
from ninfer.program.workspace_layout import Phase, Region, lay_out

PREFILL = frozenset({Phase.PREFILL})
DECODE = frozenset({Phase.DECODE})


@st.composite
def regions(draw: st.DrawFn) -> list[Region]:
    sizes = draw(st.lists(st.integers(0, 3000), max_size=9))
    made = []
    for index, nbytes in enumerate(sizes):
        steps = sorted(draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
        phases = draw(st.frozensets(st.sampled_from(Phase), min_size=1, max_size=3))
        made.append(Region(f"r{index}", nbytes, phases, *steps))
    return made


def are_together(first: Region, second: Region) -> bool:
    """Alive at a common moment, written out moment by moment."""
    moments = [
        {(phase, step) for phase in r.phases for step in range(r.first_step, r.last_step + 1)}
        for r in (first, second)
    ]
    return bool(moments[0] & moments[1])


@settings(deadline=None)
@given(regions())
def test_regions_alive_together_never_overlap(given_regions: list[Region]) -> None:
    layout = lay_out(given_regions)

    assert not [
        (first, second)
        for first, second in combinations(given_regions, 2)
        if are_together(first, second)
        and layout.offsets[first.name] < layout.offsets[second.name] + second.nbytes
        and layout.offsets[second.name] < layout.offsets[first.name] + first.nbytes
    ]


@settings(deadline=None)
@given(regions())
def test_regions_are_aligned_and_inside(given_regions: list[Region]) -> None:
    layout = lay_out(given_regions)

    assert all(offset % 256 == 0 for offset in layout.offsets.values())
    assert all(
        layout.offsets[region.name] + region.nbytes <= layout.nbytes for region in given_regions
    )


@settings(deadline=None)
@given(regions())
def test_the_order_of_the_regions_does_not_matter(given_regions: list[Region]) -> None:
    assert lay_out(given_regions).offsets == lay_out(given_regions[::-1]).offsets


def test_exclusive_phases_share_their_bytes() -> None:
    layout = lay_out([Region("chunk", 1024, PREFILL), Region("logits", 512, DECODE)])

    assert layout.nbytes == 1024


def test_exclusive_steps_of_one_phase_share_their_bytes() -> None:
    layout = lay_out(
        [
            Region("residual", 256, PREFILL),
            Region("projected", 1024, PREFILL, 0, 1),
            Region("gate_up", 768, PREFILL, 2, 3),
        ]
    )

    assert layout.nbytes == 1024 + 256


def test_a_region_carried_across_phases_is_apart_from_both() -> None:
    layout = lay_out(
        [
            Region("features", 256, PREFILL | DECODE),
            Region("chunk", 512, PREFILL),
            Region("logits", 512, DECODE),
        ]
    )

    assert layout.nbytes == 768


def test_a_gap_between_larger_regions_is_used() -> None:
    layout = lay_out(
        [
            Region("early", 1024, PREFILL, 0, 1),
            Region("late", 768, PREFILL, 2, 3),
            Region("whole", 512, PREFILL),
            Region("small", 256, PREFILL, 2, 3),
        ]
    )

    assert layout.offsets["small"] == 768
    assert layout.nbytes == 1536


@pytest.mark.parametrize(
    "broken",
    [
        [Region("a", 1, PREFILL), Region("a", 1, DECODE)],
        [Region("a", 1, frozenset())],
        [Region("a", -1, PREFILL)],
        [Region("a", 1, PREFILL, 2, 1)],
    ],
)
def test_a_region_that_makes_no_sense_is_refused(broken: list[Region]) -> None:
    with pytest.raises(InvariantError):
        lay_out(broken)
