"""Products of many columns on a Hopper card: TFLOP/s of each part and of the whole.

    python -m benchmarks.gpu_wide FOLDER
    python -m benchmarks.gpu_wide --compile FOLDER

In one run: PyTorch's bf16 product of the same shapes, where it is installed, as the ceiling; the
multiplication alone in several tile shapes; expanding and widening alone; then whole products as
prefill makes them. Calls follow one another in a graph; median of five replays.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.gpu_check import Bench
from benchmarks.gpu_linear import clock_mhz, replay_us
from benchmarks.gpu_matrices import BF16, Q4, Q5, Q6, W8, Operands, Weights
from ninfer.cuda.device import CudaDevice
from ninfer.cuda.kernel_source import Kernel
from ninfer.cuda.module import KernelCache, mark_prebuilt, prebuilt
from ninfer.kernels.cuda import coded_linear, wide_linear
from ninfer.kernels.cuda.coded_product import Coded, make_coded_product
from ninfer.kernels.cuda.column_pack import make_pack
from ninfer.kernels.cuda.launch import block_parts
from ninfer.kernels.cuda.product_output import Output
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.kernels.cuda.wide_expand import expand_grid, make_expand, make_widen
from ninfer.kernels.cuda.wide_layout import image_bytes
from ninfer.kernels.cuda.wide_output import Ending
from ninfer.kernels.cuda.wide_product import Wide, make_wide_product
from ninfer.ops import linear
from ninfer.tensor import DType, LinearInput, Tensor, TensorFormat

VARIANTS: Final = (
    Wide(2, 4),
    Wide(2, 4, band=8),
    Wide(2, 4, band=32),
    Wide(2, 3),
    Wide(2, 4, cluster=2),
    Wide(2, 4, cluster=2, band=8),
    Wide(1, 6),
    Wide(1, 6, band=8),
)
SHAPES: Final = ((34816, 5120), (5120, 17408), (12288, 5120), (5120, 6144))
COLUMNS: Final = (1024, 2048, 4096)
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


def torch_tflops() -> dict[str, float]:
    """The ceiling: PyTorch on random numbers."""
    try:
        torch = import_module("torch")
    except ImportError:
        return {}
    found = {}
    for rows, width in (*SHAPES, (8192, 8192)):
        for count in (*COLUMNS, 8192):
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
            ms = start.elapsed_time(end) / 10
            found[f"{rows}x{width} T={count}"] = round(2e-9 * rows * width * count / ms, 1)
    torch.cuda.empty_cache()
    return found


class NormalOperands(Operands):
    """Columns of normal numbers: what a product draws depends on the bits that change."""

    def columns(self, count: int, width: int) -> LinearInput:
        """Random columns."""
        if (count, width) not in self._columns:
            values = self._bench.rng.standard_normal((count, width), np.float32)
            words = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
            block = self._bench.columns(count, width)
            linear.pack(self._bench.ctx, self._bench.put(words, DType.BF16), block)
            self._columns[count, width] = block
        return self._columns[count, width]


class Parts:
    """Operands of the parts of a product, in scratch memory of the benchmark's own."""

    def __init__(self, bench: Bench, weights: Weights, operands: Operands) -> None:
        self._bench, self._operands = bench, operands
        self._images = bench.arena.take((800 << 20,), DType.U8)
        self._matrix = weights.make(bench.arena, BF16, 34816, 5120)

    def times(self, rows: int, width: int, count: int) -> dict[str, list[float]]:
        """TFLOP/s by tile shape."""
        x = self._operands.columns(count, width)
        at = self._images.address
        weights = at + image_bytes(count, width)
        out = self._operands.out(count, rows, DType.BF16)
        k_tiles = -(-width // 128)
        self._widen(x, at)
        self._bench.stream.launch(
            make_expand(BF16),
            expand_grid(-(-rows // 16), k_tiles),
            (*[self._matrix.storage.address] * 3, weights, k_tiles, 0, 0, rows),
        )
        found = {}
        for shape in VARIANTS:
            call = partial(self._multiply, shape, at, weights, out, rows, count, k_tiles * 2)
            us = replay_us(self._bench, [call] * 4, 5) / 4
            name = make_wide_product(shape, Ending.BF16).name[10:]
            found[name] = [round(2e-6 * rows * width * count / us, 1), round(us, 1)]
        return found

    def widen_us(self, width: int, count: int) -> float:
        """Time of a linear input's way to rows."""
        x = self._operands.columns(count, width)
        calls: list[Callable[[], None]] = [partial(self._widen, x, self._images.address)] * 4
        return round(replay_us(self._bench, calls, 5) / 4, 1)

    def _widen(self, x: LinearInput, to: int) -> None:
        base, _, padded = block_parts(x)
        grid = expand_grid(-(-x.num_columns // 8), padded // 128)
        self._bench.stream.launch(make_widen(False), grid, (base, to, padded // 128))

    def _multiply(
        self, shape: Wide, x: int, w: int, out: Tensor, rows: int, count: int, k_blocks: int
    ) -> None:
        self._bench.stream.launch(
            make_wide_product(shape, Ending.BF16),
            shape.grid(rows, count, self._bench.stream.num_multiprocessors),
            (x, w, out.address, k_blocks, rows, count, out.shape[1], 0, int(Output.BF16)),
        )


def coded_times(
    bench: Bench, weights: Weights, operands: Operands, format: TensorFormat, size: tuple[int, int]
) -> dict[str, Any]:
    """TFLOP/s of products with coded weights alone, by tile shape."""
    rows, width = size
    found: dict[str, Any] = {}
    layout = WeightLayout(format, rows, width)
    arena = bench.device.arena("coded", layout.nbytes + 256)
    matrix = weights.make(arena, format, rows, width)
    for count in COLUMNS:
        x, out = operands.columns(count, width), operands.out(count, rows, DType.BF16)
        base, _, padded = block_parts(x)
        bench.stream.launch(
            make_widen(True),
            expand_grid(-(-count // 8), padded // 128),
            (base, bench.stream.scratch.address, padded // 128),
        )
        for shape in coded_variants(format):
            kernel = make_coded_product(shape, Ending.BF16)
            call = partial(
                bench.stream.launch,
                kernel,
                shape.grid(layout.row_tiles, count, bench.stream.num_multiprocessors),
                (
                    matrix.storage.address,
                    bench.stream.scratch.address,
                    out.address,
                    layout.k_tiles,
                    layout.row_tiles,
                    0,
                    rows,
                    count,
                    rows,
                    0,
                    int(Output.BF16),
                ),
            )
            us = replay_us(bench, [call] * 4, 5) / 4
            name = f"{shape.tile_columns}_{shape.stages}_{shape.band} T={count}"
            found[name] = [round(2e-6 * rows * width * count / us, 1), round(us, 1)]
    arena.close()
    return found


def coded_variants(format: TensorFormat) -> tuple[Coded, ...]:
    """Tile shapes that are compared."""
    shapes = [coded_linear.large_tiles(format), coded_linear.small_tiles(format)]
    if format is Q4:
        shapes += [Coded(format, 2, 6, 4), Coded(format, 2, 5, 16), Coded(format, 1, 8, 8)]
    return tuple(shapes)


def products(
    bench: Bench, weights: Weights, operands: Operands, *, is_expanded: bool
) -> dict[str, Any]:
    """Whole products as prefill makes them: TFLOP/s and microseconds."""
    found: dict[str, Any] = {}
    multiply = wide_linear.multiply_wide if is_expanded else coded_linear.multiply_coded
    for format, rows, width, is_added in MATRICES:
        arena = bench.device.arena("product", WeightLayout(format, rows, width).nbytes + 256)
        matrix = weights.make(arena, format, rows, width)
        row: dict[str, Any] = {}
        for count in (256, *COLUMNS):
            x, out = operands.columns(count, width), operands.out(count, rows, DType.BF16)
            output = Output.ADD if is_added else Output.BF16
            call = partial(multiply, bench.stream, x, matrix, out, 0, output)
            us = replay_us(bench, [call] * 2, 5) / 2
            row[f"T={count}"] = [round(2e-6 * rows * width * count / us, 1), round(us, 1)]
        if is_expanded:
            expand = partial(
                wide_linear._expand, bench.stream, matrix, 0, rows, bench.stream.scratch.address
            )
            row["expand us"] = round(replay_us(bench, [expand] * 2, 5) / 2, 1)
        found[f"{format.name} {rows}x{width}"] = row
        arena.close()
    return found


def run_kernels() -> list[Kernel]:
    """Everything that a run needs."""
    kernels = [*coded_linear.declared(), *wide_linear.declared(), make_pack(False), make_pack(True)]
    kernels += [make_wide_product(shape, Ending.BF16) for shape in VARIANTS]
    kernels += [make_coded_product(shape, Ending.BF16) for shape in coded_variants(Q4)]
    return list(dict.fromkeys(kernels))


def main(arguments: list[str]) -> None:
    """Measure and print."""
    folder = Path(arguments[-1])
    if "--compile" in arguments:
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
    with CudaDevice(0, prebuilt(folder)) as device:
        bench = Bench(device)
        weights, operands = Weights(bench), NormalOperands(bench)
        parts = Parts(bench, weights, operands)
        note("clocks before", clock_mhz())
        for format, rows, width in ((Q4, 34816, 5120), (Q5, 5120, 17408), (W8, 12288, 2048)):
            name = f"coded {format.name} {rows}x{width}"
            note(name, coded_times(bench, weights, operands, format, (rows, width)))
        note("products, coded", products(bench, weights, operands, is_expanded=False))
        note("widen us", {f"K={w} T={t}": parts.widen_us(w, t) for _, w in SHAPES for t in COLUMNS})
        for rows, width in SHAPES[:2]:
            for count in COLUMNS:
                note(f"multiply {rows}x{width} T={count}", parts.times(rows, width, count))
        note("products, expanded", products(bench, weights, operands, is_expanded=True))
        note("clocks after", clock_mhz())
        bench.arena.close()
        bench.pinned.close()
    if "OUT" in os.environ:
        text = json.dumps(document, indent=1) + "\n"
        (Path(os.environ["OUT"]) / "gpu_wide.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
