"""Attention over an int8 cache against a bf16 cache of the same golden keys and values.

Both caches hold roundings of the keys and values that the golden models have in their cache, so how
far the two results may be apart follows from the formats alone:

    int8   |x - code scale| <= scale / 2: half a step of its group of 64
    bf16   |x - x'| <= 2^-8 |x|: half a step of a number

A score moves by at most d = max_j scale sum_i |q_i| e_ij, e being the errors of keys; then weights
move by factors between exp(-2 d) and exp(2 d), and an output (times its gate) by at most

    (exp(2 d) - 1) sum_j p_j |v_j|  +  exp(2 d) sum_j p_j e_j        e_j: the errors of values

`_worst` is that, with the roundings of a device's own arithmetic added as further errors. It holds
for every element; errors that line up are rare, so that a lost or misplaced scale could hide below
it. `_usual` is the deviation of independent errors, evenly spread over a step: to first order

    sum_j p_j^2 (step_j^2 / 12 + (v_j - out)^2 scale^2 sum_i q_i^2 step_ij^2 / 12)

Source of both: the format's page (codes in -127..127, an f16 scale of largest / 127).
"""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ninfer.ops import attention
from ninfer.tensor import DType
from ninfer.tensor_formats import encode_int8_g64
from tests.support.cuda_cache import CacheContent, store_content
from tests.support.device_benches import BenchFactory, every_device
from tests.support.golden import load

F64 = npt.NDArray[np.float64]

SHARING = 4  # query heads of a key head
BF16_UNIT = 2.0**-8
LAYERS = [
    ("tiny-dense", 3),
    ("tiny-dense", 7),
    ("tiny-moe", 3),
    ("real-head-dense", 3),
    ("real-head-moe", 3),
]
every_layer = pytest.mark.parametrize(("case", "layer"), LAYERS)


@dataclasses.dataclass(frozen=True)
class Steps:
    """How far apart the numbers of a format are around keys or values [kv heads, T, D]."""

    half: F64

    @property
    def variance(self) -> F64:
        """Of an error evenly spread over a step."""
        return self.half**2 / 3


@dataclasses.dataclass(frozen=True)
class Case:
    """Keys and values of a layer, one query and gate for each position and head."""

    keys: Any
    values: Any
    queries: Any
    gates: Any

    @property
    def head_dim(self) -> int:
        return int(self.keys.shape[-1])


def golden_case(case: str, layer: int) -> Case:
    golden = load(case)
    keys, values = golden[f"prefill.k.{layer}"], golden[f"prefill.v.{layer}"]
    kv_heads, count, head_dim = keys.shape
    rng = np.random.default_rng(layer)
    shape = (count, kv_heads * SHARING, head_dim)
    # As wide as the golden keys: both have been through a norm and a rotation.
    queries = rng.normal(0, keys.std(), shape).astype(np.float32)
    return Case(keys, values, queries, rng.normal(0, 1, shape).astype(np.float32))


def attend(bench: Any, case: Case, content: CacheContent, is_prefill: bool) -> Any:
    """Every position with its own query, [T, heads, D]."""
    count, heads, head_dim = case.queries.shape
    kv_heads = case.keys.shape[0]
    projected = np.zeros((count, 2 * (heads + kv_heads) * head_dim), np.float32)
    gate = (heads + kv_heads) * head_dim
    projected[:, gate : gate + heads * head_dim] = case.gates.reshape(count, -1)
    out = bench.out_columns(count, heads * head_dim)
    op = attention.paged_prefill if is_prefill else attention.paged_decode
    op(
        bench.ctx,
        bench.activations(case.queries),
        bench.activations(projected),
        content.on(bench),
        bench.put(np.zeros(count, np.int32)),
        bench.put(np.arange(count, dtype=np.int32)),
        head_dim**-0.5,
        out,
    )
    bench.check()
    return bench.read_columns(out).reshape(count, heads, head_dim)


def int8_steps(x: Any) -> Steps:
    _, scales = encode_int8_g64(x)
    return Steps(np.repeat(scales.astype(np.float64), 64, axis=-1) / 2)


