"""One run on a CUDA device: what it is, and what each simple op costs inside a graph.

    python -m benchmarks.gpu_check [FOLDER OF PREBUILT KERNELS]

Every op runs as a chain of equal calls captured in one graph, so that a figure includes its kernel
boundaries but no launch from Python. Reads and writes of a call stay in the second-level cache.
Prints a JSON document, and writes it to ``$OUT/gpu_check.json`` where that folder is named.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.card import copy_gb_s
from benchmarks.gpu_bench import STAGING_BYTES, Bench, command_line, open_device
from ninfer.kernels.cuda.weight_layout import WeightLayout
from ninfer.ops import embedding, kv_cache, norm, pointwise, sampling
from ninfer.ops.kv_cache import PagedKv, RopeSpec
from ninfer.ops.sampling import SamplerRows, mask_words
from ninfer.tensor import DType, Matrix, Tensor, TensorFormat

VOCABULARY = 248320


def link_gb_s(bench: Bench) -> dict[str, float]:
    """Bandwidth of pinned copies over the host link."""
    target = bench.arena.take((STAGING_BYTES,), DType.U8)
    up = bench.time_us(lambda: bench.stream.upload(target, bench.staging), 2)
    down = bench.time_us(lambda: bench.stream.download(bench.staging, target), 2)
    return {"up": STAGING_BYTES / up / 1e3, "down": STAGING_BYTES / down / 1e3}


def columns_us(bench: Bench) -> dict[str, float]:
    """Norm, SwiGLU and embedding."""
    found = {}
    for tokens in (1, 8, 1024):
        x, weight = bench.activations(tokens, 5120), bench.activations(5120)
        out = bench.columns(tokens, 5120)
        found[f"rms_norm 5120 T={tokens}"] = bench.time_us(
            partial(norm.rms_norm, bench.ctx, x, weight, 1e-6, out)
        )
        gate_up, gated = bench.activations(tokens, 2 * 17408), bench.columns(tokens, 17408)
        found[f"swiglu 17408 T={tokens}"] = bench.time_us(
            partial(pointwise.swiglu, bench.ctx, gate_up, gated)
        )
    for format in (TensorFormat.BF16, TensorFormat.Q6):
        layout = WeightLayout(format, 4096, 5120)
        storage = bench.arena.take((layout.nbytes,), DType.U8)
        bench.stream.clear(storage)
        table = Matrix(format, storage, 4096, 5120, 0, 4096)
        tokens_of = bench.put(bench.rng.integers(0, 4096, 8).astype(np.int32), DType.I32)
        rows = bench.arena.take((8, 5120), DType.BF16)
        found[f"embedding {format.name} 5120 T=8"] = bench.time_us(
            partial(embedding.gather, bench.ctx, table, tokens_of, rows)
        )
    return found


def append_us(bench: Bench) -> dict[str, float]:
    """Cache append of the 27B attention layer."""
    found = {}
    heads, kv_heads, dim, pages = 24, 4, 256, 64
    rope = RopeSpec(1e7, 64, (11, 11, 10))
    for dtype in (DType.BF16, DType.I8):
        planes = [bench.arena.take((pages, kv_heads, 64, dim), dtype) for _ in range(2)]
        scales = [bench.arena.take((pages, kv_heads, 64, dim // 64), DType.F16) for _ in range(2)]
        table = bench.put(np.arange(pages, dtype=np.int32).reshape(8, 8), DType.I32)
        is_int8 = dtype is DType.I8
        kv = PagedKv(
            planes[0],
            planes[1],
            scales[0] if is_int8 else None,
            scales[1] if is_int8 else None,
            table,
        )
        for tokens in (1, 8):
            operands = (
                bench.activations(tokens, 2 * (heads + kv_heads) * dim),
                bench.activations(dim),
                bench.activations(dim),
                1e-6,
                rope,
                bench.put(np.full((3, tokens), 8000, np.int32), DType.I32),
                bench.put(np.full(tokens, 77, np.int32), DType.I32),
                bench.put(np.arange(tokens, dtype=np.int32), DType.I32),
                kv,
                bench.arena.take((tokens, heads, dim), DType.BF16),
            )
            found[f"kv append {dtype.name} T={tokens}"] = bench.time_us(
                partial(kv_cache.append, bench.ctx, *operands)
            )
    return found


def sampling_us(bench: Bench) -> dict[str, float]:
    """Token choice over the published vocabulary."""
    found = {}
    kinds = {
        "greedy": (0.0, 0, 1.0, 0.0),
        "no filter": (1.0, 0, 1.0, 0.0),
        "top_k 20, top_p 0.8": (0.7, 20, 0.8, 1.5),
        "top_k 1000, top_p 0.9": (1.0, 1000, 0.9, 0.0),
        "top_p 0.95": (1.0, 0, 0.95, 0.0),
    }
    shape = (8, VOCABULARY)
    tables = {
        "": bench.rng.standard_normal(shape) * 3,
        " nearly equal": bench.rng.standard_normal(shape) * 0.01,
        " equal": np.zeros(shape),
    }
    logits = {
        label: bench.put(values.astype(np.float32), DType.F32) for label, values in tables.items()
    }
    counts = bench.arena.take(shape, DType.I32)
    bench.stream.clear(counts)
    mask = bench.put(np.full((8, mask_words(VOCABULARY)), 0xFFFFFFFF, np.uint32), DType.U32)
    slots = bench.put(np.arange(8, dtype=np.int32), DType.I32)
    tokens = bench.arena.take((8,), DType.I32)
    for name, settings in kinds.items():
        for batch in (1, 8):
            rows = _rows(bench, batch, *settings)
            for label, values in logits.items():
                found[f"sample {name}{label} B={batch}"] = bench.time_us(
                    partial(
                        sampling.sample,
                        bench.ctx,
                        values.rows(0, batch),
                        rows,
                        counts,
                        slots.rows(0, batch),
                        mask.rows(0, batch),
                        VOCABULARY,
                        tokens.rows(0, batch),
                    ),
                    calls=10,
                )
    logprobs = bench.arena.take((8,), DType.F32)
    found["score B=8"] = bench.time_us(
        partial(sampling.score, bench.ctx, logits[""], tokens, VOCABULARY, logprobs, slots),
        calls=10,
    )
    return found


def _rows(
    bench: Bench, batch: int, temperature: float, top_k: int, top_p: float, presence: float
) -> SamplerRows:
    def full(value: float) -> Tensor:
        return bench.put(np.full(batch, value, np.float32), DType.F32)

    return SamplerRows(
        temperature=full(temperature),
        top_p=full(top_p),
        min_p=full(0.0),
        presence=full(presence),
        frequency=full(0.0),
        top_k=bench.put(np.full(batch, top_k, np.int32), DType.I32),
        seeds=bench.put(np.ones((batch, 2), np.uint32), DType.U32),
        positions=bench.put(np.arange(batch, dtype=np.int32), DType.I32),
    )


def python_us(bench: Bench) -> dict[str, float]:
    """Time the interpreter spends on one launch and on one graph launch."""
    x, weight, out = bench.activations(1, 64), bench.activations(64), bench.columns(1, 64)

    def call() -> None:
        norm.rms_norm(bench.ctx, x, weight, 1e-6, out)

    call()
    bench.stream.begin_capture()
    call()
    graph = bench.stream.end_capture()
    found = {}
    for name, work in (("op", call), ("graph launch", lambda: graph.launch(bench.stream))):
        bench.stream.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            work()
        found[f"python {name}"] = (time.perf_counter() - start) / 200 * 1e6
    bench.stream.synchronize()
    graph.close()
    return found


def main() -> None:
    """Measure and print."""
    with open_device(command_line(__doc__, compiles=False).folder) as device:
        bench = Bench(device)
        document = {
            "device": device.name,
            "driver": device.properties.driver_version,
            "multiprocessors": device.properties.num_multiprocessors,
            "copy_gb_s": round(copy_gb_s(bench), 1),
            "link_gb_s": {name: round(value, 1) for name, value in link_gb_s(bench).items()},
        }
        figures: dict[str, float] = {}
        for measure in (columns_us, append_us, sampling_us, python_us):
            figures |= measure(bench)
        document["us"] = {name: round(value, 2) for name, value in figures.items()}
        bench.arena.close()
        bench.pinned.close()
    text = json.dumps(document, indent=1)
    sys.stdout.write(text + "\n")
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "gpu_check.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
