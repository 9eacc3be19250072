"""The library entry over the real stack: streams, cancellation at every state, no leaks."""

import gc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ninfer.config import EngineConfig, KvDtype
from ninfer.errors import (
    ConfigurationError,
    ContextLengthExceeded,
    EngineClosed,
    RequestError,
    UnsupportedFeature,
)
from ninfer.frontend.frontend import OutputOptions, PreparedInput
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.generation import (
    FinishReason,
    GenerationResult,
    GenerationStart,
    OutputCommitted,
    SamplingParams,
)
from ninfer.host.device import HostStream
from ninfer.model_stack import device_summary
from ninfer.runtime import Engine, RequestOptions, Scorer
from tests.support.golden import load
from tests.support.tiny_model import artifact_path

GREEDY = SamplingParams(temperature=0.0)
NUM_STREAMS = 8


@pytest.fixture(scope="module")
def model() -> Path:
    return artifact_path("tiny-dense", "bf16")


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Engine]:
    config = EngineConfig(max_concurrency=NUM_STREAMS, max_context=512, prefill_chunk=128)
    with Engine(model, config=config) as built:
        yield built


def golden_prompt(engine: Engine, index: int) -> PreparedInput:
    return engine.frontend.prepare_tokens(load("tiny-dense")[f"prompt_ids.{index}"].tolist())


def expect_everything_free(engine: Engine) -> None:
    status = engine.status()
    assert (status.active, status.waiting, status.outstanding) == (0, 0, 0)
    assert status.free == status.total
    assert status.checkpoints == 0


def settle(engine: Engine) -> None:
    """Wait until the worker has seen the last cancellation: a further request passes it."""
    engine.generate(golden_prompt(engine, 0), RequestOptions(sampling=GREEDY, max_new_tokens=1))


@pytest.mark.parametrize("build", [Engine, Scorer])
def test_room_that_nothing_would_use_is_refused(build: type[Engine | Scorer], model: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="only take memory") as caught:
        build(model, config=EngineConfig(device_state_slots=1))

    assert caught.value.field == "device_state_slots"


@pytest.mark.parametrize("method", ["prepare", "chat"])
def test_messages_far_over_the_context_are_refused_without_being_encoded(
    engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode_spans", lambda *arguments: pytest.fail("encoded"))
    messages = [{"role": "user", "content": "word " * 20_000}]

    with pytest.raises(ContextLengthExceeded, match="tokens > 512 maximum") as refusal:
        getattr(engine, method)(messages)

    assert refusal.value.field == "messages"


def test_eight_streams_give_what_each_gives_alone(engine: Engine) -> None:
    golden = load("tiny-dense")
    request = RequestOptions(sampling=GREEDY, max_new_tokens=32)

    handles = [engine.submit(golden_prompt(engine, row % 4), request) for row in range(NUM_STREAMS)]
    results = [handle.result() for handle in handles]

    for row, result in enumerate(results):
        assert list(result.token_ids) == golden[f"greedy.{row % 4}"].tolist()
    settle(engine)
    expect_everything_free(engine)


def test_events_come_in_order_and_fold_to_the_result(engine: Engine) -> None:
    request = RequestOptions(sampling=GREEDY, max_new_tokens=32)
    with engine.submit(golden_prompt(engine, 3), request) as handle:
        events = list(handle)

    result = events[-1]
    assert isinstance(events[0], GenerationStart)
    assert isinstance(result, GenerationResult)
    committed = [event for event in events if isinstance(event, OutputCommitted)]
    assert [t for event in committed for t in event.token_ids] == list(result.token_ids)
    text = "".join(delta.text for event in committed for delta in event.deltas)  # type: ignore[union-attr] # no tools
    assert text == result.summary.content


@pytest.mark.parametrize("when", ["waiting", "admitted", "first token", "later", "finished"])
def test_cancelling_at_any_state_leaves_nothing(engine: Engine, when: str) -> None:
    request = RequestOptions(
        sampling=SamplingParams(seed=3), max_new_tokens=300, output=OutputOptions(ignore_eos=True)
    )
    handles = [engine.submit(golden_prompt(engine, 3), request) for _ in range(NUM_STREAMS + 4)]

    threads = [
        threading.Thread(target=leave, args=(handle, when, row))
        for row, handle in enumerate(handles)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)

    assert not any(thread.is_alive() for thread in threads)
    settle(engine)
    expect_everything_free(engine)


def leave(handle: object, when: str, row: int) -> None:
    """Read a handle up to a state, then cancel, close or drop it."""
    from ninfer.engine.response_channel import GenerationHandle

    assert isinstance(handle, GenerationHandle)
    wanted = {"waiting": 0, "admitted": 1, "first token": 3, "later": 9}.get(when)
    events = iter(handle)
    if wanted is None:
        handle.cancel() if row % 2 else None
        handle.result()
        return
    for _ in range(wanted):
        next(events)
    if row % 2:
        handle.cancel()
        assert handle.result().finish in (FinishReason.CANCELLED, FinishReason.LENGTH)
    else:
        handle.close()


def test_closed_engine_leaves_no_thread_and_refuses(model: Path) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    engine = Engine(model, config=EngineConfig(max_context=256))
    prompt = golden_prompt(engine, 0)

    engine.close()
    engine.close()

    gc.collect()
    with pytest.raises(EngineClosed):
        engine.submit(prompt)
    left = [t.name for t in threading.enumerate() if t.ident not in before and t.is_alive()]
    assert left == []


def test_close_ends_running_requests_with_an_outcome(model: Path) -> None:
    engine = Engine(model, config=EngineConfig(max_context=512))
    options = RequestOptions(max_new_tokens=400, output=OutputOptions(ignore_eos=True))
    handle = engine.submit(golden_prompt(engine, 0), options)
    next(iter(handle))

    engine.close()

    assert handle.is_done


@pytest.mark.parametrize("dtype", [KvDtype.F32, KvDtype.BF16, KvDtype.INT8_G64])
def test_every_cache_type_recites_the_golden_text(model: Path, dtype: KvDtype) -> None:
    golden = load("tiny-dense")
    with Engine(model, config=EngineConfig(max_context=256, kv_dtype=dtype)) as engine:
        options = RequestOptions(sampling=GREEDY, max_new_tokens=32)
        result = engine.generate(golden_prompt(engine, 2), options)

    assert (engine.device_kind, engine.kv_dtype) == ("host", dtype)
    assert list(result.token_ids) == golden["greedy.2"].tolist()


def test_sampled_output_is_reproducible_from_its_seed(engine: Engine) -> None:
    options = RequestOptions(
        sampling=SamplingParams(temperature=1.5, seed=11),
        max_new_tokens=24,
        output=OutputOptions(ignore_eos=True),
    )

    first = engine.generate(golden_prompt(engine, 1), options)
    crowd = [engine.submit(golden_prompt(engine, row % 4), options) for row in range(8)]
    others = [handle.result() for handle in crowd]

    assert others[1].token_ids == first.token_ids == others[5].token_ids
    assert others[0].token_ids != first.token_ids


def test_context_shrinks_to_the_model_only_when_allowed(model: Path) -> None:
    with Engine(model, config=EngineConfig(max_context=1 << 20, shrinks_context=True)) as engine:
        assert engine.config.max_context == 4096
    with pytest.raises(ConfigurationError, match="max_context"):
        Engine(model, config=EngineConfig(max_context=1 << 20))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", "5"),
        ("max_new_tokens", None),
        ("max_new_tokens", True),
        ("max_new_tokens", -1),
        ("queue_timeout_s", "1"),
        ("request_timeout_s", -1.0),
    ],
)
def test_option_of_a_request_that_is_no_number_is_named(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        RequestOptions(**{name: value})  # type: ignore[arg-type]

    assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("thinking_budget", "5"),
        ("thinking_budget", -1),
        ("stop", "ab"),
        ("stop", (5,)),
        ("reasoning_stop", None),
    ],
)
def test_option_of_an_output_of_the_wrong_type_is_named(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        OutputOptions(**{name: value})  # type: ignore[arg-type]

    assert caught.value.field == name


def test_chat_with_a_budget_that_is_no_number_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError, match="max_new_tokens must be an integer, not '5'"):
        engine.chat([{"role": "user", "content": "hi"}], max_new_tokens="5")  # type: ignore[arg-type]


