"""How large prefill chunks are when nobody has said it.

Larger chunks read weights for more columns at once and need more activations, which KV pages then
lack. So the largest size is taken that costs at most a sixteenth of the pages which the smallest
one leaves; where memory is plenty, or the pages were asked for, it costs none. An explicit size
always wins, also over memory: a plan that does not fit then is refused. Bytes are the memory plan's
business.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ninfer.config import EngineConfig
from ninfer.errors import OutOfDeviceMemory
from ninfer.program.memory_plan import MemoryDemand, MemoryPlan, plan_memory

SIZES: Final = (4096, 2048, 1024)
"""Sizes to choose from, largest first; the last one is taken where nothing else can be."""

_LEAST_SHARE: Final = (15, 16)
"""Pages that have to be left of those which the smallest size leaves."""


def chunk_sizes(config: EngineConfig, device_columns: int) -> tuple[int, ...]:
    """Sizes that may be chosen, largest first.

    Args:
        config: start-up options.
        device_columns: columns from which on the device gains nothing any more.
    """
    if config.prefill_chunk is not None:
        return (config.prefill_chunk,)
    return tuple(chunk for chunk in SIZES if chunk <= device_columns) or SIZES[-1:]


def plan_chunks(
    config: EngineConfig,
    sizes: Sequence[int],
    demand_of: Callable[[int], MemoryDemand],
    free_bytes: int,
) -> MemoryPlan:
    """Plan memory with the largest size that leaves enough pages.

    Args:
        config: start-up options.
        sizes: largest first, at least one.
        demand_of: what model and configuration need with chunks of a size.
        free_bytes: device memory that is free with the weights resident.

    Raises:
        ConfigurationError: see `plan_memory`.
        OutOfDeviceMemory: not even the smallest size fits.
    """
    smallest = plan_memory(config, demand_of(sizes[-1]), free_bytes)
    part, whole = _LEAST_SHARE
    for chunk in sizes[:-1]:
        try:
            plan = plan_memory(config, demand_of(chunk), free_bytes)
        except OutOfDeviceMemory:
            continue
        if plan.num_main_pages * whole >= smallest.num_main_pages * part:
            return plan
    return smallest
