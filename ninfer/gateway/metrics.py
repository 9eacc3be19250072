"""Prometheus metrics: what requests did, and what the engine's newest snapshot says.

A scrape takes one short lock of its own and none of the worker's. Labels come from closed sets.
Source: the serving contract, section 13.1.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ninfer.gateway.engine_metrics import engine_families
from ninfer.gateway.histogram import SECONDS_BUCKETS, TOKEN_BUCKETS, Histogram
from ninfer.gateway.request_facts import (
    REUSE_PATHS,
    Endpoint,
    RequestEnd,
    RequestFacts,
    RequestOutcome,
    reuse_path,
)
from ninfer.gateway.server_state import ServerLife

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

TEXT_REASONS: Final = ("undeclared", "malformed")
"""Notes on tool-call markup that mean that it stayed text."""


class Metrics(Collector):
    """Counts requests as an observer, and renders everything on demand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A series that is there before its first event makes rates of that event right.
        self._requests: Counter[tuple[str, str]] = Counter(
            {(e.value, o.value): 0 for e in Endpoint for o in RequestOutcome}
        )
        self._rejections: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._tool_calls = 0
        self._fallbacks: Counter[str] = Counter(dict.fromkeys(TEXT_REASONS, 0))
        self._lookups: Counter[str] = Counter(dict.fromkeys(REUSE_PATHS, 0))
        self._queue = _seconds("queue", "Wait from submission to admission.")
        self._ttft = _seconds("ttft", "Complete body to first output.")
        self._tpot = _seconds("tpot", "Time for each output token after the first.")
        self._e2e = _seconds("e2e", "Complete body to end.")
        self._prompt = _tokens("prompt", "Prompt tokens of a request.")
        self._completion = _tokens("completion", "Output tokens of a request.")
        self._life: ServerLife | None = None
        self._unready: Callable[[], str | None] = lambda: None

    def attach(self, life: ServerLife, unready_reason: Callable[[], str | None]) -> None:
        """Say whose state is reported beside the requests."""
        self._life = life
        self._unready = unready_reason

    def note_started(self, facts: RequestFacts) -> None:
        """Nothing is counted before the end."""

    def note_ended(self, facts: RequestFacts, end: RequestEnd) -> None:
        """Count an end, and measure it if it has a result."""
        with self._lock:
            self._requests[facts.endpoint.value, end.outcome.value] += 1
            if end.code is not None:
                self._errors[end.code] += 1
            self._e2e.observe(end.total_s)
            if end.ttft_s is not None:
                self._ttft.observe(end.ttft_s)
            if end.result is not None:
                self._measure(end)

    def note_rejected(self, endpoint: Endpoint, request_id: str, code: str) -> None:
        """Count a refusal."""
        with self._lock:
            self._requests[endpoint.value, RequestOutcome.REJECTED.value] += 1
            self._rejections[code] += 1

    def render(self) -> bytes:
        """The whole exposition."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance: the library would collect just to learn the names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Every family, requests first."""
        with self._lock:
            families = list(self._request_families())
        yield from families
        life = self._life
        if life is None:
            return
        ready = GaugeMetricFamily("ninfer_ready", "1 while requests are taken.")
        ready.add_metric([], float(self._unready() is None))
        yield ready
        engine = life.engine
        if engine is not None:
            yield from engine_families(engine, life.now())

    def _measure(self, end: RequestEnd) -> None:
        result = end.result
        if result is None:
            return
        usage, timings = result.usage, result.timings
        self._queue.observe(timings.queue_s)
        self._prompt.observe(usage.prompt_tokens)
        self._completion.observe(usage.completion_tokens)
        if usage.completion_tokens > 1:
            self._tpot.observe(timings.decode_s / (usage.completion_tokens - 1))
        self._tool_calls += len(result.summary.tool_calls)
        for reason in TEXT_REASONS:
            self._fallbacks[reason] += result.summary.tool_notes.get(reason, 0)
        path = reuse_path(usage)
        if path is not None:
            self._lookups[path] += 1

    def _request_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "ninfer_requests", "Generation requests by end.", labels=["endpoint", "outcome"]
        )
        for labels, count in self._requests.items():
            requests.add_metric(list(labels), count)
        yield requests
        yield _by_label("rejections", "Refused before submission.", "code", self._rejections)
        yield _by_label("errors", "Ended by an error.", "code", self._errors)
        yield _by_label("prefix_lookup", "Where a prompt started.", "path", self._lookups)
        yield _by_label("tool_call_fallback", "Markup left as text.", "reason", self._fallbacks)
        calls = CounterMetricFamily("ninfer_tool_calls", "Tool calls in replies.")
        calls.add_metric([], self._tool_calls)
        yield calls
        for histogram in (
            self._queue,
            self._ttft,
            self._tpot,
            self._e2e,
            self._prompt,
            self._completion,
        ):
            yield histogram.family()


def _seconds(name: str, help_text: str) -> Histogram:
    return Histogram(f"ninfer_{name}_seconds", help_text, SECONDS_BUCKETS)


def _tokens(name: str, help_text: str) -> Histogram:
    return Histogram(f"ninfer_{name}_tokens", help_text, TOKEN_BUCKETS)


def _by_label(name: str, help_text: str, label: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(f"ninfer_{name}", help_text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
