"""Attention, Gated DeltaNet and experts on a CUDA device: fractions of the card's own floors.

    python -m benchmarks.gpu_mixers [FOLDER OF PREBUILT KERNELS]
    python -m benchmarks.gpu_mixers --compile FOLDER

In one run: copy bandwidth and matmul rate (`benchmarks.card`); the gathered and the sorted experts
against each other; then each kernel at the shapes of the two big models. Calls of one graph go over
different layers' memory, several times the second-level cache, and follow one another by
programmatic dependent launch. Floors: bytes of cache, state (read and written) or chosen experts
over the copy bandwidth, and FLOP over the matmul rate.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.card import Card, measure_card
from benchmarks.gpu_bench import Bench, command_line, open_device
from benchmarks.gpu_layers import (
    Figure,
    Layers,
    replay_us,
)
from benchmarks.gpu_matrices import Weights
from ninfer.cuda.module import KernelCache, mark_prebuilt
from ninfer.device import host_array
from ninfer.kernels.cuda import gated_delta as cuda_gated_delta
from ninfer.kernels.cuda.attention_decode import make_split, split_stages
from ninfer.kernels.cuda.attention_expand import make_expand
from ninfer.kernels.cuda.attention_int8_split import int8_stages, make_int8_split
from ninfer.kernels.cuda.attention_merge import make_merge
from ninfer.kernels.cuda.attention_wide import make_wide_prefill
from ninfer.kernels.cuda.attention_wide_int8 import make_wide_int8_prefill
from ninfer.kernels.cuda.column_pack import make_pack
from ninfer.kernels.cuda.expert_columns import slot_steps
from ninfer.kernels.cuda.expert_down import make_down, slots_each
from ninfer.kernels.cuda.expert_gate import make_gate, walk_stages
from ninfer.kernels.cuda.expert_plan import make_plan
from ninfer.kernels.cuda.expert_rank import make_rank
from ninfer.kernels.cuda.expert_sum import make_combine
from ninfer.kernels.cuda.expert_wide import make_expert_wide
from ninfer.kernels.cuda.expert_wide_shape import ExpertWide
from ninfer.kernels.cuda.launch import MULTIPROCESSOR_SHARED
from ninfer.ops import attention, gated_delta, linear, moe
from ninfer.ops.gated_delta import GatedDeltaDims, GatedDeltaState, GatedDeltaWeights
from ninfer.ops.kv_cache import PagedKv
from ninfer.tensor import DType, Tensor, TensorFormat

ROTATION_BYTES: Final = 300 << 20  # several times the second-level cache
ARENA_BYTES: Final = 12 << 30

HEADS: Final = {"27B": (24, 4, 256), "35B": (16, 2, 256)}
MIXERS: Final = {
    "27B": GatedDeltaDims(16, 48, 128, 128),
    "35B": GatedDeltaDims(16, 32, 128, 128),
}
NUM_EXPERTS, CHOSEN, HIDDEN, EXPERT_WIDTH = 256, 8, 2048, 512
GATE_UP_FORMAT, DOWN_FORMAT = TensorFormat.Q4, TensorFormat.Q5


def paged_cache(
    layers: Layers, model: str, dtype: DType, batch: int, positions: int
) -> tuple[PagedKv, int]:
    """Random planes of one layer, pages in random order, and the bytes that attention reads."""
    _, kv_heads, dim = HEADS[model]
    pages = positions // 64
    shape = (batch * pages, kv_heads, 64, dim)
    steps = (*shape[:3], dim // 64)
    is_int8 = dtype is DType.I8
    order = np.random.default_rng(2).permutation(batch * pages).reshape(batch, pages)
    kv = PagedKv(
        layers.random(shape, dtype),
        layers.random(shape, dtype),
        layers.random(steps, DType.F16) if is_int8 else None,
        layers.random(steps, DType.F16) if is_int8 else None,
        layers.numbers(order.astype(np.int32), DType.I32),
    )
    scales = (kv.key_scales, kv.value_scales)
    read = kv.keys.nbytes + kv.values.nbytes
    return kv, read + sum(plane.nbytes for plane in scales if plane is not None)


def attend_figure(
    bench: Bench, card: Card, model: str, dtype: DType, batch: int, positions: int
) -> Figure:
    """Decode attention of one layer."""
    heads, kv_heads, dim = HEADS[model]
    with Layers(bench, ARENA_BYTES) as layers:
        kv, nbytes = paged_cache(layers, model, dtype, batch, positions)
        caches = [kv]
        while nbytes * len(caches) < ROTATION_BYTES:
            caches.append(paged_cache(layers, model, dtype, batch, positions)[0])
        queries = layers.random((batch, heads, dim), DType.BF16)
        projected = layers.random((batch, 2 * (heads + kv_heads) * dim), DType.BF16)
        rows = layers.numbers(np.arange(batch, dtype=np.int32), DType.I32)
        places = layers.numbers(np.full(batch, positions - 1, np.int32), DType.I32)
        out = layers.columns(batch, heads * dim)
        calls = [
            partial(
                attention.paged_decode,
                bench.ctx,
                queries,
                projected,
                cache,
                rows,
                places,
                dim**-0.5,
                out,
            )
            for cache in caches
        ]
        return card.of_copy(replay_us(bench, calls * 2), nbytes)


def attend_prefill_figure(
    bench: Bench, card: Card, model: str, dtype: DType, count: int, start: int
) -> Figure:
    """Prefill attention of one layer: ``count`` columns from position ``start`` on."""
    heads, kv_heads, dim = HEADS[model]
    with Layers(bench, 4 << 30) as layers:
        kv, _ = paged_cache(layers, model, dtype, 1, start + count)
        call = partial(
            attention.paged_prefill,
            bench.ctx,
            layers.random((count, heads, dim), DType.BF16),
            layers.random((count, 2 * (heads + kv_heads) * dim), DType.BF16),
            kv,
            layers.numbers(np.zeros(count, np.int32), DType.I32),
            layers.numbers(np.arange(start, start + count, dtype=np.int32), DType.I32),
            dim**-0.5,
            layers.columns(count, heads * dim),
        )
        flop = 4.0 * dim * heads * (count * start + count * (count + 1) / 2)
        return card.of_matmul(replay_us(bench, [call] * 3, 5), flop)


def mixer_calls(
    bench: Bench, layers: Layers, model: str, op: Any, batch: int, count: int, num_layers: int
) -> list[Callable[[], None]]:
    """One call for each layer."""
    dims = MIXERS[model]
    heads = dims.num_value_heads
    rng = np.random.default_rng(3)
    weights = GatedDeltaWeights(
        layers.random((4, dims.channels), DType.BF16),
        layers.numbers(rng.uniform(-1, 1.5, heads).astype(np.float32), DType.F32),
        layers.numbers(rng.normal(0, 1, heads).astype(np.float32), DType.F32),
        layers.random((dims.value_dim,), DType.BF16),
    )
    projected = layers.random((count, dims.channels + dims.value_width), DType.BF16)
    ab = layers.numbers(rng.normal(0, 2, (count, 2 * heads)).astype(np.float32), DType.F32)
    slots = layers.numbers(np.arange(batch, dtype=np.int32), DType.I32)
    fold = layers.numbers(np.ones(batch, np.int32), DType.I32)
    out = layers.columns(count, dims.value_width)
    calls: list[Callable[[], None]] = []
    for _ in range(num_layers):
        state = GatedDeltaState(
            layers.zeros((batch, heads, dims.key_dim, dims.value_dim), DType.F32),
            layers.zeros((batch, 3, dims.channels), DType.BF16),
            layers.zeros((batch, 1, dims.channels), DType.BF16),
            layers.zeros((batch, 1, dims.key_width), DType.F32),
            layers.zeros((batch, 1, dims.value_width), DType.F32),
            layers.zeros((batch, 1, heads), DType.F32),
            layers.zeros((batch, 1, heads), DType.F32),
        )
        calls.append(
            partial(op, bench.ctx, projected, ab, weights, dims, state, slots, fold, 1e-6, out)
        )
    return calls


def delta_figure(bench: Bench, card: Card, model: str, batch: int) -> Figure:
    """Decode of one layer that folds one record: the state is read and written."""
    dims = MIXERS[model]
    nbytes = 2 * 4 * batch * dims.num_value_heads * dims.key_dim * dims.value_dim
    num_layers = max(4, 2 * ROTATION_BYTES // nbytes)
    with Layers(bench, 4 << 30) as layers:
        calls = mixer_calls(bench, layers, model, gated_delta.decode, batch, batch, num_layers)
        return card.of_copy(replay_us(bench, calls), nbytes)


def delta_prefill_figure(bench: Bench, model: str, count: int) -> Figure:
    """Prefill of one layer, and nanoseconds a token."""
    with Layers(bench, 4 << 30) as layers:
        calls = mixer_calls(bench, layers, model, gated_delta.prefill, 1, count, 2)
        us = replay_us(bench, calls, 5)
        return {"us": round(us, 1), "ns_a_token": round(us * 1e3 / count, 1)}


class Experts:
    """One layer of the 35B, and columns for it."""

    def __init__(self, bench: Bench, layers: Layers) -> None:
        self.bench, self.layers = bench, layers
        shapes = {
            GATE_UP_FORMAT: (NUM_EXPERTS * 2 * EXPERT_WIDTH, HIDDEN),
            DOWN_FORMAT: (NUM_EXPERTS * HIDDEN, EXPERT_WIDTH),
        }
        weights = Weights(bench)
        made = [weights.make(layers.arena, format, *shape) for format, shape in shapes.items()]
        self.gate_up, self.down = made
        self.expert_bytes = sum(matrix.storage.nbytes for matrix in made) / NUM_EXPERTS

    def operands(self, count: int, seed: int) -> tuple[tuple[Any, ...], int]:
        """Columns, choices and the residual of ``count`` tokens; also the distinct experts."""
        rng = np.random.default_rng(seed)
        x = self.layers.columns(count, HIDDEN)
        linear.pack(self.bench.ctx, self.layers.random((count, HIDDEN), DType.BF16), x)
        ranked = np.argsort(rng.random((count, NUM_EXPERTS)), axis=1)[:, :CHOSEN]
        ranked = ranked.astype(np.int32)
        operands = (
            x,
            self.gate_up,
            self.down,
            self.layers.numbers(ranked, DType.I32),
            self.layers.numbers(rng.random((count, CHOSEN)).astype(np.float32), DType.F32),
            self.layers.random((count, HIDDEN), DType.BF16),
            self.layers.numbers(rng.random(count).astype(np.float32), DType.F32),
            self.layers.zeros((count, HIDDEN), DType.BF16),
        )
        return operands, len(np.unique(ranked))

    def residual(self, operands: tuple[Any, ...]) -> Any:
        """Run once and read the residual back."""
        moe.experts(self.bench.ctx, *operands)
        residual = operands[-1]
        staged = self.bench.staging.rows(0, residual.nbytes)
        flat = Tensor(residual.address, DType.U8, (residual.nbytes,))
        self.bench.stream.download(staged, flat)
        self.bench.stream.synchronize()
        words = host_array(staged).view(np.uint16).astype(np.uint32) << np.uint32(16)
        return words.view(np.float32).reshape(residual.shape)


def expert_figures(bench: Bench, card: Card) -> dict[str, Any]:
    """Experts of one layer, gathered and sorted, and their agreement."""
    found: dict[str, Any] = {}
    with Layers(bench, 4 << 30) as layers:
        experts = Experts(bench, layers)
        many, _ = experts.operands(136, 0)
        # The sums of a linear input lie behind all its columns: the same eight are packed anew.
        x = layers.columns(8, HIDDEN)
        linear.pack(bench.ctx, layers.random((8, HIDDEN), DType.BF16), x)
        rest = (tensor.rows(0, 8) for tensor in many[3:7])
        few = (x, *many[1:3], *rest, layers.zeros((8, HIDDEN), DType.BF16))
        together, alone = experts.residual(many)[:8], experts.residual(few)
        error = np.linalg.norm(together - alone) / np.linalg.norm(alone)
        found["experts sorted against gathered"] = float(error)
        for count in (1, 2, 4, 8):
            lists = [experts.operands(count, seed) for seed in range(12)]
            calls = [partial(moe.experts, bench.ctx, *operands) for operands, _ in lists]
            distinct = float(np.mean([number for _, number in lists]))
            figure = card.of_copy(replay_us(bench, calls), distinct * experts.expert_bytes)
            found[f"experts T={count}"] = figure | {"distinct": distinct}
        for count in (32, 1024, 4096):
            operands, distinct = experts.operands(count, 5)
            flop = 2.0 * count * CHOSEN * 3 * HIDDEN * EXPERT_WIDTH
            us = replay_us(bench, [partial(moe.experts, bench.ctx, *operands)] * 2, 5)
            share = distinct * experts.expert_bytes / us / 1e3 / card.copy_gb_s
            found[f"experts T={count}"] = card.of_matmul(us, flop) | {"of_copy": round(share, 3)}
        router = layers.numbers(
            np.random.default_rng(6).normal(0, 3, (8, NUM_EXPERTS + 1)).astype(np.float32),
            DType.F32,
        )
        choices = many[3].rows(0, 8), many[4].rows(0, 8), many[6].rows(0, 8)
        route = partial(moe.route, bench.ctx, router, *choices)
        found["route T=8"] = {"us": round(replay_us(bench, [route] * 20), 2)}
    return found


def measure(bench: Bench) -> dict[str, Any]:
    """Every figure, printed as it comes."""
    card = measure_card(bench)
    found: dict[str, Any] = {"card": card._asdict()}
    sys.stdout.write(f"{card}\n")
    jobs: dict[str, Callable[[], Any]] = {}
    for model in HEADS:
        for dtype in (DType.BF16, DType.I8):
            for batch, positions in ((1, 1024), (1, 8192), (8, 8192), (1, 32768), (1, 131072)):
                name = f"decode attention {model} {dtype.name} B={batch} {positions}"
                jobs[name] = partial(attend_figure, bench, card, model, dtype, batch, positions)
    for model in MIXERS:
        for batch in (1, 2, 4, 8):
            name = f"delta decode {model} B={batch}"
            jobs[name] = partial(delta_figure, bench, card, model, batch)
        jobs[f"delta prefill {model} T=2048"] = partial(delta_prefill_figure, bench, model, 2048)
    for dtype, count, start in (
        (DType.BF16, 1024, 0),
        (DType.BF16, 8192, 0),
        (DType.BF16, 1024, 31744),
        (DType.I8, 8192, 0),
    ):
        name = f"prefill attention 27B {dtype.name} T={count} from {start}"
        jobs[name] = partial(attend_prefill_figure, bench, card, "27B", dtype, count, start)
    jobs["experts"] = partial(expert_figures, bench, card)
    for name, job in jobs.items():
        found[name] = job()
        sys.stdout.write(f"{name}: {json.dumps(found[name])}\n")
        sys.stdout.flush()
    return found


def compile_all(folder: Path) -> None:
    """Fill a folder of prebuilt kernels for `measure`."""
    kernels = [make_merge(256), make_expand(), *(make_pack(False, flag) for flag in (False, True))]
    for to_image in (False, True):
        kernels += [make_wide_prefill(to_image), make_wide_int8_prefill(to_image)]
    kernels += [make_rank(NUM_EXPERTS), make_plan(NUM_EXPERTS), make_combine()]
    kernels += [make_split(256, split_stages(256)), make_int8_split(256, int8_stages(256))]
    for dims in MIXERS.values():
        heads = cuda_gated_delta.delta_heads(dims)
        kernels += cuda_gated_delta.kernels_of(heads)
    stages = walk_stages(GATE_UP_FORMAT, HIDDEN // 128, MULTIPROCESSOR_SHARED)
    for kind in ((False, 1), (False, stages), (True, stages)):
        kernels.append(make_gate(GATE_UP_FORMAT, HIDDEN // 128, slot_steps(CHOSEN), *kind))
    kernels.append(make_down(DOWN_FORMAT, EXPERT_WIDTH // 128, slots_each(CHOSEN)))
    kernels.append(make_expert_wide(ExpertWide(GATE_UP_FORMAT, True)))
    kernels.append(make_expert_wide(ExpertWide(DOWN_FORMAT, False)))
    cache = KernelCache(folder)
    for kernel in kernels:
        cache.compiled(kernel, "sm_90")
    mark_prebuilt(folder)


def main() -> None:
    """Measure and print, or compile."""
    options = command_line(__doc__)
    if options.compile:
        compile_all(options.folder)
        return
    with open_device(options.folder) as device:
        bench = Bench(device)
        found = {"device": device.name, **measure(bench)}
        bench.arena.close()
        bench.pinned.close()
    if "OUT" in os.environ:
        text = json.dumps(found, indent=1) + "\n"
        (Path(os.environ["OUT"]) / "gpu_mixers.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