def test_top_k_above_the_vocabulary_names_the_range(engine: Engine) -> None:
    with pytest.raises(RequestError, match=r"-1\.\.512"):
        engine.submit(golden_prompt(engine, 0), RequestOptions(sampling=SamplingParams(top_k=513)))


def test_fingerprint_changes_with_what_can_change_bits(model: Path) -> None:
    def fingerprint(path: Path, dtype: KvDtype) -> str:
        with Engine(path, config=EngineConfig(max_context=256, kv_dtype=dtype)) as engine:
            return engine.fingerprint

    base = fingerprint(model, KvDtype.AUTO)

    assert fingerprint(model, KvDtype.AUTO) == base
    assert fingerprint(model, KvDtype.F32) == base  # what auto came to
    assert fingerprint(model, KvDtype.INT8_G64) != base
    assert fingerprint(artifact_path("tiny-dense"), KvDtype.AUTO) != base


def test_scorer_and_engine_keep_to_their_purpose(model: Path) -> None:
    from ninfer.config import Purpose

    with pytest.raises(ConfigurationError, match="Scorer"):
        Engine(model, config=EngineConfig(purpose=Purpose.CAUSAL_SCORING))
    with Scorer(model) as scorer, pytest.raises(RequestError, match=r"tokens\[1\]"):
        scorer.score([1, 512])


@pytest.mark.parametrize("build", [Engine, Scorer])
def test_a_start_asks_for_missing_kernels_together_and_says_how_far_it_is(
    build: type[Engine | Scorer], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, told = list[Any](), list[tuple[int, int]]()

    def compile_ahead(*wanted: Any) -> None:
        *names, progress = wanted
        asked.append(names)
        progress(1, 2)

    def rehearse(stream: HostStream, sequence: Any, ahead: Any) -> None:
        ahead(["first", "second"], "sm_90")

    monkeypatch.setattr("ninfer.cuda.compile_ahead.compile_ahead", compile_ahead)
    monkeypatch.setattr(HostStream, "rehearse", rehearse)

    build(
        model,
        config=EngineConfig(max_context=64),
        compiling=lambda *numbers: told.append(numbers),
    ).close()

    assert asked == [["tiny-dense", ["first", "second"], "sm_90"]]
    assert told == [(1, 2)]


@pytest.mark.parametrize(
    ("missing", "driver"),
    [
        (ModuleNotFoundError("No module named 'cuda'"), "none (the extra [cuda] is not installed)"),
        (
            ImportError("libnvvm is damaged"),
            "none (device 0: libnvvm is damaged; pip install '.[cuda]', or use --device host)",
        ),
    ],
)
def test_version_says_in_few_words_that_the_extra_is_missing(
    missing: ImportError, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "ninfer.cuda.device":
                raise missing

    monkeypatch.delitem(sys.modules, "ninfer.cuda.device", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])

    assert device_summary().driver == driver
