"""Where the time of a decode round and of a prefill chunk goes, op by op, on synthetic models.

    python -m benchmarks.gpu_rounds FOLDER MODEL[:PROFILE] [MODEL...] [--rows 1,8] [--context 8192]
        [--kv auto|bf16|int8]
    python -m benchmarks.gpu_rounds --compile FOLDER MODEL [MODEL...]

For each model: the start, a real prefill with a decode behind it, decoding behind an imagined
context, and then each op of the schedule alone, captured in the order and on the operands of the
real round. ``sum`` over ``whole`` tells what the ops gain from following one another. The share of
a product is its floor (bytes of weights over the copy bandwidth, or operations over the matmul
rate, both of this run) over its time. FOLDER holds prebuilt kernels; ``--compile`` brings it up to
date and removes what is no longer declared.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

from benchmarks.card import matmul_tflop_s
from ninfer.cli.bench_measures import CellPlan, Machine, measure_cell, measure_machine
from ninfer.config import EngineConfig, KvDtype
from ninfer.device import host_array
from ninfer.models.package import GROUPWISE_INT
from ninfer.program.model_units import UnitExecutors
from ninfer.program.round_io import PrefillChunk
from ninfer.runtime import Engine, SyntheticModel
from ninfer.tensor import DType, LinearInput, Matrix, Tensor
from ninfer.tensor_formats import encoded_bytes

REPLAYS: Final = 5
FAMILIES: Final = (
    *("attention", "embedding", "gated_delta", "kv_cache", "linear", "moe", "norm", "pointwise"),
    "sampling",
)
LAUNCHERS: Final = {
    *("paged_decode", "paged_prefill", "gather", "decode", "prefill", "append", "project"),
    *(
        "project_add",
        "project_all",
        "project_gated",
        "route",
        "route_and_gate",
        "mix",
        "experts",
        "rms_norm",
        "swiglu",
        "count_tokens",
        "sample",
    ),
}


class Sieve:
    """A kernel table that lets through the ops it is told to, and notes all that were asked for."""

    def __init__(self, table: ModuleType) -> None:
        self.kept: str | None = None
        self.columns = 1
        self.calls: Counter[str] = Counter()
        self.nbytes: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        self.on_route: Callable[[Any, Tensor], None] | None = None
        self.table: Any = SimpleNamespace(
            **{name: self._family(name, getattr(table, name)) for name in FAMILIES}
        )

    def share(self, label: str, us: float, machine: Machine) -> float:
        """What part of an op's time its floor takes: bytes or operations, whichever is longer."""
        floors = [self.nbytes[label] / machine.copy_gb_s / 1e3]
        if machine.matmul_tflop_s is not None:
            floors.append(2e-6 * self.codes[label] * self.columns / machine.matmul_tflop_s)
        return max(floors) / us

    def _family(self, name: str, module: ModuleType) -> SimpleNamespace:
        members = {key: value for key, value in vars(module).items() if not key.startswith("__")}
        for key in LAUNCHERS & members.keys():
            members[key] = self._launcher(name, key, members[key])
        return SimpleNamespace(**members)

    def _launcher(self, family: str, name: str, launch: Callable[..., None]) -> Callable[..., None]:
        def call(stream: Any, *args: Any) -> None:
            label = f"{family}.{name}{_suffix(args)}"
            self.calls[label] += 1
            if family == "linear":
                self.nbytes[label], self.codes[label] = _matrix_bytes(args), _matrix_codes(args)
            if self.kept in (None, label):
                launch(stream, *args)
            if name == "route" and self.on_route is not None:
                self.on_route(stream, args[1])

        return call


def _matrices(args: tuple[Any, ...]) -> list[Matrix]:
    """Weights among the arguments, those of several products included."""
    lists = [arg for arg in args if isinstance(arg, list)]
    every = (*args, *(item for products in lists for product in products for item in product))
    return [arg for arg in every if isinstance(arg, Matrix)]


def _suffix(args: tuple[Any, ...]) -> str:
    shapes = [f" {m.format.name} {m.num_rows}x{m.num_columns}" for m in _matrices(args)]
    if shapes:
        return "".join(shapes)
    widths = [arg for arg in args if isinstance(arg, LinearInput)]
    return f" {widths[-1].width}" if widths else ""


def _matrix_codes(args: tuple[Any, ...]) -> int:
    return sum(m.num_rows * m.num_columns for m in _matrices(args))


def _matrix_bytes(args: tuple[Any, ...]) -> int:
    return sum(encoded_bytes(m.format, (m.num_rows, m.num_columns)) for m in _matrices(args))