def bf16_steps(x: Any) -> Steps:
    return Steps(BF16_UNIT * np.abs(x).astype(np.float64))


def _pieces(case: Case) -> Any:
    """For each position and head: its query, keys, values and weights, gate and indices."""
    scale = case.head_dim**-0.5
    for t, heads in enumerate(case.queries.astype(np.float64)):
        for n, query in enumerate(heads):
            at = n // SHARING, slice(0, t + 1)
            keys, values = (x[at].astype(np.float64) for x in (case.keys, case.values))
            score = keys @ query * scale
            weights = np.exp(score - score.max())
            gate = 1 / (1 + np.exp(-case.gates[t, n].astype(np.float64)))
            yield (t, n), at, query * scale, keys, values, weights / weights.sum(), gate


def _worst(case: Case, keys: Steps, values: Steps, unit: float) -> F64:
    """Largest error of every element; ``unit`` is that of the device's own roundings."""
    bound = np.empty(case.queries.shape)
    for place, at, query, k, v, weights, gate in _pieces(case):
        # Own roundings: query and key as they are multiplied, and sums of 24 bits.
        moved = np.abs(query) * (keys.half[at] + (2 * unit + 2.0**-16) * np.abs(k))
        factor = np.exp(2 * moved.sum(1).max())
        # Weight and value as they are multiplied; result and gate.
        shifted = weights @ (values.half[at] + (2 * unit + 2.0**-16) * np.abs(v))
        whole = (factor - 1) * (weights @ np.abs(v)) + factor * shifted
        bound[place] = gate * (whole + 4 * unit * np.abs(weights @ v)) + 2.0**-40
    return bound


def _usual(case: Case, keys: Steps, values: Steps, unit: float) -> float:
    """Root of the mean square of the errors of all elements."""
    total = np.empty(case.queries.shape)
    for place, at, query, k, v, weights, gate in _pieces(case):
        moved = keys.variance[at] + 2 * (unit * k) ** 2 / 3
        scores = (query**2 * moved).sum(1)
        shifted = values.variance[at] + 2 * (unit * v) ** 2 / 3
        out = weights @ v
        error = weights**2 @ (shifted + (v - out) ** 2 * scores[:, None])
        total[place] = gate**2 * (error + 2 * (unit * out) ** 2 / 3)
    return float(np.sqrt(total.mean()))


@every_layer
def test_codes_of_golden_keys_and_values_are_within_half_a_step(case: str, layer: int) -> None:
    golden = golden_case(case, layer)
    for exact in (golden.keys, golden.values):
        count = exact.shape[1]
        content = store_content(DType.I8, [(exact, exact)])

        stored = content.keys[0]

        assert stored.shape[1] == count
        assert (np.abs(stored - exact) <= int8_steps(exact).half).all()


@every_device
@pytest.mark.parametrize("is_prefill", [False, True], ids=["decode", "prefill"])
@every_layer
def test_an_int8_cache_is_off_by_no_more_than_half_a_step_of_its_groups(
    make_bench: BenchFactory, case: str, layer: int, is_prefill: bool
) -> None:
    golden = golden_case(case, layer)
    found, unit = {}, 0.0
    for dtype in (DType.I8, DType.BF16):
        content = store_content(dtype, [(golden.keys, golden.values)])
        with make_bench() as bench:
            unit = bench.unit
            found[dtype] = attend(bench, golden, content, is_prefill)

    difference = np.abs(found[DType.I8].astype(np.float64) - found[DType.BF16])
    codes = int8_steps(golden.keys), int8_steps(golden.values)
    words = bf16_steps(golden.keys), bf16_steps(golden.values)
    assert (difference <= _worst(golden, *codes, unit) + _worst(golden, *words, unit)).all()
    usual = np.hypot(_usual(golden, *codes, unit), _usual(golden, *words, unit))
    assert 0.5 * usual <= np.sqrt((difference**2).mean()) <= 1.5 * usual
