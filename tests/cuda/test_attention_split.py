"""Decode attention's split kernel on the CPU, against float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import attention_decode, attention_int8_split, attention_page_decode
from ninfer.kernels.cuda.attention_splits import num_splits
from ninfer.tensor import DType
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.cuda_cache import make_content
from tests.support.mixer_simulator import MixerSimulator, lay_out


def ring(head_dim: int, is_int8: bool) -> Kernel:
    if is_int8:
        return attention_int8_split.make_int8_split(
            head_dim, attention_int8_split.int8_stages(head_dim)
        )
    return attention_decode.make_split(head_dim, attention_decode.split_stages(head_dim))


def page_by_page(head_dim: int, is_int8: bool) -> Kernel:
    return attention_page_decode.make_page_split(head_dim)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(ring, DType.BF16), (ring, DType.I8), (page_by_page, DType.BF16)],
    ids=["bf16", "int8", "bf16 by pages"],
)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "lengths", "blocks"),
    [
        (4, 2, 64, [1, 63, 65, 150], 3),
        (4, 2, 64, [1, 150], 12),
        (10, 1, 64, [140], 2),
        (12, 1, 128, [70], 2),
        (6, 1, 256, [200], 2),
    ],
)
def test_splits_hold_what_was_attended_and_nothing_else(
    make: Callable[[int, bool], Kernel],
    dtype: DType,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    lengths: list[int],
    blocks: int,
) -> None:
    content = make_content(dtype, num_kv_heads, head_dim, lengths)
    rng, columns, width = np.random.default_rng(0), len(lengths), content.table.shape[1]
    queries = f32_to_bf16(rng.normal(0, 1, (columns, num_heads, head_dim)).astype(np.float32))
    most = num_splits(64 * width)
    planes = dict(
        zip(("keys", "values", "key_scales", "value_scales"), content.planes, strict=False)
    )
    octets, at, views = lay_out(
        {
            "queries": queries,
            "key_scales": np.zeros(1, np.uint16),
            "value_scales": np.zeros(1, np.uint16),
            **planes,
            "table": content.table,
            "rows": np.arange(columns, dtype=np.int32),
            "positions": np.array(lengths, np.int32) - 1,
            "partial": np.full((columns, num_heads, most, head_dim), np.nan, np.float32),
            "stats": np.full((columns, num_heads, most, 2), np.nan, np.float32),
            "tickets": np.zeros(2, np.uint32),
        }
    )
    outputs = "partial", "stats", *(("tickets",) if dtype is DType.I8 else ())
    names = ("queries", "keys", "values", "key_scales", "value_scales", "table", "rows")
    sharing, scale = num_heads // num_kv_heads, head_dim**-0.5
    MixerSimulator(octets).launch(
        make(head_dim, dtype is DType.I8),
        (blocks, 1, 1),
        (
            *(at[name] for name in (*names, "positions", *outputs)),
            columns,
            num_kv_heads,
            sharing,
            width,
            most,
            np.float32(scale * math.log2(math.e)),  # type: ignore[arg-type]
        ),
    )

    assert not views["tickets"].any()
    partial, stats = views["partial"].astype(float), views["stats"].astype(float)
    for column, length in enumerate(lengths):
        count = num_splits(length)
        assert np.isnan(partial[column, :, count:]).all()
        assert np.isnan(stats[column, :, count:]).all()
        for head in range(num_heads):
            keys, values = (
                content.keys[column][head // sharing],
                content.values[column][head // sharing],
            )
            score = keys @ bf16_to_f32(queries[column, head]).astype(float) * scale
            weight = np.exp(score - score.max())
            exact = weight / weight.sum() @ values
            largest, total = stats[column, head, :count].T
            share = np.exp2(largest - largest.max())
            got = share @ partial[column, head, :count] / (share @ total)
            assert np.linalg.norm(got - exact) <= 2.0**-8 * np.linalg.norm(exact)
