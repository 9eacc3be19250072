"""The size of prefill chunks: what is asked for, else the largest that KV pages can spare."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.config import EngineConfig
from ninfer.errors import OutOfDeviceMemory
from ninfer.program.chunk_choice import SIZES, chunk_sizes, plan_chunks
from ninfer.program.memory_plan import MemoryDemand, MemoryPlan, plan_memory
from ninfer.program.workspace_layout import Phase, Region, lay_out
from ninfer.tensor import DType

PAGE_BYTES = 4096
COLUMN_BYTES = 64
HEADROOM = 10_000


def demand_of(chunk: int) -> MemoryDemand:
    activations = Region("activations", COLUMN_BYTES * chunk, frozenset({Phase.PREFILL}))
    return MemoryDemand(
        weights_bytes=1000,
        num_state_slots=1,
        state_planes=lambda slots: (((slots, 64), DType.F32),),
        kv_planes=lambda pages: (((pages, PAGE_BYTES), DType.U8),),
        workspace=lay_out([activations]),
        prefill_chunk=chunk,
    )


def config_of(**options: int | None) -> EngineConfig:
    plain: dict[str, int | None] = {
        "max_context": 64 * 64,
        "max_concurrency": 8,
        "kv_headroom_bytes": HEADROOM,
    }
    return EngineConfig(**(plain | options))  # type: ignore[arg-type]  # names are the fields' own


def chosen(config: EngineConfig, free_bytes: int) -> MemoryPlan:
    return plan_chunks(config, chunk_sizes(config, 4096), demand_of, free_bytes)


def room_for(pages: int, chunk: int) -> int:
    """Free bytes with which an automatic capacity has exactly so many pages."""
    return HEADROOM + 2 * 256 + COLUMN_BYTES * chunk + pages * PAGE_BYTES


def test_plenty_of_memory_takes_the_largest_size() -> None:
    plan = chosen(config_of(), 1 << 30)

    assert (plan.prefill_chunk, plan.num_main_pages) == (4096, 8 * 64)


@pytest.mark.parametrize(
    ("pages_of_smallest", "chunk"),
    # 2,048 columns cost 16 pages more than 1,024, and 4,096 cost 48.
    [(500, 2048), (256, 2048), (255, 1024), (64, 1024)],
)
def test_little_memory_takes_a_smaller_size(pages_of_smallest: int, chunk: int) -> None:
    plan = chosen(config_of(), room_for(pages_of_smallest, 1024))

    assert plan.prefill_chunk == chunk


def test_an_explicit_size_wins_although_pages_are_lost() -> None:
    plan = chosen(config_of(prefill_chunk=4096), room_for(120, 1024))

    assert (plan.prefill_chunk, plan.num_main_pages) == (4096, 72)


def test_an_explicit_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OutOfDeviceMemory, match="prefill_chunk"):
        chosen(config_of(prefill_chunk=4096), room_for(64, 1024))


def test_pages_that_were_asked_for_take_what_fits_beside_them() -> None:
    config = config_of(kv_capacity=64 * 64)

    fits = chosen(config, 2 * 256 + COLUMN_BYTES * 2048 + 64 * PAGE_BYTES)

    assert (fits.prefill_chunk, fits.num_main_pages) == (2048, 64)


@pytest.mark.parametrize(
    ("device_columns", "sizes"),
    [(1024, (1024,)), (2048, (2048, 1024)), (8192, SIZES), (1, (1024,))],
)
def test_a_device_limits_what_is_chosen(device_columns: int, sizes: tuple[int, ...]) -> None:
    assert chunk_sizes(config_of(), device_columns) == sizes


@settings(deadline=None)
@given(pages=st.integers(0, 600), context_pages=st.integers(1, 80), rows=st.integers(1, 8))
def test_an_automatic_size_never_costs_more_than_a_sixteenth(
    pages: int, context_pages: int, rows: int
) -> None:
    config = config_of(max_context=64 * context_pages, max_concurrency=rows)
    free_bytes = room_for(pages, 1024)
    smallest: MemoryPlan | None = None
    found: MemoryPlan | None = None

    with suppress(OutOfDeviceMemory):
        smallest = plan_memory(config, demand_of(1024), free_bytes)
    with suppress(OutOfDeviceMemory):
        found = chosen(config, free_bytes)

    assert (found is None) is (smallest is None)
    if found is not None and smallest is not None:
        assert 16 * found.num_main_pages >= 15 * smallest.num_main_pages
        larger = [size for size in SIZES if size > found.prefill_chunk]
        for size in larger:
            with suppress(OutOfDeviceMemory):
                plan = plan_memory(config, demand_of(size), free_bytes)
                assert 16 * plan.num_main_pages < 15 * smallest.num_main_pages
