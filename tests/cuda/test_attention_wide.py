"""Prefill attention on warpgroups, on the CPU, against float64."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    attention_prefill,
    attention_wide,
    attention_wide_int8,
    attention_wide_parts,
    device_functions,
    fragments,
)
from ninfer.kernels.cuda.attention_wide import make_wide_prefill
from ninfer.kernels.cuda.attention_wide_int8 import make_wide_int8_prefill
from ninfer.tensor import DType
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.cuda_cache import make_content
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.attention import gated_attention
from tests.support.warpgroup_simulator import launch

MODULES = (
    attention_prefill,
    attention_wide,
    attention_wide_int8,
    attention_wide_parts,
    device_functions,
    fragments,
)
HEAD_DIM = 256


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.BF16, DType.I8], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("first", "stop"),
    [
        (0, 3),  # one page, nothing after it
        (30, 150),  # the first warpgroup does not see the last page
        (300, 361),  # six pages: every slot is used again
    ],
)
def test_a_block_holds_what_its_queries_attended(first: int, stop: int, dtype: DType) -> None:
    num_heads, count = 2, stop - first
    content = make_content(dtype, 1, HEAD_DIM, [stop])
    rng = np.random.default_rng(0)
    queries = f32_to_bf16(rng.normal(0, 1, (count, num_heads, HEAD_DIM)).astype(np.float32))
    gates = f32_to_bf16(rng.normal(0, 2, (count, num_heads * HEAD_DIM)).astype(np.float32))
    projected = np.full((count, 2 * (num_heads + 1) * HEAD_DIM), 0xFFFF, np.uint16)
    projected[:, (num_heads + 1) * HEAD_DIM : -HEAD_DIM] = gates
    width = num_heads * HEAD_DIM
    is_int8 = dtype is DType.I8
    names = ("keys", "values", "key_scales", "value_scales")
    planes = dict(zip(names, content.planes, strict=False))
    octets, at, views = lay_out(
        {
            "queries": queries,
            "projected": projected,
            **planes,
            "table": content.table,
            "rows": np.zeros(count, np.int32),
            "positions": np.arange(first, stop, dtype=np.int32),
            "out": np.full(fragments.input_bytes(count, width), 0xFF, np.uint8),
        }
    )
    factor: Any = np.float32(HEAD_DIM**-0.5 * math.log2(math.e))
    operands = ("queries", "projected", *planes, "table", "rows", "positions", "out")
    addresses: list[Any] = [np.uint64(at[name]) for name in operands]
    addresses.append(addresses[-1] + np.uint64(fragments.fragment_bytes(count, width)))
    extents = (count, num_heads, 1, content.table.shape[1], width)
    numbers: list[Any] = [np.int32(extent) for extent in extents]

    launch(
        MODULES,
        octets,
        make_wide_int8_prefill() if is_int8 else make_wide_prefill(),
        (1, num_heads, 1),
        [*addresses, *numbers, factor],
    )

    words, sums = fragments.unpack_columns(views["out"], count, width)
    exact = gated_attention(
        bf16_to_f32(queries).astype(float),
        bf16_to_f32(gates).astype(float).reshape(count, num_heads, HEAD_DIM),
        [content.keys[0]] * count,
        [content.values[0]] * count,
        list(range(first + 1, stop + 1)),
        HEAD_DIM**-0.5,
    )
    error = np.linalg.norm(bf16_to_f32(words) - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() <= 2.0**-7
    assert np.isfinite(sums).all()


def test_a_component_is_its_code_times_its_scale_within_half_a_step() -> None:
    """Every code with a scale of every significand, and the bound of `attention_wide_int8`."""
    codes = np.arange(-128, 128)
    scales = 1 + np.arange(1024) / 1024  # every significand of f16
    high = bf16_to_f32(f32_to_bf16(scales.astype(np.float32))).astype(np.float64)
    low = scales - high

    small = bf16_to_f32(f32_to_bf16((codes[:, None] * low).astype(np.float32)))
    made = bf16_to_f32(f32_to_bf16((codes[:, None] * high + small).astype(np.float32)))

    exact = codes[:, None] * scales
    assert (bf16_to_f32(f32_to_bf16(low.astype(np.float32))) == low).all()
    assert (np.abs(made - exact) <= (2.0**-8 + 2.0**-16) * np.abs(exact)).all()
