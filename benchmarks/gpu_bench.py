"""A CUDA device, memory and a stopwatch: what every benchmark of the card begins with."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from ninfer.cuda.device import CudaDevice
from ninfer.cuda.module import prebuilt
from ninfer.device import host_array
from ninfer.ops import linear
from ninfer.ops.context import make_context
from ninfer.tensor import DType, LinearInput, Tensor

CALLS: Final = 40
REPLAYS: Final = 20
STAGING_BYTES: Final = 256 << 20


def command_line(description: str | None, *, compiles: bool = True) -> argparse.Namespace:
    """``folder`` (None where it was not named) and, of a benchmark that compiles, ``compile``."""
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folder", type=Path, nargs="?", help="prebuilt kernels; else compile now")
    if compiles:
        parser.add_argument("--compile", action="store_true", help="fill the folder, no device")
    options = parser.parse_args()
    if compiles and options.compile and options.folder is None:
        parser.error("--compile needs a folder")
    return options


def open_device(folder: Path | None) -> CudaDevice:
    """The first device, with the kernels of a folder where one is named."""
    return CudaDevice(0, prebuilt(folder) if folder is not None else None)


class Bench:
    """A device, an arena and a stopwatch."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.stream = device.stream()
        self.ctx = make_context(device, self.stream)
        self.arena = device.arena("benchmark", 4 << 30)
        self.pinned = device.pinned_arena("staging", STAGING_BYTES)
        self.staging = self.pinned.take((STAGING_BYTES,), DType.U8)
        self.rng = np.random.default_rng(0)

    def put(self, values: Any, dtype: DType) -> Tensor:
        """Device copy of an array."""
        tensor = self.arena.take(values.shape, dtype)
        octets = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        part = self.staging.rows(0, octets.size)
        host_array(part)[...] = octets
        self.stream.upload(Tensor(tensor.address, DType.U8, (octets.size,)), part)
        self.stream.synchronize()
        return tensor

    def activations(self, *shape: int) -> Tensor:
        """Random bf16 values near 1."""
        return self.put(self.rng.integers(0x3F00, 0x4000, shape).astype(np.uint16), DType.BF16)

    def columns(self, count: int, width: int) -> LinearInput:
        """Room for a linear input."""
        nbytes = linear.input_bytes(self.ctx, count, width)
        return LinearInput(self.arena.take((nbytes,), DType.U8), count, width)

    def time_us(self, call: Callable[[], None], calls: int = CALLS) -> float:
        """Median time of one call in a chain of equal ones."""
        call()
        self.stream.synchronize()
        self.stream.begin_capture()
        for _ in range(calls):
            call()
        graph = self.stream.end_capture()
        times = []
        for _ in range(REPLAYS):
            start = self.stream.record()
            graph.launch(self.stream)
            end = self.stream.record()
            end.synchronize()
            times.append(end.elapsed_ms(start) * 1e3 / calls)
        graph.close()
        return float(np.median(times))
