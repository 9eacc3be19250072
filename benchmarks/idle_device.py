"""A CUDA device without a card: kernels are asked for and noted, and nothing runs.

The whole engine works on it, choosing token 0 for ever. So it tells which kernels a model really
launches, which is less than it declares, and what a decode round costs on the host:

    python -m benchmarks.idle_device MODEL[:PROFILE] [MODEL...]      kernels by name, and host times
    python -m benchmarks.idle_device --compile FOLDER MODEL...       compile exactly those
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ninfer import model_stack
from ninfer.arena import AllocatedArena
from ninfer.config import EngineConfig
from ninfer.cuda.device import WIDE_SCRATCH_BYTES
from ninfer.cuda.kernel_source import Kernel
from ninfer.device import ALIGNMENT, host_array
from ninfer.frontend.frontend import OutputOptions
from ninfer.generation import CacheMode, SamplingParams
from ninfer.host.device import host_arena
from ninfer.models.package import GROUPWISE_INT
from ninfer.runtime import Engine, RequestOptions, SyntheticModel
from ninfer.tensor import DType, Shape, Tensor

COUNTERS: Final = 1 << 14
NUM_MULTIPROCESSORS: Final = 132
SHARED_BYTES: Final = 227 << 10
FREE_BYTES: Final = 139 << 30
PROMPTS: Final = (3000, 40)
ROUNDS: Final = 400


class IdleArena:
    """Addresses without bytes."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes, self.used_bytes = name, nbytes, 0

    def take(self, shape: Shape, dtype: DType) -> Tensor:
        """The next view."""
        start = -(-self.used_bytes // ALIGNMENT) * ALIGNMENT
        tensor = Tensor((1 << 40) + start, dtype, shape)
        self.used_bytes = start + tensor.nbytes
        return tensor

    def close(self) -> None:
        """Nothing to free."""


class IdleEvent:
    """Reached as soon as it exists."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_ms(self, start: Self) -> float:
        """Time since an earlier point."""
        return (self._at - start._at) * 1e3


class IdleGraph:
    """Replays nothing."""

    def launch(self, stream: Any) -> None:
        """Nothing to enqueue."""

    def close(self) -> None:
        """Nothing to drop."""


class IdleStream:
    """Notes kernels; copies nothing."""

    has_warpgroups = True
    has_clusters = True
    num_multiprocessors = NUM_MULTIPROCESSORS
    shared_bytes = SHARED_BYTES

    def __init__(self, kernels: dict[str, Kernel]) -> None:
        self.kernels = kernels
        arena = IdleArena("scratch", WIDE_SCRATCH_BYTES)
        self.scratch = arena.take((WIDE_SCRATCH_BYTES,), DType.U8)
        self.counters = arena.take((COUNTERS,), DType.U32)

    def num_clusters(self, kernel: Kernel) -> int:
        """As if no group of multiprocessors left any over."""
        return NUM_MULTIPROCESSORS // kernel.cluster_blocks

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: Any, **_: Any) -> None:
        """Note the kernel, and check that the arguments are as many as its parameters."""
        if len(args) != len(kernel.params):
            raise ValueError(f"{kernel.name}: {len(args)} arguments for {len(kernel.params)}")
        if 0 not in grid:
            self.kernels.setdefault(kernel.name, kernel)

    def record(self) -> IdleEvent:
        """The present end."""
        return IdleEvent()

    def rehearse(self, sequence: Callable[[], None], ahead: object = None) -> None:
        """Note the kernels of a sequence."""
        sequence()

    def end_capture(self) -> IdleGraph:
        """An empty recording."""
        return IdleGraph()

    def nothing(self, *_: Any) -> None:
        """Stands for every other call."""

    def download(self, destination: Tensor, source: Tensor) -> None:
        """Everything that comes back is zero."""
        host_array(destination)[...] = 0

    upload = copy = clear = nothing
    synchronize = begin_capture = nothing
    close = nothing


class IdleDevice:
    """What `CudaDevice` would be without a driver."""

    kind, name, driver_version = "cuda", "idle", "none"
    activation_dtype = DType.BF16
    prefill_columns = 4096

    def __init__(self) -> None:
        self.kernels: dict[str, Kernel] = {}

    def free_bytes(self) -> int:
        """As much as a large card has."""
        return FREE_BYTES

    def arena(self, name: str, nbytes: int) -> IdleArena:
        """Addresses only."""
        return IdleArena(name, nbytes)

    def pinned_arena(self, name: str, nbytes: int) -> AllocatedArena:
        """Real memory: the host writes into it."""
        return host_arena(name, nbytes)

    def stream(self) -> IdleStream:
        """A stream that shares the notes."""
        return IdleStream(self.kernels)

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def run_model(source: SyntheticModel) -> tuple[dict[str, Kernel], dict[int, float]]:
    """Kernels that a model launches, and worker microseconds of a boundary by number of rows."""
    device = IdleDevice()
    model_stack._open_cuda = lambda ordinal: device  # type: ignore[assignment,return-value]
    config = EngineConfig(device="0", max_concurrency=8, max_context=4096)
    times = {}
    with Engine(source, config=config) as engine:
        _generate(engine, 1, PROMPTS[0], 2)
        for rows in (1, 8):
            core = engine._worker.core
            spent = [0.0, 0]
            step = core.run_boundary

            def timed(step: Any = step, spent: Any = spent) -> Any:
                begin = time.thread_time()
                result = step()
                spent[0] += time.thread_time() - begin
                spent[1] += 1
                return result

            core.run_boundary = timed  # type: ignore[method-assign]
            _generate(engine, rows, PROMPTS[1], ROUNDS)
            core.run_boundary = step  # type: ignore[method-assign]
            times[rows] = spent[0] / spent[1] * 1e6
    return device.kernels, times


def _generate(engine: Engine, rows: int, prompt_tokens: int, new_tokens: int) -> None:
    options = RequestOptions(
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=new_tokens,
        output=OutputOptions(ignore_eos=True),
        cache=CacheMode.DISABLED,
    )
    prepared = engine.frontend.prepare_tokens([1 + n % 500 for n in range(prompt_tokens)])
    handles = [engine.submit(prepared, options) for _ in range(rows)]
    for handle in handles:
        handle.result()


def main() -> None:
    """List, or compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--compile", type=Path, metavar="FOLDER")
    parser.add_argument("--part", default="0/1", help="this share of the kernels, such as 1/2")
    options = parser.parse_args()
    kernels: dict[str, Kernel] = {}
    for name in options.models:
        model_id, profile = (*name.split(":"), GROUPWISE_INT)[:2]
        found, times = run_model(SyntheticModel(model_id, profile))
        kernels |= found
        text = ", ".join(f"B={rows} {us:.0f} us" for rows, us in times.items())
        sys.stdout.write(f"{name}: {len(found)} kernels; worker time of a boundary {text}\n")
    if options.compile is None:
        sys.stdout.write(" ".join(sorted(kernels)) + "\n")
        return
    share, parts = (int(part) for part in options.part.split("/"))
    _compile(options.compile, kernels, share, parts)


def _compile(folder: Path, kernels: dict[str, Kernel], share: int, parts: int) -> None:
    """Bring a folder up to date; the only or the first part drops what is not wanted any more."""
    from ninfer.compilation import DEFAULT_TARGET
    from ninfer.cuda.module import KernelCache, mark_prebuilt

    cache = KernelCache(folder)
    names = {
        name: f"{name}.{DEFAULT_TARGET}.{cache._key(kernel, DEFAULT_TARGET)[:32]}.kernel"
        for name, kernel in sorted(kernels.items())
    }
    missing = [name for name, file in names.items() if not (folder / file).exists()]
    for number, name in enumerate(missing[share::parts], 1):
        begin = time.perf_counter()
        cache.compiled(kernels[name], DEFAULT_TARGET)
        spent = time.perf_counter() - begin
        sys.stdout.write(f"{number}: {name} {spent:.1f} s\n")
        sys.stdout.flush()
    mark_prebuilt(folder)
    if share == 0:
        for path in folder.glob("*.kernel"):
            if path.name not in names.values():
                path.unlink()


if __name__ == "__main__":
    main()
