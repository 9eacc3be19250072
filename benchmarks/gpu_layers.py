"""Device memory and stopwatch of the mixers' bench: layers that are made, timed and given back."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu_bench import Bench
from ninfer.arena import AllocatedArena
from ninfer.device import host_array
from ninfer.ops import linear
from ninfer.tensor import DType, LinearInput, Tensor

Figure = dict[str, float]


class Layers:
    """Device memory for the layers of one measurement, given back as a whole."""

    def __init__(self, bench: Bench, nbytes: int) -> None:
        self.bench = bench
        self.arena: AllocatedArena = bench.device.arena("layers", nbytes)
        rng = np.random.default_rng(1)
        pool = (rng.standard_normal(1 << 20) * 0.5).astype(np.float32).view(np.uint32)
        words = (pool >> np.uint32(16)).astype(np.uint16)
        self._words = self._upload(np.tile(words, 16), DType.BF16)
        self._octets = self._upload(rng.integers(0, 255, 1 << 25).astype(np.uint8), DType.U8)
        halves = rng.integers(0x2000, 0x2400, 1 << 22).astype(np.uint16)
        self._halves = self._upload(halves.view(np.float16), DType.F16)

    def _upload(self, values: Any, dtype: DType) -> Tensor:
        tensor = self.arena.take(values.shape, dtype)
        staged = self.bench.staging.rows(0, tensor.nbytes)
        host_array(staged)[...] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.bench.stream.upload(Tensor(tensor.address, DType.U8, (tensor.nbytes,)), staged)
        self.bench.stream.synchronize()
        return tensor

    def fill(self, tensor: Tensor) -> Tensor:
        """Random numbers of the tensor's type: bf16, small f16 steps, or octets."""
        sources = {DType.BF16: self._words, DType.F16: self._halves}
        source = sources.get(tensor.dtype, self._octets)
        flat = Tensor(tensor.address, DType.U8, (tensor.nbytes,))
        octets = Tensor(source.address, DType.U8, (source.nbytes,))
        for first in range(0, flat.nbytes, octets.nbytes):
            count = min(octets.nbytes, flat.nbytes - first)
            self.bench.stream.copy(flat.rows(first, count), octets.rows(0, count))
        return tensor

    def random(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """Filled memory."""
        return self.fill(self.arena.take(shape, dtype))

    def numbers(self, values: Any, dtype: DType) -> Tensor:
        """Given values."""
        return self._upload(np.asarray(values), dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """Cleared memory."""
        tensor = self.arena.take(shape, dtype)
        self.bench.stream.clear(tensor)
        return tensor

    def columns(self, count: int, width: int) -> LinearInput:
        """A linear input of zeros."""
        nbytes = linear.input_bytes(self.bench.ctx, count, width)
        return LinearInput(self.zeros((nbytes,), DType.U8), count, width)

    def __enter__(self) -> "Layers":
        return self

    def __exit__(self, *exc: object) -> None:
        self.bench.stream.synchronize()
        self.arena.close()


def replay_us(bench: Bench, calls: Sequence[Callable[[], None]], replays: int = 9) -> float:
    """Median time of one call of a graph of calls."""
    for call in calls[:2]:
        call()
    bench.stream.synchronize()
    bench.stream.begin_capture()
    for call in calls:
        call()
    graph = bench.stream.end_capture()
    times = []
    for _ in range(replays):
        start = bench.stream.record()
        graph.launch(bench.stream)
        end = bench.stream.record()
        end.synchronize()
        times.append(end.elapsed_ms(start) * 1e3 / len(calls))
    graph.close()
    return float(np.median(times))
