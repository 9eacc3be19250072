"""``ninfer bench``: prefill and decode speed over a grid, through the whole engine.

A cell submits ``concurrency`` requests of one prompt length at once and generates ``gen-len``
tokens of each, end tokens ignored. Prefill speed is prompt tokens over the time to the first token
of the slowest request; decode speed is the tokens of all requests over the time from the first to
the last of them. Each is printed beside the ceiling that the model's bytes and operations set on
this device. What is measured lives in `bench_measures`.
"""

import argparse
import json
from dataclasses import asdict

from ninfer.cli.bench_measures import Cell, CellPlan, Machine, measure_cell, measure_machine
from ninfer.cli.console import Console
from ninfer.cli.exit_codes import ExitCode, UsageError
from ninfer.cli.generate import open_engine
from ninfer.cli.model_argument import add_model_argument, settle_model
from ninfer.cli.options import add_engine_options, integer, refuse_idle
from ninfer.cli.report_format import add_format_option
from ninfer.config import MAX_CONCURRENCY
from ninfer.model_stack import GROUPWISE_INT, WEIGHTS_IDS
from ninfer.runtime import Engine, SyntheticModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_model_argument(parser)
    parser.add_argument(
        "--synthetic",
        metavar="ID",
        help="a registered model with random weights instead of an artifact",
    )
    parser.add_argument(
        "--profile",
        choices=sorted(WEIGHTS_IDS),
        default=None,
        help=f"storage profile of a synthetic model (default: {GROUPWISE_INT})",
    )
    parser.add_argument(
        "--seed", type=integer, default=None, metavar="N", help="of synthetic weights (default: 0)"
    )
    parser.add_argument(
        "--context",
        type=_list,
        default=[],
        metavar="N,N",
        help="further cells at contexts of N tokens that are imagined: a synthetic model decodes "
        "behind a random cache",
    )
    parser.add_argument(
        "--matmul-tflops",
        type=float,
        metavar="X",
        help="bf16 rate for the ceiling of prefill (default: the measured one of a known device)",
    )
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
    add_format_option(parser)
    add_engine_options(parser, max_context=4096)


def run(options: argparse.Namespace, console: Console) -> ExitCode:
    """Measure every cell and print a table or JSON."""
    _check_grid(options)
    if options.synthetic is not None:
        options.model = SyntheticModel(
            options.synthetic, options.profile or GROUPWISE_INT, options.seed or 0
        )
    settle_model(options, console)
    machine = measure_machine(options.device, options.matmul_tflops)
    cells: list[Cell] = []
    with open_engine(options, console, max_concurrency=max(options.concurrency)) as engine:
        plans = _plans(options)
        _check_context(engine, plans)
        console.note(engine.memory_account)
        for plan in plans:
            console.progress("bench", len(cells), len(plans), "cells")
            cells.append(
                measure_cell(engine, machine, plan, warmup=options.warmup, repeat=options.repeat)
            )
        if options.format == "json":
            print(json.dumps(_document(engine, machine, cells)))
        else:
            _print_table(engine, machine, cells)
    return ExitCode.DONE


def _plans(options: argparse.Namespace) -> list[CellPlan]:
    lengths = [(length, False) for length in options.prompt_lens]
    lengths += [(length, True) for length in options.context]
    return [
        CellPlan(length, options.gen_len, concurrency, is_imagined)
        for length, is_imagined in lengths
        for concurrency in options.concurrency
    ]


def _document(engine: Engine, machine: Machine, cells: list[Cell]) -> dict[str, object]:
    return {
        "model": engine.model_id,
        "weights": engine.weights_id,
        "machine": asdict(machine),
        "start_s": {step: round(seconds, 4) for step, seconds in engine.start_seconds.items()},
        "memory": engine.arena_bytes,
        "cells": [asdict(cell) for cell in cells],
    }


def _print_table(engine: Engine, machine: Machine, cells: list[Cell]) -> None:
    rate = machine.matmul_tflop_s
    print(
        f"{machine.device}: copies {machine.copy_gb_s:.1f} GB/s, "
        f"matmul {'unknown' if rate is None else f'{rate:.0f} TFLOP/s'}"
    )
    steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in engine.start_seconds.items())
    print(f"start {sum(engine.start_seconds.values()):.2f} s: {steps}")
    print(
        "prompt  generated  requests  prefill tok/s  of limit  decode tok/s  of limit  "
        "first token s  round us  host us"
    )
    for cell in cells:
        mark = "*" if cell.is_imagined else " "
        print(
            f"{cell.prompt_tokens:6}{mark} {cell.generated_tokens:9}  {cell.concurrency:8}  "
            f"{_figure(cell.prefill_per_s, 13, 1)}  {_figure(cell.prefill_fraction, 8, 3)}  "
            f"{cell.decode_per_s:12.1f}  {cell.decode_fraction:8.3f}  {cell.first_token_s:13.3f}  "
            f"{cell.round_us:8.0f}  {cell.host_us:7.0f}"
        )
    if any(cell.is_imagined for cell in cells):
        print("* prompts not processed: decoded behind a random cache")


def _figure(value: float | None, width: int, digits: int) -> str:
    return "-".rjust(width) if value is None else f"{value:{width}.{digits}f}"


def _check_grid(options: argparse.Namespace) -> None:
    for name, low in (("gen_len", 1), ("repeat", 1), ("warmup", 0)):
        if getattr(options, name) < low:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {low}")
    counts = options.concurrency
    if not counts or not all(1 <= count <= MAX_CONCURRENCY for count in counts):
        raise UsageError(f"--concurrency takes numbers from 1 to {MAX_CONCURRENCY}")
    if not options.prompt_lens + options.context:
        raise UsageError("--prompt-lens and --context are empty: there is nothing to measure")
    if not all(length >= 1 for length in options.prompt_lens + options.context):
        raise UsageError("--prompt-lens and --context take numbers from 1 on")
    if options.model is not None and options.synthetic is not None:
        raise UsageError("either an artifact or --synthetic ID is measured")
    if options.synthetic is None:
        refuse_idle(
            options, ["seed", "profile"], "goes with --synthetic: an artifact has its weights"
        )
    if options.context and options.synthetic is None:
        raise UsageError("--context needs --synthetic: an artifact's prompts are processed")


def _check_context(engine: Engine, plans: list[CellPlan]) -> None:
    longest = max(plan.prompt_tokens + plan.generated_tokens for plan in plans)
    if longest > engine.config.max_context:
        raise UsageError(
            f"{longest} tokens of prompt and answer do not fit the context of "
            f"{engine.config.max_context}"
        )


def _list(text: str) -> list[int]:
    try:
        return [integer(item) for item in text.split(",") if item]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from error
