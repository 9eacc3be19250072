"""Experts whose rows come in pieces, on the CPU, against float64; bf16, the widest rows."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    fragments,
)
from ninfer.kernels.cuda.expert_down import down_kernel
from ninfer.kernels.cuda.expert_down_pieces import make_down_by_pieces
from ninfer.kernels.cuda.expert_gate import gate_stages, make_gate
from ninfer.kernels.cuda.weight_layout import pack_weight
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, f32_to_bf16
from tests.support.mixer_simulator import lay_out
from tests.support.narrow_stream import NARROW_BYTES
from tests.support.warpgroup_simulator import launch

BF16 = TensorFormat.BF16
Words = npt.NDArray[np.uint16]


def random_words(rng: Any, *shape: int) -> Words:
    """Bf16 numbers of variance 1 / the last extent."""
    return f32_to_bf16(rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32))


def values(words: Words) -> npt.NDArray[np.float64]:
    return bf16_to_f32(words).astype(np.float64)


def by_words(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Features of a row in the order of words: i and i + 4 of a chunk of eight share one."""
    rows = features.reshape(len(features), -1, 2, 4).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(rows).reshape(len(features), -1)


def test_shapes_follow_the_shared_memory_of_a_block() -> None:
    assert gate_stages(BF16, 16, 1, NARROW_BYTES) == gate_stages(BF16, 16, 8, NARROW_BYTES) == 0
    assert gate_stages(TensorFormat.Q4, 16, 1, NARROW_BYTES) == 1
    assert gate_stages(TensorFormat.Q4, 16, 8, NARROW_BYTES) == 2
    assert down_kernel(BF16, 4, 1, NARROW_BYTES).name == "expert_down_bf16_4_1_by_2"
    assert down_kernel(BF16, 4, 1, 227 << 10).name == "expert_down_bf16_4_1"


@pytest.mark.slow
def test_down_adds_every_piece_of_every_slot() -> None:
    rng = np.random.default_rng(0)
    hidden, width, tokens, chosen, k_tiles = 16, 300, 2, 2, 3
    weight, active = random_words(rng, 3 * hidden, width), random_words(rng, 4, width)
    shared, residual = random_words(rng, tokens, hidden), random_words(rng, tokens, hidden)
    padded = np.zeros((4, 128 * k_tiles), np.uint16)
    padded[:, :width] = active
    experts = np.array([[2, 0], [1, 2]], np.int32)
    weights, gate = (rng.uniform(0, 1, shape).astype(np.float32) for shape in ((2, 2), (2,)))
    octets, at, views = lay_out(
        {
            "weight": pack_weight(BF16, weight.reshape(-1).view(np.uint8), *weight.shape),
            "active": by_words(padded),
            "experts": experts,
            "weights": weights,
            "shared": shared,
            "gate": gate,
            "residual": residual.copy(),
        }
    )
    names = ("weight", "active", "experts", "weights", "shared", "gate", "residual")
    arguments: list[Any] = [np.uint64(at[name]) for name in names]
    arguments += [np.int32(extent) for extent in (hidden, width, chosen)]

    launch(octets, make_down_by_pieces(BF16, k_tiles, 1, 2), (tokens, 1, 1), arguments)

    products = np.einsum(
        "tchi,tci->tch",
        values(weight).reshape(3, hidden, width)[experts],
        values(active).reshape(tokens, chosen, width),
    )
    exact = (weights[..., None] * products).sum(axis=1)
    exact += values(residual) + gate[:, None] * values(shared)
    np.testing.assert_allclose(values(views["residual"]), exact, rtol=2.0**-8, atol=1e-5)


@pytest.mark.slow
def test_gate_multiplies_every_tile_with_more_columns_than_fit_at_once() -> None:
    rng = np.random.default_rng(1)
    hidden, width, tokens, k_tiles = 1200, 32, 6, 10  # two warps have two k tiles
    weight, x = random_words(rng, 3 * 2 * width, hidden), random_words(rng, tokens, hidden)
    weight = f32_to_bf16((16 * bf16_to_f32(weight)).astype(np.float32))
    plan = np.array([[2, 0, 5], [0, 5, 1]], np.int32)
    order = np.array([4, 0, 2, 5, 1, 3], np.int32)
    octets, at, views = lay_out(
        {
            "weight": pack_weight(BF16, weight.reshape(-1).view(np.uint8), *weight.shape),
            "x": fragments.pack_columns(x),
            "experts": np.zeros(1, np.int32),
            "plan": plan,
            "order": order,
            "out": np.full((tokens, 128), 0xFFFF, np.uint16),
        }
    )
    sums = at["x"] + fragments.fragment_bytes(tokens, hidden)
    addresses = (at["weight"], at["x"], sums, *(at[n] for n in ("experts", "plan", "order", "out")))
    arguments: list[Any] = [np.uint64(address) for address in addresses]
    arguments += [np.int32(extent) for extent in (width, tokens, 1, 128, 2)]

    launch(octets, make_gate(BF16, k_tiles, 1, True, 0), (1, 2, 1), arguments)

    exact = np.zeros((tokens, width))
    experts = np.repeat(plan[:, 0], plan[:, 2])
    for token, expert in zip(order, experts, strict=True):
        both = values(weight).reshape(3, 2 * width, hidden)[expert] @ values(x)[token]
        exact[token] = both[:width] / (1 + np.exp(-both[:width])) * both[width:]
    padded = np.full((tokens, 128), np.nan)
    padded[:, :width] = exact
    np.testing.assert_allclose(
        values(views["out"]), by_words(padded), rtol=2.0**-7, atol=1e-4, equal_nan=True
    )