def breakdown(
    parts: UnitExecutors, sieve: Sieve, enqueue: Callable[[], None], machine: Machine
) -> list[str]:
    """Time the whole sequence, then each op of it alone."""
    stream: Any = parts.stream

    def timed(label: str | None) -> float:
        # Phases share bytes: an op alone must find what its own phase left, such as expert ids,
        # and what it makes of foreign bytes must not reach the next run.
        for plane in parts.state._planes():
            stream.clear(plane)
        sieve.kept = None
        enqueue()
        stream.synchronize()
        sieve.calls.clear()
        sieve.kept = label
        stream.begin_capture()
        enqueue()
        graph = stream.end_capture()
        times = []
        for _ in range(REPLAYS):
            start = stream.record()
            graph.launch(stream)
            end = stream.record()
            end.synchronize()
            times.append(end.elapsed_ms(start) * 1e3)
        graph.close()
        return float(sorted(times)[len(times) // 2])

    whole = timed(None)
    calls = dict(sieve.calls)
    found = {label: timed(label) for label in calls}
    lines = []
    for label, us in sorted(found.items(), key=lambda item: -item[1]):
        count = calls[label]
        share = (
            f"{sieve.share(label, us / count, machine):6.3f}" if label in sieve.codes else "     -"
        )
        lines.append(
            f"  {us:9.1f} us {100 * us / whole:5.1f}%  {count:4} x {us / count:8.2f} us "
            f"{share}  {label}"
        )
    total = sum(found.values())
    return [f"  whole {whole:.1f} us, sum of the ops alone {total:.1f} us", *lines]


def routing(
    parts: UnitExecutors, sieve: Sieve, enqueue: Callable[[], None], num_tokens: int
) -> list[str]:
    """How many experts the tokens of one run chose together, on average over the layers."""
    nbytes = 1 << 20
    arena = parts.decode._ctx.device.pinned_arena("choices", nbytes)
    pinned = arena.take((nbytes,), DType.U8)
    found: list[int] = []

    def note(stream: Any, experts: Tensor) -> None:
        copy = Tensor(pinned.address, experts.dtype, experts.shape)
        stream.download(copy, experts)
        stream.synchronize()
        found.append(len(np.unique(host_array(copy))))

    sieve.kept, sieve.on_route = None, note
    enqueue()
    parts.stream.synchronize()
    sieve.on_route = None
    arena.close()
    if not found:
        return []
    return [f"  distinct experts of {num_tokens} tokens: {np.mean(found):.1f} a layer"]


def measure(
    source: SyntheticModel, machine: Machine, options: argparse.Namespace
) -> dict[str, object]:
    """Everything about one model."""
    say = sys.stderr.write
    rows, context = options.rows, options.context
    config = EngineConfig(
        device="0",
        max_concurrency=max(rows),
        max_context=context + 256,
        prefill_chunk=options.chunk,
        kv_dtype=KvDtype(options.kv),
    )
    begin = time.perf_counter()
    with Engine(source, config=config) as engine:
        ready = time.perf_counter() - begin
        steps = {step: round(seconds, 3) for step, seconds in engine.start_seconds.items()}
        say(f"\n== {source.model_id} {source.weights_id}: ready in {ready:.2f} s {steps}\n")
        plans = [] if options.no_prefill else [CellPlan(context, 2, 1), CellPlan(context, 33, 1)]
        plans += [CellPlan(context, 65, count, is_imagined=True) for count in rows]
        cells = []
        for plan in plans:
            cell = measure_cell(engine, machine, plan, warmup=0, repeat=1)
            cells.append(cell)
            prefill = "imagined" if cell.prefill_per_s is None else f"{cell.prefill_per_s:.0f}"
            say(
                f"B={cell.concurrency} prefill {prefill} tok/s ({cell.prefill_fraction}), decode "
                f"{cell.decode_per_s:.1f} tok/s, {cell.decode_fraction:.3f} of its ceiling; round "
                f"{cell.round_us:.0f} us, device {cell.device_us:.0f}, host {cell.host_us:.0f}\n"
            )
            logits = engine.measurement.rounds._on_device.io.download_logits(
                engine.measurement.rounds._on_device.stream, cell.concurrency
            )
            say(f"  logits: finite {np.isfinite(logits).all()}, deviation {logits.std():.2f}\n")
        parts = engine.measurement.rounds._on_device
        decode, prefill_unit = parts.decode, parts.prefill
        ctx = decode._ctx
        sieve = Sieve(ctx.kernels)
        stood_in = replace(ctx, kernels=sieve.table)
        object.__setattr__(decode, "_ctx", stood_in)
        object.__setattr__(prefill_unit, "_ctx", stood_in)
        for count in [] if options.brief else sorted({min(rows), max(rows)}):
            say(f"decode round, B={count}\n")
            sieve.columns = count
            # The header of the newest round of this size is on the device if it came last.
            measure_cell(engine, machine, CellPlan(context, 2, count, True), warmup=0, repeat=1)
            lines = breakdown(parts, sieve, partial(decode._enqueue, count), machine)
            lines += routing(parts, sieve, partial(decode._enqueue, count), count)
            say("\n".join(lines) + "\n")
        if not (options.brief or options.no_prefill):
            columns = min(options.chunk, context)
            say(f"prefill of {columns} tokens behind {context - columns}\n")
            sieve.columns = columns
            lines = breakdown(parts, sieve, _chunk(prefill_unit, columns, context), machine)
            say("\n".join(lines) + "\n")
        return {"model": source.model_id, "ready_s": ready, "start": steps, "cells": cells}


def _chunk(prefill: Any, columns: int, context: int) -> Callable[[], None]:
    """The sequence of one chunk that ends at the context, without its upload."""
    from ninfer.models.qwen_hybrid import text
    from ninfer.models.qwen_hybrid.activations import carve_activations

    model, first = prefill._model, context - columns
    axis = range(first, context)
    tokens = [(7919 * place) % (model.geometry.vocab_rows // 2) for place in axis]
    stream = prefill._ctx.stream
    inputs = prefill._io.upload_prefill(
        stream, PrefillChunk(tokens, first, (axis, axis, axis), 0, 0, fold=0)
    )
    stream.synchronize()
    storage: Tensor = prefill._workspace

    def enqueue() -> None:
        ctx = prefill._ctx
        activations = carve_activations(ctx, model.geometry, model.weights, columns, storage)
        text.prefill_columns(ctx, model, inputs.columns, activations)

    return enqueue


def compile_folder(folder: Path, models: list[str]) -> None:
    """Bring a folder up to date and drop what nothing declares any more."""
    from ninfer.compilation import DEFAULT_TARGET, declared_kernels
    from ninfer.cuda.module import KernelCache, mark_prebuilt

    cache = KernelCache(folder)
    kernels = declared_kernels(models)
    wanted = set()
    for number, kernel in enumerate(kernels, 1):
        cache.compiled(kernel, DEFAULT_TARGET)
        wanted.add(
            f"{kernel.name}.{DEFAULT_TARGET}.{cache._key(kernel, DEFAULT_TARGET)[:32]}.kernel"
        )
        sys.stderr.write(f"\r{number} of {len(kernels)} kernels")
    mark_prebuilt(folder)
    for path in folder.glob("*.kernel"):
        if path.name not in wanted:
            path.unlink()
    sys.stderr.write("\n")


def main() -> None:
    """Compile, or measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--brief", action="store_true", help="no figures of single ops")
    parser.add_argument("--no-prefill", action="store_true", help="imagined prompts only")
    parser.add_argument(
        "--tflops", type=float, help="rate of bf16 products instead of measuring it"
    )
    parser.add_argument(
        "--rows", type=lambda text: [int(x) for x in text.split(",")], default=[1, 8]
    )
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument(
        "--kv",
        choices=[kind.value for kind in KvDtype if kind is not KvDtype.F32],
        default=KvDtype.AUTO.value,
        help="element type of the KV cache",
    )
    options = parser.parse_args()
    sources = [(*name.split(":"), GROUPWISE_INT)[:2] for name in options.models]
    if options.compile:
        compile_folder(options.folder, [model_id for model_id, _ in sources])
        return
    from ninfer import model_stack
    from ninfer.cuda.device import CudaDevice
    from ninfer.cuda.module import prebuilt

    cache = prebuilt(options.folder)
    model_stack._open_cuda = lambda ordinal: CudaDevice(ordinal, cache)
    rate = options.tflops or matmul_tflop_s().get("idle")
    machine = measure_machine("0", rate)
    sys.stderr.write(f"{machine}\n")
    documents = [
        measure(SyntheticModel(model_id, profile), machine, options)
        for model_id, profile in sources
    ]
    if "OUT" in os.environ:
        found = {"machine": machine, "kv": options.kv, "models": documents}
        text = json.dumps(found, default=_plain, indent=1)
        (Path(os.environ["OUT"]) / "gpu_rounds.json").write_text(text + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    from dataclasses import asdict

    return asdict(value)


if __name__ == "__main__":
    main()
