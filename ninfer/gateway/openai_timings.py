"""Token counts and timings as OpenAI-shaped replies spell them.

Rates are finite: zero where there is no interval. Source: the serving contract, sections 4.2, 4.5.
"""

from collections.abc import Callable
from typing import Any

from ninfer.generation import GenerationResult, GenerationStart, Usage

Json = dict[str, Any]


class RunningTimings:
    """Timings of a request that is still running, as its reader sees them.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start: GenerationStart | None = None
        self._started_at = self._first_at = self._last_at = 0.0
        self._num_tokens = 0

    def note_start(self, start: GenerationStart) -> None:
        """Admission is over; the prompt is being processed."""
        self._start = start
        self._started_at = self._first_at = self._last_at = self._clock()

    def note_tokens(self, count: int) -> None:
        """So many more tokens are committed."""
        self._last_at = self._clock()
        if self._num_tokens == 0:
            self._first_at = self._last_at
        self._num_tokens += count

    def so_far(self) -> Json:
        """Timings up to the newest tokens."""
        start = self._start
        prompt, cached = (0, 0) if start is None else (start.prompt_tokens, start.reused_tokens)
        prefill_s = self._first_at - self._started_at
        return _timings(prompt, cached, self._num_tokens, prefill_s, self._last_at - self._first_at)


def usage_json(usage: Usage) -> Json:
    """Spell token counts the OpenAI way."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_json(result: GenerationResult) -> Json:
    """Spell timings; a rate over no interval is zero."""
    usage, timings = result.usage, result.timings
    return _timings(
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        timings.prefill_s,
        timings.decode_s,
    )


def _timings(prompt: int, cached: int, completion: int, prefill_s: float, decode_s: float) -> Json:
    computed = prompt - cached
    return {
        "cache_n": cached,
        "prompt_n": computed,
        "prompt_ms": round(prefill_s * 1e3, 3),
        "prompt_per_second": _rate(computed, prefill_s),
        "predicted_n": completion,
        "predicted_ms": round(decode_s * 1e3, 3),
        "predicted_per_second": _rate(completion - 1, decode_s),
    }


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if count > 0 and seconds > 0 else 0.0
