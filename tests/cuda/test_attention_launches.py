"""Which kernels prefill attention launches, and where pages turned into bf16 lie."""

from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda.device import WIDE_SCRATCH_BYTES
from ninfer.kernels.cuda.attention import paged_prefill
from ninfer.kernels.cuda.attention_expand import ScratchPages
from ninfer.kernels.cuda.fragments import input_bytes
from ninfer.ops.kv_cache import PagedKv
from ninfer.tensor import DType, LinearInput, Tensor

AT = 1 << 20
LONGEST = 1 << 18


class Launches:
    """A stream that keeps the arguments of what it is given."""

    has_warpgroups = True
    shared_bytes = 227 << 10

    def __init__(self) -> None:
        self.scratch = Tensor(AT, DType.U8, (WIDE_SCRATCH_BYTES,))
        self.arguments: dict[str, tuple[Any, ...]] = {}

    def launch(self, kernel: Any, grid: tuple[int, int, int], arguments: tuple[Any, ...]) -> None:
        assert len(arguments) == len(kernel.params)
        self.arguments[kernel.name] = arguments


def launches(dtype: DType, table_width: int, *, has_warpgroups: bool = True) -> Launches:
    stream: Any = Launches()
    stream.has_warpgroups = has_warpgroups
    planes = [Tensor(i << 30, dtype, (8, 4, 64, 256)) for i in (1, 2)]
    steps = [Tensor(i << 30, DType.F16, (8, 4, 64, 4)) for i in (3, 4)]
    table = Tensor(5 << 30, DType.I32, (3, table_width))
    key_steps, value_steps = steps if dtype is DType.I8 else (None, None)
    paged_prefill(
        stream,
        Tensor(6 << 30, DType.BF16, (100, 24, 256)),
        Tensor(7 << 30, DType.BF16, (100, 2 * 28 * 256)),
        PagedKv(planes[0], planes[1], key_steps, value_steps, table),
        Tensor(8 << 30, DType.I32, (100,)),
        Tensor(9 << 30, DType.I32, (100,)),
        1 / 16,
        LinearInput(Tensor(10 << 30, DType.U8, (input_bytes(100, 6144),)), 100, 6144),
    )
    return stream  # type: ignore[no-any-return]


def test_bf16_pages_need_one_kernel() -> None:
    assert list(launches(DType.BF16, 4096).arguments) == ["attention_prefill_wide"]


def test_int8_pages_are_turned_first() -> None:
    made = launches(DType.I8, 100).arguments

    assert list(made) == ["attention_expand", "attention_prefill_wide"]


def test_only_sequences_that_can_be_too_long_have_a_kernel_behind() -> None:
    made = launches(DType.I8, LONGEST // 64).arguments

    assert list(made) == [
        "attention_expand",
        "attention_prefill_wide",
        "attention_prefill_wide_int8",
    ]
    assert made["attention_expand"][-1] == made["attention_prefill_wide"][-2]
    assert made["attention_expand"][-1] == made["attention_prefill_wide_int8"][-2] < LONGEST


def test_what_is_turned_is_what_is_attended() -> None:
    made = launches(DType.I8, 100).arguments

    keys, values, table = made["attention_expand"][7:10]
    assert made["attention_prefill_wide"][2:5] == (keys, values, table)
    assert made["attention_prefill_wide"][12] == 0  # every row of the table is its first


@pytest.mark.parametrize("dtype", [DType.BF16, DType.I8], ids=lambda dtype: dtype.name)
def test_other_devices_need_one_kernel(dtype: DType) -> None:
    made = launches(dtype, 100, has_warpgroups=False).arguments

    (name,) = made
    assert "wide" not in name


@pytest.mark.parametrize(
    ("num_kv_heads", "table_width", "nbytes"),
    [
        (4, LONGEST // 64, WIDE_SCRATCH_BYTES),
        (2, LONGEST // 64, WIDE_SCRATCH_BYTES),
        (4, 17, WIDE_SCRATCH_BYTES),
        (2, 5, 1000),
        (1, 1, 1),
    ],
)
def test_pages_in_scratch_memory_end_where_it_ends(
    num_kv_heads: int, table_width: int, nbytes: int
) -> None:
    pages = ScratchPages(Tensor(AT, DType.U8, (nbytes,)), num_kv_heads, table_width)

    plane = pages.limit * num_kv_heads * 256 * 2
    assert pages.limit <= 64 * table_width
    assert pages.values == pages.keys + plane
    assert pages.limit == 0 or pages.table + 4 * table_width <= pages.keys
    assert pages.limit == 0 or pages.values + plane <= AT + nbytes
    assert pages.keys % 16 == pages.values % 16 == 0


@pytest.mark.parametrize(("num_kv_heads", "positions"), [(4, 98_240), (2, 196_544)])
def test_a_stream_has_room_for_the_positions_that_we_say(num_kv_heads: int, positions: int) -> None:
    scratch = Tensor(AT, DType.U8, (WIDE_SCRATCH_BYTES,))

    assert ScratchPages(scratch, num_kv_heads, LONGEST // 64).limit == positions
