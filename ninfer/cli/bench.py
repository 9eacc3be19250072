"""``ninfer bench``: prefill and decode speed over a grid, through the whole engine.

A cell submits ``concurrency`` requests of one prompt length at once and generates ``gen-len``
tokens of each, end tokens ignored. Prefill speed is prompt tokens over the time to the first token
of the slowest request; decode speed is the tokens of all requests over the time from the first to
the last of them.
"""

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode, UsageError
from ninfer.cli.generate import open_engine
from ninfer.cli.options import add_engine_options, integer
from ninfer.config import MAX_CONCURRENCY
from ninfer.frontend.frontend import OutputOptions
from ninfer.generation import CacheMode, SamplingParams
from ninfer.runtime import Engine, RequestOptions

PROMPT_SEED_STEP = 7919
"""Distance between neighbouring ids of the made-up prompts; a prime, so that they vary."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured point: medians over the repeats, tokens per second."""

    prompt_tokens: int
    generated_tokens: int
    concurrency: int
    prefill_per_s: float
    decode_per_s: float
    first_token_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="artifact file")
    parser.add_argument(
        "--prompt-lens",
        type=_list,
        default=[128, 512],
        metavar="N,N",
        help="prompt lengths in tokens (default: 128,512)",
    )
    parser.add_argument(
        "--gen-len",
        type=integer,
        default=64,
        metavar="N",
        help="tokens generated for each request (default: 64)",
    )
    parser.add_argument(
        "--concurrency",
        type=_list,
        default=[1],
        metavar="N,N",
        help="requests at a time, each 1..8 (default: 1)",
    )
    parser.add_argument(
        "--repeat",
        type=integer,
        default=3,
        metavar="N",
        help="measured runs of a cell (default: 3)",
    )
    parser.add_argument(
        "--warmup", type=integer, default=1, metavar="N", help="runs before them (default: 1)"
    )
    parser.add_argument(
        "--format",
        choices=["text", "json"],
        default="text",
        help="form of the output (default: text)",
    )
    add_engine_options(parser, max_context=4096)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Measure every cell and print a table or JSON."""
    _check_grid(options)
    cells: list[Cell] = []
    with open_engine(options, console, max_concurrency=max(options.concurrency)) as engine:
        _check_context(engine, options)
        total = len(options.prompt_lens) * len(options.concurrency)
        for prompt_len in options.prompt_lens:
            for concurrency in options.concurrency:
                console.progress("bench", len(cells), total, "cells")
                cells.append(_measure(engine, prompt_len, concurrency, options))
        model_id, weights_id = engine.model_id, engine.weights_id
    if options.format == "json":
        document = {"model": model_id, "weights": weights_id, "cells": [asdict(c) for c in cells]}
        print(json.dumps(document))
    else:
        print("prompt  generated  requests  prefill tok/s  decode tok/s  first token s")
        for cell in cells:
            print(
                f"{cell.prompt_tokens:6}  {cell.generated_tokens:9}  {cell.concurrency:8}  "
                f"{cell.prefill_per_s:13.1f}  {cell.decode_per_s:12.1f}  {cell.first_token_s:13.3f}"
            )
    return ExitCode.DONE


def _check_grid(options: argparse.Namespace) -> None:
    for name, low in (("gen_len", 1), ("repeat", 1), ("warmup", 0)):
        if getattr(options, name) < low:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {low}")
    if not all(1 <= count <= MAX_CONCURRENCY for count in options.concurrency):
        raise UsageError(f"--concurrency takes numbers from 1 to {MAX_CONCURRENCY}")
    if not all(length >= 1 for length in options.prompt_lens):
        raise UsageError("--prompt-lens takes numbers from 1 on")


def _check_context(engine: Engine, options: argparse.Namespace) -> None:
    longest = max(options.prompt_lens) + options.gen_len
    if longest > engine.config.max_context:
        raise UsageError(
            f"{longest} tokens of prompt and answer do not fit the context of "
            f"{engine.config.max_context}"
        )


def _measure(
    engine: Engine, prompt_len: int, concurrency: int, options: argparse.Namespace
) -> Cell:
    for _ in range(options.warmup):
        _run_once(engine, prompt_len, concurrency, options.gen_len)
    runs = [
        _run_once(engine, prompt_len, concurrency, options.gen_len) for _ in range(options.repeat)
    ]
    first_s = statistics.median(first for first, _ in runs)
    decode_s = statistics.median(decode for _, decode in runs)
    return Cell(
        prompt_tokens=prompt_len,
        generated_tokens=options.gen_len,
        concurrency=concurrency,
        prefill_per_s=prompt_len * concurrency / first_s,
        decode_per_s=(options.gen_len - 1) * concurrency / decode_s if decode_s else 0.0,
        first_token_s=first_s,
    )


def _run_once(
    engine: Engine, prompt_len: int, concurrency: int, gen_len: int
) -> tuple[float, float]:
    """Return seconds to the slowest first token, and from there to the last token."""
    addressable = engine.frontend.tokenizer.addressable
    request = RequestOptions(
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=gen_len,
        output=OutputOptions(ignore_eos=True),
        cache=CacheMode.DISABLED,
    )
    prompts = []
    for row in range(concurrency):
        ids = [(row + index * PROMPT_SEED_STEP) % addressable for index in range(prompt_len)]
        prompts.append(engine.frontend.prepare_tokens(ids))
    with ExitStack() as stack:
        begin = time.perf_counter()
        handles = [stack.enter_context(engine.submit(prompt, request)) for prompt in prompts]
        timings = [handle.result().timings for handle in handles]
        total = time.perf_counter() - begin
    first = max(timing.queue_s + timing.prefill_s for timing in timings)
    return first, total - first


def _list(text: str) -> list[int]:
    return [integer(item) for item in text.split(",")]
