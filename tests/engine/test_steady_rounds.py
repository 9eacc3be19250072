"""When the engine says that a round will most likely be followed by one of the same rows."""

from tests.support.engine_harness import EngineHarness
from tests.support.scripted_program import ScriptedProgram
from tests.support.scripted_session import make_request

MASK = b"\x01\0\0\0"


def test_a_round_is_steady_until_a_row_has_one_token_left() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)

    engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=4))
    engine.step_until_idle()

    assert program.steady == [True, True, True, False]


def test_a_round_beside_a_prompt_is_not_steady() -> None:
    program = ScriptedProgram(chunk=1)
    engine = EngineHarness(program)

    engine.submit(make_request(program, 1, prompt_tokens=1, max_new_tokens=20))
    engine.step(2)
    engine.submit(make_request(program, 2, prompt_tokens=5, max_new_tokens=20))
    engine.step_until_idle()

    during = [steady for rows, steady in zip(program.rounds, program.steady, strict=True)]
    is_alone = [rows == (1,) for rows in program.rounds]
    first_pair = is_alone.index(False)
    # One round for each of the four chunks of the other prompt.
    assert during[first_pair - 3 : first_pair] == [False] * 3
    assert during[first_pair]


def test_a_masked_round_is_not_steady() -> None:
    program = ScriptedProgram()
    engine = EngineHarness(program)

    engine.submit(
        make_request(program, 1, prompt_tokens=1, max_new_tokens=4, masks={0: MASK, 1: MASK})
    )
    engine.step_until_idle()

    assert program.steady == [False, False, True, False]
