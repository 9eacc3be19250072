"""Scoring: every token once, each with the longest context that the windows leave it."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.scoring import CausalScoreCore, TextScore, plan_windows
from ninfer.errors import ContextLengthExceeded, InvariantError, RequestError


class CountingProgram:
    """Scores a token by how many tokens stand before it in the window; predicts its successor."""

    def __init__(self) -> None:
        self.windows: list[tuple[int, ...]] = []

    def score_window(self, tokens: Sequence[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
        self.windows.append(tuple(tokens))
        return tuple(-float(i) for i in range(1, len(tokens))), tuple(t + 1 for t in tokens)


class ShortProgram:
    """Forgets the last prediction."""

    def score_window(self, tokens: Sequence[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
        return tuple(0.0 for _ in tokens[1:]), tuple(tokens[1:])


@given(st.integers(1, 60), st.integers(2, 12), st.data())
def test_each_token_is_scored_once_with_enough_context(
    num_tokens: int, window: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, window - 1))
    program = CountingProgram()

    core = CausalScoreCore(program, max_context=12)
    score = core.score(range(num_tokens), window=window, stride=stride)

    assert len(score.logprobs) == len(score.argmax) == num_tokens
    assert score.logprobs[0] is None
    assert score.argmax == tuple(range(1, num_tokens + 1))
    contexts = [-logprob for logprob in score.logprobs[1:] if logprob is not None]
    assert len(contexts) == num_tokens - 1
    assert all(
        min(index, window - stride) <= context <= index
        for index, context in enumerate(contexts, start=1)
    )
    assert all(len(part) <= window for part in program.windows)


def test_a_text_that_fits_is_one_window() -> None:
    program = CountingProgram()

    CausalScoreCore(program, max_context=8).score([5, 6, 7])

    assert program.windows == [(5, 6, 7)]


def test_progress_is_told_before_each_window_and_at_the_end() -> None:
    told: list[tuple[int, int]] = []

    CausalScoreCore(CountingProgram(), max_context=8).score(
        range(9), window=6, stride=2, progress=lambda done, total: told.append((done, total))
    )

    assert told == [(0, 9), (5, 9), (7, 9), (9, 9)]


def test_windows_advance_by_the_stride_and_end_at_the_end() -> None:
    windows = list(plan_windows(9, 6, 2))

    assert [(w.begin, w.first_scored, w.end) for w in windows] == [
        (0, 1, 6),
        (2, 6, 8),
        (3, 8, 9),
    ]


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    score = TextScore((None, -1.0, -2.0), (0, 0, 0))

    assert score.mean_nll == 1.5
    assert score.perplexity == math.exp(1.5)
    assert score.num_scored == 2


def test_a_single_token_has_no_perplexity_but_a_prediction() -> None:
    score = CausalScoreCore(CountingProgram(), max_context=8).score([41])

    assert score == TextScore((None,), (42,))
    assert math.isnan(score.perplexity)


@pytest.mark.parametrize(
    ("window", "stride", "field"), [(1, 1, "window"), (4, 0, "stride"), (4, 4, "stride")]
)
def test_a_stride_without_context_is_refused(window: int, stride: int, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        CausalScoreCore(CountingProgram(), max_context=8).score(
            [1, 2], window=window, stride=stride
        )

    assert caught.value.field == field


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokens"):
        CausalScoreCore(CountingProgram(), max_context=8).score([])


def test_a_window_beyond_the_context_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded, match="the context holds 8"):
        CausalScoreCore(CountingProgram(), max_context=8).score([1], window=9)


def test_a_program_that_scores_too_little_is_found_out() -> None:
    with pytest.raises(InvariantError, match="2 predictions"):
        CausalScoreCore(ShortProgram(), max_context=8).score([1, 2, 3])
