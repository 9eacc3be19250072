"""Products of many columns on a Hopper card: TFLOP/s of the multiplication and of whole products.

    python -m benchmarks.gpu_prefill FOLDER
    python -m benchmarks.gpu_prefill --compile FOLDER

In one run: PyTorch's bf16 products, where it is installed, as the ceiling; the card's copy
bandwidth and matmul rate (`benchmarks.card`); the multiplication alone in several tile shapes; then
whole products as prefill makes them, and weights of the same columns together and one after the
other. Columns and weights are normal numbers: what a product draws, and so the clock, depends on
the bits that change. Calls follow one another in a graph; median of five replays.
"""

import json
import os
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.card import Card, measure_card
from benchmarks.gpu_bench import Bench, command_line, open_device
from benchmarks.gpu_linear import clock_mhz, replay_us
from benchmarks.gpu_matrices import BF16, Q4, Q5, Q6, ROUNDS, W8, Operands, Weights
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import KernelCache, mark_prebuilt
from ninfer.kernels.cuda import coded_linear
from ninfer.kernels.cuda.coded_output import Ending
from ninfer.kernels.cuda.coded_product import make_coded_product
from ninfer.kernels.cuda.coded_shape import Coded
from ninfer.kernels.cuda.coded_turns import shapes_for
from ninfer.kernels.cuda.column_pack import make_pack
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.ops import linear
from ninfer.tensor import DType, LinearInput, TensorFormat

COLUMNS: Final = (1024, 2048, 4096)
CEILING_SHAPES: Final = ((34816, 5120), (5120, 17408), (8192, 8192))
ALONE: Final = ((Q4, 34816, 5120), (Q5, 5120, 17408), (W8, 12288, 2048))
MATRICES: Final = (
    (Q4, 34816, 5120, False),
    (Q5, 5120, 17408, True),
    (Q5, 12288, 5120, False),
    (Q4, 4096, 5120, False),
    (Q6, 5120, 6144, True),
    (W8, 12288, 2048, False),
    (BF16, 5120, 5120, False),
    (BF16, 96, 5120, False),
)


def tflops(rows: int, width: int, count: int, us: float) -> float:
    """Rate of a product."""
    return round(2e-6 * rows * width * count / us, 1)


