"""``ninfer score`` on the tiny model: what it reports, and what it refuses."""

import math
from pathlib import Path

import pytest

from tests.cli.command_line import run
from tests.support.tiny_model import artifact_path


@pytest.fixture(scope="module")
def model() -> Path:
    return artifact_path("tiny-dense", "bf16")


def test_score_of_a_text_reports_its_perplexity(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The harbour wakes before the town does.")

    document = run("score", model, "--file", text, "--format", "json").document

    known = [value for value in document["logprobs"] if value is not None]
    assert document["num_scored"] == len(document["tokens"]) - 1 == len(known)
    assert document["perplexity"] == pytest.approx(math.exp(-sum(known) / len(known)))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--window", 1, "--window is 1; at least 2 tokens are needed"),
        ("--window", 9999, "--window is 9999 tokens; the context holds 4096"),
        ("--stride", 0, "--stride is 0; allowed is 1..4095"),
    ],
)
def test_wrong_window_is_wrong_usage(
    model: Path, tmp_path: Path, option: str, value: int, words: str
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The harbour wakes.")

    outcome = run("score", model, "--file", text, option, value)

    assert (outcome.code, outcome.out) == (2, "")
    assert f"error: {words}\n" in outcome.err


def test_score_of_a_long_text_shows_how_far_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The harbour wakes before the town does. " * 4)
    monkeypatch.setattr("ninfer.cli.console.PLAIN_INTERVAL_S", 0.0)

    shown = run("score", model, "--file", text, "--window", 16, "--format", "json")
    hidden = run("score", model, "--file", text, "--window", 16, "--no-progress")

    num_tokens = len(shown.document["tokens"])
    assert f"scoring: {num_tokens} of {num_tokens} tokens (100%)" in shown.err
    assert "scoring" not in hidden.err
