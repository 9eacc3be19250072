"""Linear products on a CUDA device: fractions of the card's own copy bandwidth.

    python -m benchmarks.gpu_linear [FOLDER OF PREBUILT KERNELS]
    python -m benchmarks.gpu_linear --compile FOLDER

In one run: copy bandwidth and matmul rate (`benchmarks.card`); every format against float64, and
the bits of a column in calls of every size; then each matrix of the two big models for several
numbers of columns, rotating over copies so that the second-level cache does not help; then all
products of a decode round in sequence; then prefill. Calls are captured in a graph and follow one
another by programmatic dependent launch.
Bytes are those of the resident matrix, each read once.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.card import Card, measure_card
from benchmarks.gpu_bench import Bench, command_line, open_device
from benchmarks.gpu_matrices import BF16, Q4, Q5, Q6, ROUNDS, W8, Operands, Weights
from ninfer.compilation import kernel_shapes
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import KernelCache, mark_prebuilt
from ninfer.device import host_array
from ninfer.kernels.cuda import linear as cuda_linear
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.ops import linear
from ninfer.tensor import DType, Matrix, Tensor, TensorFormat
from ninfer.tensor_formats import decode_matrix, encode_matrix

COLUMNS: Final = (1, 8, 16, 32)
ROUND_COLUMNS: Final = (*range(1, 9), 16, 32)
PREFILL_COLUMNS: Final = (1024, 4096)
ROTATION_BYTES: Final = 400 << 20  # several times the second-level cache
WARM_S: Final = 0.1  # load before a measurement


def clock_mhz() -> str:
    """Present clock of the multiprocessors, as the management tool says it."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return "unknown"


def replay_us(bench: Bench, calls: Sequence[Callable[[], None]], replays: int = 9) -> float:
    """Median time of one replay of a graph of calls."""
    for call in calls:
        call()
    bench.stream.synchronize()
    bench.stream.begin_capture()
    for call in calls:
        call()
    graph = bench.stream.end_capture()
    # Clocks rise under load and fall in pauses: replays follow one another without a gap.
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        for _ in range(4):
            graph.launch(bench.stream)
        bench.stream.synchronize()
    marks = [bench.stream.record()]
    for _ in range(replays):
        graph.launch(bench.stream)
        marks.append(bench.stream.record())
    marks[-1].synchronize()
    times = [end.elapsed_ms(start) * 1e3 for start, end in pairwise(marks)]
    graph.close()
    return float(np.median(times))


