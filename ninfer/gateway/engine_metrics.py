"""Metrics read from the engine's newest published snapshot; no lock, no device call.

Source: the serving contract, section 13.1.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ninfer.gateway.histogram import histogram_family
from ninfer.gateway.request_facts import NO_DRAFTS
from ninfer.runtime import Engine, EngineStatus
from ninfer.version import __version__


def engine_families(engine: Engine, now: float) -> Iterator[Metric]:
    """Every family about the engine.

    Args:
        engine: read through its published status only.
        now: reading of the clock the engine was built with.
    """
    status = engine.status()
    yield _build_info(engine)
    yield _gauge("requests_active", "Requests that hold a lane.", status.active)
    yield _gauge("requests_waiting", "Accepted requests that do not.", status.waiting)
    yield _gauge("requests_prefilling", "Active ones in their prompt.", status.prefilling)
    yield _gauge("checkpoints", "Entries of the context cache.", status.checkpoints)
    age_s = status.progress_age_s(now)
    yield _gauge("worker_last_progress_seconds", "Age of the last boundary.", age_s)
    yield from _counters(status)
    masks = status.counters.mask_times
    yield histogram_family(
        "ninfer_structured_mask_seconds",
        "Time of one mask of a constrained row.",
        masks.bounds_s,
        masks.counts,
        masks.total_s,
    )
    yield from _resources(status)
    yield _gauges("device_memory_bytes", "Planned device memory.", "arena", engine.arena_bytes)


def _build_info(engine: Engine) -> Metric:
    labels = {
        "version": __version__,
        "model": engine.model_id,
        "kv_dtype": engine.kv_dtype.value,
        "speculative": engine.config.speculative.value,
        "device": engine.device_kind,
    }
    family = GaugeMetricFamily("ninfer_build_info", "What runs here.", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _counters(status: EngineStatus) -> Iterator[Metric]:
    counters = status.counters
    for name, help_text, value in (
        ("prompt_tokens", "Prompt tokens of admitted requests.", counters.prompt_tokens),
        ("cached_prompt_tokens", "Prompt tokens that were reused.", counters.reused_tokens),
        ("computed_prefill_tokens", "Prompt tokens that were computed.", counters.prefill_tokens),
        ("decode_tokens", "Committed output tokens.", counters.decode_tokens),
        ("reasoning_tokens", "Output tokens inside thinking.", counters.reasoning_tokens),
        ("decode_rounds", "Decode rounds.", counters.decode_rounds),
        ("decode_row_rounds", "Rows of all decode rounds.", counters.decode_row_rounds),
        ("draft_tokens", "Proposed tokens.", NO_DRAFTS),
        ("draft_tokens_accepted", "Proposed tokens that were kept.", NO_DRAFTS),
    ):
        family = CounterMetricFamily(f"ninfer_{name}", help_text)
        family.add_metric([], value)
        yield family


def _resources(status: EngineStatus) -> Iterator[Metric]:
    free, total = status.free, status.total
    used = total - free
    pages = {"main": used.main_pages, "backend": used.backend_pages}
    yield _gauges("kv_pages_used", "Page groups in use.", "kind", pages)
    all_pages = {"main": total.main_pages, "backend": total.backend_pages}
    yield _gauges("kv_pages_total", "Page groups there are.", "kind", all_pages)
    slots = {"device": used.state_slots, "host": used.host_state_slots}
    yield _gauges("state_slots_used", "StateImages in use.", "kind", slots)
    yield _gauge("host_kv_bytes_used", "Host cache bytes in use.", used.host_kv_bytes)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"ninfer_{name}", help_text)
    family.add_metric([], value)
    return family


def _gauges(name: str, help_text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"ninfer_{name}", help_text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
