"""Prefill attention page by page, on the CPU, against float64."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.errors import ShapeError
from ninfer.kernels.cuda import (
    fragments,
)
from ninfer.kernels.cuda.attention_page_prefill import (
    WARP_QUERIES,
    make_page_prefill,
    page_warps,
    shared_bytes,
)
from ninfer.tensor import DType
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.cuda_cache import make_content
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.attention import gated_attention
from tests.support.warpgroup_simulator import launch

HEAD_DIM = 64


@pytest.mark.parametrize(
    ("head_dim", "nbytes", "warps"), [(256, 99 << 10, 4), (256, 163 << 10, 8), (64, 99 << 10, 8)]
)
def test_a_block_has_as_many_warps_as_shared_memory_allows(
    head_dim: int, nbytes: int, warps: int
) -> None:
    assert page_warps(head_dim, nbytes) == warps
    assert shared_bytes(head_dim, warps) <= nbytes


def test_a_block_without_room_for_the_fewest_queries_is_refused() -> None:
    with pytest.raises(ShapeError, match="a block has only 65536 bytes"):
        page_warps(256, 64 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.BF16, DType.I8], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("first", "stop"),
    [
        (0, 1),  # one query, one position
        (40, 110),  # two blocks; pages that some queries see whole, in part and not at all
    ],
)
def test_blocks_hold_what_their_queries_attended(first: int, stop: int, dtype: DType) -> None:
    num_heads, count, warps = 1, stop - first, 4
    content = make_content(dtype, 1, HEAD_DIM, [stop])
    rng = np.random.default_rng(0)
    queries = f32_to_bf16(rng.normal(0, 1, (count, num_heads, HEAD_DIM)).astype(np.float32))
    gates = f32_to_bf16(rng.normal(0, 2, (count, num_heads * HEAD_DIM)).astype(np.float32))
    projected = np.full((count, 2 * (num_heads + 1) * HEAD_DIM), 0xFFFF, np.uint16)
    projected[:, (num_heads + 1) * HEAD_DIM : -HEAD_DIM] = gates
    width = num_heads * HEAD_DIM
    scales = {name: np.zeros(1, np.uint16) for name in ("key_scales", "value_scales")}
    names = ("keys", "values", "key_scales", "value_scales")
    planes = scales | dict(zip(names, content.planes, strict=False))
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
    operands = ("queries", "projected", *names, "table", "rows", "positions", "out")
    addresses: list[Any] = [np.uint64(at[name]) for name in operands]
    addresses.append(addresses[-1] + np.uint64(fragments.fragment_bytes(count, width)))
    extents = (count, num_heads, 1, content.table.shape[1], fragments.padded_width(width))
    numbers: list[Any] = [np.int32(extent) for extent in extents]

    launch(
        octets,
        make_page_prefill(HEAD_DIM, dtype is DType.I8, warps),
        (-(-count // (WARP_QUERIES * warps)), num_heads, 1),
        [*addresses, *numbers, factor],
    )

    words, _ = fragments.unpack_columns(views["out"], count, width)
    exact = gated_attention(
        bf16_to_f32(queries).astype(float),
        bf16_to_f32(gates).astype(float).reshape(count, num_heads, HEAD_DIM),
        [content.keys[0]] * count,
        [content.values[0]] * count,
        list(range(first + 1, stop + 1)),
        HEAD_DIM**-0.5,
    )
    difference = bf16_to_f32(words[:, :width]) - exact
    error = np.linalg.norm(difference, axis=1) / np.linalg.norm(exact, axis=1)
    # Int8 keys are rounded to bf16 on their way to the products.
    assert error.max() <= (2.0**-6 if dtype is DType.I8 else 2.0**-7)
