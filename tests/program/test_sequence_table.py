"""Sequence and checkpoint tables: phases, ledger, prefix identity, generations."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.errors import IllegalMove, InvariantError, StaleHandle
from ninfer.generation import PreparedPrompt, RopePositions, SamplingParams, TokenType
from ninfer.program.contract import CheckpointHandle, SequenceHandle
from ninfer.program.kv_pool import KvHandle, PoolKind, TableRow
from ninfer.program.sequence_table import (
    ActiveSequence,
    CheckpointTable,
    PrefixIdentity,
    SequencePhase,
    SequenceTable,
    prefix_axes,
)
from ninfer.program.state_store import SlotId, StateHandle
from tests.support.booked_program import prompt_of

OWNER = 5
OWNED = (StateHandle(OWNER, SlotId(0), 1), KvHandle(OWNER, PoolKind.MAIN, 0), TableRow(0))


def add(table: SequenceTable, num_prompt: int = 4, limit: int = 8) -> ActiveSequence:
    return table.add(prompt_of(range(num_prompt)), SamplingParams(), limit, OWNED, None)


def ready(table: SequenceTable, num_prompt: int = 4, limit: int = 8) -> ActiveSequence:
    record = add(table, num_prompt, limit)
    table.processed(record.handle, num_prompt - 1)
    return record


def pending(table: SequenceTable) -> ActiveSequence:
    record = ready(table)
    table.begin(record.handle)
    return record


def test_a_prompt_of_one_token_needs_no_prefill() -> None:
    assert add(SequenceTable(1, OWNER), num_prompt=1).phase is SequencePhase.READY


def test_a_source_that_covers_all_but_the_anchor_needs_no_prefill() -> None:
    source = PrefixIdentity((0, 1, 2), bytes(3), None, splits=(2,))

    record = SequenceTable(1, OWNER).add(prompt_of(range(4)), SamplingParams(), 8, OWNED, source)

    assert (record.phase, record.reused_tokens) == (SequencePhase.READY, 3)
    assert record.splits == [2]


def test_prefill_ends_when_only_the_anchor_is_left() -> None:
    table = SequenceTable(1, OWNER)
    record = add(table, num_prompt=6)

    table.processed(record.handle, 2)
    midway = record.phase
    table.processed(record.handle, 5)

    assert (midway, record.phase) == (SequencePhase.PREFILL, SequencePhase.READY)
    assert record.splits == [2, 5]


def test_committed_tokens_move_the_anchor() -> None:
    table = SequenceTable(1, OWNER)
    record = pending(table)

    table.commit(record.handle, (70, 71), (), is_terminal=False)

    assert record.ledger == [0, 1, 2, 3, 70, 71]
    assert (record.anchor, record.num_output_tokens) == (71, 2)
    assert record.phase is SequencePhase.READY


def test_boundaries_become_absolute() -> None:
    table = SequenceTable(1, OWNER)
    record = pending(table)

    table.commit(record.handle, (70, 71, 72), (3, 1), is_terminal=True)

    # One accepted token behind the four of the prompt: the boundary has five tokens before it.
    assert record.boundaries == [5, 7]


def test_a_settled_round_leaves_no_trace() -> None:
    table = SequenceTable(1, OWNER)
    record = pending(table)

    table.settle(record.handle)

    assert (record.phase, record.ledger) == (SequencePhase.READY, [0, 1, 2, 3])


def test_a_cancelled_row_ends_with_its_tokens() -> None:
    table = SequenceTable(1, OWNER)
    record = pending(table)

    table.commit(record.handle, (), (), is_terminal=True)

    assert (record.phase, record.anchor) == (SequencePhase.ENDED, 3)


REFUSED: dict[str, Callable[[SequenceTable, SequenceHandle], object]] = {
    "a second unit": lambda table, handle: table.begin(handle),
    "prefill of a complete prompt": lambda table, handle: table.processed(handle, 3),
    "tokens beyond the limit": lambda table, handle: table.commit(
        handle, range(5), (), is_terminal=False
    ),
    "nothing accepted without an end": lambda table, handle: table.commit(
        handle, (), (), is_terminal=False
    ),
    "a boundary before the span": lambda table, handle: table.commit(
        handle, (70,), (0,), is_terminal=True
    ),
    "a boundary behind the span": lambda table, handle: table.commit(
        handle, (70,), (2,), is_terminal=True
    ),
    "a sequence too many": lambda table, handle: add(table),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_illegal_move_raises_and_changes_nothing(name: str) -> None:
    table = SequenceTable(1, OWNER)
    record = pending(table)
    before = replace(record, ledger=list(record.ledger), splits=list(record.splits))

    with pytest.raises(InvariantError):
        REFUSED[name](table, record.handle)

    assert record == before


@pytest.mark.parametrize("event", ["begin", "settle"])
def test_an_ended_sequence_runs_nothing_more(event: str) -> None:
    table = SequenceTable(1, OWNER)
    record = pending(table)
    table.commit(record.handle, (70,), (), is_terminal=True)

    with pytest.raises(IllegalMove):
        getattr(table, event)(record.handle)


def test_prefill_beyond_the_prompt_is_refused() -> None:
    table = SequenceTable(1, OWNER)
    record = add(table, num_prompt=4)

    with pytest.raises(IllegalMove):
        table.processed(record.handle, 4)

    assert record.splits == []


def test_a_reused_index_has_another_generation() -> None:
    table = SequenceTable(1, OWNER)
    old = add(table).handle
    table.remove(old)

    new = add(table).handle

    assert (new.index, new != old) == (old.index, True)
    with pytest.raises(StaleHandle):
        table.get(old)


@pytest.mark.parametrize(
    "foreign",
    [
        SequenceHandle(OWNER + 1, 0, 1),
        SequenceHandle(OWNER, 1, 1),
        SequenceHandle(OWNER, -1, 1),
        SequenceHandle(OWNER, 0, 2),
    ],
)
def test_a_foreign_sequence_handle_is_refused(foreign: SequenceHandle) -> None:
    table = SequenceTable(1, OWNER)
    add(table)

    with pytest.raises(StaleHandle):
        table.get(foreign)


def test_checkpoint_indices_are_reused_with_another_generation() -> None:
    table = CheckpointTable(OWNER)
    identity = PrefixIdentity((1,), bytes(1), None)
    old = table.add(*OWNED[:2], identity).handle
    kept = table.add(*OWNED[:2], identity).handle
    table.remove(old)

    new = table.add(*OWNED[:2], identity).handle

    assert [record.handle for record in table] == [new, kept]
    assert (new.index, new != old) == (old.index, True)
    with pytest.raises(StaleHandle):
        table.remove(old)


@pytest.mark.parametrize(
    "foreign",
    [
        CheckpointHandle(OWNER + 1, 0, 1),
        CheckpointHandle(OWNER, 1, 1),
        CheckpointHandle(OWNER, 0, 0),
    ],
)
def test_a_foreign_checkpoint_handle_is_refused(foreign: CheckpointHandle) -> None:
    table = CheckpointTable(OWNER)
    table.add(*OWNED[:2], PrefixIdentity((1,), bytes(1), None))

    with pytest.raises(StaleHandle):
        table.get(foreign)


def test_an_identity_covers_outputs_as_text_and_cuts_what_lies_behind() -> None:
    table = SequenceTable(1, OWNER)
    record = pending(table)
    table.commit(record.handle, (70, 71, 72), (1, 3), is_terminal=True)

    identity = record.identity(6)

    assert identity == PrefixIdentity((0, 1, 2, 3, 70, 71), bytes(6), None, (3,), (5,))


def test_an_identity_inside_the_prompt_is_cut_too() -> None:
    record = add(SequenceTable(1, OWNER), num_prompt=4)

    assert record.identity(2) == PrefixIdentity((0, 1), bytes(2), None)


@pytest.mark.parametrize(
    ("prompt", "is_match"),
    [
        ((1, 2, 3, 4), True),
        ((1, 2, 3, 4, 5), True),
        ((1, 2, 3), False),
        ((1, 2), False),
        ((1, 2, 4, 4), False),
    ],
)
def test_a_prefix_matches_token_by_token_and_leaves_an_anchor(
    prompt: tuple[int, ...], is_match: bool
) -> None:
    assert PrefixIdentity((1, 2, 3), bytes(3), None).is_prefix_of(prompt_of(prompt)) is is_match


def test_provenance_is_no_part_of_the_identity() -> None:
    identity = PrefixIdentity((1, 2), bytes(2), None, splits=(1,), boundaries=(2,))

    assert identity.is_prefix_of(prompt_of((1, 2, 3)))


def test_other_token_types_do_not_match() -> None:
    prompt = PreparedPrompt((1, 2, 3), bytes([0, TokenType.IMAGE, 0]), None, b"")

    assert not PrefixIdentity((1, 2), bytes(2), None).is_prefix_of(prompt)


def test_media_in_a_prefix_never_matches() -> None:
    types = bytes([0, TokenType.IMAGE, 0])
    prompt = PreparedPrompt((1, 2, 3), types, None, b"")

    assert not PrefixIdentity((1, 2), types[:2], None).is_prefix_of(prompt)


def test_media_behind_a_text_prefix_does_not_matter() -> None:
    rope = RopePositions(((0, 1, 2, 2), (0, 1, 2, 3), (0, 1, 2, 2)), 0)
    prompt = PreparedPrompt(
        (1, 2, 9, 9), bytes([0, 0, TokenType.IMAGE, TokenType.IMAGE]), rope, b""
    )

    assert PrefixIdentity((1, 2), bytes(2), None).is_prefix_of(prompt)


def test_other_positions_do_not_match() -> None:
    rope = RopePositions(((0, 5, 6), (0, 5, 6), (0, 5, 6)), 4)
    prompt = PreparedPrompt((1, 2, 3), bytes(3), rope, b"")

    assert not PrefixIdentity((1, 2), bytes(2), None).is_prefix_of(prompt)


@settings(deadline=None)
@given(
    axes=st.integers(1, 5).flatmap(lambda n: st.tuples(*[st.tuples(*[st.integers(0, 9)] * n)] * 3)),
    delta=st.integers(-3, 3),
    length=st.integers(0, 9),
)
def test_positions_behind_a_prompt_are_the_index_plus_delta(
    axes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], delta: int, length: int
) -> None:
    expected = [[axis[i] if i < len(axis) else i + delta for i in range(length)] for axis in axes]

    found = prefix_axes(RopePositions(axes, delta), length)

    plain = [list(range(length))] * 3
    assert [list(axis) for axis in found or ()] == ([] if expected == plain else expected)