def correctness(bench: Bench) -> dict[str, Any]:
    """Largest error relative to a row's norm, and whether a column's bits depend on its company."""
    found: dict[str, Any] = {}
    rows, width = 4100, 1500
    for format in TensorFormat.BF16, Q4, Q5, Q6, W8:
        values = bench.rng.standard_normal((rows, width)).astype(np.float32)
        if format is BF16:
            stored = values.view(np.uint32) >> np.uint32(16)
            payload = stored.astype(np.uint16).reshape(-1).view(np.uint8)
            exact = (stored << np.uint32(16)).view(np.float32).astype(np.float64)
        else:
            payload = encode_matrix(format, values)
            exact = decode_matrix(format, payload, rows, width).astype(np.float64)
        storage = bench.arena.take((WeightLayout(format, rows, width).nbytes,), DType.U8)
        weight = Matrix(format, storage, rows, width, 0, rows)
        linear.make_resident(bench.ctx, bench.put(payload, DType.U8), weight)
        bench.stream.synchronize()
        words = bench.rng.standard_normal((300, width)).astype(np.float32)
        words = (words.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        x = (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        first: np.ndarray[Any, Any] | None = None
        for count in (1, 7, 16, 31, 128, 300):
            block = bench.columns(count, width)
            linear.pack(bench.ctx, bench.put(words[:count], DType.BF16), block)
            out = bench.arena.take((count, rows), DType.F32)
            linear.project(bench.ctx, block, weight, out)
            got = read(bench, out)
            norms = np.linalg.norm(exact, axis=1) * np.linalg.norm(x[:count], axis=1)[:, None]
            error = np.abs(got - x[:count] @ exact.T) / norms
            first = got[:1] if first is None else first
            found[f"{format.name} T={count}"] = [
                float(f"{error.max():.2g}"),
                bool(np.array_equal(got[:1], first)),
            ]
    return found


def read(bench: Bench, tensor: Tensor) -> np.ndarray[Any, Any]:
    """Values of a tensor."""
    part = bench.staging.rows(0, tensor.nbytes)
    bench.stream.download(part, Tensor(tensor.address, DType.U8, (tensor.nbytes,)))
    bench.stream.synchronize()
    octets = host_array(part)
    return octets.view(tensor.dtype.value).reshape(tensor.shape).copy()


def matrices_us(bench: Bench, weights: Weights, operands: Operands, gb_s: float) -> dict[str, Any]:
    """Each matrix alone: microseconds and the fraction of copy bandwidth, by columns."""
    found: dict[str, Any] = {}
    steps = {step._replace(repeats=1): None for round_ in ROUNDS.values() for step in round_}
    for step in steps:
        copies = max(2, min(40, ROTATION_BYTES // step.nbytes))
        arena = bench.device.arena("rotation", copies * (step.nbytes + 2048))
        made = [weights.make_step(arena, step) for _ in range(copies)]
        row = {}
        for count in COLUMNS:
            calls = [partial(operands.call, m, count, step.is_added) for m in made] * 2
            us = replay_us(bench, calls) / len(calls)
            row[f"T={count}"] = [round(us, 2), round(step.nbytes / us / 1e3 / gb_s, 3)]
        found[f"{step.name} {step.nbytes / 1e6:.1f} MB"] = row
        arena.close()
    return found


def rounds_us(
    bench: Bench, weights: Weights, operands: Operands, gb_s: float, columns: Sequence[int]
) -> dict[str, Any]:
    """All products of a decode round in sequence."""
    found: dict[str, Any] = {}
    for name, round_ in ROUNDS.items():
        nbytes = sum(step.nbytes * step.repeats for step in round_)
        arena = bench.device.arena("round", nbytes + 4096 * 256)
        steps = [
            (weights.make_step(arena, step), step.is_added)
            for layer in range(max(step.repeats for step in round_))
            for step in round_
            if layer < step.repeats
        ]
        bench.stream.synchronize()
        row: dict[str, Any] = {"GB": round(nbytes / 1e9, 3), "steps": len(steps)}
        for count in columns:
            calls = [partial(operands.call, m, count, added) for m, added in steps]
            us = replay_us(bench, calls)
            row[f"T={count}"] = [round(us, 1), round(nbytes / us / 1e3 / gb_s, 3)]
        found[name] = row
        arena.close()
    return found


def prefill(
    bench: Bench, weights: Weights, operands: Operands, card: Card
) -> dict[str, dict[str, Any]]:
    """Products of many columns, and their share of the card's own."""
    found: dict[str, dict[str, Any]] = {}
    for format, rows, width in (
        (Q4, 34816, 5120),
        (Q5, 5120, 17408),
        (Q5, 12288, 5120),
        (Q6, 5120, 6144),
        (W8, 12288, 2048),
        (BF16, 5120, 5120),
    ):
        arena = bench.device.arena("prefill", WeightLayout(format, rows, width).nbytes + 256)
        matrix = weights.make(arena, format, rows, width)
        row = {}
        for count in PREFILL_COLUMNS:
            us = replay_us(bench, [partial(operands.call, (matrix,), count, False)] * 2, 5) / 2
            row[f"T={count}"] = card.of_matmul(us, 2.0 * rows * width * count)
        found[f"{format.name} {rows}x{width}"] = row
        arena.close()
    return found


def run_kernels() -> list[Kernel]:
    """Everything that a run needs."""
    models = ("qwen3.6-27b", "qwen3.6-35b-a3b")
    return list(
        dict.fromkeys(k for model in models for k in cuda_linear.declared(kernel_shapes(model)))
    )


def compile_one(folder: Path, index: int) -> str:
    """Build one kernel; returns its name and figures."""
    kernel = run_kernels()[index]
    figures = KernelCache(folder).compiled(kernel, "sm_90").figures
    return f"{kernel.name} {figures}"


def compile_into(folder: Path) -> None:
    """Build everything that a run needs, on all processors."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for line in pool.map(partial(compile_one, folder), range(len(run_kernels()))):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    mark_prebuilt(folder)


def main() -> None:
    """Measure and print."""
    options = command_line(__doc__)
    if options.compile:
        compile_into(options.folder)
        return
    with open_device(options.folder) as device:
        bench = Bench(device)
        document: dict[str, Any] = {"device": device.name}

        def note(name: str, value: Any) -> None:
            document[name] = value
            sys.stdout.write(f"{name}: {json.dumps(value)}\n")
            sys.stdout.flush()

        card = measure_card(bench)
        note("card", card._asdict())
        gb_s = card.copy_gb_s
        note("correctness", correctness(bench))
        note("clocks before", clock_mhz())
        weights, operands = Weights(bench), Operands(bench)
        note("matrices", matrices_us(bench, weights, operands, gb_s))
        note("rounds", rounds_us(bench, weights, operands, gb_s, ROUND_COLUMNS))
        note("prefill", prefill(bench, weights, operands, card))
        note("clocks after", clock_mhz())
        bench.arena.close()
        bench.pinned.close()
    if "OUT" in os.environ:
        text = json.dumps(document, indent=1) + "\n"
        (Path(os.environ["OUT"]) / "gpu_linear.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
