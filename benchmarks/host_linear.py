"""Speed of linear products on the host device: ``python -m benchmarks.host_linear [THREADS]``.

Prints, for every stored format and several numbers of columns, the best of five calls in products
per second (two operations each). The matrix does not fit into the caches, as in a real model.
"""

import argparse
import sys
import time
from typing import Final

import numpy as np

from ninfer.device import host_array
from ninfer.host.device import HostDevice
from ninfer.ops import linear
from ninfer.ops.context import OpContext, make_context
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, LinearInput, Matrix, Tensor, TensorFormat

NUM_ROWS: Final = 4096
WIDTH: Final = 5120
COLUMNS: Final = (1, 4, 16, 128)
REPEATS: Final = 5


def main(num_threads: int) -> None:
    """Measure and print one line for each format."""
    with HostDevice(num_threads) as device:
        ctx = make_context(device, device.stream())
        sys.stdout.write(f"{device.name}, [{NUM_ROWS}, {WIDTH}], GFLOP/s at T = {COLUMNS}\n")
        for format in WEIGHT_FORMATS:
            speeds = measure(ctx, format)
            sys.stdout.write(f"{format.value:12s}" + "".join(f"{s:8.1f}" for s in speeds) + "\n")


def measure(ctx: OpContext, format: TensorFormat) -> list[float]:
    """Return GFLOP/s for each number of columns; weights and columns are random bytes."""
    rng = np.random.default_rng(0)
    nbytes = linear.resident_bytes(ctx, format, NUM_ROWS, WIDTH)
    arena = ctx.device.arena("benchmark", nbytes + max(COLUMNS) * (WIDTH + NUM_ROWS) * 8)
    storage = arena.take((nbytes,), DType.U8)
    # Exponents stay small: bytes below 0x30 are modest numbers as bf16 and as binary16.
    host_array(storage)[...] = rng.integers(0, 0x30, nbytes, np.uint8)
    weight = Matrix(format, storage, NUM_ROWS, WIDTH, 0, NUM_ROWS)
    speeds = []
    for num_columns in COLUMNS:
        x = arena.take((linear.input_bytes(ctx, num_columns, WIDTH),), DType.U8)
        host_array(x).view(np.float32)[...] = rng.standard_normal(num_columns * WIDTH)
        out = arena.take((num_columns, NUM_ROWS), DType.F32)
        best = min(
            _seconds(ctx, LinearInput(x, num_columns, WIDTH), weight, out) for _ in range(REPEATS)
        )
        speeds.append(2 * NUM_ROWS * WIDTH * num_columns / best / 1e9)
    arena.close()
    return speeds


def _seconds(ctx: OpContext, x: LinearInput, weight: Matrix, out: Tensor) -> float:
    start = time.perf_counter()
    linear.project(ctx, x, weight, out)
    ctx.stream.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("num_threads", type=int, nargs="?", default=1)
    main(parser.parse_args().num_threads)
