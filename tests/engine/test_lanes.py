"""Lanes: the table of moves and the ledger of who owns what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.lanes import LaneId, LaneState, LaneTable
from ninfer.errors import IllegalMove
from ninfer.program.contract import SequenceHandle

LEGAL = {
    "abort": LaneState.MATERIALIZING,
    "adopt": LaneState.MATERIALIZING,
    "end": LaneState.ACTIVE,
    "settle": LaneState.TERMINAL_PENDING,
}


def sequence(generation: int) -> SequenceHandle:
    return SequenceHandle(1, 0, generation)


def table_in(state: LaneState) -> LaneTable:
    """A table whose lane 0 is in a state."""
    table = LaneTable(1)
    if state is not LaneState.FREE:
        table.claim()
    if state in (LaneState.ACTIVE, LaneState.TERMINAL_PENDING):
        table.adopt(LaneId(0), sequence(9))
    if state is LaneState.TERMINAL_PENDING:
        table.end(LaneId(0))
    return table


def move(table: LaneTable, name: str, lane: LaneId, generation: int = 1) -> None:
    if name == "adopt":
        table.adopt(lane, sequence(generation))
    else:
        getattr(table, name)(lane)


@pytest.mark.parametrize("state", LaneState)
@pytest.mark.parametrize("name", LEGAL)
def test_illegal_moves_raise_and_change_nothing(state: LaneState, name: str) -> None:
    table = table_in(state)
    before = (table.state(LaneId(0)), table.sequences(), table.num_free)
    raised = False

    try:
        move(table, name, LaneId(0))
    except IllegalMove:
        raised = True

    after = (table.state(LaneId(0)), table.sequences(), table.num_free)
    assert raised == (LEGAL[name] is not state)
    assert (after == before) == raised


def test_a_full_table_refuses_a_claim() -> None:
    table = table_in(LaneState.ACTIVE)

    with pytest.raises(IllegalMove, match="no lane is free"):
        table.claim()

    assert table.sequences() == {sequence(9)}


def test_a_lane_without_a_sequence_says_so() -> None:
    with pytest.raises(IllegalMove, match="owns no sequence"):
        table_in(LaneState.MATERIALIZING).sequence(LaneId(0))


@given(st.lists(st.tuples(st.sampled_from(["claim", *LEGAL]), st.integers(0, 2)), max_size=40))
def test_any_history_keeps_lanes_and_sequences_in_step(history: list[tuple[str, int]]) -> None:
    table = LaneTable(3)
    for generation, (name, index) in enumerate(history):
        try:
            if name == "claim":
                table.claim()
            else:
                move(table, name, LaneId(index), generation)
        except IllegalMove:
            continue

    states = [table.state(LaneId(index)) for index in range(3)]
    owning = [s for s in states if s in (LaneState.ACTIVE, LaneState.TERMINAL_PENDING)]
    assert table.num_free == states.count(LaneState.FREE)
    assert len(table.sequences()) == len(owning)
