"""Masks on their way from output sessions to Program, and sessions that cannot give one."""

import pytest

from ninfer.engine.duration_counts import DurationCounts
from ninfer.errors import InvariantError, NinferError
from ninfer.generation import FinishReason
from tests.support.engine_harness import EngineHarness
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request

MASK, OTHER = b"\x01\0\0\0", b"\x02\0\0\0"


def test_free_rounds_carry_no_masks() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)

    engine.submit(make_request(program, 1))
    engine.step_until_idle()

    assert set(program.masks) == {()}


def test_every_row_of_a_round_has_its_own_mask() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)

    engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=3))
    engine.submit(
        make_request(program, 2, prompt_tokens=1, max_new_tokens=3, masks={0: MASK, 2: OTHER})
    )
    engine.step_until_idle()

    carried = {
        (row, mask)
        for rows, masks in zip(program.rounds, program.masks, strict=True)
        for row, mask in zip(rows, masks or (None,) * len(rows), strict=True)
    }
    assert carried == {(1, None), (2, MASK), (2, None), (2, OTHER)}


def test_a_mask_is_asked_for_behind_a_forced_suffix_and_not_before_it() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)

    engine.submit(
        make_request(program, 1, max_new_tokens=4, forced={1: (7, 8)}, masks={1: OTHER, 3: MASK})
    )
    engine.step_until_idle()

    assert program.masks == [(), (MASK,)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_session_without_a_mask_ends_its_own_request_only(number: int) -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    good = engine.submit(make_request(program, 1))
    bad = engine.submit(
        make_request(program, 2, fault_at={"token_mask": number}, error=NinferError)
    )

    engine.step_until_idle()

    assert good.result().finish is FinishReason.LENGTH
    with pytest.raises(NinferError) as caught:
        bad.result()
    assert caught.value.code == "internal_error"
    program.check_idle()
    engine.check_resources_idle()


def test_a_broken_rule_of_ours_fails_the_engine() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(
        make_request(program, 1, fault_at={"token_mask": 0}, error=InvariantError)
    )

    engine.step_until_idle()

    with pytest.raises(NinferError) as caught:
        handle.result()
    assert caught.value.code == "engine_failed"


def test_a_constrained_request_can_be_cancelled() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)
    handle = engine.submit(make_request(program, 1, masks=dict.fromkeys(range(9), MASK)))
    engine.step(3)

    handle.cancel()
    engine.step_until_idle()

    assert handle.result().finish is FinishReason.CANCELLED
    engine.check_resources_idle()


def test_times_of_masks_are_counted_for_constrained_rows_only() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)

    engine.submit(make_request(program, 1, masks={1: MASK, 2: OTHER}))
    engine.submit(make_request(program, 2))
    engine.step_until_idle()

    times = engine.core.status().counters.mask_times
    assert sum(times.counts) == 2
    assert len(times.counts) == len(times.bounds_s) + 1
    assert times.total_s > 0


def test_durations_are_counted_under_the_least_bound_that_holds_them() -> None:
    times = DurationCounts()

    for duration_s in (0.0, times.bounds_s[0], times.bounds_s[-1], 1.0):
        times.note(duration_s)

    assert times.counts == [2, *[0] * (len(times.bounds_s) - 2), 1, 1]
    assert times.frozen() == times
