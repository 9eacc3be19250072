"""The model card shows what was measured."""

import json
from pathlib import Path

import pytest

from tools.docs.generated_part import END
from tools.docs.model_card import START, accuracy, model_card_page

ROW = {"asked": 10, "right": 9, "thinking_asked": 4, "thinking_right": 4}
RESULTS = {
    "ninfer": "1.2.3",
    "weights_id": "bf16",
    "seed": 7,
    "areas": {"tool calls": ROW},
    "skills": {"tool_call": ROW, "haiku": dict.fromkeys(ROW, 0)},
}


def test_tables_show_shares_with_and_without_thinking() -> None:
    text = accuracy(RESULTS)

    assert "ninfer 1.2.3, weights `bf16`, seed 7" in text
    assert "| tool calls | 10 | 90.0% | 100.0% | 83.3% |\n" in text
    assert "| tool call | 10 | 90.0% | 100.0% | 83.3% |\n" in text


def test_skill_nobody_asked_for_has_no_share() -> None:
    assert "| haiku | 0 | - | - | - |\n" in accuracy(RESULTS)


def test_page_keeps_everything_around_its_generated_part(tmp_path: Path) -> None:
    page, results = tmp_path / "card.md", tmp_path / "accuracy.json"
    page.write_text(f"before\n{START}old\n{END}after\n")
    results.write_text(json.dumps(RESULTS))

    text = model_card_page(page, results)

    assert text == f"before\n{START}{accuracy(RESULTS)}{END}after\n"


def test_page_says_when_nothing_was_measured(tmp_path: Path) -> None:
    page = tmp_path / "card.md"
    page.write_text(f"{START}old\n{END}")

    assert model_card_page(page, tmp_path / "none.json") == f"{START}Not measured yet.\n{END}"


def test_page_without_a_generated_part_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "card.md"
    page.write_text("text\n")

    with pytest.raises(ValueError, match="no generated part"):
        model_card_page(page)
