"""The same numbers given to the host and to CUDA: results as far apart as one rounding to bf16.

Inputs are numbers that bf16 holds, so that both devices begin with the same. The host computes in
binary32, CUDA rounds its results to bf16, and some of what it has between two products. The
contract's bound is 2^-8 of a row's norm; decoded embeddings and rankings are equal.

Token choices have their comparison in `test_sampling_on_devices`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.ops import (
    attention,
    embedding,
    kv_cache,
    linear,
    moe,
    norm,
    pointwise,
    sampling,
)
from ninfer.ops.gated_delta import GatedDeltaDims
from ninfer.ops.kv_cache import RopeSpec
from ninfer.ops.linear_operands import WEIGHT_FORMATS
from ninfer.tensor import DType, Tensor, TensorFormat
from ninfer.tensor_formats import bf16_to_f32, decode_int8_g64, f32_to_bf16
from tests.ops.test_moe import payload, route_on
from tests.support.attention_columns import random_columns
from tests.support.cuda_bench import CudaBench
from tests.support.cuda_cache import make_content
from tests.support.guarded_bench import GuardedBench
from tests.support.mixer_bench import EPS, Mixer, i32
from tests.support.paged_cache import make_cache, planes

pytestmark = pytest.mark.gpu

Array = npt.NDArray[Any]
BOUND = 2.0**-8
"""Of a row's norm; one result in bf16."""

GATED_BOUND = 2 * BOUND
"""Gates and ups are a result in bf16, and so is what is made of them."""

INT8_BOUND = 2 * BOUND
"""Weights of positions that are scaled by the steps of codes are a result in bf16, too."""

BENCH_BYTES = 1 << 28

every_format = pytest.mark.parametrize("format", WEIGHT_FORMATS, ids=lambda f: f.name)
every_count = pytest.mark.parametrize("count", [1, 5, 8, 24, 100, 300])


def normal(seed: int, *shape: int, deviation: float = 1.0) -> Array:
    """Random numbers that bf16 holds."""
    values = np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)
    return bf16_to_f32(f32_to_bf16(values))


