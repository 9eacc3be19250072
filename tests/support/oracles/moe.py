"""Float64 oracle of routing and experts. Source: model contract 3.6."""

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def route(router: F64, chosen: int) -> tuple[npt.NDArray[np.int64], F64, F64]:
    """Rank the experts of [T, E + 1] logits: indices [T, k], weights [T, k], shared gate [T]."""
    logits = router[:, :-1]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    experts = np.argsort(-probabilities, axis=1, kind="stable")[:, :chosen]
    weights = np.take_along_axis(probabilities, experts, axis=1)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return experts, weights, 1 / (1 + np.exp(-router[:, -1]))


def expert_sum(
    x: F64,
    gate_up: F64,
    down: F64,
    experts: npt.NDArray[np.int64],
    weights: F64,
    shared: F64,
    shared_gate: F64,
) -> F64:
    """Sum of the routed and the shared experts: gate_up [E, 2I, H], down [E, H, I]; [T, H]."""
    width = down.shape[2]
    out = shared_gate[:, None] * shared
    for t in range(x.shape[0]):
        for e, weight in zip(experts[t], weights[t], strict=True):
            both = gate_up[e] @ x[t]
            gate, up = both[:width], both[width:]
            out[t] += weight * (down[e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def expert_plan(
    choices: npt.NDArray[np.int32], num_experts: int, columns: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Entries (expert, first place, count) of at most ``columns``, and the order of choices.

    Entries whose experts have more columns an entry come first, by eighths of ``columns``.
    """
    order = np.argsort(choices.reshape(-1), kind="stable").astype(np.int32)
    classes: list[list[tuple[int, int, int]]] = [[] for _ in range(8)]
    start = 0
    for expert, count in enumerate(np.bincount(choices.reshape(-1), minlength=num_experts)):
        each = int(np.ceil(count / max(1, np.ceil(count / columns))))
        for done in range(0, int(count), max(1, each)):
            entry = (expert, start + done, min(each, int(count) - done))
            classes[7 - (each - 1) * 8 // columns].append(entry)
        start += int(count)
    entries = [entry for alike in classes for entry in alike]
    return np.array(entries, np.int32).reshape(-1, 3), order
