"""Measure what a training step costs on this machine: kernels, batch sizes, data processes.

    python -m tools.demo_model.speed [CASE...]

A case is RULE-MODE-ROWS, such as ``fla-compiled-64``: RULE ``fla`` or ``torch``, MODE ``eager`` or
``compiled``; ``data-PROCESSES`` measures the data, ``companions-ROWS`` the second phase. Each case
is a process of its own, so that one that fails does not stop the others.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch

from tools.demo_model.companion_phase import Companions, companion_loss
from tools.demo_model.dflash import Drafter
from tools.demo_model.gated_delta import agrees, chunked_delta_rule, flash_delta_rule
from tools.demo_model.geometry import DemoGeometry, for_vocabulary
from tools.demo_model.model import Trunk, narrow_matrices, use_rule
from tools.demo_model.mtp import MtpHead, weighted_loss
from tools.demo_model.optimizer import Optimizer
from tools.demo_model.packing import DataPlan, load_rows, pack
from tools.demo_model.pool import Batch
from tools.demo_model.storage_formats import TrunkStorage
from tools.demo_model.train import SOURCE, choose_device, named
from tools.demo_model.trunk_phase import next_token_loss, trunk_loss

CASES: Final = (
    "data-8",
    "fla-compiled-64",
    "fla-compiled-128",
    "fla-eager-64",
    "torch-compiled-64",
    "companions-32",
)
_LENGTH: Final = 1024
_VOCABULARY: Final = 8200


def random_batch(rows: int, device: torch.device) -> Batch:
    """Return packed rows of random tokens with the lengths of conversations."""
    random = np.random.default_rng(3)
    sizes = random.integers(40, 300, size=rows * 12)
    documents = [(random.integers(0, _VOCABULARY, size=n), np.arange(n) > n // 2) for n in sizes]
    packed = pack(documents, _LENGTH)
    arrays = (packed.tokens, packed.positions, packed.kinds)
    tokens, positions, kinds = (
        torch.from_numpy(a[:rows].astype(np.int64)).to(device) for a in arrays
    )
    return tokens, positions, torch.tensor((0.0, 0.1, 1.0), device=device)[kinds]


def build(rule: str, device: torch.device) -> tuple[DemoGeometry, Trunk, Optimizer]:
    """Return an untrained trunk with its optimizer."""
    shape = for_vocabulary(_VOCABULARY)
    trunk = Trunk(shape).to(device)
    chosen = flash_delta_rule() if rule == "fla" else chunked_delta_rule
    if chosen is None:
        raise SystemExit("flash-linear-attention is not installed")
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    began = time.perf_counter()
    print(f"  check of {rule}: {agrees(chosen, device, kind)}, {time.perf_counter() - began:.1f} s")
    use_rule(trunk, chosen)
    optimizer = Optimizer(named(trunk, "trunk."))
    if device.type == "cuda":
        narrow_matrices(trunk, torch.bfloat16)
    return shape, trunk, optimizer


def measure(name: str, rows: int, step: Callable[[], None], device: torch.device) -> None:
    """Print the rate of a step, after it has been compiled."""
    began = time.perf_counter()
    for _ in range(3):
        step()
    settle(device)
    compiled = time.perf_counter() - began
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < 4:
        step()
        count += 1
        settle(device)
    seconds = (time.perf_counter() - began) / count
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    print(
        f"{name}: {rows * _LENGTH / seconds / 1e3:.0f}k tokens/s, step {1e3 * seconds:.1f} ms,"
        f" first steps {compiled:.1f} s, memory {memory:.1f} GiB",
        flush=True,
    )


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def trunk_case(name: str, device: torch.device) -> None:
    """Measure a step of the trunk, with its parts."""
    rule, mode, rows = name.split("-")
    shape, trunk, optimizer = build(rule, device)
    batch = random_batch(int(rows), device)
    criterion = next_token_loss
    if mode == "compiled":
        criterion = torch.compile(next_token_loss, dynamic=False)
        for block in trunk.layers:
            block.compile(dynamic=False)
    storage = TrunkStorage(shape.head_dim, 2 * shape.num_key_heads * shape.delta_dim)
    seconds = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0, "storage": 0.0}

    def step(is_split: bool = False, is_stored: bool = False) -> None:
        marks = [time.perf_counter()]

        def mark() -> None:
            if is_split:
                settle(device)
                marks.append(time.perf_counter())

        loss = trunk_loss(trunk, batch, criterion)
        mark()
        loss.backward()
        mark()
        optimizer.step(1e-4)
        mark()
        optimizer.publish(storage if is_stored else None)
        mark()
        for key, begin, end in zip(seconds, marks[:-1], marks[1:], strict=False):
            seconds[key] += end - begin

    measure(name, int(rows), step, device)
    step(is_stored=True)
    for _ in range(3):
        step(is_split=True, is_stored=True)
    print("  ms: " + ", ".join(f"{key} {1e3 * value / 3:.1f}" for key, value in seconds.items()))


def companion_case(rows: int, device: torch.device) -> None:
    """Measure a step of the second phase."""
    rule = "torch" if flash_delta_rule() is None or device.type != "cuda" else "fla"
    shape, trunk, _ = build(rule, device)
    trunk.requires_grad_(False)
    companions = Companions(MtpHead(shape), Drafter(shape)).to(device)
    optimizer = Optimizer(named(companions, ""))
    if device.type == "cuda":
        narrow_matrices(companions, torch.bfloat16)
    for module in (*trunk.layers, *companions.children()):
        module.compile(dynamic=False)
    criterion = torch.compile(weighted_loss, dynamic=False)
    batch = random_batch(rows, device)

    def step() -> None:
        loss, _, _ = companion_loss(companions, trunk, batch, 64, criterion)
        loss.backward()
        optimizer.step(1e-4)
        optimizer.publish()

    measure(f"companions-{rows}", rows, step, device)


def data_case(count: int) -> None:
    """Measure the data of a number of processes for a few seconds."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plan = DataPlan(SOURCE, folder, 1, _LENGTH, 1000, 1 << 30)
        began = time.perf_counter()
        workers = [plan.start(index, count) for index in range(count)]
        time.sleep(14)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        elapsed = time.perf_counter() - began
        rows = [load_rows(path) for path in folder.glob("rows-*.npz")]
        used = sum(int((r.kinds > 0).sum()) for r in rows)
        slots = sum(r.kinds.size for r in rows) or 1
        said = sum(int((r.kinds == 2).sum()) for r in rows)
    print(
        f"data-{count}: {used / elapsed / 1e3:.0f}k tokens/s from the start, rows"
        f" {100 * used / slots:.1f}% full, {100 * said / max(used, 1):.0f}% said",
        flush=True,
    )


def run_case(name: str) -> None:
    """Measure one case in this process."""
    device = choose_device()
    if name.startswith("data-"):
        data_case(int(name.removeprefix("data-")))
    elif name.startswith("companions-"):
        companion_case(int(name.removeprefix("companions-")), device)
    else:
        trunk_case(name, device)


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--here", action="store_true", help="in this process")
    parser.add_argument("--limit", type=float, default=60, help="seconds of a case")
    options = parser.parse_args()
    for name in options.cases:
        if options.here:
            run_case(name)
            continue
        began = time.perf_counter()
        command = [sys.executable, "-m", "tools.demo_model.speed", "--here", name]
        try:
            done = subprocess.run(
                command, timeout=options.limit, check=False, stderr=subprocess.PIPE
            )
            errors = done.stderr.decode(errors="replace") if done.returncode else ""
        except subprocess.TimeoutExpired:
            errors = "took too long"
        if errors:
            print(f"{name} failed: {errors[-1500:]}", flush=True)
        print(f"  case took {time.perf_counter() - began:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