def on_both(body: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What a body finds on the host and on CUDA."""
    with GuardedBench(nbytes=BENCH_BYTES) as bench:
        host = body(bench)
    with CudaBench(nbytes=BENCH_BYTES) as bench:
        return host, body(bench)


def assert_twins(host: Array, cuda: Array, bound: float = BOUND) -> None:
    """Require that no row is further from the host's than ``bound`` of its norm."""
    rows, others = (x.reshape(len(x), -1).astype(np.float64) for x in (host, cuda))
    assert rows.shape == others.shape
    distances = np.linalg.norm(others - rows, axis=1) / np.linalg.norm(rows, axis=1)
    assert np.max(distances) <= bound


@every_format
@every_count
@pytest.mark.parametrize("shape", [(96, 300), (160, 1152)])
def test_products(format: TensorFormat, shape: tuple[int, int], count: int) -> None:
    weight = payload(format, normal(1, *shape, deviation=shape[1] ** -0.5).astype(np.float64))
    x = normal(2, count, shape[1])

    def product(bench: Any) -> Array:
        out = bench.out_activations((count, shape[0]))
        matrix = bench.matrix(format, weight, *shape)
        linear.project(bench.ctx, bench.in_columns(x), matrix, out)
        bench.check()
        return np.asarray(bench.read_activations(out))

    assert_twins(*on_both(product))


@every_format
@every_count
def test_products_that_are_added(format: TensorFormat, count: int) -> None:
    shape = (96, 384)
    weight = payload(format, normal(1, *shape, deviation=shape[1] ** -0.5).astype(np.float64))
    x, before = normal(2, count, shape[1]), normal(3, count, shape[0])

    def added(bench: Any) -> Array:
        residual = changing(bench, before)
        matrix = bench.matrix(format, weight, *shape)
        linear.project_add(bench.ctx, bench.in_columns(x), matrix, residual)
        bench.check()
        return np.asarray(bench.read_activations(residual))

    assert_twins(*on_both(added))


@every_format
@every_count
def test_gated_products(format: TensorFormat, count: int) -> None:
    shape = (2 * 160, 256)
    weight = payload(format, normal(1, *shape, deviation=shape[1] ** -0.5).astype(np.float64))
    x = normal(2, count, shape[1])

    def gated(bench: Any) -> Array:
        matrix = bench.matrix(format, weight, *shape)
        between, hidden = bench.out_activations((count, 320)), bench.out_columns(count, 160)
        linear.project_gated(bench.ctx, bench.in_columns(x), matrix, between, hidden)
        bench.check()
        return np.asarray(bench.read_columns(hidden))

    assert_twins(*on_both(gated), GATED_BOUND)


def changing(bench: Any, values: Array) -> Tensor:
    """A buffer of the activation type that an op may change."""
    is_bf16 = bench.device.activation_dtype is DType.BF16
    tensor: Tensor = bench.inout(f32_to_bf16(values) if is_bf16 else values)
    return tensor


@pytest.mark.parametrize("width", [64, 1000, 5120])
@every_count
def test_norms(width: int, count: int) -> None:
    x, weight = normal(1, count, width, deviation=3.0), f32_to_bf16(normal(2, width))

    def normed(bench: Any) -> Array:
        out = bench.out_columns(count, width)
        norm.rms_norm(bench.ctx, bench.activations(x), bench.put(weight), EPS, out)
        bench.check()
        return np.asarray(bench.read_columns(out))

    assert_twins(*on_both(normed))


@pytest.mark.parametrize("width", [64, 160, 17408])
@pytest.mark.parametrize("count", [1, 24, 130])
def test_swiglu(width: int, count: int) -> None:
    gate_up = normal(1, count, 2 * width, deviation=3.0)

    def gated(bench: Any) -> Array:
        out = bench.out_columns(count, width)
        pointwise.swiglu(bench.ctx, bench.activations(gate_up), out)
        bench.check()
        return np.asarray(bench.read_columns(out))

    assert_twins(*on_both(gated))


@every_format
def test_embeddings(format: TensorFormat) -> None:
    table = payload(format, normal(1, 50, 200).astype(np.float64))
    tokens = i32(0, 49, 3, 36, 3)

    def gathered(bench: Any) -> Array:
        out = bench.out_activations((len(tokens), 200))
        matrix = bench.matrix(format, table, 50, 200)
        embedding.gather(bench.ctx, matrix, bench.put(tokens), out)
        bench.check()
        return np.asarray(bench.read_activations(out))

    host, cuda = on_both(gathered)
    np.testing.assert_array_equal(bf16_to_f32(f32_to_bf16(host)), cuda)


TINY_ROPE = RopeSpec(1e7, 16, (3, 3, 2))
REAL_ROPE = RopeSpec(1e7, 64, (11, 11, 10))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.I8], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "rope"),
    [(4, 2, 64, TINY_ROPE), (24, 4, 256, REAL_ROPE)],
)
def test_what_is_appended_to_a_cache(
    num_heads: int, num_kv_heads: int, head_dim: int, rope: RopeSpec, dtype: DType
) -> None:
    count, table = 90, [[3, 0], [1, 2]]
    projected = normal(1, count, 2 * (num_heads + num_kv_heads) * head_dim, deviation=2.0)
    norms = [f32_to_bf16(normal(seed, head_dim, deviation=0.3)) for seed in (2, 3)]
    places = np.random.default_rng(4).permutation(256)[:count].astype(np.int32)
    axes = np.random.default_rng(5).integers(0, 300, (3, count)).astype(np.int32)

    def appended(bench: Any) -> tuple[Array, ...]:
        kv = make_cache(bench, dtype, num_kv_heads, head_dim, table, 4)
        queries = bench.out_activations((count, num_heads, head_dim))
        kv_cache.append(
            bench.ctx,
            bench.activations(projected),
            bench.put(norms[0]),
            bench.put(norms[1]),
            EPS,
            rope,
            bench.put(axes),
            bench.put(places % 128),
            bench.put(places // 128),
            kv,
            queries,
        )
        bench.check()
        raw = [bench.read_tensor(plane) for plane in planes(kv)]
        at = (np.array(table)[places // 128, places % 128 // 64], slice(None), places % 64)
        stored = [plane[at] for plane in raw]
        if dtype is DType.I8:
            wide = [decode_int8_g64(stored[n], stored[n + 2]) for n in (0, 1)]
        else:
            wide = [bf16_to_f32(stored[n]) for n in (0, 1)]
        return (bench.read_activations(queries), *wide)

    (queries, *stored), (cuda_queries, *cuda_stored) = on_both(appended)
    assert_twins(queries.reshape(-1, head_dim), cuda_queries.reshape(-1, head_dim))
    # [keys and values, columns, heads, D], each head for itself.
    assert_twins(
        np.stack(stored).reshape(-1, head_dim), np.stack(cuda_stored).reshape(-1, head_dim)
    )


@pytest.mark.parametrize("dtype", [DType.BF16, DType.I8], ids=lambda d: d.name)
@pytest.mark.parametrize("is_prefill", [False, True], ids=["decode", "prefill"])
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 2, 64), (24, 4, 256)])
def test_attention(
    num_heads: int, num_kv_heads: int, head_dim: int, is_prefill: bool, dtype: DType
) -> None:
    lengths = [200] if is_prefill else [1, 63, 65, 700]
    places = [(row, length - 1) for row, length in enumerate(lengths)]
    if is_prefill:
        places = [(0, position) for position in range(130, 200)]
    columns = random_columns(num_heads, num_kv_heads, head_dim, places)
    content = make_content(dtype, num_kv_heads, head_dim, lengths)
    op = attention.paged_prefill if is_prefill else attention.paged_decode

    def attended(bench: Any) -> Array:
        out = bench.out_columns(len(places), num_heads * head_dim)
        op(
            bench.ctx,
            bench.activations(held(columns.queries)),
            bench.activations(held(columns.projected)),
            content.on(bench),
            bench.put(columns.table_rows),
            bench.put(columns.positions),
            head_dim**-0.5,
            out,
        )
        bench.check()
        return np.asarray(bench.read_columns(out))

    assert_twins(*on_both(attended), INT8_BOUND if dtype is DType.I8 else BOUND)


