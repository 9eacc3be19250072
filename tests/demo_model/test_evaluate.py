"""Accuracy is measured through the engine, by the rule each conversation carries."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ninfer.config import EngineConfig
from ninfer.runtime import Engine
from tests.support.demo_model import stand_in_demo
from tools.demo_model import evaluate
from tools.demo_model.data.mixture import AREAS, skills
from tools.demo_model.data.stream import held_out
from tools.demo_model.evaluate import Answered, answered, area_rows, main, typed_conversations


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = EngineConfig(device="host", max_concurrency=4, max_context=1024)
    with Engine(stand_in_demo(), config=config) as opened:
        yield opened


def test_answers_come_in_the_order_of_the_questions(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "MAX_NEW_TOKENS", 3)
    asked = list(held_out("capital", 12, seed=1))

    found = list(answered(engine, asked))

    assert [one.conversation for one in found] == asked


def test_right_answer_is_the_one_the_conversation_was_made_with() -> None:
    for skill in skills():
        for conversation in held_out(skill, 30, seed=3):
            last = conversation.turns[-1]
            assert Answered(conversation, last.text, last.calls).is_right, conversation


def test_empty_answer_is_wrong_in_every_skill() -> None:
    for skill in skills():
        for conversation in held_out(skill, 3, seed=3):
            assert not Answered(conversation, "", ()).is_right


def test_answer_to_another_question_is_wrong_where_answers_differ() -> None:
    for skill in ("addition", "capital", "json_extraction", "tool_call", "recall", "one_liner"):
        first, *others = held_out(skill, 20, seed=4)
        other = next(one for one in others if one.expected != first.expected)
        mixed = dataclasses.replace(first, expected=other.expected)
        assert not Answered(mixed, first.turns[-1].text, first.turns[-1].calls).is_right


def test_every_skill_belongs_to_one_area() -> None:
    listed = [name for names in AREAS.values() for name in names]

    assert sorted(listed) == sorted(skills())


def test_typed_questions_are_asked_with_and_without_thinking() -> None:
    found = list(typed_conversations())

    assert [one.is_thinking for one in found] == [True, False] * (len(found) // 2)
    assert len({one.turns[0].text for one in found}) * 2 == len(found) > 120


def test_areas_sum_their_measured_skills() -> None:
    row = {"asked": 10, "right": 9, "thinking_asked": 4, "thinking_right": 4}

    areas = area_rows({"addition": row, "subtraction": row, "story": row})

    assert areas["arithmetic"] == {key: 2 * value for key, value in row.items()}
    assert areas["stories"] == row
    assert set(areas) == {"arithmetic", "stories"}


def test_command_writes_results_and_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "MAX_NEW_TOKENS", 3)
    results, failures = tmp_path / "results.json", tmp_path / "failures.jsonl"

    code = main(
        [
            *("--model", str(stand_in_demo()), "--count", "2", "--skills", "capital,tool_call"),
            *("--json", str(results), "--failures", str(failures)),
        ]
    )

    document = json.loads(results.read_text())
    assert code == 0
    assert document["model_id"] == "demo"
    assert document["skills"]["capital"]["asked"] == 2
    assert set(document["areas"]) == {"facts", "tool calls"}
    assert len(failures.read_text().splitlines()) == 4
    assert "| capital | 2 | 0.0% |" in capsys.readouterr().out


def test_unknown_skill_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--model", "x", "--skills", "capital,knitting"])

    assert caught.value.code == 2
    assert "knitting" in capsys.readouterr().err
