"""What ``ninfer bench`` measures: one cell of its grid, and the copy bandwidth to compare with.

A cell submits equal requests at once, through the whole engine. Ceilings come from the model's own
bytes and operations over this run's copy bandwidth and a given matmul rate. Prints nothing.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ninfer.frontend.frontend import OutputOptions
from ninfer.generation import CacheMode, SamplingParams
from ninfer.model_stack import RoundTimes, open_device
from ninfer.runtime import Engine, RequestOptions
from ninfer.tensor import DType

PROMPT_SEED_STEP = 7919
"""Distance between neighbouring ids of the made-up prompts; a prime, so that they vary."""

MATMUL_TFLOP_S = {"H200": 790.0, "H100": 790.0}
"""Measured bf16 matmul rates by a part of the device's name."""

_COPY_BYTES = (1 << 30, 64 << 20)  # on a device of its own, and in process memory
_COPIES = 8


@dataclass(frozen=True, slots=True)
class Machine:
    """What a device can do at best.

    Attributes:
        device: name for people.
        copy_gb_s: bytes read plus bytes written of device copies, measured in this run.
        matmul_tflop_s: bf16 products; None when nobody has told.
    """

    device: str
    copy_gb_s: float
    matmul_tflop_s: float | None


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One point of the grid.

    Attributes:
        prompt_tokens: of each request.
        generated_tokens: of each request.
        concurrency: requests at a time.
        is_imagined: prompts are not processed: the cache holds random numbers, so the cell says
            something about decoding and nothing about prefill.
    """

    prompt_tokens: int
    generated_tokens: int
    concurrency: int
    is_imagined: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured point: medians over the repeats, tokens per second.

    Attributes:
        prompt_tokens, generated_tokens, concurrency, is_imagined: see `CellPlan`.
        prefill_per_s: prompt tokens of all requests until the last first token.
        decode_per_s: tokens of all requests from then on.
        first_token_s: until the last first token is committed.
        decode_ceiling_per_s: at the copy bandwidth.
        decode_fraction: of that ceiling.
        prefill_ceiling_per_s, prefill_fraction: at the matmul rate; None without one.
        round_us: from one decode round to the next.
        device_us: of a round on the device.
        host_us: that the device idles between rounds that follow one another.
    """

    prompt_tokens: int
    generated_tokens: int
    concurrency: int
    is_imagined: bool
    prefill_per_s: float | None
    decode_per_s: float
    first_token_s: float
    decode_ceiling_per_s: float
    decode_fraction: float
    prefill_ceiling_per_s: float | None
    prefill_fraction: float | None
    round_us: float
    device_us: float
    host_us: float


def measure_machine(device_name: str, matmul_tflop_s: float | None) -> Machine:
    """Measure the copy bandwidth of a device before an engine takes its memory."""
    with open_device(device_name) as device:
        nbytes = min(_COPY_BYTES[device.kind == "host"], device.free_bytes() // 4)
        stream = device.stream()
        best = 0.0
        arena = device.arena("copies", 2 * nbytes)
        try:
            source, target = (arena.take((nbytes,), DType.U8) for _ in range(2))
            stream.clear(source)
            stream.copy(target, source)
            for _ in range(_COPIES):
                stream.synchronize()
                begin = time.perf_counter()
                for _ in range(4):
                    stream.copy(target, source)
                stream.synchronize()
                best = max(best, 8 * nbytes / (time.perf_counter() - begin) / 1e9)
        finally:
            arena.close()
        known = (rate for part, rate in MATMUL_TFLOP_S.items() if part in device.name)
        return Machine(device.name, best, matmul_tflop_s or next(known, None))


def measure_cell(
    engine: Engine, machine: Machine, plan: CellPlan, *, warmup: int, repeat: int
) -> Cell:
    """Run a cell and compare it with its ceilings."""
    engine.measurement.rounds.imagine_prompts(plan.is_imagined)
    try:
        for _ in range(warmup):
            _run_once(engine, plan)
        engine.measurement.rounds.round_times()
        runs = [_run_once(engine, plan) for _ in range(repeat)]
        times = engine.measurement.rounds.round_times()
    finally:
        engine.measurement.rounds.imagine_prompts(False)
    return _cell(engine, machine, plan, runs, times)


def _cell(
    engine: Engine,
    machine: Machine,
    plan: CellPlan,
    runs: Sequence[tuple[float, float]],
    times: RoundTimes,
) -> Cell:
    rows, prompt, limits = plan.concurrency, plan.prompt_tokens, engine.measurement.limits
    first_s = statistics.median(first for first, _ in runs)
    decode_s = statistics.median(decode for _, decode in runs)
    decode = _decode_rate(plan, decode_s, times)
    mean_context = prompt + plan.generated_tokens // 2
    ceiling = rows * machine.copy_gb_s * 1e9 / limits.round_bytes(rows, mean_context)
    prefill = None if plan.is_imagined else prompt * rows / first_s
    best = None
    if machine.matmul_tflop_s is not None and prefill is not None:
        best = prompt * machine.matmul_tflop_s * 1e12 / limits.prefill_flop(prompt)
    return Cell(
        prompt_tokens=prompt,
        generated_tokens=plan.generated_tokens,
        concurrency=rows,
        is_imagined=plan.is_imagined,
        prefill_per_s=prefill,
        decode_per_s=decode,
        first_token_s=first_s,
        decode_ceiling_per_s=ceiling,
        decode_fraction=decode / ceiling,
        prefill_ceiling_per_s=best,
        prefill_fraction=None if best is None or prefill is None else prefill / best,
        round_us=times.mean_s * 1e6,
        device_us=times.mean_device_s * 1e6,
        host_us=times.mean_idle_s * 1e6,
    )


def _decode_rate(plan: CellPlan, decode_s: float, times: RoundTimes) -> float:
    """Tokens a second of rounds in which every request decodes.

    Requests begin one after another, so that what the first have generated when the last begins
    must not count against the time from then on. Where no such rounds followed one another, tokens
    over the time after the slowest first token; too much by what came before.
    """
    if times.num_rows == plan.concurrency and times.mean_s > 0:
        return plan.concurrency / times.mean_s
    return (plan.generated_tokens - 1) * plan.concurrency / decode_s if decode_s else 0.0


def _run_once(engine: Engine, plan: CellPlan) -> tuple[float, float]:
    """Return seconds to the slowest first token, and from there to the last token."""
    addressable = engine.frontend.tokenizer.addressable
    request = RequestOptions(
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=plan.generated_tokens,
        output=OutputOptions(ignore_eos=True),
        cache=CacheMode.DISABLED,
    )
    prompts = []
    for row in range(plan.concurrency):
        ids = [
            (row + index * PROMPT_SEED_STEP) % addressable for index in range(plan.prompt_tokens)
        ]
        prompts.append(engine.frontend.prepare_tokens(ids))
    with ExitStack() as stack:
        begin = time.perf_counter()
        handles = [stack.enter_context(engine.submit(prompt, request)) for prompt in prompts]
        timings = [handle.result().timings for handle in handles]
        total = time.perf_counter() - begin
    first = max(timing.queue_s + timing.prefill_s for timing in timings)
    return first, total - first
