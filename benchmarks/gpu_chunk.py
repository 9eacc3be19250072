"""All products of a prefill chunk in sequence, for seconds: ours beside PyTorch's.

    python -m benchmarks.gpu_chunk [FOLDER OF PREBUILT KERNELS]

Question: would cuBLAS on weights that were expanded to bf16 beforehand be faster? A single product
on a rested card says little: under load the card is at its limit of power, and its clock is what
the products leave it. So both multiply 4,096 columns with the weights of a third of the model's
layers, all of it distinct memory and normal numbers, in turns of two seconds in one process.
PyTorch's side has its weights in bf16, two bytes each; ours decodes as it multiplies, and finds its
columns in the warpgroups' order, as prefill does. Neither ends in SwiGLU.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

from benchmarks.gpu_bench import Bench, command_line, open_device
from benchmarks.gpu_linear import clock_mhz
from benchmarks.gpu_matrices import ROUNDS, Step, Weights
from benchmarks.gpu_prefill import NormalOperands
from ninfer.arena import AllocatedArena
from ninfer.cuda.device import CudaDevice
from ninfer.cuda.graph import CudaGraph

COLUMNS: Final = 4096
PART: Final = 3  # one layer in so many is there
TURNS: Final = 4
TURN_S: Final = 2.0


def layers(model: str) -> list[Step]:
    """The steps of some layers, in the order of a model; its head is no part of a chunk."""
    steps = ROUNDS[model][:-1]
    deepest = max(step.repeats for step in steps)
    return [
        step
        for layer in range(deepest // PART)
        for step in steps
        if layer * step.repeats // deepest != (layer + 1) * step.repeats // deepest
    ]


def flop(steps: Sequence[Step]) -> float:
    """Operations of one pass."""
    return sum(2.0 * COLUMNS * step.width * sum(rows for _, rows in step.weights) for step in steps)


def torch_pass(torch: Any, steps: Sequence[Step]) -> Callable[[], None]:
    """Products of PyTorch over weights of its own."""
    normal = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    columns = {step.width: normal(COLUMNS, step.width) for step in steps}
    calls = []
    outs: dict[int, Any] = {}
    for step in steps:
        rows = sum(rows for _, rows in step.weights)
        weight = normal(rows, step.width).mul_(step.width**-0.5)
        out = outs.setdefault(rows, torch.zeros(COLUMNS, rows, device="cuda", dtype=weight.dtype))
        x = columns[step.width]
        if step.is_added:
            calls.append(partial(torch.addmm, out, x, weight.T, beta=0.5, out=out))
        else:
            calls.append(partial(torch.mm, x, weight.T, out=out))

    def run() -> None:
        for call in calls:
            call()

    return run


def timed(run: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """Milliseconds of one pass, the mean of a turn, begun behind passes that are not counted."""
    run()
    synchronize()
    begin, passes = time.perf_counter(), 0
    while time.perf_counter() - begin < TURN_S:
        run()
        run()
        synchronize()
        passes += 2
    return (time.perf_counter() - begin) / passes * 1e3


def our_pass(bench: Bench, steps: Sequence[Step]) -> tuple[AllocatedArena, CudaGraph]:
    """The products as prefill makes them, in a graph, and the memory of their weights."""
    weights, operands = Weights(bench), NormalOperands(bench)
    arena = bench.device.arena("layers", sum(step.nbytes + 4096 for step in steps))
    calls = [
        partial(operands.call, weights.make_step(arena, step), COLUMNS, step.is_added)
        for step in steps
    ]
    for call in calls:
        call()
    bench.stream.synchronize()
    bench.stream.begin_capture()
    for call in calls:
        call()
    return arena, bench.stream.end_capture()


def compare(device: CudaDevice, torch: Any, model: str) -> None:
    """Both sides in turns."""
    steps, bench = layers(model), Bench(device)
    arena, graph = our_pass(bench, steps)
    sides: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "ours": (partial(graph.launch, bench.stream), bench.stream.synchronize),
        "PyTorch": (torch_pass(torch, steps), torch.cuda.synchronize),
    }
    for name, (run, synchronize) in [*sides.items()] * TURNS:
        ms = timed(run, synchronize)
        rate = flop(steps) / ms / 1e9
        sys.stdout.write(f"{model} {name:8} {ms:7.1f} ms, {rate:5.1f} TFLOP/s, {clock_mhz()}\n")
        sys.stdout.flush()
    graph.close()
    arena.close()
    bench.arena.close()
    bench.pinned.close()


def main() -> None:
    """Measure and print."""
    folder = command_line(__doc__, compiles=False).folder
    torch: Any = import_module("torch")
    with open_device(folder) as device:
        for model in ROUNDS:
            compare(device, torch, model)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
