"""What the card itself can do, measured in the run that asks: the floors of every figure.

    python -m benchmarks.card

Copies are the best of 20 outside a graph, bytes read plus bytes written. Products are PyTorch's
(cuBLAS) in bf16 on normal numbers, 8192 x 8192 x 8192: the best of ten on a card that was idle, and
the mean of two seconds, when the card is as warm as prefill makes it. They run in a process of
their own, so that nothing of PyTorch is left in the memory that an engine plans with. Where it is
not installed, rates have no share.
"""

import json
import subprocess
import sys
from importlib import import_module
from typing import Any, Final, NamedTuple

from benchmarks.gpu_bench import Bench
from ninfer.tensor import DType

_COPY_BYTES: Final = 1 << 30
_SIDE: Final = 8192
_LOAD_S: Final = 2.0


class Card(NamedTuple):
    """Rates of one card.

    Attributes:
        copy_gb_s: bandwidth of copies.
        matmul_tflop_s: products of an idle card, None where PyTorch is not installed.
        loaded_tflop_s: products of a card under load.
    """

    copy_gb_s: float
    matmul_tflop_s: float | None
    loaded_tflop_s: float | None

    def of_copy(self, us: float, nbytes: float) -> dict[str, float]:
        """Time, rate, and share of the copy bandwidth."""
        rate = nbytes / us / 1e3
        share = round(rate / self.copy_gb_s, 3)
        return {"us": round(us, 2), "gb_s": round(rate, 1), "of_copy": share}

    def of_matmul(self, us: float, flop: float) -> dict[str, float]:
        """Time, rate, and share of the matmul rate."""
        rate = flop / us / 1e6
        found = {"us": round(us, 1), "tflop_s": round(rate, 1)}
        if self.matmul_tflop_s:
            found["of_matmul"] = round(rate / self.matmul_tflop_s, 3)
        return found


def measure_card(bench: Bench) -> Card:
    """Both rates of the card that a bench has open."""
    products = matmul_tflop_s()
    return Card(round(copy_gb_s(bench), 1), products.get("idle"), products.get("loaded"))


def copy_gb_s(bench: Bench) -> float:
    """Bandwidth of device copies."""
    arena = bench.device.arena("copies", 2 * _COPY_BYTES)
    source, target = (arena.take((_COPY_BYTES,), DType.U8) for _ in range(2))
    bench.stream.clear(source)
    best = 0.0
    for _ in range(20):
        start = bench.stream.record()
        for _ in range(4):
            bench.stream.copy(target, source)
        end = bench.stream.record()
        end.synchronize()
        best = max(best, 8 * _COPY_BYTES / end.elapsed_ms(start) / 1e6)
    arena.close()
    return best


def matmul_tflop_s() -> dict[str, float]:
    """Rates of bf16 products, ``idle`` and ``loaded``; empty without PyTorch."""
    command = [sys.executable, "-m", "benchmarks.card"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure_products() -> dict[str, float]:
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return {}
    left, right = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)

    def rate(count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            torch.mm(left, right, out=out)
        end.record()
        end.synchronize()
        return float(2e-9 * _SIDE**3 * count / start.elapsed_time(end))

    rate(3)
    idle = max(rate(1) for _ in range(10))
    loaded = rate(int(_LOAD_S * idle * 1e12 / (2 * _SIDE**3)))
    return {"idle": round(idle, 1), "loaded": round(loaded, 1)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure_products()) + "\n")
