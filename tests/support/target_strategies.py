"""Random resource targets over what a test's Program has now."""

from collections.abc import Iterator, Mapping, Sequence

from hypothesis import strategies as st

from ninfer.program.contract import (
    Capture,
    CheckpointHandle,
    Evict,
    FromCheckpoint,
    Materialize,
    Rearrange,
    Release,
    Retain,
    Root,
    SequenceHandle,
    Target,
)
from tests.support.booked_program import demand_of


def draw_target(
    data: st.DataObject,
    checkpoints: Mapping[CheckpointHandle, Sequence[int]],
    sequences: Sequence[SequenceHandle],
    fresh_tokens: Iterator[int],
) -> Target:
    """Draw a target whose handles exist; whether it is feasible is open."""
    cached = sorted(checkpoints, key=lambda handle: handle.index)
    has_actions = data.draw(st.booleans())
    evicted = data.draw(st.sets(st.sampled_from(cached))) if cached and has_actions else set()
    actions = tuple(Evict(handle) for handle in cached if handle in evicted)
    kinds = ["materialize"] * 3 + ["rearrange"]
    if sequences:
        kinds += ["capture", "capture", "retain", "release"]
    match data.draw(st.sampled_from(kinds)):
        case "materialize":
            return _draw_materialize(data, checkpoints, cached, actions, fresh_tokens)
        case "rearrange":
            return Rearrange(actions)
        case kind:
            handle = data.draw(st.sampled_from(sequences))
            if kind == "release":
                return Release(handle)
            return Capture(handle, actions) if kind == "capture" else Retain(handle, actions)


def _draw_materialize(
    data: st.DataObject,
    checkpoints: Mapping[CheckpointHandle, Sequence[int]],
    cached: Sequence[CheckpointHandle],
    actions: tuple[Evict, ...],
    fresh_tokens: Iterator[int],
) -> Materialize:
    budget = data.draw(st.sampled_from([1, 2, 30, 64, 120]))
    num_suffix = data.draw(st.sampled_from([1, 2, 20, 63, 90, 0]))
    suffix = [next(fresh_tokens) for _ in range(num_suffix)]
    is_root = data.draw(st.integers(0, 3)) == 0
    if cached and not is_root:
        source = data.draw(st.sampled_from(cached))
        demand = demand_of((*checkpoints[source], *suffix), budget)
        return Materialize(demand, FromCheckpoint(source, data.draw(st.booleans())), actions)
    return Materialize(demand_of([*suffix, next(fresh_tokens)], budget), Root(), actions)
