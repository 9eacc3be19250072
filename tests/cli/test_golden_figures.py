"""The figures of the goldens, reached through the command line alone."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.cli.command_line import run
from tests.support.golden import GOLDEN, load
from tests.support.tiny_model import artifact_path

CASES = ["tiny-dense", "tiny-moe", "real-head-dense", "real-head-moe"]
LOGIT_TOLERANCE = 2e-3
"""Of the goldens' README, float32 arithmetic; a log-softmax at most doubles it."""


def log_softmax(logits: npt.NDArray[np.float32], addressable: int) -> npt.NDArray[np.float64]:
    shifted = logits[:, :addressable].astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def addressable_of(case: str) -> int:
    return int(json.loads((GOLDEN / case / "info.json").read_text())["addressable"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("indices", [(3, 4), pytest.param((0, 1, 2), marks=pytest.mark.slow)])
def test_greedy_generation_gives_the_golden_tokens(
    case: str, indices: tuple[int, ...], tmp_path: Path
) -> None:
    golden, model = load(case), artifact_path(case, "bf16")
    prompt = tmp_path / "prompt.json"

    for index in indices:
        prompt.write_text(json.dumps(golden[f"prompt_ids.{index}"].tolist()))
        expected = golden[f"greedy.{index}"].tolist()
        outcome = run(
            *("generate", model, "--prompt-tokens", prompt, "--greedy", "--output", "json"),
            *("--return-token-ids", "--max-new", len(expected), "--device", "host"),
        )

        assert outcome.code == 0
        assert outcome.document["ninfer"]["token_ids"] == expected
        assert (
            outcome.document["ninfer"]["prompt_token_ids"] == golden[f"prompt_ids.{index}"].tolist()
        )


@pytest.mark.parametrize("case", CASES)
def test_scores_of_token_lists_are_the_golden_log_softmax(case: str, tmp_path: Path) -> None:
    golden, model, names = load(case), artifact_path(case, "bf16"), ("0", "1", "2", "3", "random")
    lists = [golden[f"prompt_ids.{name}"].tolist() for name in names]
    file = tmp_path / "tokens.jsonl"
    file.write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in lists))

    outcome = run("score", model, "--tokens", file, "--device", "host")

    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert outcome.code == 0
    assert len(lines) == len(names)
    for name, tokens, line in zip(names, lists, lines, strict=True):
        expected = log_softmax(golden[f"logits.{name}"], addressable_of(case))
        known = np.array(line["logprobs"][1:])
        wanted = expected[np.arange(len(tokens) - 1), tokens[1:]]
        assert line["logprobs"][0] is None
        assert np.abs(known - wanted).max() <= 2 * LOGIT_TOLERANCE
        chosen = expected[np.arange(len(tokens)), line["argmax"]]
        assert np.all(chosen >= expected.max(axis=1) - 2 * LOGIT_TOLERANCE)


def test_text_answer_is_the_only_thing_on_standard_output() -> None:
    model = artifact_path("tiny-dense", "bf16")

    outcome = run("generate", model, "--greedy", "--prompt", "Name three metals.")

    assert outcome.out == "Brass, iron, silver."
    assert "[stop] prompt 28 tokens" in outcome.err


def test_stream_and_blocking_json_say_the_same() -> None:
    model = artifact_path("tiny-dense", "bf16")
    arguments = ("generate", model, "--greedy", "--seed", "5", "--prompt", "Name three metals.")

    stream = run(*arguments, "--output", "jsonl")
    blocking = run(*arguments, "--output", "json")

    chunks = [json.loads(line) for line in stream.out.splitlines()]
    deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]]
    assert "".join(deltas) == blocking.document["choices"][0]["message"]["content"]
    assert chunks[-1]["usage"] == blocking.document["usage"]
