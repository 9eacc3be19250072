"""Exercises are right, their working is right, and what is held out is never taught."""

import ast
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.demo_model.data import arithmetic, code
from tools.demo_model.data.arithmetic import difference_steps, product_steps, sum_steps
from tools.demo_model.data.conversation import Conversation, Rule, Speaker
from tools.demo_model.data.mixture import draw, skills
from tools.demo_model.data.partition import is_held_out
from tools.demo_model.data.stream import held_out, samples, training_conversation
from tools.demo_model.data.tables import rows

_EQUATION = re.compile(r"(?<![\d*+-])(\d+(?:[-+*]\d+)+)=(\d+)")
_RESULT = re.compile(r"so (-?\d+)")
_SMALL = st.integers(0, 999)


def _equations(steps: str) -> list[tuple[str, int]]:
    return [(left, int(right)) for left, right in _EQUATION.findall(steps)]


def _value(expression: str) -> int:
    """Evaluate sums, differences and products of decimal numbers from left to right."""
    numbers = [int(number) for number in re.split(r"[-+*]", expression)]
    value = numbers[0]
    for sign, number in zip(re.findall(r"[-+*]", expression), numbers[1:], strict=True):
        value = {"+": value + number, "-": value - number, "*": value * number}[sign]
    return value


@given(_SMALL, _SMALL)
def test_every_line_of_a_sum_is_true_and_the_last_is_the_sum(a: int, b: int) -> None:
    steps = sum_steps(a, b)

    assert all(_value(left) == right for left, right in _equations(steps))
    assert int(_RESULT.findall(steps)[-1]) == a + b


@given(_SMALL, _SMALL)
def test_every_line_of_a_difference_is_true_and_leads_to_it(a: int, b: int) -> None:
    steps = difference_steps(a, b)

    assert all(_value(left) == right for left, right in _equations(steps))
    last = re.findall(r"(?:so|zeros) (-?\d+)", steps)[-1]
    assert int(last) == a - b


@given(st.integers(10, 99), st.integers(2, 99))
def test_every_line_of_a_product_is_true_and_the_last_is_the_product(a: int, b: int) -> None:
    steps = product_steps(a, b)

    assert all(_value(left) == right for left, right in _equations(steps))
    assert int(_RESULT.findall(steps)[-1]) == a * b


def test_written_answers_of_sums_are_sums() -> None:
    for seed in range(300):
        found = arithmetic.addition(Random(seed))
        left, right = map(int, found.key.split("+"))
        assert found.expected.value == str(left + right)
        assert found.turns[-1].text.endswith(f"= {left + right}")


def _operands(conversation: Conversation) -> str | None:
    answer = conversation.turns[-1].text
    found = re.search(r"(\d+) \+ (\d+) = \d+$", answer)
    return f"{found[1]}+{found[2]}" if found else None


def test_operands_of_held_out_sums_are_never_taught() -> None:
    asked = {_operands(one) for one in held_out("addition", 200, seed=6)}

    taught = {_operands(one) for one in samples(seed=1, start=0, count=4000)} - {None}

    assert None not in asked
    assert all(key is not None and is_held_out(key) for key in asked)
    large = {key for key in taught if key and min(map(int, key.split("+"))) > 20}
    assert large
    assert not any(is_held_out(key) for key in large)


@pytest.mark.parametrize("skill", skills())
def test_every_skill_has_exercises_of_both_kinds(skill: str) -> None:
    keys = [draw(Random(seed), skill).key for seed in range(400)]

    assert {is_held_out(key) for key in keys} == {True, False}


def test_about_a_twentieth_of_all_keys_is_held_out() -> None:
    share = sum(is_held_out(f"{number}") for number in range(20_000)) / 20_000

    assert 0.045 < share < 0.055


@pytest.mark.parametrize("skill", skills())
def test_conversations_of_every_skill_are_well_formed(skill: str) -> None:
    for conversation in held_out(skill, 40, seed=2):
        turns = conversation.turns
        assert turns[-1].speaker is Speaker.ASSISTANT
        assert turns[-1].text or turns[-1].calls
        assert all(turn.text == turn.text.strip() for turn in turns)
        assert all(turn.thinking == turn.thinking.strip() for turn in turns)
        assert all(not turn.thinking for turn in turns if not conversation.is_thinking)
        last_question = max(i for i, one in enumerate(turns) if one.speaker is Speaker.USER)
        answers = [one for one in turns[last_question:] if one.speaker is Speaker.ASSISTANT]
        assert all(bool(one.thinking) == conversation.is_thinking for one in answers)


def test_same_place_of_a_seed_is_the_same_conversation() -> None:
    assert training_conversation(3, 12345) == training_conversation(3, 12345)


def test_code_answers_are_python() -> None:
    for seed in range(500):
        for skill in (code.one_liner, code.function):
            expected = skill(Random(seed)).expected
            assert expected.rule is Rule.CODE
            ast.parse(expected.value)


def test_arguments_of_calls_fit_the_offered_definitions() -> None:
    kinds = {str: "string", int: "integer"}
    for conversation in held_out("tool_call", 200, seed=8):
        (call,) = conversation.expected.calls
        (tool,) = (tool for tool in conversation.tools if tool.name == call.name)
        parameters = tool.definition["function"]["parameters"]
        assert [key for key, _ in call.arguments] == parameters["required"]
        for key, value in call.arguments:
            declared = parameters["properties"][key]["type"]
            assert declared in (kinds[type(value)], "number" if isinstance(value, int) else "")


def test_tables_have_no_subject_twice() -> None:
    for table, column in (
        ("countries", "country"),
        ("elements", "symbol"),
        ("general", "topic"),
        ("german", "land"),
        ("chinese", "country"),
        ("words", "english"),
    ):
        subjects = [row[column] for row in rows(table)]
        assert len(set(subjects)) == len(subjects) > 20


def test_every_general_fact_has_several_questions() -> None:
    assert all(len(row["questions"].split("|")) >= 3 for row in rows("general"))
