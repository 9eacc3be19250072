"""Scoring of windows: log-probabilities of the goldens, and nothing carried to the next one."""

from collections.abc import Iterator

import numpy as np
import pytest

from ninfer.config import Purpose
from ninfer.errors import InvariantError, RequestError
from ninfer.program.contract import ResourceVector
from ninfer.program.scoring_window import HEAD_ROWS, WindowScores
from tests.support.golden import load
from tests.support.model_cases import CASES
from tests.support.program_driver import ProgramDriver
from tests.support.running_program import running_program

MAX_ERROR = 4e-3
"""Twice the bound on logits: a log-probability is the difference of two of their functions."""
ADDRESSABLE = 512


@pytest.fixture(scope="module")
def scorer() -> Iterator[ProgramDriver]:
    with running_program(
        "tiny-dense", max_context=200, prefill_chunk=128, purpose=Purpose.CAUSAL_SCORING
    ) as driver:
        yield driver


def _tokens(case: str, index: int | str) -> list[int]:
    return [int(token) for token in load(case)[f"prompt_ids.{index}"]]


def _assert_golden(case: str, index: int | str, scores: WindowScores) -> None:
    tokens = _tokens(case, index)
    logits = load(case)[f"logits.{index}"][:, :ADDRESSABLE].astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    wanted = logprobs[np.arange(len(tokens) - 1), tokens[1:]]
    np.testing.assert_allclose(scores.logprobs, wanted, rtol=0, atol=MAX_ERROR)
    assert list(scores.argmax) == list(logits.argmax(axis=1))


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_golden_logits(case: str) -> None:
    with running_program(case, max_context=130, purpose=Purpose.CAUSAL_SCORING) as driver:
        scores = driver.program.score_window(_tokens(case, 3))

    _assert_golden(case, 3, scores)


def test_a_window_longer_than_a_chunk_and_a_head_block_is_scored_whole(
    scorer: ProgramDriver,
) -> None:
    tokens = _tokens("tiny-dense", 3)
    assert len(tokens) > max(128, 2 * HEAD_ROWS)

    _assert_golden("tiny-dense", 3, scorer.program.score_window(tokens))


def test_windows_do_not_see_each_other(scorer: ProgramDriver) -> None:
    first = scorer.program.score_window(_tokens("tiny-dense", "random"))
    scorer.program.score_window([7] * 200)

    again = scorer.program.score_window(_tokens("tiny-dense", "random"))

    assert again == first
    _assert_golden("tiny-dense", "random", again)


def test_a_window_of_one_token_has_only_a_continuation(scorer: ProgramDriver) -> None:
    logprobs, argmax = scorer.program.score_window([5])

    assert logprobs == ()
    assert len(argmax) == 1
    assert 0 <= argmax[0] < ADDRESSABLE


def test_unaddressable_rows_never_win(scorer: ProgramDriver) -> None:
    raw = load("tiny-dense")["logits.random"]
    is_masked = raw.argmax(axis=1) >= ADDRESSABLE

    scores = scorer.program.score_window(_tokens("tiny-dense", "random"))

    assert is_masked.any()
    assert max(scores.argmax) < ADDRESSABLE


@pytest.mark.parametrize("tokens", [[], [1] * 201, [0, ADDRESSABLE], [-1]])
def test_windows_that_cannot_be_are_refused(scorer: ProgramDriver, tokens: list[int]) -> None:
    with pytest.raises(RequestError) as caught:
        scorer.program.score_window(tokens)

    assert caught.value.field == "tokens"


def test_a_program_for_scoring_does_not_generate(scorer: ProgramDriver) -> None:
    with pytest.raises(InvariantError):
        scorer.admit([1, 2, 3])
    with pytest.raises(InvariantError):
        scorer.decode()
    with pytest.raises(InvariantError):
        assert scorer.program.free() == ResourceVector()
    scorer.program.abandon()
