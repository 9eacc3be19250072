"""Start-up arithmetic of device memory: what there is, what fits, and an account to print.

    weights (resident already) | state | kv | tables and round inputs | workspace | headroom

Everything but the KV pool has a size that follows from the configuration. The pool's page groups
are asked for explicitly, or solved once from the memory that was free after the weights were
loaded, keeping the headroom; they lie in ``[max(L, max_concurrency), max_concurrency * L]`` with
``L = ceil(max_context / 64)``. Shapes of planes come from their owners; nothing is allocated here
(design, sections 6 and 7).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ninfer.config import PAGE_TOKENS, EngineConfig
from ninfer.errors import ConfigurationError, InvariantError, OutOfDeviceMemory
from ninfer.program.kv_pool import pages_for
from ninfer.program.workspace_layout import WorkspaceLayout, aligned
from ninfer.tensor import DType, Shape, Tensor

PlaneShapes = Sequence[tuple[Shape, DType]]

STATE: Final = "state"
KV: Final = "kv"
WORKSPACE: Final = "workspace"

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class PlannedArena:
    """One allocation.

    Attributes:
        name: unique in the plan.
        nbytes: size.
        note: what decides the size, for the account.
    """

    name: str
    nbytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Sizes that follow from model and configuration.

    Attributes:
        weights_bytes: the weight arena, resident when ``free_bytes`` is measured.
        num_state_slots: StateImages of the vector, scratch not counted.
        state_planes: planes of a number of StateImages.
        kv_planes: planes of a number of main page groups.
        workspace: placed regions.
        prefill_chunk: tokens of a full chunk, which the workspace is made for.
        fixed: every other device arena: inputs and outputs of units with their block tables, the
            staging of a purpose.
        pinned: host arenas that the device copies from and to.
    """

    weights_bytes: int
    num_state_slots: int
    state_planes: Callable[[int], PlaneShapes]
    kv_planes: Callable[[int], PlaneShapes]
    workspace: WorkspaceLayout
    prefill_chunk: int
    fixed: tuple[PlannedArena, ...] = ()
    pinned: tuple[PlannedArena, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes of all arenas, and how they came about.

    Attributes:
        weights_bytes: resident before the plan was made.
        arenas: device arenas still to allocate: ``state``, ``kv``, ``workspace`` and the fixed
            ones.
        pinned: host arenas, not part of the device's account.
        free_bytes: device memory that was free once the weights were resident.
        num_main_pages: page groups of the main pool.
        table_width: L, most pages of one sequence.
        state_slot_bytes: one StateImage, as it is copied.
        page_bytes: one main page group, as it is copied.
        is_automatic: whether the page groups were solved from ``free_bytes``.
        workspace: where its regions lie.
        prefill_chunk: tokens of a full prefill chunk.
    """

    weights_bytes: int
    arenas: tuple[PlannedArena, ...]
    pinned: tuple[PlannedArena, ...]
    free_bytes: int
    num_main_pages: int
    table_width: int
    state_slot_bytes: int
    page_bytes: int
    is_automatic: bool
    workspace: WorkspaceLayout
    prefill_chunk: int

    @property
    def planned_bytes(self) -> int:
        """Device bytes still to allocate once the weights are resident."""
        return sum(arena.nbytes for arena in self.arenas)

    @property
    def left_bytes(self) -> int:
        """Device bytes that stay free; negative when the plan does not fit."""
        return self.free_bytes - self.planned_bytes

    def nbytes(self, name: str) -> int:
        """Size of a device arena.

        Raises:
            InvariantError: there is no such arena.
        """
        for arena in self.arenas:
            if arena.name == name:
                return arena.nbytes
        raise InvariantError(f"no arena {name!r} was planned")

    def account(self) -> str:
        """A table for people: bytes of every arena and of every workspace region."""
        regions = [
            PlannedArena(
                f"  {region.name}",
                region.nbytes,
                f"at {self.workspace.offsets[region.name]:,}, shared where lifetimes exclude",
            )
            for region in self.workspace.regions
        ]
        rows = [
            PlannedArena("weights", self.weights_bytes),
            *self.arenas,
            PlannedArena("device total", self.weights_bytes + self.planned_bytes),
            PlannedArena("left free", self.left_bytes),
            *(PlannedArena(f"pinned {arena.name}", arena.nbytes, "host") for arena in self.pinned),
        ]
        behind = 1 + next(i for i, row in enumerate(rows) if row.name == WORKSPACE)
        rows[behind:behind] = regions
        width = max(len(row.name) for row in rows)
        return "\n".join(
            f"{row.name:<{width}}  {row.nbytes:>19,}  {size(row.nbytes):>10}  {row.note}".rstrip()
            for row in rows
        )


def plan_memory(config: EngineConfig, demand: MemoryDemand, free_bytes: int) -> MemoryPlan:
    """Solve the page groups and size every arena.

    Args:
        config: start-up options.
        demand: what model and configuration need.
        free_bytes: device memory that is free with the weights resident.

    Raises:
        ConfigurationError: an explicit ``kv_capacity`` is outside what the options can use.
        OutOfDeviceMemory: the plan does not fit; says how many bytes are missing and what to lower.
    """
    state_bytes = arena_bytes(demand.state_planes(demand.num_state_slots + 1))
    fixed = sum(arena.nbytes for arena in demand.fixed) + demand.workspace.nbytes + state_bytes
    low, high = page_bounds(config)
    kept = 0
    if config.kv_capacity is None:
        kept = config.kv_headroom_bytes
        num_pages = _most_pages(demand.kv_planes, low, high, free_bytes - kept - fixed)
    else:
        num_pages = _explicit_pages(config, config.kv_capacity)
    plan = _plan(demand, config, state_bytes, num_pages, free_bytes)
    missing = kept - plan.left_bytes
    if missing > 0:
        raise _does_not_fit(config, plan, kept, missing)
    return plan


def page_bounds(config: EngineConfig) -> tuple[int, int]:
    """Fewest and most main page groups that the options can use."""
    width = pages_for(config.max_context)
    return max(width, config.max_concurrency), config.max_concurrency * width


def arena_bytes(planes: PlaneShapes) -> int:
    """Bytes of an arena that hands out all planes, alignment included."""
    return sum(aligned(Tensor(0, dtype, shape).nbytes) for shape, dtype in planes)


def payload_bytes(planes: PlaneShapes) -> int:
    """Bytes of the planes themselves."""
    return sum(Tensor(0, dtype, shape).nbytes for shape, dtype in planes)


def size(nbytes: int) -> str:
    """Bytes for people: ``1.50 GiB``."""
    amount, unit = float(nbytes), 0
    while abs(amount) >= 1024 and unit + 1 < len(_UNITS):
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.2f} {_UNITS[unit]}" if unit else f"{nbytes} B"


def _plan(
    demand: MemoryDemand, config: EngineConfig, state_bytes: int, num_pages: int, free_bytes: int
) -> MemoryPlan:
    is_automatic = config.kv_capacity is None
    slot_bytes = payload_bytes(demand.state_planes(1))
    page_bytes = payload_bytes(demand.kv_planes(1))
    arenas = (
        PlannedArena(
            STATE,
            state_bytes,
            f"{demand.num_state_slots} slots and 1 scratch, {size(slot_bytes)} each",
        ),
        PlannedArena(
            KV,
            arena_bytes(demand.kv_planes(num_pages)),
            f"{num_pages} pages of {PAGE_TOKENS} tokens, {size(page_bytes)} each, "
            f"{'automatic' if is_automatic else 'explicit'}",
        ),
        *demand.fixed,
        PlannedArena(
            WORKSPACE,
            demand.workspace.nbytes,
            f"prefill chunks of {demand.prefill_chunk} tokens, "
            f"{'automatic' if config.prefill_chunk is None else 'explicit'}",
        ),
    )
    return MemoryPlan(
        weights_bytes=demand.weights_bytes,
        arenas=arenas,
        pinned=demand.pinned,
        free_bytes=free_bytes,
        num_main_pages=num_pages,
        table_width=pages_for(config.max_context),
        state_slot_bytes=slot_bytes,
        page_bytes=page_bytes,
        is_automatic=is_automatic,
        workspace=demand.workspace,
        prefill_chunk=demand.prefill_chunk,
    )


def _explicit_pages(config: EngineConfig, kv_capacity: int) -> int:
    low, high = page_bounds(config)
    num_pages = pages_for(kv_capacity)
    if not low <= num_pages <= high:
        raise ConfigurationError(
            f"kv_capacity is {kv_capacity} tokens; with max_context {config.max_context} "
            f"and max_concurrency {config.max_concurrency} allowed is "
            f"{(low - 1) * PAGE_TOKENS + 1}..{high * PAGE_TOKENS}",
            field="kv_capacity",
        )
    return num_pages


def _most_pages(kv_planes: Callable[[int], PlaneShapes], low: int, high: int, room: int) -> int:
    """Largest number of page groups in ``[low, high]`` that fits ``room``; ``low`` when none does.

    Alignment makes the bytes a step function, but never a falling one.
    """
    while low < high:
        middle = (low + high + 1) // 2
        if arena_bytes(kv_planes(middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _does_not_fit(
    config: EngineConfig, plan: MemoryPlan, kept: int, missing: int
) -> OutOfDeviceMemory:
    """Name the missing bytes and the options to lower, the one behind most bytes first."""
    can_shrink = config.kv_capacity is not None and plan.num_main_pages > page_bounds(config)[0]
    levers = [
        (plan.nbytes(KV), "kv_capacity" if can_shrink else "max_context"),
        (plan.nbytes(WORKSPACE), "prefill_chunk"),
        (kept, "kv_headroom_bytes"),
        (config.device_state_slots * plan.state_slot_bytes, "device_state_slots"),
        ((config.max_concurrency - 1) * plan.state_slot_bytes, "max_concurrency"),
    ]
    options = ", ".join(
        f"{name} ({size(nbytes)})" for nbytes, name in sorted(levers, reverse=True) if nbytes
    )
    return OutOfDeviceMemory(
        f"the device has {plan.free_bytes} bytes free beside the weights and the plan needs "
        f"{plan.planned_bytes + kept}: {missing} bytes ({size(missing)}) are missing; "
        f"lower {options}"
    )
