"""A whole mixture in two kernels that rank the experts themselves, on the CPU, against float64."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.kernels.cuda import (
    expert_down_ranked,
    fragments,
)
from ninfer.kernels.cuda.expert_down_ranked import make_down_ranked
from ninfer.kernels.cuda.expert_gate_ranked import make_gate_ranked
from ninfer.kernels.cuda.weight_layout import pack_weight
from ninfer.tensor import TensorFormat
from ninfer.tensor_formats import bf16_to_f32, encode_matrix, f32_to_bf16
from tests.support.mixer_simulator import lay_out
from tests.support.oracles.linear import weight_values
from tests.support.oracles.moe import route
from tests.support.warpgroup_simulator import launch

EXPERTS, CHOSEN, TOKENS = 40, 3, 2
Values = npt.NDArray[np.float64]


def rounded(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint16], Values]:
    """Words of the activation type, and what they mean."""
    words = f32_to_bf16(values.astype(np.float32))
    return words, bf16_to_f32(words).astype(np.float64)


def weight(rng: Any, format: TensorFormat, rows: int, columns: int) -> tuple[Any, Values]:
    """A matrix in device storage, and its values."""
    payload = encode_matrix(format, rng.normal(0, 1, (rows, columns)).astype(np.float32))
    return pack_weight(format, payload, rows, columns), weight_values(
        format, payload, rows, columns
    )


def by_words(features: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Features of a row in the order of words: i and i + 4 of a chunk of eight share one."""
    rows = features.reshape(len(features), -1, 2, 4).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(rows).reshape(len(features), -1)


def logits(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Some experts are wanted alike."""
    found: npt.NDArray[np.float32] = rng.normal(0, 1, (TOKENS, EXPERTS + 1)).astype(np.float32)
    found[:, [7, 9, 33]] = 5.0
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("width", "tiles"), [(16, 1), (48, 2)])
def test_gate_finds_the_experts_of_its_tokens(width: int, tiles: int) -> None:
    rng = np.random.default_rng(3)
    hidden = 256
    stored, values = weight(rng, TensorFormat.Q4, EXPERTS * 2 * width, hidden)
    words, x = rounded(rng.normal(0, hidden**-0.5, (TOKENS, hidden)))
    router = logits(rng)
    octets, at, views = lay_out(
        {
            "weight": stored,
            "x": fragments.pack_columns(words),
            "router": router,
            "out": np.full((TOKENS * CHOSEN, 128), 0xFFFF, np.uint16),
        }
    )
    sums = at["x"] + fragments.fragment_bytes(TOKENS, hidden)
    addresses = (at["weight"], at["x"], sums, at["router"], at["out"])
    arguments: list[Any] = [np.uint64(address) for address in addresses]
    arguments += [np.int32(extent) for extent in (width, CHOSEN, 128)]
    kernel = make_gate_ranked(TensorFormat.Q4, 2, EXPERTS, tiles)

    launch(octets, kernel, (-(-width // 16 // tiles), CHOSEN, TOKENS), arguments)

    experts, _, _ = route(router.astype(np.float64), CHOSEN)
    both = np.einsum("tcij,tj->tci", values.reshape(EXPERTS, 2 * width, hidden)[experts], x)
    exact = both[..., :width] / (1 + np.exp(-both[..., :width])) * both[..., width:]
    padded = np.full((TOKENS * CHOSEN, 128), np.nan)
    padded[:, :width] = exact.reshape(-1, width)
    np.testing.assert_allclose(
        bf16_to_f32(views["out"]), by_words(padded), rtol=2.0**-7, atol=1e-4, equal_nan=True
    )


@pytest.mark.slow
def test_down_adds_the_chosen_and_the_shared_expert() -> None:
    rng = np.random.default_rng(4)
    hidden, width, shared_width = 32, 384, 200
    stored, values = weight(rng, TensorFormat.Q5, EXPERTS * hidden, width)
    shared_stored, shared_values = weight(rng, TensorFormat.W8, hidden, shared_width)
    active_words, active = rounded(rng.normal(0, width**-0.5, (TOKENS * CHOSEN, width)))
    gate_up_words, gate_up = rounded(rng.normal(0, 1, (TOKENS, 2 * shared_width)))
    before_words, before = rounded(rng.normal(0, 1, (TOKENS, hidden)))
    router = logits(rng)
    octets, at, views = lay_out(
        {
            "weight": stored,
            "shared": shared_stored,
            "active": by_words(active_words),
            "router": router,
            "gate_up": gate_up_words,
            "residual": before_words.copy(),
        }
    )
    names = ("weight", "shared", "active", "router", "gate_up", "residual")
    arguments: list[Any] = [np.uint64(at[name]) for name in names]
    arguments += [np.int32(extent) for extent in (hidden, width, shared_width, CHOSEN)]
    kernel = make_down_ranked(TensorFormat.Q5, 3, TensorFormat.W8, 2, EXPERTS)
    kernel = replace(kernel, threads=expert_down_ranked.THREADS)

    launch(octets, kernel, (hidden // 16, TOKENS, 1), arguments)

    experts, shares, shared_gate = route(router.astype(np.float64), CHOSEN)
    products = np.einsum(
        "tcij,tcj->tci",
        values.reshape(EXPERTS, hidden, width)[experts],
        active.reshape(TOKENS, CHOSEN, width),
    )
    gate, up = gate_up[:, :shared_width], gate_up[:, shared_width:]
    shared = (gate / (1 + np.exp(-gate)) * up) @ shared_values.T
    exact = before + (shares[..., None] * products).sum(axis=1) + shared_gate[:, None] * shared
    np.testing.assert_allclose(
        bf16_to_f32(views["residual"]), exact, rtol=2.0**-7, atol=2.0**-7 * np.abs(shared).max()
    )
