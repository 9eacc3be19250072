"""Ranking, gate and up and the shared expert in one launch, on the CPU, against float64."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import fragments
from ninfer.kernels.cuda.expert_gate_joined import make_gate_joined, rows_beyond
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.cuda.test_ranked_experts import by_words, rounded, weight
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.moe import route
from tests.support.warpgroup_simulator import launch

Q4, W8 = TensorFormat.Q4, TensorFormat.W8
EXPERTS = 40


@pytest.mark.slow
@pytest.mark.parametrize(("num_tokens", "hidden", "width"), [(3, 304, 32), (7, 1200, 16)])
def test_a_launch_ranks_multiplies_and_has_the_shared_expert(
    num_tokens: int, hidden: int, width: int
) -> None:
    rng = np.random.default_rng(num_tokens)
    shared_width, chosen = 200, 2
    stored, values = weight(rng, Q4, EXPERTS * 2 * width, hidden)
    shared_stored, shared_values = weight(rng, W8, hidden, shared_width)
    words, x = rounded(rng.normal(0, hidden**-0.5, (num_tokens, hidden)))
    gate_up_words, gate_up = rounded(rng.normal(0, 1, (num_tokens, 2 * shared_width)))
    router = rng.normal(0, 1, (num_tokens, EXPERTS + 1)).astype(np.float32)
    router[:, 3] = 4.0  # an expert of all
    router[1, :EXPERTS] = 1.0  # all are wanted alike
    octets, at, views = lay_out(
        {
            "weight": stored,
            "x": fragments.pack_columns(words),
            "router": router,
            "gate_up": gate_up_words,
            "shared_weight": shared_stored,
            "experts": np.full((num_tokens, chosen), -1, np.int32),
            "weights": np.full((num_tokens, chosen), np.nan, np.float32),
            "shared_gate": np.full(num_tokens, np.nan, np.float32),
            "shared": np.full((num_tokens, hidden), 0xFFFF, np.uint16),
            "out": np.full((num_tokens * chosen, 128), 0xFFFF, np.uint16),
        }
    )
    sums = at["x"] + fragments.fragment_bytes(num_tokens, hidden)
    names = ("router", "gate_up", "shared_weight", "experts", "weights", "shared_gate", "shared")
    addresses = (at["weight"], at["x"], sums, *(at[name] for name in names), at["out"])
    arguments: list[Any] = [np.uint64(address) for address in addresses]
    extents = (width, num_tokens, chosen, 128, hidden, shared_width)
    arguments += [np.int32(extent) for extent in extents]
    kernel = make_gate_joined(Q4, -(-hidden // 128), EXPERTS, W8, 2)

    launch(octets, kernel, (1, num_tokens * chosen + rows_beyond(hidden // 16, 1), 1), arguments)

    experts, shares, shared_gate = route(router.astype(np.float64), chosen)
    np.testing.assert_array_equal(views["experts"], experts)
    np.testing.assert_allclose(views["weights"], shares, rtol=1e-5)
    np.testing.assert_allclose(views["shared_gate"], shared_gate, rtol=1e-5)
    rows = values.reshape(EXPERTS, 2 * width, hidden)[experts]
    both = np.einsum("tcij,tj->tci", rows, x)
    exact = both[..., :width] / (1 + np.exp(-both[..., :width])) * both[..., width:]
    padded = np.full((num_tokens * chosen, 128), np.nan)
    padded[:, :width] = exact.reshape(-1, width)
    np.testing.assert_allclose(
        bf16_to_f32(views["out"]), by_words(padded), rtol=2.0**-7, atol=1e-4, equal_nan=True
    )
    gate, up = gate_up[:, :shared_width], gate_up[:, shared_width:]
    shared = (gate / (1 + np.exp(-gate)) * up) @ shared_values.T
    np.testing.assert_allclose(
        bf16_to_f32(views["shared"]), shared, rtol=2.0**-7, atol=2.0**-7 * np.abs(shared).max()
    )
