"""One process in which a device fails on purpose, started by the tests of failures.

    python -m tests.support.device_faults KIND DEVICE            three clients; prints what each got
    python -m tests.support.device_faults KIND DEVICE --command  ``ninfer bench``; its exit code

KIND: ``bad-launch`` refuses a launch in the middle of a round, ``poisoned`` loses the context by a
store to nowhere, ``full-start`` leaves too little memory for the plan, ``full-stream`` not even
enough for a stream.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from ninfer import model_stack
from ninfer.cli import bench
from ninfer.cli.bench_measures import Machine
from ninfer.cli.console import Console
from ninfer.cli.exit_codes import exit_code_of
from ninfer.cli.options import add_console_options
from ninfer.config import EngineConfig
from ninfer.device import Device
from ninfer.errors import NinferError
from ninfer.frontend.frontend import OutputOptions
from ninfer.generation import SamplingParams
from ninfer.host.device import HostStream
from ninfer.program.decode_graph import DecodeGraphs
from ninfer.runtime import Engine, RequestOptions, SyntheticModel

HEALTHY_ROUNDS = 5
LEFT_BYTES = {"full-start": 700 << 20, "full-stream": 8 << 20}
NOWHERE = 1 << 8


def main(kind: str, device: str, *rest: str) -> int:
    """Arm the fault and run."""
    hog: list[Any] = []
    if device != "host" and kind in LEFT_BYTES:
        hog += _fill_memory(LEFT_BYTES[kind])
    if kind in LEFT_BYTES:
        use_prebuilt_kernels()
    else:
        arm(kind, device)
    if rest:
        # Would be the first to ask for memory, and the plan of a start is what is wanted.
        bench.measure_machine = lambda *_: Machine("none", 1.0, None)  # type: ignore[attr-defined]
        return _command(["--synthetic", "tiny-moe", "--device", device, "--gen-len", "64"])
    sys.stdout.write(json.dumps(_serve_three(device)) + "\n")
    return 0


def arm(kind: str, device: str, before_round: Callable[[], None] = lambda: None) -> None:
    """Make a round fail that follows some healthy ones; ``before_round`` is called before each."""
    if device != "host":
        use_prebuilt_kernels()
    healthy = DecodeGraphs.launch
    count = 0

    def launch(graphs: DecodeGraphs, num_rows: int) -> None:
        nonlocal count
        before_round()
        count += 1
        if count > HEALTHY_ROUNDS:
            _fail(graphs._stream, kind)
        healthy(graphs, num_rows)

    DecodeGraphs.launch = launch  # type: ignore[method-assign,assignment]


def use_prebuilt_kernels() -> None:
    """Open CUDA devices with the kernels of the tests."""
    from tests.support.cuda_bench import open_cuda_device

    def opened(ordinal: int) -> Device:
        device: Device = open_cuda_device()
        return device

    model_stack._open_cuda = opened


def _command(arguments: list[str]) -> int:
    """``ninfer bench`` without the other commands, which need what a card's machine may lack."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    add_console_options(parser)
    options = parser.parse_args(arguments)
    try:
        return int(bench.run(options, Console(options)))
    except NinferError as error:
        sys.stderr.write(f"error: {error}\n")
        code = exit_code_of(error)
        return -1 if code is None else int(code)


def _serve_three(device: str) -> list[str]:
    """Code of the error that each client got, then of one that comes later, then the state."""
    config = EngineConfig(device=device, max_concurrency=2, max_context=256)
    options = RequestOptions(
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=128,
        output=OutputOptions(ignore_eos=True),
    )
    with Engine(SyntheticModel("tiny-moe", "groupwise-int"), config=config) as engine:
        prepared = engine.frontend.prepare_tokens([7, 8, 9])
        handles = [engine.submit(prepared, options) for _ in range(3)]
        found = [_code(handle.result) for handle in handles]
        found.append(_code(lambda: engine.submit(prepared, options)))
        found.append(engine.status().state.name)
    return found


def _code(call: Callable[[], object]) -> str:
    try:
        call()
    except NinferError as error:
        return str(error.code)
    return "no error"


def _fail(stream: Any, kind: str) -> None:
    if isinstance(stream, HostStream):
        stream.enqueue(_refuse)
        return
    from ninfer.kernels.cuda.pointwise import make_swiglu

    kernel = make_swiglu(True, False)
    arguments = [NOWHERE] * len(kernel.params)
    threads = 1 << 20 if kind == "bad-launch" else None
    stream.launch(kernel, (1, 1, 1), arguments, threads=threads)


def _refuse() -> None:
    raise ValueError("refused on purpose")


def _fill_memory(left: int) -> list[Any]:
    """Take all but some of the memory, in a device of its own."""
    from tests.support.cuda_bench import open_cuda_device

    device = open_cuda_device()
    return [device, device.arena("hog", device.free_bytes() - left)]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