def held(values: Array) -> Array:
    """What bf16 holds of numbers; NaN stays."""
    return bf16_to_f32(f32_to_bf16(values))


@pytest.mark.parametrize(
    "dims",
    [GatedDeltaDims(2, 4, 32, 32), GatedDeltaDims(2, 6, 128, 128)],
    ids=["tiny", "real heads"],
)
def test_gated_delta(dims: GatedDeltaDims) -> None:
    x = normal(3, 150, dims.channels + dims.value_width)
    ab = normal(4, 150, 2 * dims.num_value_heads, deviation=2.0)

    def mixed(bench: Any) -> tuple[Array, Array]:
        mixer = Mixer(bench, dims, 1, seed=1)
        mixer.clear(0)
        parts = [mixer.prefill(0, x[:100], ab[:100])]
        for at in range(100, 120):
            one = slice(at, at + 1)
            parts.append(mixer.decode([0], x[one], ab[one], [min(at - 100, 1)]))
        parts.append(mixer.prefill(0, x[120:], ab[120:], 1))
        return np.concatenate(parts), bench.read_tensor(mixer.state.matrices)[0]

    (out, state), (cuda_out, cuda_state) = on_both(mixed)
    assert_twins(out, cuda_out)
    assert_twins(state, cuda_state)


@pytest.mark.parametrize(("num_experts", "chosen"), [(8, 2), (256, 8)])
@pytest.mark.parametrize("count", [1, 8, 40])
def test_rankings(num_experts: int, chosen: int, count: int) -> None:
    router = np.random.default_rng(1).normal(0, 3, (count, num_experts + 1)).astype(np.float32)

    host, cuda = on_both(lambda bench: route_on(bench, router, chosen))

    np.testing.assert_array_equal(cuda[0], host[0])
    np.testing.assert_allclose(cuda[1], host[1], rtol=1e-5)
    np.testing.assert_allclose(cuda[2], host[2], rtol=1e-5)


@every_format
@every_count
def test_experts(format: TensorFormat, count: int) -> None:
    num_experts, chosen, hidden, width = 8, 2, 64, 32
    shapes = (num_experts * 2 * width, hidden), (num_experts * hidden, width)
    weights = [
        payload(format, normal(n, *shape, deviation=shape[1] ** -0.5).astype(np.float64))
        for n, shape in enumerate(shapes)
    ]
    x, shared, before = (normal(seed, count, hidden) for seed in (5, 6, 7))
    rng = np.random.default_rng(8)
    ranked = np.argsort(rng.random((count, num_experts)), axis=1)[:, :chosen].astype(np.int32)
    shares = rng.dirichlet(np.ones(chosen), count).astype(np.float32)
    gates = rng.random(count).astype(np.float32)

    def mixed(bench: Any) -> Array:
        residual = changing(bench, before)
        moe.experts(
            bench.ctx,
            bench.in_columns(x),
            bench.matrix(format, weights[0], *shapes[0]),
            bench.matrix(format, weights[1], *shapes[1]),
            bench.put(ranked),
            bench.put(shares),
            bench.activations(shared),
            bench.put(gates),
            residual,
        )
        bench.check()
        return np.asarray(bench.read_activations(residual))

    assert_twins(*on_both(mixed))


@pytest.mark.parametrize("addressable", [300, 5000])
def test_scores(addressable: int) -> None:
    rng = np.random.default_rng(addressable)
    logits = (rng.standard_normal((6, 5000)) * 4).astype(np.float32)
    targets = rng.integers(0, addressable, 6).astype(np.int32)

    def scored(bench: Any) -> tuple[Array, Array]:
        logprobs, argmax = bench.out((6,)), bench.out((6,), DType.I32)
        operands = (bench.put(logits), bench.put(targets), addressable, logprobs, argmax)
        sampling.score(bench.ctx, *operands)
        bench.check()
        return bench.read_tensor(logprobs), bench.read_tensor(argmax)

    host, cuda = on_both(scored)
    # Both sum some thousand numbers in binary32, each in its own order.
    np.testing.assert_allclose(cuda[0], host[0], rtol=4e-6, atol=4e-6)
    np.testing.assert_array_equal(cuda[1], host[1])