def torch_tflops() -> dict[str, float]:
    """The ceiling: PyTorch on normal numbers."""
    try:
        torch = import_module("torch")
    except ImportError:
        return {}
    found = {}
    for rows, width in CEILING_SHAPES:
        for count in (1024, 4096, 8192):
            x = torch.randn(count, width, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
            for _ in range(3):
                x @ w.T
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(10):
                x @ w.T
            end.record()
            torch.cuda.synchronize()
            us = start.elapsed_time(end) * 100
            found[f"{rows}x{width} T={count}"] = tflops(rows, width, count, us)
    torch.cuda.empty_cache()
    return found


class NormalOperands(Operands):
    """Operands whose columns are normal numbers."""

    def columns(self, count: int, width: int) -> LinearInput:
        """Random columns."""
        if (count, width) not in self._columns:
            values = self._bench.rng.standard_normal((count, width), np.float32)
            words = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            block = self._bench.columns(count, width)
            linear.pack(self._bench.ctx, self._bench.put(words, DType.BF16), block)
            self._columns[count, width] = block
        return self._columns[count, width]


def variants(format: TensorFormat) -> tuple[Coded, ...]:
    """Tile shapes that are compared."""
    shapes = list(shapes_for(format, Ending.BF16))
    if format is Q4:
        shapes += [Coded(format, 256, 6, 2), Coded(format, 256, 6, 8), Coded(format, 256, 5)]
    return tuple(shapes)


def alone(
    bench: Bench,
    card: Card,
    weights: Weights,
    operands: Operands,
    format: TensorFormat,
    rows: int,
    width: int,
) -> dict[str, Any]:
    """The multiplication alone, by tile shape."""
    found: dict[str, Any] = {}
    layout = WeightLayout(format, rows, width)
    arena = bench.device.arena("alone", layout.nbytes + 256)
    matrix = weights.make(arena, format, rows, width)
    for count in COLUMNS:
        out = operands.out(0, count, rows, DType.BF16)
        image = operands.columns(count, width).storage
        parts = (matrix.storage.address, image.address, out.address)
        extents = (layout.k_tiles, layout.row_tiles, 0, rows, count, rows, 0, int(Output.BF16), 0)
        for shape in variants(format):
            grid = shape.grid(layout.row_tiles, count, bench.stream.num_multiprocessors)
            kernel = make_coded_product(shape, Ending.BF16)
            call = partial(bench.stream.launch, kernel, grid, (*parts, *extents))
            us = replay_us(bench, [call] * 4, 5) / 4
            name = f"{shape.tile_columns}_{shape.stages}_{shape.band} T={count}"
            found[name] = card.of_matmul(us, 2.0 * rows * width * count)
    arena.close()
    return found


def products(bench: Bench, card: Card, weights: Weights, operands: Operands) -> dict[str, Any]:
    """Whole products as prefill makes them."""
    found: dict[str, Any] = {}
    for format, rows, width, is_added in MATRICES:
        arena = bench.device.arena("product", WeightLayout(format, rows, width).nbytes + 256)
        matrix = weights.make(arena, format, rows, width)
        row: dict[str, Any] = {}
        for count in (256, *COLUMNS):
            call = partial(operands.call, (matrix,), count, is_added)
            us = replay_us(bench, [call] * 2, 5) / 2
            row[f"T={count}"] = card.of_matmul(us, 2.0 * rows * width * count)
        found[f"{format.name} {rows}x{width}"] = row
        arena.close()
    return found


def groups(bench: Bench, weights: Weights, operands: Operands) -> dict[str, Any]:
    """Weights of the same columns together, and one after the other: microseconds."""
    found: dict[str, Any] = {}
    for step in dict.fromkeys(step for steps in ROUNDS.values() for step in steps):
        if len(step.weights) == 1:
            continue
        arena = bench.device.arena("group", step.nbytes + 4096)
        matrices = weights.make_step(arena, step)
        row: dict[str, Any] = {}
        for count in (256, *COLUMNS):
            together = partial(operands.call, matrices, count, False)
            alone = [partial(operands.call, (matrix,), count, False) for matrix in matrices]
            times = (replay_us(bench, calls * 2, 5) / 2 for calls in ([together], alone))
            row[f"T={count}"] = [round(us, 1) for us in times]
        found[step.name] = row
        arena.close()
    return found


def run_kernels() -> list[Kernel]:
    """Everything that a run needs."""
    kernels = [*coded_linear.declared(), make_pack(False, True)]
    kernels += [make_coded_product(shape, Ending.BF16) for shape in variants(Q4)]
    return list(dict.fromkeys(kernels))


def main() -> None:
    """Measure and print."""
    options = command_line(__doc__)
    folder: Path = options.folder
    if options.compile:
        cache = KernelCache(folder)
        for kernel in run_kernels():
            sys.stdout.write(f"{kernel.name} {cache.compiled(kernel, 'sm_90').figures}\n")
        mark_prebuilt(folder)
        return
    document: dict[str, Any] = {}

    def note(name: str, value: Any) -> None:
        document[name] = value
        sys.stdout.write(f"{name}: {json.dumps(value)}\n")
        sys.stdout.flush()

    note("torch TFLOP/s", torch_tflops())
    with open_device(folder) as device:
        bench = Bench(device)
        card = measure_card(bench)
        note("card", card._asdict())
        weights, operands = Weights(bench), NormalOperands(bench)
        note("clocks before", clock_mhz())
        for format, rows, width in ALONE:
            name = f"alone {format.name} {rows}x{width}"
            note(name, alone(bench, card, weights, operands, format, rows, width))
        note("products", products(bench, card, weights, operands))
        note("groups together, alone: us", groups(bench, weights, operands))
        note("clocks after", clock_mhz())
        bench.arena.close()
        bench.pinned.close()
    if "OUT" in os.environ:
        text = json.dumps(document, indent=1) + "\n"
        (Path(os.environ["OUT"]) / "gpu_prefill.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
