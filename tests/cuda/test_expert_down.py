"""Down of the chosen experts and the sum, by blocks that go on, on the CPU, against float64."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda.expert_down import down_groups, make_down, slots_each
from ninfer.kernels.cuda.expert_down_pieces import make_down_by_pieces
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32
from tests.cuda.test_ranked_experts import by_words, rounded, weight
from tests.support.mixer_simulator import lay_out
from tests.support.warpgroup_simulator import launch

Q5, Q6 = TensorFormat.Q5, TensorFormat.Q6
NUM_EXPERTS = 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "hidden", "width", "chosen", "groups", "piece"),
    [
        (Q5, 80, 512, 3, 2, 0),  # blocks of two and of three row tiles
        (Q6, 48, 300, 2, 1, 0),
        (Q5, 32, 128, 9, 1, 0),  # a second slot of one warp
        (Q6, 48, 300, 2, 2, 2),
    ],
)
def test_every_feature_is_the_sum_of_its_slots(
    format: TensorFormat, hidden: int, width: int, chosen: int, groups: int, piece: int
) -> None:
    rng = np.random.default_rng(width)
    tokens, k_tiles = 2, -(-width // 128)
    stored, values = weight(rng, format, NUM_EXPERTS * hidden, width)
    active_words, active = rounded(rng.normal(0, width**-0.5, (tokens * chosen, width)))
    shared_words, shared = rounded(rng.normal(0, 1, (tokens, hidden)))
    before_words, before = rounded(rng.normal(0, 1, (tokens, hidden)))
    padded = np.zeros((tokens * chosen, 128 * k_tiles), np.uint16)
    padded[:, :width] = active_words
    experts = np.argsort(rng.random((tokens, NUM_EXPERTS)), axis=1)[:, :chosen].astype(np.int32)
    weights, gate = (
        rng.uniform(0, 1, shape).astype(np.float32) for shape in ((tokens, chosen), (tokens,))
    )
    octets, at, views = lay_out(
        {
            "weight": stored,
            "active": by_words(padded),
            "experts": experts,
            "weights": weights,
            "shared": shared_words,
            "gate": gate,
            "residual": before_words.copy(),
        }
    )
    names = ("weight", "active", "experts", "weights", "shared", "gate", "residual")
    arguments: list[Any] = [np.uint64(at[name]) for name in names]
    arguments += [np.int32(extent) for extent in (hidden, width, chosen)]
    each = slots_each(chosen)
    if piece:
        kernel = make_down_by_pieces(format, k_tiles, each, piece)
    else:
        kernel = make_down(format, k_tiles, each)

    launch(octets, kernel, (tokens, groups, 1), arguments)

    products = np.einsum(
        "tchi,tci->tch",
        values.reshape(NUM_EXPERTS, hidden, width)[experts],
        active.reshape(tokens, chosen, width),
    )
    exact = before + (weights[..., None] * products).sum(axis=1) + gate[:, None] * shared
    np.testing.assert_allclose(
        bf16_to_f32(views["residual"]), exact, rtol=2.0**-8, atol=2.0**-8 * np.abs(exact).max()
    )


@pytest.mark.parametrize(
    ("num_tokens", "groups"), [(1, 128), (4, 128), (5, 105), (8, 66), (128, 4), (1000, 1)]
)
def test_all_blocks_find_room_at_once(num_tokens: int, groups: int) -> None:
    kernel = make_down(Q5, 4, 1)

    assert kernel.min_blocks == 4
    assert down_groups(kernel, num_tokens, 128, 132) == groups
