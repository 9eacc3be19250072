"""Offline scoring of texts: log probability of each token given those before it.

A text longer than the window is cut into overlapping windows; each token is scored once, in the
window that leaves it the longest context:

    text      0 1 2 3 4 5 6 7 8 9        window 6, stride 2
    window 1  . s s s s s                s = scored here
    window 2      . . . . s s
    window 3          . . . . s s

One caller, one window at a time; no request, queue or cache exists here. Source: sliding-window
perplexity as commonly reported for fixed-context models; system design, section 3.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ninfer.errors import ContextLengthExceeded, InvariantError, RequestError


class ScoringProgram(Protocol):
    """The scoring side of Program; each call uses a temporary empty state."""

    def score_window(self, tokens: Sequence[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Score one window.

        Args:
            tokens: at least one, at most the context.

        Returns:
            Natural-log probability of ``tokens[1:]``, each given those before it; and for each of
            ``tokens`` the most likely token to follow it.
        """


@dataclass(frozen=True, slots=True)
class TextScore:
    """Scores of one text.

    Attributes:
        logprobs: entry i belongs to token i; the first has nothing before it and is None.
        argmax: entry i is the most likely token at position i + 1.
    """

    logprobs: tuple[float | None, ...]
    argmax: tuple[int, ...]

    @property
    def num_scored(self) -> int:
        """Tokens that have a log probability."""
        return len(self.logprobs) - 1

    @property
    def mean_nll(self) -> float:
        """Mean negative log probability in nats; NaN for a text of one token."""
        known = [logprob for logprob in self.logprobs if logprob is not None]
        return -math.fsum(known) / len(known) if known else math.nan

    @property
    def perplexity(self) -> float:
        """Exponential of `mean_nll`."""
        return math.exp(self.mean_nll)


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens ``begin..end`` of a text, of which those from ``first_scored`` on count here."""

    begin: int
    first_scored: int
    end: int


def plan_windows(num_tokens: int, window: int, stride: int) -> Iterator[Window]:
    """Cut a text so that each token but the first is scored exactly once.

    Raises:
        RequestError: the stride leaves a token without any context.
    """
    if window < 2:
        raise RequestError(f"window is {window}; at least 2 tokens are needed", field="window")
    if not 1 <= stride < window:
        raise RequestError(f"stride is {stride}; allowed is 1..{window - 1}", field="stride")
    end = min(window, num_tokens)
    yield Window(0, 1, end)
    while end < num_tokens:
        first = end
        end = min(end + stride, num_tokens)
        yield Window(end - window, first, end)


class CausalScoreCore:
    """Scores texts one after the other on a Program built for scoring."""

    def __init__(self, program: ScoringProgram, *, max_context: int) -> None:
        self._program = program
        self._max_context = max_context

    def score(
        self,
        tokens: Sequence[int],
        *,
        window: int | None = None,
        stride: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> TextScore:
        """Score a text of any length.

        Args:
            tokens: the text, at least one token.
            window: tokens of one window; None is the whole context.
            stride: new tokens of each further window; None is half the window.
            progress: told (tokens scored, tokens in all), first before the first window.

        Raises:
            RequestError: the text is empty, or window and stride do not fit each other.
            ContextLengthExceeded: the window is longer than the context.
        """
        if not tokens:
            raise RequestError("the text has no tokens; at least 1 is needed", field="tokens")
        width = self._max_context if window is None else window
        if width > self._max_context:
            raise ContextLengthExceeded(
                f"window is {width} tokens; the context holds {self._max_context}", field="window"
            )
        step = max(1, width // 2) if stride is None else stride
        logprobs: list[float | None] = [None]
        argmax: list[int] = []
        likely: tuple[int, ...] = ()
        for part in plan_windows(len(tokens), width, step):
            if progress is not None:
                progress(len(argmax), len(tokens))
            values, likely = self._score_window(tokens[part.begin : part.end])
            logprobs.extend(values[part.first_scored - part.begin - 1 :])
            argmax.extend(likely[len(argmax) - part.begin : -1])
        argmax.append(likely[-1])
        if progress is not None:
            progress(len(tokens), len(tokens))
        return TextScore(tuple(logprobs), tuple(argmax))

    def _score_window(self, tokens: Sequence[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
        values, likely = self._program.score_window(tuple(tokens))
        if len(values) != len(tokens) - 1 or len(likely) != len(tokens):
            raise InvariantError(
                f"a window of {len(tokens)} tokens has {len(values)} log probabilities and "
                f"{len(likely)} predictions"
            )
        return values, likely
