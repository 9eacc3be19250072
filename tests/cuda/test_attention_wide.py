"""Prefill attention on warpgroups, on the CPU, against float64."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.kernel_source import Kernel
from ninfer.kernels.cuda import (
    fragments,
)
from ninfer.kernels.cuda.attention_expand import make_expand
from ninfer.kernels.cuda.attention_wide import make_wide_prefill
from ninfer.kernels.cuda.attention_wide_int8 import make_wide_int8_prefill
from ninfer.kernels.cuda.column_image import image_bytes, words_of
from ninfer.tensor import DType
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.cuda_cache import make_content
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.attention import gated_attention
from tests.support.warpgroup_simulator import launch

HEAD_DIM = 256
every_chunk = pytest.mark.parametrize(
    ("first", "stop"),
    [
        (0, 3),  # one page, nothing after it
        (30, 150),  # the first warpgroup does not see the last page
        (300, 361),  # six pages: every slot is used again
    ],
)


class Chunk:
    """One sequence of one key head, and a chunk of queries of some heads, in one memory."""

    def __init__(self, first: int, stop: int, dtype: DType, num_heads: int = 2) -> None:
        self.num_heads = num_heads
        self.first, self.stop, self.count = first, stop, stop - first
        self.content = make_content(dtype, 1, HEAD_DIM, [stop])
        rng, count = np.random.default_rng(0), self.count
        numbers = rng.normal(0, 1, (count, self.num_heads, HEAD_DIM)).astype(np.float32)
        self.queries = f32_to_bf16(numbers)
        gates = rng.normal(0, 2, (count, self.num_heads * HEAD_DIM)).astype(np.float32)
        self.gates = f32_to_bf16(gates)
        projected = np.full((count, 2 * (self.num_heads + 1) * HEAD_DIM), 0xFFFF, np.uint16)
        projected[:, (self.num_heads + 1) * HEAD_DIM : -HEAD_DIM] = self.gates
        self.width = self.num_heads * HEAD_DIM
        names = ("keys", "values", "key_scales", "value_scales")
        self.planes = dict(zip(names, self.content.planes, strict=False))
        pages = -(-stop // 64)
        self.octets, self.at, self.views = lay_out(
            {
                "queries": self.queries,
                "projected": projected,
                **self.planes,
                "table": self.content.table,
                "rows": np.zeros(count, np.int32),
                "positions": np.arange(first, stop, dtype=np.int32),
                "wide_keys": np.full((pages, 64, HEAD_DIM), 0xFFFF, np.uint16),
                "wide_values": np.full((pages, 64, HEAD_DIM), 0xFFFF, np.uint16),
                "wide_table": np.full(pages, -1, np.int32),
                "out": np.full(image_bytes(count, self.width), 0xFF, np.uint8),
            }
        )

    def addresses(self, *names: str) -> list[Any]:
        return [np.uint64(self.at[name]) for name in names]

    def attend(
        self,
        kernel: Kernel,
        planes: tuple[str, ...],
        table: str,
        limit: int,
        is_last_ahead: bool | None = None,
    ) -> Any:
        """Run a kernel; its output [T, heads * D] as bf16 words."""
        self.views["out"][...] = 0xFF
        operands = ("queries", "projected", *planes, table, "rows", "positions", "out")
        sums = self.at["out"] + fragments.fragment_bytes(self.count, self.width)
        extents = (self.count, self.num_heads, 1, self.content.table.shape[1], self.width, limit)
        numbers = [np.uint64(sums), *(np.int32(extent) for extent in extents)]
        factor = np.float32(HEAD_DIM**-0.5 * math.log2(math.e))
        arguments: list[Any] = [*self.addresses(*operands), *numbers, factor]
        launch(self.octets, kernel, (1, self.num_heads, 1), arguments,
            is_last_ahead=is_last_ahead,
        )  # fmt: skip
        out, extent = self.views["out"], (self.count, self.width)
        if kernel.name.endswith("_image"):
            return words_of(out, *extent)
        return fragments.unpack_columns(out[: fragments.input_bytes(*extent)], *extent)[0]

    def expand(self, limit: int) -> None:
        names = (*self.planes, "table", "rows", "positions", "wide_keys", "wide_values")
        extents = (self.count, 1, self.content.table.shape[1], limit)
        numbers = [np.int32(extent) for extent in extents]
        arguments: list[Any] = [*self.addresses(*names, "wide_table"), *numbers]
        launch(self.octets, make_expand(), (2, 1, 1), arguments)

    def error(self, words: Any) -> float:
        """Largest error of a column, relative to the column's norm."""
        exact = gated_attention(
            bf16_to_f32(self.queries).astype(float),
            bf16_to_f32(self.gates).astype(float).reshape(self.queries.shape),
            [self.content.keys[0]] * self.count,
            [self.content.values[0]] * self.count,
            list(range(self.first + 1, self.stop + 1)),
            HEAD_DIM**-0.5,
        )
        error = np.linalg.norm(bf16_to_f32(words) - exact, axis=1)
        return float((error / np.linalg.norm(exact, axis=1)).max())


@pytest.mark.parametrize("is_last_ahead", [False, True])
def test_pages_go_through_their_slots_whichever_warpgroup_is_ahead(is_last_ahead: bool) -> None:
    chunk = Chunk(253, 256, DType.BF16, num_heads=1)
    operands = ("keys", "values"), "table", chunk.stop

    words = chunk.attend(make_wide_prefill(True), *operands, is_last_ahead)

    assert chunk.error(words) <= 2.0**-7


@pytest.mark.slow
@every_chunk
def test_a_block_holds_what_its_queries_attended(first: int, stop: int) -> None:
    chunk = Chunk(first, stop, DType.BF16)

    words = chunk.attend(make_wide_prefill(False), ("keys", "values"), "table", stop)

    assert chunk.error(words) <= 2.0**-7


@pytest.mark.slow
@every_chunk
def test_codes_turned_here_or_there_give_the_same_bits(first: int, stop: int) -> None:
    chunk = Chunk(first, stop, DType.I8)

    directly = chunk.attend(make_wide_int8_prefill(False), tuple(chunk.planes), "table", stop - 1)
    chunk.expand(stop)
    wide = chunk.attend(make_wide_prefill(False), ("wide_keys", "wide_values"), "wide_table", stop)

    assert chunk.error(directly) <= 2.0**-7
    np.testing.assert_array_equal(wide, directly)


@pytest.mark.slow
def test_results_are_the_same_in_both_orders() -> None:
    stop = 3
    chunk, coded = Chunk(0, stop, DType.BF16), Chunk(0, stop, DType.I8)

    for make, part, planes, limit in (
        (make_wide_prefill, chunk, ("keys", "values"), stop),
        (make_wide_int8_prefill, coded, tuple(coded.planes), stop - 1),
    ):
        plain, image = (part.attend(make(order), planes, "table", limit) for order in (False, True))
        np.testing.assert_array_equal(image, plain)


def test_a_sequence_is_attended_by_the_one_kernel_or_by_the_other() -> None:
    chunk = Chunk(0, 3, DType.I8)

    chunk.expand(2)
    wide = chunk.attend(make_wide_prefill(False), ("wide_keys", "wide_values"), "wide_table", 2)
    directly = chunk.attend(make_wide_int8_prefill(False), tuple(chunk.planes), "table", 3)

    assert (wide == 0xFFFF).all()
    assert (directly == 0xFFFF).all()
    assert (chunk.views["wide_table"] == -1).all()


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
