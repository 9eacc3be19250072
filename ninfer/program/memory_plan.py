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

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Sizes that follow from model and configuration.

    Attributes:
        weights_bytes: the weight arena, resident when ``free_bytes`` was measured.
        num_state_slots: StateImages of the vector, scratch not counted.
        state_planes: planes of a number of StateImages.
        kv_planes: planes of a number of main page groups.
        round_bytes: block tables, inputs and outputs of units, on the device.
        workspace: placed regions.
        pinned_bytes: host memory that the device copies from and to.
    """

    weights_bytes: int
    num_state_slots: int
    state_planes: Callable[[int], PlaneShapes]
    kv_planes: Callable[[int], PlaneShapes]
    round_bytes: int
    workspace: WorkspaceLayout
    pinned_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes of all arenas, and how they came about.

    Attributes:
        weights_bytes, state_bytes, kv_bytes, round_bytes, workspace_bytes: device arenas.
        pinned_bytes: host arena, not part of the device's account.
        free_bytes: device memory that was free once the weights were resident.
        num_state_slots: StateImages of the vector; the state arena has one more, for scratch.
        num_main_pages: page groups of the main pool.
        table_width: L, most pages of one sequence.
        state_slot_bytes, page_bytes: one StateImage and one page group, as they are copied.
        is_automatic: whether the page groups were solved from ``free_bytes``.
        workspace: where its regions lie.
    """

    weights_bytes: int
    state_bytes: int
    kv_bytes: int
    round_bytes: int
    workspace_bytes: int
    pinned_bytes: int
    free_bytes: int
    num_state_slots: int
    num_main_pages: int
    table_width: int
    state_slot_bytes: int
    page_bytes: int
    is_automatic: bool
    workspace: WorkspaceLayout

    @property
    def planned_bytes(self) -> int:
        """Device bytes still to allocate once the weights are resident."""
        return self.state_bytes + self.kv_bytes + self.round_bytes + self.workspace_bytes

    @property
    def left_bytes(self) -> int:
        """Device bytes that stay free."""
        return self.free_bytes - self.planned_bytes

    def account(self) -> str:
        """A table for people: bytes of every arena and region."""
        kv_source = "automatic" if self.is_automatic else "explicit"
        rows = [
            ("weights", self.weights_bytes, ""),
            (
                "state",
                self.state_bytes,
                f"{self.num_state_slots} slots + 1 scratch, {size(self.state_slot_bytes)} each",
            ),
            (
                "kv",
                self.kv_bytes,
                f"{self.num_main_pages} pages of {PAGE_TOKENS} tokens, "
                f"{size(self.page_bytes)} each, {kv_source}",
            ),
            ("round", self.round_bytes, "block tables, inputs, logits"),
            ("workspace", self.workspace_bytes, "regions below, sharing bytes"),
            *(
                (f"  {region.name}", region.nbytes, f"at {self.workspace.offsets[region.name]}")
                for region in self.workspace.regions
            ),
            ("device total", self.weights_bytes + self.planned_bytes, ""),
            ("left free", self.left_bytes, ""),
            ("pinned host", self.pinned_bytes, "outside the device's total"),
        ]
        width = max(len(name) for name, _, _ in rows)
        return "\n".join(
            f"{name:<{width}}  {nbytes:>17,}  {size(nbytes):>10}  {note}".rstrip()
            for name, nbytes, note in rows
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
    fixed = state_bytes + demand.round_bytes + demand.workspace.nbytes
    low, high = page_bounds(config)
    if config.kv_capacity is not None:
        num_pages = _explicit_pages(config)
    else:
        room = free_bytes - config.kv_headroom_bytes - fixed
        num_pages = _most_pages(demand.kv_planes, low, high, room)
    plan = MemoryPlan(
        weights_bytes=demand.weights_bytes,
        state_bytes=state_bytes,
        kv_bytes=arena_bytes(demand.kv_planes(num_pages)),
        round_bytes=demand.round_bytes,
        workspace_bytes=demand.workspace.nbytes,
        pinned_bytes=demand.pinned_bytes,
        free_bytes=free_bytes,
        num_state_slots=demand.num_state_slots,
        num_main_pages=num_pages,
        table_width=pages_for(config.max_context),
        state_slot_bytes=payload_bytes(demand.state_planes(1)),
        page_bytes=payload_bytes(demand.kv_planes(1)),
        is_automatic=config.kv_capacity is None,
        workspace=demand.workspace,
    )
    missing = -plan.left_bytes
    if plan.is_automatic:
        missing += config.kv_headroom_bytes
    if missing > 0:
        raise _does_not_fit(config, plan, missing)
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


def _explicit_pages(config: EngineConfig) -> int:
    if config.kv_capacity is None:
        raise InvariantError("the KV capacity is automatic")
    low, high = page_bounds(config)
    num_pages = pages_for(config.kv_capacity)
    if not low <= num_pages <= high:
        raise ConfigurationError(
            f"kv_capacity is {config.kv_capacity} tokens; with max_context {config.max_context} "
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


def _does_not_fit(config: EngineConfig, plan: MemoryPlan, missing: int) -> OutOfDeviceMemory:
    """Name the missing bytes and the options that would give most back, largest first."""
    levers: list[tuple[int, str]] = [(plan.workspace_bytes, "prefill_chunk")]
    if config.kv_capacity is not None and plan.num_main_pages > page_bounds(config)[0]:
        levers.append((plan.kv_bytes, "kv_capacity"))
    else:
        levers.append((plan.kv_bytes, "max_context"))
    if plan.is_automatic and config.kv_headroom_bytes:
        levers.append((config.kv_headroom_bytes, "kv_headroom_bytes"))
    if config.device_state_slots:
        levers.append((config.device_state_slots * plan.state_slot_bytes, "device_state_slots"))
    if config.max_concurrency > 1:
        levers.append((config.max_concurrency * plan.state_slot_bytes, "max_concurrency"))
    options = ", ".join(f"{name} ({size(nbytes)})" for nbytes, name in sorted(levers, reverse=True))
    needed = plan.planned_bytes + (config.kv_headroom_bytes if plan.is_automatic else 0)
    return OutOfDeviceMemory(
        f"the device has {plan.free_bytes} bytes left after the weights and the plan needs "
        f"{needed}: {missing} bytes ({size(missing)}) are missing; lower {options}"
    )
