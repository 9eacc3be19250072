"""The training set depends on its seed alone."""

from pathlib import Path

import numpy as np
import pytest

from tools.demo_model.data.__main__ import main
from tools.demo_model.data.dataset import digest, write
from tools.demo_model.data.stream import conversations, training_conversation

# Changes whenever the data or the tokenizer do; then the model has to be trained again.
DIGEST = "2ac15af788eb1fc08f5d7a2482ab6506a5c0e11c192b76181b8edcea3fa859b5"


def test_first_conversations_of_seed_1_are_the_pinned_ones() -> None:
    assert digest(1, 500) == DIGEST


def test_digest_is_printed_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--conversations", "20", "--digest"]) == 0

    assert capsys.readouterr().out == digest(1, 20) + "\n"


def test_any_part_of_the_stream_can_be_made_alone() -> None:
    whole = list(conversations(4, 0, 12))

    parts = [*conversations(4, 0, 5), *conversations(4, 5, 7)]

    assert parts == whole


def test_conversations_of_different_seeds_differ() -> None:
    assert training_conversation(1, 0) != training_conversation(2, 0)


def test_written_text_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"

    for output in (first, second):
        main(["--seed", "3", "--conversations", "50", "--output", str(output)])

    assert first.read_bytes() == second.read_bytes()
    assert first.read_text("utf-8").count("\n") == 50


@pytest.mark.slow
def test_written_set_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"

    documents = write(one, 7, 400_000, workers=1)
    write(two, 7, 400_000, workers=2)

    for part in ("tokens", "mask", "starts"):
        assert (tmp_path / f"one.{part}").read_bytes() == (tmp_path / f"two.{part}").read_bytes()
    tokens = np.fromfile(tmp_path / "one.tokens", "<u2")
    mask = np.fromfile(tmp_path / "one.mask", "u1")
    starts = np.fromfile(tmp_path / "one.starts", "<u8")
    assert tokens.size == mask.size == 400_000
    assert starts.size == documents
    expected_ids, expected_mask = next(iter(conversations(7, documents // 2, 1)))
    start = int(starts[documents // 2])
    assert tokens[start : start + len(expected_ids)].tolist() == expected_ids
    assert mask[start : start + len(expected_ids)].tolist() == expected_mask
