"""The request log: one JSON object a line, one write a line, never a prompt or an answer.

A log that cannot be written any more stops with one warning; the server goes on. Source: the
serving contract, section 13.2.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from ninfer.gateway.request_facts import (
    NO_DRAFTS,
    Endpoint,
    RequestEnd,
    RequestFacts,
    RequestOutcome,
    reuse_path,
)
from ninfer.generation import GenerationResult
from ninfer.runtime import Engine, EngineStatus
from ninfer.version import __version__

SCHEMA: Final = 1
_SECRET_OPTIONS: Final = ("--api-key",)

_logger = logging.getLogger(__name__)


class RequestLog:
    """Owner of the log's file; an observer of requests and a context manager.

    Args:
        path: appended to.
        clock: seconds since the epoch.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._file: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._last_counts: tuple[int, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def note_started(self, facts: RequestFacts) -> None:
        """Write ``request_start``."""
        self._write("request_start", _facts_json(facts))

    def note_ended(self, facts: RequestFacts, end: RequestEnd) -> None:
        """Write the one end of a started request."""
        ending: dict[str, Any] = {"outcome": end.outcome.value, "total_s": round(end.total_s, 6)}
        if end.ttft_s is not None:
            ending["ttft_s"] = round(end.ttft_s, 6)
        if end.code is not None:
            ending["code"] = end.code
        if end.result is not None:
            ending |= _result_json(end.result)
        is_error = end.outcome is RequestOutcome.ERROR
        event = "request_error" if is_error else "request_done"
        self._write(event, _facts_json(facts) | ending)

    def note_rejected(self, endpoint: Endpoint, request_id: str, code: str) -> None:
        """Write ``request_rejected``."""
        self._write(
            "request_rejected",
            {"endpoint": endpoint.value, "request_id": request_id, "code": code},
        )

    def note_server_start(self, arguments: Sequence[str], engine: Engine) -> None:
        """Write ``server_start``: the command line without its keys, and what is served."""
        config = engine.config
        self._write(
            "server_start",
            {
                "version": __version__,
                "argv": redacted(arguments),
                "model": engine.model_id,
                "fingerprint": engine.fingerprint,
                "max_concurrency": config.max_concurrency,
                "max_pending": config.max_pending,
                "max_context": config.max_context,
            },
        )

    def note_throughput(self, status: EngineStatus) -> None:
        """Write ``throughput`` when something happened since the last call."""
        counters = status.counters
        counts = (counters.prefill_tokens, counters.decode_tokens, counters.decode_rounds)
        if counts == self._last_counts or not any(counts):
            return
        self._last_counts = counts
        self._write(
            "throughput",
            {
                "active": status.active,
                "waiting": status.waiting,
                "prefill_tokens": counters.prefill_tokens,
                "decode_tokens": counters.decode_tokens,
                "decode_rounds": counters.decode_rounds,
            },
        )

    def note_server_stop(self, reason: str) -> None:
        """Write ``server_stop``."""
        self._write("server_stop", {"reason": reason})

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _write(self, event: str, members: dict[str, Any]) -> None:
        stamp = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"schema": SCHEMA, "time": stamp, "event": event, **members})
        with self._lock:
            if self._file is None:
                return
            try:
                os.write(self._file, line.encode() + b"\n")
            except OSError as error:
                _logger.warning("the request log stops: %s", error.strerror)
                os.close(self._file)
                self._file = None


def redacted(arguments: Sequence[str]) -> list[str]:
    """A command line without its secrets."""
    shown: list[str] = []
    hides_next = False
    for argument in arguments:
        name = argument.partition("=")[0]
        is_secret = name in _SECRET_OPTIONS
        if hides_next or (is_secret and "=" in argument):
            shown.append(f"{name}=***" if is_secret else "***")
            hides_next = False
            continue
        hides_next = is_secret
        shown.append(argument)
    return shown


def _facts_json(facts: RequestFacts) -> dict[str, Any]:
    sampling = facts.sampling
    return {
        "endpoint": facts.endpoint.value,
        "protocol": facts.endpoint.protocol,
        "request_id": facts.request_id,
        "client_request_id": facts.client_request_id,
        "stream": facts.is_stream,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        "reasoning_effort": facts.reasoning_effort,
        "thinking_budget": facts.thinking_budget,
        "max_tokens": facts.max_new_tokens,
        "prompt_tokens": facts.prompt_tokens,
        "prepare_s": round(facts.prepare_s, 6),
    }


def _result_json(result: GenerationResult) -> dict[str, Any]:
    usage, timings = result.usage, result.timings
    return {
        "finish_reason": result.finish.value,
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": usage.prompt_tokens - usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "reuse_path": reuse_path(usage),
        "draft_tokens": NO_DRAFTS,
        "draft_tokens_accepted": NO_DRAFTS,
        "tool_calls": len(result.summary.tool_calls),
        "tool_notes": dict(result.summary.tool_notes),
        "queue_s": round(timings.queue_s, 6),
        "prefill_s": round(timings.prefill_s, 6),
        "decode_s": round(timings.decode_s, 6),
    }
