"""memory_plan: page bounds, explicit and automatic capacity, missing bytes, the account."""

import re
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.config import EngineConfig
from ninfer.errors import ConfigurationError, InvariantError, OutOfDeviceMemory
from ninfer.program.memory_plan import (
    MemoryDemand,
    PlaneShapes,
    PlannedArena,
    page_bounds,
    plan_memory,
    size,
)
from ninfer.program.workspace_layout import Phase, Region, lay_out
from ninfer.tensor import DType

SLOT_BYTES = 1000
PAGE_BYTES = 64 * 8 * 4 + 100


def state_planes(num_slots: int) -> PlaneShapes:
    return (((num_slots, 250), DType.F32),)


def kv_planes(num_pages: int) -> PlaneShapes:
    return (((num_pages, 64, 8), DType.F32), ((num_pages, 50), DType.F16))


WORKSPACE = lay_out([Region("residual", 5000, frozenset({Phase.PREFILL, Phase.DECODE}))])
DEMAND = MemoryDemand(
    weights_bytes=123_456,
    num_state_slots=3,
    state_planes=state_planes,
    kv_planes=kv_planes,
    workspace=WORKSPACE,
    prefill_chunk=1024,
    fixed=(PlannedArena("round", 700),),
    pinned=(PlannedArena("round", 800),),
)
FIXED_BYTES = 4096 + 5120 + 700
"""State of 3 + 1 slots (4000), workspace (5000), each up to a multiple of 256; and the round."""


def config_of(
    max_context: int = 200, max_concurrency: int = 2, kv_capacity: int | None = None
) -> EngineConfig:
    return EngineConfig(
        max_context=max_context,
        max_concurrency=max_concurrency,
        kv_capacity=kv_capacity,
        kv_headroom_bytes=10_000,
        device_state_slots=1,
    )


def kv_arena_bytes(num_pages: int) -> int:
    return -(-num_pages * 2048 // 256) * 256 + -(-num_pages * 100 // 256) * 256


@pytest.mark.parametrize(
    ("max_context", "max_concurrency", "bounds"),
    [(1, 1, (1, 1)), (64, 8, (8, 8)), (65, 1, (2, 2)), (200, 2, (4, 8)), (4096, 3, (64, 192))],
)
def test_page_bounds_hold_one_sequence_and_one_page_each(
    max_context: int, max_concurrency: int, bounds: tuple[int, int]
) -> None:
    assert page_bounds(config_of(max_context, max_concurrency)) == bounds


def test_an_explicit_capacity_is_rounded_up_to_pages() -> None:
    plan = plan_memory(config_of(kv_capacity=321), DEMAND, 1 << 20)

    assert (plan.num_main_pages, plan.table_width, plan.is_automatic) == (6, 4, False)


@pytest.mark.parametrize("kv_capacity", [8 * 64 + 1, 100_000])
def test_a_capacity_that_no_request_could_use_is_refused(kv_capacity: int) -> None:
    with pytest.raises(ConfigurationError, match=r"193\.\.512") as refused:
        plan_memory(config_of(kv_capacity=kv_capacity), DEMAND, 1 << 20)

    assert refused.value.field == "kv_capacity"


def test_a_capacity_below_one_page_for_each_sequence_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"449\.\.512"):
        plan_memory(config_of(64, 8, kv_capacity=448), DEMAND, 1 << 20)


def test_an_automatic_capacity_takes_what_is_left_beside_the_headroom() -> None:
    free_bytes = FIXED_BYTES + 10_000 + kv_arena_bytes(6)

    exact = plan_memory(config_of(), DEMAND, free_bytes)
    one_less = plan_memory(config_of(), DEMAND, free_bytes - 1)

    assert exact.num_main_pages == 6
    assert one_less.num_main_pages == 5


def test_an_automatic_capacity_stops_at_what_all_sequences_can_use() -> None:
    assert plan_memory(config_of(), DEMAND, 1 << 40).num_main_pages == 8


def test_too_little_memory_names_missing_bytes_and_what_to_lower() -> None:
    needed = FIXED_BYTES + 10_000 + kv_arena_bytes(4)

    with pytest.raises(OutOfDeviceMemory, match=r"\b77 bytes .* are missing; lower ") as refused:
        plan_memory(config_of(), DEMAND, needed - 77)

    assert re.findall(r"([a-z_]+) \(\d", str(refused.value).split("lower ")[1]) == [
        "kv_headroom_bytes",
        "max_context",
        "prefill_chunk",
        "max_concurrency",
        "device_state_slots",
    ]


def test_an_explicit_plan_keeps_no_headroom_and_names_its_own_option() -> None:
    needed = FIXED_BYTES + kv_arena_bytes(8)
    config = config_of(kv_capacity=512)

    fits = plan_memory(config, DEMAND, needed)
    with pytest.raises(OutOfDeviceMemory, match=r" 1 bytes .*lower kv_capacity"):
        plan_memory(config, DEMAND, needed - 1)

    assert fits.left_bytes == 0


def test_copies_move_payload_without_alignment() -> None:
    plan = plan_memory(config_of(), DEMAND, 1 << 20)

    assert (plan.state_slot_bytes, plan.page_bytes) == (SLOT_BYTES, 2048 + 100)


def test_scratch_is_in_the_state_arena() -> None:
    plan = plan_memory(config_of(), DEMAND, 1 << 20)

    assert plan.nbytes("state") == 4096


def test_an_unknown_arena_is_our_mistake() -> None:
    with pytest.raises(InvariantError, match="scoring"):
        plan_memory(config_of(), DEMAND, 1 << 20).nbytes("scoring")


def test_the_account_lists_every_arena_and_region_and_adds_up() -> None:
    plan = plan_memory(config_of(), DEMAND, 1 << 20)

    rows = re.findall(r"^ *(\S.*?) {2,}([-\d,]+) ", plan.account(), re.MULTILINE)
    amounts = {name: int(nbytes.replace(",", "")) for name, nbytes in rows}

    assert [name for name, _ in rows] == [
        "weights",
        "state",
        "kv",
        "round",
        "workspace",
        "residual",
        "device total",
        "left free",
        "pinned round",
    ]
    assert amounts["device total"] == sum(
        amounts[name] for name in ("weights", "state", "kv", "round", "workspace")
    )
    assert amounts["left free"] == (1 << 20) - (amounts["device total"] - amounts["weights"])


@settings(deadline=None)
@given(
    free_bytes=st.integers(0, 60_000),
    max_context=st.integers(1, 500),
    max_concurrency=st.integers(1, 8),
    num_slots=st.integers(1, 5),
)
def test_an_automatic_plan_is_the_largest_that_fits(
    free_bytes: int, max_context: int, max_concurrency: int, num_slots: int
) -> None:
    config = config_of(max_context, max_concurrency)
    demand = replace(DEMAND, num_state_slots=num_slots)
    low, high = page_bounds(config)
    state_bytes = -(-(num_slots + 1) * SLOT_BYTES // 256) * 256
    room = free_bytes - 10_000 - state_bytes - 5120 - 700
    solved: int | None = None
    fitting = [pages for pages in range(low, high + 1) if kv_arena_bytes(pages) <= room]

    with suppress(OutOfDeviceMemory):
        solved = plan_memory(config, demand, free_bytes).num_main_pages

    assert solved == max(fitting, default=None)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (1 << 30, "1.00 GiB"), (-2048, "-2.00 KiB")],
)
def test_sizes_are_printed_for_people(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
